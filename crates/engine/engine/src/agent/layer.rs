//! The programs of agents: layers of their sandboxes, which are replaced while these live.

use std::collections::BTreeMap;

use atoll_core::id::{AgentId, KeyId, SandboxId};
use atoll_core::layer::{LATEST, Layer, image_of, version_in};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};

use crate::boxed;
use crate::engine::Engine;

use super::Wish;

impl Engine {
    /// The image of a version of an agent's program; without, of the one that was built last.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::ImageNotFound`].
    #[boxed]
    pub async fn agent_version(&self, layer: &str, version: Option<&str>) -> Result<String> {
        let wanted = image_of(layer, version.unwrap_or(LATEST))?;
        self.obtain_image(&wanted).await?;
        let image = self.inner.images.resolve(&wanted).map_err(|_missing| {
            let which = version.map_or_else(String::new, |version| format!(" '{version}'"));
            Error::new(Code::ImageNotFound, format!("the agent program '{layer}' has no version{which} here"))
                .hint("'atoll agent versions' lists what there is, 'atoll agent build' makes one")
        })?;
        let is_one = |name: &&String| version_in(layer, name).is_some_and(|version| version != LATEST);
        Ok(match version {
            // Another one will be the latest.
            None => image.names.iter().find(is_one).cloned().unwrap_or(wanted),
            Some(_) => wanted,
        })
    }

    /// Sees to it that a sandbox has an agent's program: this version; without, the one that it has, or else the latest.
    ///
    /// # Errors
    /// As [`Self::agent_version`] and [`Self::update_sandbox`].
    #[boxed]
    pub async fn put_agent_layer(
        &self,
        sandbox: &SandboxId,
        layer: &str,
        version: Option<&str>,
        by: Option<KeyId>,
    ) -> Result<()> {
        if version.is_none() && self.sandbox(sandbox)?.spec.layers.contains_key(layer) {
            return Ok(());
        }
        let image = self.agent_version(layer, version).await?;
        self.mount_layer(sandbox, layer, image, by).await
    }

    async fn mount_layer(
        &self,
        sandbox: &SandboxId,
        layer: &str,
        image: String,
        by: Option<KeyId>,
    ) -> Result<()> {
        let layers = BTreeMap::from([(layer.to_owned(), Some(image))]);
        let update = SandboxUpdate { layers, asked_by: by, ..SandboxUpdate::default() };
        self.update_sandbox(sandbox, update).await.map(drop)
    }

    /// Puts another version of an agent's program in its sandbox, at once. Processes of this agent, and of others of the same
    /// program there, make way for new ones when they have nothing to do.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`]; [`Code::InvalidState`] for an agent without a layer; as [`Self::agent_version`] and
    /// [`Self::update_sandbox`].
    #[boxed]
    pub async fn update_agent(&self, id: &AgentId, version: Option<&str>, by: Option<KeyId>) -> Result<()> {
        let agent = self.agent_by_id(id)?;
        let Some(layer) = &agent.record.spec.layer else {
            return Err(Error::new(Code::InvalidState, "the agent's program is in no layer")
                .hint("declare it with --layer, or replace its program in the sandbox"));
        };
        let image = self.agent_version(layer, version).await?;
        let digest = |layers: &BTreeMap<String, Layer>| layers.get(layer).map(|layer| layer.digest.clone());
        let before = digest(&self.sandbox(agent.sandbox())?.spec.layers);
        self.mount_layer(agent.sandbox(), layer, image, by).await?;
        if digest(&self.sandbox(agent.sandbox())?.spec.layers) == before {
            return Ok(());
        }
        let same = |other: &super::AgentShared| {
            other.sandbox() == agent.sandbox() && other.record.spec.layer.as_ref() == Some(layer)
        };
        for other in self.inner.agents.all().into_iter().filter(|other| same(other)) {
            if let Some(serves) = &other.record.spec.serves {
                match self.renew_service(agent.sandbox(), &serves.service).await {
                    // There is nothing to renew.
                    Err(error) if error.code == Code::ServiceNotFound => {}
                    renewed => renewed?,
                }
            }
            for session in other.all() {
                // One that has ended has no process.
                drop(session.wishes.send(Wish::Renew).await);
            }
        }
        Ok(())
    }
}
