//! Projects.

use atoll_api::{CreateProject, Project, ProjectList, UpdateProject};
use http::Method;

use crate::{Client, Result};

/// A project is named by its id or its name in all of these.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a project.
    pub async fn create_project(&self, create: &CreateProject) -> Result<Project> {
        self.submit(Method::POST, self.target(["v1", "projects"]), create).await
    }

    /// Every project.
    pub async fn list_projects(&self) -> Result<ProjectList> {
        self.call(self.request(Method::GET, self.target(["v1", "projects"]))).await
    }

    /// One project, with how much it has.
    pub async fn get_project(&self, project: &str) -> Result<Project> {
        self.call(self.request(Method::GET, self.target(["v1", "projects", project]))).await
    }

    /// Changes a project.
    pub async fn update_project(&self, project: &str, update: &UpdateProject) -> Result<Project> {
        self.submit(Method::PATCH, self.target(["v1", "projects", project]), update).await
    }

    /// Removes a project to which nothing belongs.
    pub async fn delete_project(&self, project: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "projects", project]))).await
    }
}
