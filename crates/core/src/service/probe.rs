//! Probes: whether a service is ready, and whether it still works.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::build::{CommandText, Ready};
use crate::error::{Error, Result};
use crate::limits::{SERVICE_PATH_MAX_BYTES, SERVICE_PROBE_TIMEOUT_MAX_MS};
use crate::spec;

const READY_TIMEOUT_DEFAULT_MS: u64 = 60_000;
const READY_INTERVAL_DEFAULT_MS: u64 = 200;
/// Shortest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const HEALTH_TIMEOUT_DEFAULT_MS: u64 = 5_000;
const HEALTH_INTERVAL_DEFAULT_MS: u64 = 10_000;
const HEALTH_FAILURES_DEFAULT_COUNT: u32 = 3;

/// What a probe looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<'a> {
    /// A command that must end with code 0.
    Command(&'a CommandText),
    /// A port on which something must listen.
    Port(u16),
    /// A `GET` of this path on this port that must be answered with a status from 200 to 399.
    Http(u16, &'a str),
}

/// When a service that was started is ready. One of `command` and `port`; with `path` the port is asked over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ServiceReady {
    /// Tried until it ends with code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandText>,
    /// Looked at until something listens on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Asked for over HTTP on the port until the status is 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Longest pause between attempts, of which the first come faster; 200 milliseconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// It counts as failed when it is not ready after this long; 60 seconds when absent, at most ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl From<Ready> for ServiceReady {
    fn from(ready: Ready) -> Self {
        Self {
            interval_ms: Some(ready.interval_ms()),
            timeout_ms: Some(ready.timeout_ms()),
            command: ready.command,
            port: ready.port,
            path: None,
        }
    }
}

impl ServiceReady {
    /// What is looked at.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] when that is not one thing.
    pub fn look(&self) -> Result<Look<'_>> {
        look("ready", self.command.as_ref(), self.port, self.path.as_deref())
    }

    /// Longest pause between attempts, milliseconds.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.interval_ms.unwrap_or(READY_INTERVAL_DEFAULT_MS)
    }

    /// How long to wait after an attempt in vain, after `waited`: a quarter of that, so that what is ready soon is seen soon.
    #[must_use]
    pub fn pause(&self, waited: Duration) -> Duration {
        Duration::from_millis(self.interval_ms()).min((waited / 4).max(PAUSE_MIN))
    }

    /// When to give up, milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.unwrap_or(READY_TIMEOUT_DEFAULT_MS)
    }
}

/// Whether a service that is ready still works. One of `command` and `port`; with `path` the port is asked over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ServiceHealth {
    /// Must end with code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandText>,
    /// Something must listen on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Asked for over HTTP on the port; the status must be 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Pause between looks; ten seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// Longest that one look may take; five seconds when absent, at most ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The service is killed, and counts as failed, after so many bad looks in a row; 3 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
}

impl ServiceHealth {
    /// What is looked at.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] when that is not one thing.
    pub fn look(&self) -> Result<Look<'_>> {
        look("health", self.command.as_ref(), self.port, self.path.as_deref())
    }

    /// Pause between looks, milliseconds.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.interval_ms.unwrap_or(HEALTH_INTERVAL_DEFAULT_MS)
    }

    /// Longest that a look may take, milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.unwrap_or(HEALTH_TIMEOUT_DEFAULT_MS)
    }

    /// Bad looks in a row after which it is killed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures.unwrap_or(HEALTH_FAILURES_DEFAULT_COUNT)
    }
}

fn look<'a>(
    field: &str,
    command: Option<&'a CommandText>,
    port: Option<u16>,
    path: Option<&'a str>,
) -> Result<Look<'a>> {
    match (command, port, path) {
        (Some(command), None, None) => Ok(Look::Command(command)),
        (None, Some(0), _) => Err(Error::invalid(&format!("{field}.port"), "must lie between 1 and 65535")),
        (None, Some(port), None) => Ok(Look::Port(port)),
        (None, Some(port), Some(path)) => Ok(Look::Http(port, path)),
        _ => Err(Error::invalid(field, "wants a command, a port, or a port and a path")),
    }
}

pub(super) fn check_look(field: &str, look: &Look<'_>) -> Result<()> {
    match look {
        Look::Command(command) => spec::command(&format!("{field}.command"), &command.to_command()),
        Look::Port(_) => Ok(()),
        // It stands in the first line of a request.
        Look::Http(_, path)
            if path.starts_with('/')
                && path.len() <= SERVICE_PATH_MAX_BYTES
                && path.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Ok(())
        }
        Look::Http(..) => Err(Error::invalid(&format!("{field}.path"), "is not the path of a URL")
            .hint("begin with '/', and write other characters than printable ASCII as %XX")),
    }
}

pub(super) fn check_times(field: &str, interval_ms: u64, timeout_ms: u64) -> Result<()> {
    if !(10..=SERVICE_PROBE_TIMEOUT_MAX_MS).contains(&interval_ms) {
        return Err(Error::invalid(&format!("{field}.interval_ms"), "must lie between 10 and 600,000"));
    }
    if !(1..=SERVICE_PROBE_TIMEOUT_MAX_MS).contains(&timeout_ms) {
        return Err(Error::invalid(&format!("{field}.timeout_ms"), "must lie between 1 and 600,000"));
    }
    Ok(())
}
