//! Errors, health, doctor.

use atoll_core::spec::Accelerator;
use atoll_core::{Code, Error};
use atoll_isolation::Check;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Why, for machines. Stable.
    pub code: Code,
    /// What is wrong and where, for people.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// The request's id, also in the server's log and in the `x-request-id` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl From<Error> for ErrorBody {
    fn from(error: Error) -> Self {
        Self {
            code: error.code,
            message: error.message,
            hint: error.hint,
            retryable: error.code.retryable(),
            request_id: None,
        }
    }
}

impl From<ErrorBody> for Error {
    fn from(body: ErrorBody) -> Self {
        Self { code: body.code, message: body.message, hint: body.hint }
    }
}

/// Whether the server works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`; `draining` while it shuts down; `store_unavailable` while nothing can be stored; `host_disk_full` while every
    /// sandbox stands still because of that, and only what removes something is done.
    pub status: String,
}

/// What this server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerInfo {
    /// Version of the program.
    pub version: String,
    /// Random id of this installation.
    pub installation: String,
    /// Isolation levels it can give.
    pub isolation: Vec<String>,
    /// What executes machines of the level `microvm`, if it has that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Sandboxes that exist now, in any state.
    pub sandboxes: u64,
    /// Most sandboxes it will have at once.
    pub sandboxes_max: u64,
}

/// What this host enforces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Doctor {
    /// One line each.
    pub checks: Vec<Check>,
}

/// Something on the host that belongs to no known sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leak {
    /// The sandbox id it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The snapshot id it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// `process`, `cgroup`, `directory`, `artifact`, …
    pub kind: String,
    /// Its name on the host.
    pub name: String,
    /// Whether it was removed.
    pub removed: bool,
}

/// Everything that belongs to no known sandbox or snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeakList {
    /// The leaks; empty is good.
    pub items: Vec<Leak>,
}
