//! Tags of templates: names for versions, that can be pointed elsewhere.

use atoll_core::error::shorten;
use atoll_core::limits::TEMPLATE_TAGS_MAX_COUNT;
use atoll_core::spec;
use atoll_core::{Code, Error, Result};
use atoll_store::{StoreError, TemplateRecord, TemplateTag};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::templates::not_found;

/// A version of a template that was given tags.
#[derive(Debug, Clone)]
pub struct Tagged {
    /// The version.
    pub record: TemplateRecord,
    /// When.
    pub set_ms: u64,
}

impl Engine {
    /// The tags of a template, by name.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`].
    #[boxed]
    pub async fn template_tags(&self, name: &str) -> Result<Vec<TemplateTag>> {
        self.template(name, None).await?;
        self.inner.store.template_tags(name).await.map_err(store_error)
    }

    /// What the tags of a template have meant, tag by tag by name, the newest of each first: which is what it means.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`].
    #[boxed]
    pub async fn template_tag_assignments(&self, name: &str) -> Result<Vec<TemplateTag>> {
        self.template(name, None).await?;
        self.inner.store.template_tag_assignments(name).await.map_err(store_error)
    }

    /// What one tag of a template has meant, the newest first.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`], for the tag, too.
    #[boxed]
    pub async fn tag_assignments(&self, name: &str, tag: &str) -> Result<Vec<TemplateTag>> {
        let mut all = self.template_tag_assignments(name).await?;
        all.retain(|one| one.tag == tag);
        if all.is_empty() { Err(no_tag(name, tag)) } else { Ok(all) }
    }

    /// The version of a template that a tag means.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`].
    #[boxed]
    pub async fn tagged_template(&self, name: &str, tag: &str) -> Result<TemplateRecord> {
        match self.inner.store.tagged_version(name, tag).await.map_err(store_error)? {
            Some(version) => self.template(name, Some(version)).await,
            None => Err(no_tag(name, tag)),
        }
    }

    /// Points tags to a version of a template, the newest when `version` is absent: all or none.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what is no tag; [`Code::TemplateNotFound`]; [`Code::LimitExceeded`];
    /// [`Code::Forbidden`] when the template is another key's.
    #[boxed]
    pub async fn tag_template(
        &self,
        name: &str,
        version: Option<u32>,
        tags: &[String],
        caller: &Caller,
    ) -> Result<Tagged> {
        spec::template_tags("tags", tags)?;
        self.check_template_is_own(name, caller).await?;
        let record = self.template(name, version).await?;
        self.check_room_for_tags(name, tags).await?;
        let set_ms = self.inner.now_ms();
        let done = self.inner.store.tag_template(name, record.version, tags, set_ms).await;
        done.map_err(|error| match error {
            StoreError::NotFound => not_found(name, Some(record.version)),
            error => store_error(error),
        })?;
        Ok(Tagged { record, set_ms })
    }

    /// Removes tags of a template: all or none. The versions stay.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`] when it lacks one; [`Code::Forbidden`] when it is another key's.
    #[boxed]
    pub async fn untag_template(&self, name: &str, tags: &[String], caller: &Caller) -> Result<()> {
        spec::template_tags("tags", tags)?;
        self.check_template_is_own(name, caller).await?;
        let known = self.template_tags(name).await?;
        if let Some(tag) = tags.iter().find(|tag| known.iter().all(|known| known.tag != **tag)) {
            return Err(no_tag(name, tag));
        }
        let done = self.inner.store.untag_template(name, tags).await;
        done.map_err(|error| match error {
            StoreError::NotFound => no_tag(name, &tags.join(", ")),
            error => store_error(error),
        })
    }

    /// Refuses tags that would be too many for one template.
    pub(crate) async fn check_room_for_tags(&self, name: &str, tags: &[String]) -> Result<()> {
        if tags.is_empty() {
            return Ok(());
        }
        let known = self.inner.store.template_tags(name).await.map_err(store_error)?;
        let new = tags.iter().filter(|tag| known.iter().all(|known| known.tag != **tag)).count();
        if known.len() + new <= TEMPLATE_TAGS_MAX_COUNT {
            return Ok(());
        }
        let why =
            format!("a template has at most {TEMPLATE_TAGS_MAX_COUNT} tags, this one has {}", known.len());
        Err(Error::new(Code::LimitExceeded, why).hint("remove some: 'atoll template untag NAME TAG'"))
    }
}

fn no_tag(name: &str, tag: &str) -> Error {
    let why = format!("the template '{}' has no tag '{}'", shorten(name), shorten(tag));
    Error::new(Code::TemplateNotFound, why).hint("'atoll template tags NAME' lists its tags")
}
