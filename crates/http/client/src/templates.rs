//! Templates.

use atoll_api::{CreateTemplate, SetTemplateTag, Template, TemplateList, TemplateTag, TemplateTagList};
use http::Method;

use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a template, or the next version of one.
    pub async fn create_template(&self, create: &CreateTemplate) -> Result<Template> {
        self.submit(Method::POST, self.target(["v1", "templates"]), create).await
    }

    /// The newest version of each.
    pub async fn list_templates(&self) -> Result<TemplateList> {
        self.call(self.request(Method::GET, self.target(["v1", "templates"]))).await
    }

    /// One version; the newest when `version` is absent.
    pub async fn get_template(&self, name: &str, version: Option<u32>) -> Result<Template> {
        let target = self.target(["v1", "templates", name]).maybe("version", version);
        self.call(self.request(Method::GET, target)).await
    }

    /// Removes one version; all of them when `version` is absent.
    pub async fn delete_template(&self, name: &str, version: Option<u32>) -> Result<()> {
        let target = self.target(["v1", "templates", name]).maybe("version", version);
        self.call_empty(self.request(Method::DELETE, target)).await
    }

    /// The tags of a template, by name.
    pub async fn list_template_tags(&self, name: &str) -> Result<TemplateTagList> {
        self.call(self.request(Method::GET, self.target(["v1", "templates", name, "tags"]))).await
    }

    /// What a tag has meant, the newest first.
    pub async fn list_tag_assignments(&self, name: &str, tag: &str) -> Result<TemplateTagList> {
        let target = self.target(["v1", "templates", name, "tags", tag, "assignments"]);
        self.call(self.request(Method::GET, target)).await
    }

    /// Points a tag to a version; to the newest when `version` is absent.
    pub async fn set_template_tag(&self, name: &str, tag: &str, version: Option<u32>) -> Result<TemplateTag> {
        let target = self.target(["v1", "templates", name, "tags", tag]);
        self.submit(Method::PUT, target, &SetTemplateTag { version }).await
    }

    /// Removes a tag; the version stays.
    pub async fn delete_template_tag(&self, name: &str, tag: &str) -> Result<()> {
        let target = self.target(["v1", "templates", name, "tags", tag]);
        self.call_empty(self.request(Method::DELETE, target)).await
    }
}
