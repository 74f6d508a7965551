//! Services: commands of a sandbox that should always run.

use std::collections::BTreeMap;

use atoll_core::build::CommandText;
use atoll_core::exec::{Exit, OutputStream};
use atoll_core::service::{
    BACKOFF_DEFAULT_MS, BACKOFF_MAX_DEFAULT_MS, GIVE_UP_DEFAULT_COUNT, Restart, STOP_DEFAULT_MS,
    ServiceHealth, ServiceReady, ServiceSpec, ServiceState, Services,
};
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Encoding, OutputChunk};

/// Declares a service. Give either `argv` or `shell`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateService {
    /// Its name, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens.
    #[schema(required)]
    pub name: String,
    /// Program and arguments, run as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Output of each run that is kept on the host; the oldest goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_output_bytes: Option<u64>,
    /// When it is started again; `always` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// First pause before that; half a second when absent. Doubles with each end within ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<u64>,
    /// Longest such pause; 30 seconds, or `backoff_ms` if that is more, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_max_ms: Option<u64>,
    /// Ends in a row, each within ten seconds, after which it is given up; 10 when absent, 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub give_up_after: Option<u32>,
    /// What it has to end by itself after `SIGTERM` before it is killed; ten seconds when absent, at most ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_timeout_ms: Option<u64>,
    /// When it is ready; at once when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ServiceReady>,
    /// Whether it still works; not looked at when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<ServiceHealth>,
    /// Services of the same sandbox that it is started after, each time: when they are ready, or have done their work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

impl CreateService {
    /// The name, and the spec that this request means.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] unless exactly one of `argv` and `shell` is given.
    pub fn into_spec(self) -> Result<(String, ServiceSpec)> {
        let command = match (self.argv, self.shell) {
            (Some(argv), None) => CommandText::Argv(argv),
            (None, Some(line)) => CommandText::Shell(line),
            _ => return Err(Error::invalid("argv", "give exactly one of 'argv' and 'shell'")),
        };
        let backoff_ms = self.backoff_ms.unwrap_or(BACKOFF_DEFAULT_MS);
        let spec = ServiceSpec {
            command,
            env: self.env,
            cwd: self.cwd,
            user: self.user,
            keep_output_bytes: self.keep_output_bytes,
            restart: self.restart.unwrap_or_default(),
            backoff_ms,
            backoff_max_ms: self.backoff_max_ms.unwrap_or_else(|| BACKOFF_MAX_DEFAULT_MS.max(backoff_ms)),
            give_up_after: self.give_up_after.unwrap_or(GIVE_UP_DEFAULT_COUNT),
            stop_timeout_ms: self.stop_timeout_ms.unwrap_or(STOP_DEFAULT_MS),
            ready: self.ready,
            health: self.health,
            after: self.after,
        };
        Ok((self.name, spec))
    }

    /// The specs that requests mean, by name.
    ///
    /// # Errors
    /// As [`Self::into_spec`]; [`atoll_core::Code::InvalidArgument`] when two have the same name.
    pub fn into_specs(requests: Vec<Self>) -> Result<Services> {
        let mut specs = Services::new();
        for request in requests {
            let (name, spec) = request.into_spec()?;
            if specs.contains_key(&name) {
                return Err(Error::invalid("services", format_args!("there are two services '{name}'")));
            }
            specs.insert(name, spec);
        }
        Ok(specs)
    }
}

impl From<(String, ServiceSpec)> for CreateService {
    /// The request that asks for it, with every default said.
    fn from((name, spec): (String, ServiceSpec)) -> Self {
        let (argv, shell) = match spec.command {
            CommandText::Argv(argv) => (Some(argv), None),
            CommandText::Shell(line) => (None, Some(line)),
        };
        Self {
            name,
            argv,
            shell,
            env: spec.env,
            cwd: spec.cwd,
            user: spec.user,
            keep_output_bytes: spec.keep_output_bytes,
            restart: Some(spec.restart),
            backoff_ms: Some(spec.backoff_ms),
            backoff_max_ms: Some(spec.backoff_max_ms),
            give_up_after: Some(spec.give_up_after),
            stop_timeout_ms: Some(spec.stop_timeout_ms),
            ready: spec.ready,
            health: spec.health,
            after: spec.after,
        }
    }
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Service {
    /// Its id.
    pub id: String,
    /// Its name, unique in the sandbox.
    pub name: String,
    /// The sandbox it runs in.
    pub sandbox: String,
    /// What it runs: a line for the shell, or program and arguments.
    pub command: CommandText,
    /// User it runs as; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// When it is started again.
    pub restart: Restart,
    /// First pause before that.
    pub backoff_ms: u64,
    /// Longest such pause.
    pub backoff_max_ms: u64,
    /// Early ends in a row after which it is given up; 0: never.
    pub give_up_after: u32,
    /// What it has to end by itself before it is killed.
    pub stop_timeout_ms: u64,
    /// When it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ServiceReady>,
    /// Whether it still works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ServiceHealth>,
    /// Services that it is started after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Where it is.
    pub state: ServiceState,
    /// Why, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of its last run; 0 before the first.
    pub run: u64,
    /// The exec of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// How the last run that has ended did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<Exit>,
    /// When it is started again, while it is backing off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_start_at_ms: Option<u64>,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// The services of a sandbox, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceList {
    /// All of them.
    pub items: Vec<Service>,
}

/// A piece of a service's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceLogChunk {
    /// Offset of its first byte in the service's log, over all runs and both streams.
    pub offset: u64,
    /// Number of the run that wrote it.
    pub run: u64,
    /// Which stream.
    pub stream: OutputStream,
    /// The bytes.
    pub data: String,
    /// How they are written.
    pub encoding: Encoding,
}

impl ServiceLogChunk {
    /// Wraps bytes, as text where they are text.
    #[must_use]
    pub fn new(run: u64, offset: u64, stream: OutputStream, bytes: &[u8]) -> Self {
        let OutputChunk { offset, stream, data, encoding } = OutputChunk::new(offset, stream, bytes);
        Self { offset, run, stream, data, encoding }
    }

    /// The bytes again.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] when the base64 is malformed.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let Self { offset, stream, data, encoding, .. } = self.clone();
        OutputChunk { offset, stream, data, encoding }.bytes()
    }
}

/// What there is of a service's log from an offset on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceLogPage {
    /// The chunks, contiguous.
    pub chunks: Vec<ServiceLogChunk>,
    /// Set when bytes between the asked offset and this one are not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_until: Option<u64>,
    /// Ask with this offset next.
    pub next_offset: u64,
    /// Where the service is. More may come whatever it is.
    pub state: ServiceState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fit_together() {
        let request = CreateService {
            name: "web".into(),
            shell: Some("x".into()),
            backoff_ms: Some(120_000),
            ..CreateService::default()
        };
        let (name, spec) = request.into_spec().unwrap();
        assert_eq!((name.as_str(), spec.backoff_max_ms), ("web", 120_000));
        assert_eq!(spec.validate(), Ok(()));
        assert!(CreateService::default().into_spec().is_err());
    }
}
