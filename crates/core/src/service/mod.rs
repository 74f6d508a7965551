//! Services: commands of a sandbox that should always run.
//!
//! ```text
//! waiting ──sandbox runs──▶ starting ──ready──▶ running ──ends──▶ backing_off ──▶ starting …
//!                              └──ends──▶ backing_off                 └──▶ exited | failed
//!                                        on request: stopped
//! ```
//!
//! A *run* is one exec of a service. Runs are numbered from 1; the log of a service is the output of its runs, one
//! after the other.

mod probe;
mod status;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::build::{CommandText, Ready};
use crate::error::{Error, Result};
use crate::limits::{
    DURATION_MAX_MS, OUTPUT_KEEP_MAX_BYTES, OUTPUT_KEEP_MIN_BYTES, SERVICE_PROBE_TIMEOUT_MAX_MS,
    SERVICES_MAX_COUNT,
};
use crate::spec::{self, ExecDraft, IdempotencyKey};

pub use probe::{Look, ServiceHealth, ServiceReady};
pub use status::{ServiceOutcome, ServiceRun, ServiceStatus};

use probe::{check_look, check_times};

/// First pause before a service is started again when it does not say, milliseconds.
pub const BACKOFF_DEFAULT_MS: u64 = 500;
/// Longest pause before a service is started again when it does not say, milliseconds.
pub const BACKOFF_MAX_DEFAULT_MS: u64 = 30_000;
/// Early ends in a row after which a service is given up when it does not say.
pub const GIVE_UP_DEFAULT_COUNT: u32 = 10;
/// What a service has to end by itself before it is killed when it does not say, milliseconds.
pub const STOP_DEFAULT_MS: u64 = 10_000;
/// Least of the longest pause of a service that is never given up, milliseconds: it must not keep the host busy for ever.
const ENDLESS_BACKOFF_MIN_MS: u64 = 1000;
/// A run that lasted this long, milliseconds, was no early end: counting begins anew.
pub const STABLE_MS: u64 = 10_000;

/// When a service is started again after it has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Restart {
    /// However it ended.
    #[default]
    Always,
    /// When it ended with another code than 0, by a signal, or was not ready or healthy.
    OnFailure,
    /// Never. A new boot of the sandbox starts it all the same if it has not ended by itself.
    Never,
}

impl Restart {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Always, Self::OnFailure, Self::Never];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::OnFailure => "on_failure",
            Self::Never => "never",
        }
    }
}

impl std::str::FromStr for Restart {
    type Err = String;

    /// Reads the text form; `-` counts as `_`.
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == text.replace('-', "_"));
        found.ok_or_else(|| "one of always, on-failure, never".to_owned())
    }
}

/// Where a service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ServiceState {
    /// It should run, and starts as soon as its sandbox does: that is paused, being made or put back, or has failed.
    Waiting,
    /// It runs and is not ready yet.
    Starting,
    /// It runs, and is ready if there is a way to tell.
    Running,
    /// It ended and will be started again.
    BackingOff,
    /// A request stopped it.
    Stopped,
    /// It ended, and its policy does not start it again.
    Exited,
    /// It failed, and its policy does not start it again; or it ended early too often.
    Failed,
}

impl ServiceState {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::BackingOff => "backing_off",
            Self::Stopped => "stopped",
            Self::Exited => "exited",
            Self::Failed => "failed",
        }
    }

    /// Whether it stays so as long as nothing happens.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Running | Self::Stopped | Self::Exited | Self::Failed)
    }
}

/// What a service is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// What runs.
    pub command: CommandText,
    /// Variables on top of the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Output of one run that is kept, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_output_bytes: Option<u64>,
    /// When it is started again.
    pub restart: Restart,
    /// First pause before that, milliseconds. Doubles with each early end in a row.
    pub backoff_ms: u64,
    /// Longest such pause, milliseconds.
    pub backoff_max_ms: u64,
    /// Early ends in a row after which it is given up; 0: never.
    pub give_up_after: u32,
    /// What it has to end by itself when it is stopped, milliseconds.
    pub stop_timeout_ms: u64,
    /// When it is ready; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ServiceReady>,
    /// Whether it still works; not looked at when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ServiceHealth>,
    /// Services of the same sandbox that are there before each of its starts: they run, and are ready, or have done their work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// Services that a template or a request brings, by name.
pub type Services = BTreeMap<String, ServiceSpec>;

/// Checks services that are declared together.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] naming the service and its field: one that is wrong in itself, that waits for one that is not among
/// them, or for itself in a circle.
pub fn check_services(services: &Services) -> Result<()> {
    if services.len() > SERVICES_MAX_COUNT {
        return Err(Error::invalid("services", format_args!("more than {SERVICES_MAX_COUNT}")));
    }
    for (name, service) in services {
        let of = |error: Error| Error { message: format!("services.{name}: {}", error.message), ..error };
        spec::name("services", name)?;
        service.validate().map_err(of)?;
        if let Some(missing) = service.after.iter().find(|other| !services.contains_key(*other)) {
            return Err(of(Error::invalid("after", format_args!("there is no service '{missing}'"))));
        }
    }
    // Services that wait for no service in `left` are removed, until none can be. Those that stay wait for themselves.
    let mut left: BTreeMap<&str, &ServiceSpec> =
        services.iter().map(|(name, service)| (name.as_str(), service)).collect();
    while !left.is_empty() {
        let free: Vec<&str> = left
            .iter()
            .filter(|(_, service)| !service.after.iter().any(|other| left.contains_key(other.as_str())))
            .map(|(name, _)| *name)
            .collect();
        if free.is_empty() {
            let names = left.keys().copied().collect::<Vec<_>>().join(", ");
            return Err(Error::invalid("services", format_args!("these wait for each other: {names}"))
                .hint("take one of them out of the 'after' of another"));
        }
        left.retain(|name, _| !free.contains(name));
    }
    Ok(())
}

/// What a template's start command is called among the services of its sandboxes.
pub const START_SERVICE: &str = "start";

/// Checks what a template starts together with its services; `starts`: it has a start command, or an image that says one.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] when both are called the same, there are too many, or nothing is started that could be
/// started again.
pub fn check_start(starts: bool, restart: Option<Restart>, services: &Services) -> Result<()> {
    if !starts {
        return match restart {
            Some(_) => Err(Error::invalid("restart", "there is no start command that it is about")),
            None => Ok(()),
        };
    }
    if services.contains_key(START_SERVICE) {
        return Err(Error::invalid(
            "services",
            format_args!("'{START_SERVICE}' is what the start command is called"),
        )
        .hint("give the service another name, or leave out the start command"));
    }
    if services.len() >= SERVICES_MAX_COUNT {
        let why = format_args!("more than {SERVICES_MAX_COUNT}, with the start command");
        return Err(Error::invalid("services", why));
    }
    Ok(())
}

/// What follows the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Another run after this many milliseconds.
    Again(u64),
    /// Nothing: it has done its work.
    Exited,
    /// Nothing: it failed.
    Failed,
}

impl ServiceSpec {
    /// A service that is always started again, with every default.
    #[must_use]
    pub const fn new(command: CommandText) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            keep_output_bytes: None,
            restart: Restart::Always,
            backoff_ms: BACKOFF_DEFAULT_MS,
            backoff_max_ms: BACKOFF_MAX_DEFAULT_MS,
            give_up_after: GIVE_UP_DEFAULT_COUNT,
            stop_timeout_ms: STOP_DEFAULT_MS,
            ready: None,
            health: None,
            after: Vec::new(),
        }
    }

    /// The service that a start command is.
    #[must_use]
    pub fn of_start(command: CommandText, ready: Option<Ready>, restart: Option<Restart>) -> Self {
        Self {
            restart: restart.unwrap_or(Restart::Never),
            ready: ready.map(Into::into),
            ..Self::new(command)
        }
    }

    /// Checks form and range.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        spec::command("argv", &self.command.to_command())?;
        spec::env("env", &self.env)?;
        if let Some(cwd) = &self.cwd {
            spec::path("cwd", cwd)?;
        }
        if let Some(user) = &self.user {
            spec::user("user", user)?;
        }
        let keeps = OUTPUT_KEEP_MIN_BYTES..=OUTPUT_KEEP_MAX_BYTES;
        if self.keep_output_bytes.is_some_and(|bytes| !keeps.contains(&bytes)) {
            return Err(Error::invalid("keep_output_bytes", "must lie between 64 KiB and 16 GiB"));
        }
        if !(10..=DURATION_MAX_MS).contains(&self.backoff_ms) {
            return Err(Error::invalid("backoff_ms", "must lie between 10 milliseconds and a year"));
        }
        if !(self.backoff_ms..=DURATION_MAX_MS).contains(&self.backoff_max_ms) {
            return Err(Error::invalid("backoff_max_ms", "must lie between 'backoff_ms' and a year"));
        }
        if self.give_up_after == 0 && self.backoff_max_ms < ENDLESS_BACKOFF_MIN_MS {
            return Err(Error::invalid(
                "backoff_max_ms",
                "must be at least a second for what is never given up",
            ));
        }
        if !(1..=SERVICE_PROBE_TIMEOUT_MAX_MS).contains(&self.stop_timeout_ms) {
            return Err(Error::invalid("stop_timeout_ms", "must lie between 1 and 600,000"));
        }
        if let Some(ready) = &self.ready {
            check_look("ready", &ready.look()?)?;
            check_times("ready", ready.interval_ms(), ready.timeout_ms())?;
        }
        if let Some(health) = &self.health {
            check_look("health", &health.look()?)?;
            check_times("health", health.interval_ms(), health.timeout_ms())?;
            if health.failures() == 0 {
                return Err(Error::invalid("health.failures", "must be at least 1"));
            }
        }
        if self.after.len() > SERVICES_MAX_COUNT {
            return Err(Error::invalid("after", format_args!("more than {SERVICES_MAX_COUNT}")));
        }
        self.after.iter().try_for_each(|name| spec::name("after", name))
    }

    /// The exec of one run.
    #[must_use]
    pub fn to_exec(&self, idempotency_key: IdempotencyKey) -> ExecDraft {
        ExecDraft {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            keep_output_bytes: self.keep_output_bytes,
            idempotency_key: Some(idempotency_key),
            ..ExecDraft::new(self.command.to_command())
        }
    }

    /// What follows a run that failed, or ended well; `early` counts the early ends in a row, with this one.
    #[must_use]
    pub fn after(&self, failed: bool, early: u32) -> After {
        match self.restart {
            Restart::Never | Restart::OnFailure if !failed => After::Exited,
            Restart::Never => After::Failed,
            Restart::Always | Restart::OnFailure => {
                if self.give_up_after > 0 && early >= self.give_up_after {
                    return After::Failed;
                }
                let doublings = early.saturating_sub(1).min(32);
                After::Again(self.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_max_ms))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> ServiceSpec {
        ServiceSpec::new(CommandText::Shell("true".to_owned()))
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_end() {
        let spec = ServiceSpec { backoff_ms: 100, backoff_max_ms: 350, give_up_after: 5, ..service() };
        let after: Vec<After> = (1..=5).map(|early| spec.after(true, early)).collect();
        let again = After::Again;
        assert_eq!(after, [again(100), again(200), again(350), again(350), After::Failed]);
        let spec = ServiceSpec { give_up_after: 0, ..spec };
        assert_eq!(spec.after(true, u32::MAX), After::Again(350));
    }

    #[test]
    fn policies_decide() {
        let after = |restart, failed| ServiceSpec { restart, ..service() }.after(failed, 1);
        assert_eq!(after(Restart::Always, false), After::Again(BACKOFF_DEFAULT_MS));
        assert_eq!(after(Restart::OnFailure, false), After::Exited);
        assert_eq!(after(Restart::OnFailure, true), After::Again(BACKOFF_DEFAULT_MS));
        assert_eq!(after(Restart::Never, false), After::Exited);
        assert_eq!(after(Restart::Never, true), After::Failed);
        assert_eq!("on-failure".parse(), Ok(Restart::OnFailure));
        assert!("sometimes".parse::<Restart>().is_err());
    }

    #[test]
    fn each_bad_field_is_named() {
        let ready = |port, path: &str| {
            let path = Some(path.to_owned()).filter(|path| !path.is_empty());
            Some(ServiceReady { command: None, port, path, interval_ms: None, timeout_ms: None })
        };
        let cases = [
            (ServiceSpec { command: CommandText::Argv(Vec::new()), ..service() }, "argv"),
            (ServiceSpec { cwd: Some("x".into()), ..service() }, "cwd"),
            (ServiceSpec { backoff_ms: 9, ..service() }, "backoff_ms"),
            (ServiceSpec { backoff_max_ms: 1, ..service() }, "backoff_max_ms"),
            (
                ServiceSpec { give_up_after: 0, backoff_ms: 10, backoff_max_ms: 999, ..service() },
                "backoff_max_ms",
            ),
            (ServiceSpec { stop_timeout_ms: 0, ..service() }, "stop_timeout_ms"),
            (ServiceSpec { keep_output_bytes: Some(1), ..service() }, "keep_output_bytes"),
            (ServiceSpec { ready: ready(None, ""), ..service() }, "ready"),
            (ServiceSpec { ready: ready(Some(0), ""), ..service() }, "ready.port"),
            (ServiceSpec { ready: ready(Some(1), "x"), ..service() }, "ready.path"),
            (ServiceSpec { ready: ready(Some(1), "/ HTTP/1.1\r\nx: y"), ..service() }, "ready.path"),
            (ServiceSpec { ready: ready(None, "/"), ..service() }, "ready"),
        ];
        for (spec, field) in cases {
            let error = spec.validate().unwrap_err();
            assert!(error.message.starts_with(field), "{} names {field}", error.message);
        }
        assert_eq!(ServiceSpec { ready: ready(Some(1), "/up?x=%20"), ..service() }.validate(), Ok(()));
    }
}
