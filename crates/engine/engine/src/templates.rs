//! Templates: named, versioned recipes.

use atoll_core::error::shorten;
use atoll_core::id::TemplateId;
use atoll_core::policy::EgressPolicy;
use atoll_core::spec::{self, Resources, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_isolation::Execution;
use atoll_store::TemplateRecord;

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, limit_error, store_error};
use crate::pool::PoolName;

impl Engine {
    /// Stores a recipe as the next version of a template.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field; [`Code::ImageNotFound`] when its image is not here, and
    /// [`Code::SnapshotNotFound`] for its snapshot; [`Code::Forbidden`] when the template is another key's.
    #[boxed]
    pub async fn create_template(
        &self,
        name: &str,
        mut recipe: TemplateSpec,
        caller: &Caller,
    ) -> Result<TemplateRecord> {
        spec::recipe_name("name", name)?;
        self.check_template_is_own(name, caller).await?;
        let mut level = None;
        if let Some(id) = &recipe.snapshot {
            let manifest = self.ready_snapshot(id).await?.manifest;
            if !recipe.image.is_empty() && recipe.image != manifest.image {
                return Err(Error::invalid(
                    "image",
                    "the snapshot brings its own image: leave one of them out",
                ));
            }
            level = Some(manifest.isolation);
            recipe.image = manifest.image;
        }
        recipe.validate()?;
        if recipe.snapshot.is_none() && recipe.image != "host" {
            self.obtain_image(&recipe.image).await?;
            self.inner.images.resolve(&recipe.image).map_err(|error| error.to_core())?;
        }
        if let Some(driver) = recipe.isolation.and_then(|level| self.inner.driver(level).ok()) {
            let limits = recipe.resources.over(Resources::default());
            driver.check_limits(&limits).map_err(|error| limit_error(&error))?;
        }
        let execution = Execution {
            policy: recipe.execution.clone().unwrap_or_default(),
            image_until_ms: None,
            origins: recipe.egress.as_ref().map(EgressPolicy::origins).unwrap_or_default(),
            profiles: recipe.profiles.clone().unwrap_or_default(),
        };
        if let Some(egress) = &recipe.egress {
            execution.profiles.check_rules("egress", egress)?;
            egress.check_no_execs("egress")?;
        }
        if !execution.is_open() {
            let level = recipe.isolation.or(level).unwrap_or(self.inner.config.defaults.isolation);
            let driver = self.inner.driver(level)?;
            driver.check_execution(&execution).map_err(|error| isolation_error(&error))?;
        }
        if let Some(pool) = &recipe.pool {
            self.inner.pools.admit(&PoolName::Template(name.to_owned()), pool)?;
        }
        if recipe.memory {
            let level = recipe.isolation.or(level).unwrap_or(self.inner.config.defaults.isolation);
            let starts = recipe.start.is_some() && recipe.ready.is_some();
            self.check_can_keep_memory(level, starts, recipe.egress.as_ref())?;
        }
        let created_ms = self.inner.now_ms();
        let mut record = TemplateRecord {
            id: TemplateId::from_parts(created_ms, random()?),
            name: name.to_owned(),
            version: 0,
            spec: recipe,
            created_ms,
            created_by: caller.key.clone(),
        };
        record.version = self.inner.store.insert_template(&record).await.map_err(store_error)?;
        self.inner.templates_changed();
        Ok(record)
    }

    /// The newest version of every template.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn templates(&self) -> Result<Vec<TemplateRecord>> {
        let mut all = self.inner.store.list_templates(None).await.map_err(store_error)?;
        // They come by name, newest version first.
        all.dedup_by(|later, first| later.name == first.name);
        Ok(all)
    }

    /// The versions of a template, the newest first.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`].
    #[boxed]
    pub async fn template_versions(&self, name: &str) -> Result<Vec<TemplateRecord>> {
        let all = self.inner.store.list_templates(Some(name)).await.map_err(store_error)?;
        if all.is_empty() {
            return Err(self.inner.absent("templates", name, not_found(name, None)));
        }
        Ok(all)
    }

    /// One version of a template, the newest when `version` is absent.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`].
    #[boxed]
    pub async fn template(&self, name: &str, version: Option<u32>) -> Result<TemplateRecord> {
        let found = self.inner.store.template(name, version).await.map_err(store_error)?;
        found.ok_or_else(|| not_found(name, version))
    }

    /// Deletes one version, or all when `version` is absent. Sandboxes made from it are not touched.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`]; [`Code::Forbidden`] when it is another key's.
    #[boxed]
    pub async fn delete_template(&self, name: &str, version: Option<u32>, caller: &Caller) -> Result<()> {
        self.check_template_is_own(name, caller).await?;
        let removed = self.inner.store.delete_template(name, version).await.map_err(store_error)?;
        self.inner.templates_changed();
        if removed == 0 {
            return Err(not_found(name, version));
        }
        self.tidy_build_cache();
        Ok(())
    }

    /// Refuses changes of a template by keys of a project. Where the server's default is that things are private, it
    /// also refuses every key but administrators' and the one that made its newest version. Every key may use it: a
    /// template is there to be used.
    ///
    /// # Errors
    /// [`Code::Forbidden`].
    pub(crate) async fn check_template_is_own(&self, name: &str, caller: &Caller) -> Result<()> {
        self.check_common(caller)?;
        let newest = self.inner.store.template(name, None).await.map_err(store_error)?;
        match newest {
            Some(newest) if !self.is_shared_or_own(caller, newest.created_by.as_ref()) => {
                Err(Error::new(Code::Forbidden, format!("the template '{}' is another key's", shorten(name)))
                    .hint("choose another name, or ask an administrator"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Finds what a sandbox draft names: `name`, `name:version` or `name:tag`.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`]; [`Code::InvalidArgument`] for what is neither a version nor a tag.
    #[boxed]
    pub async fn find_template(&self, text: &str) -> Result<TemplateRecord> {
        let Some((name, which)) = text.split_once(':') else { return self.template(text, None).await };
        match which.parse() {
            Ok(version) => self.template(name, Some(version)).await,
            Err(_) => {
                spec::template_tag("template", which)?;
                self.tagged_template(name, which).await
            }
        }
    }
}

impl Inner {
    /// Tells the tasks that make things ahead (pools, memories, copies of disks) that templates have changed.
    pub(crate) fn templates_changed(&self) {
        self.pools.changed();
        self.memories.changed();
        if let Some(shared) = &self.shared_images {
            shared.templates_changed();
        }
    }
}

pub(crate) fn not_found(name: &str, version: Option<u32>) -> Error {
    let which = version.map(|version| format!(":{version}")).unwrap_or_default();
    Error::new(Code::TemplateNotFound, format!("no template '{}{which}'", shorten(name)))
        .hint("'atoll template ls' shows what there is")
}
