//! Projects.

pub use atoll_core::project::{ProjectDefaults, Quota, QuotaUsed};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProject {
    /// Its name.
    pub name: String,
    /// How much it may have; what is absent is not limited.
    #[serde(default)]
    pub quota: Quota,
    /// What its sandboxes are when neither request nor template says.
    #[serde(default)]
    pub defaults: ProjectDefaults,
}

/// Changes a project. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateProject {
    /// A new name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Replaces the whole quota. What is above it already stays: nothing more comes until there is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Replaces all defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<ProjectDefaults>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Project {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How much it may have.
    pub quota: Quota,
    /// What its sandboxes are when neither the request nor the template says.
    pub defaults: ProjectDefaults,
    /// How much of its quota it has. Absent in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<QuotaUsed>,
    /// What belongs to it. Absent in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has: Option<ProjectContent>,
    /// When it was made.
    pub created_at_ms: u64,
}

/// What belongs to a project: while anything does it is not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectContent {
    /// Keys.
    pub keys: u64,
    /// Sandboxes.
    pub sandboxes: u64,
    /// Snapshots, also such as something else holds.
    pub snapshots: u64,
    /// Volumes.
    pub volumes: u64,
    /// Secrets.
    pub secrets: u64,
}

/// All projects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectList {
    /// The projects, by age.
    pub items: Vec<Project>,
}
