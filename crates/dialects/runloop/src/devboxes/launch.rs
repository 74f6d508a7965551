//! `launch_parameters`: size, life and user of a devbox.

use atoll_core::idle::{IdlePolicy, OnIdle};
use atoll_core::spec::{ResourcesDraft, SandboxDraft};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};

/// How long a devbox is kept alive when the client gives no time, seconds.
const KEEP_ALIVE_S: u64 = 3600;
const GIB: u64 = 1 << 30;

/// The parameters, as far as this server understands them.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Launch {
    pub(crate) after_idle: Option<AfterIdle>,
    pub(crate) architecture: Option<String>,
    pub(crate) custom_cpu_cores: Option<f64>,
    pub(crate) custom_disk_size: Option<u64>,
    pub(crate) custom_gb_memory: Option<u64>,
    pub(crate) keep_alive_time_seconds: Option<i64>,
    pub(crate) launch_commands: Option<Vec<String>>,
    pub(crate) lifecycle: Option<Lifecycle>,
    pub(crate) network_policy_id: Option<String>,
    pub(crate) required_services: Option<Vec<String>>,
    pub(crate) resource_size_request: Option<String>,
    pub(crate) user_parameters: Option<User>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct AfterIdle {
    idle_time_seconds: i64,
    on_idle: String,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Lifecycle {
    after_idle: Option<AfterIdle>,
    lifecycle_hooks: Option<Value>,
    resume_triggers: Option<Triggers>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Triggers {
    axon_event: Option<bool>,
    http: Option<bool>,
}

/// The user that runs commands.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) username: String,
}

fn seconds(field: &str, asked: i64) -> Result<u64> {
    match u64::try_from(asked) {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err(Failure::bad(format!("{field}: must be at least 1"))),
    }
}

/// Whether a JSON value has any content.
pub(crate) fn says(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => fields.values().any(|field| says(Some(field))),
        Some(_) => true,
    }
}

impl Launch {
    /// Parses the parameters.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn read(value: Value) -> Result<Self> {
        serde_json::from_value(value).map_err(|error| Failure::bad(format!("launch_parameters: {error}")))
    }

    /// Takes from `base`, the parameters of the blueprint, what the client left out.
    pub(crate) fn over(self, base: Self) -> Self {
        Self {
            after_idle: self.after_idle.or(base.after_idle),
            architecture: self.architecture.or(base.architecture),
            custom_cpu_cores: self.custom_cpu_cores.or(base.custom_cpu_cores),
            custom_disk_size: self.custom_disk_size.or(base.custom_disk_size),
            custom_gb_memory: self.custom_gb_memory.or(base.custom_gb_memory),
            keep_alive_time_seconds: self.keep_alive_time_seconds.or(base.keep_alive_time_seconds),
            launch_commands: self.launch_commands.or(base.launch_commands),
            lifecycle: self.lifecycle.or(base.lifecycle),
            network_policy_id: self.network_policy_id.or(base.network_policy_id),
            required_services: self.required_services.or(base.required_services),
            resource_size_request: self.resource_size_request.or(base.resource_size_request),
            user_parameters: self.user_parameters.or(base.user_parameters),
        }
    }

    /// Refuses parameters that this server does not support.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn check(&self) -> Result<()> {
        let here = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" };
        if let Some(other) = self.architecture.as_deref().filter(|asked| *asked != here) {
            let other = atoll_core::error::shorten(other);
            return Err(Failure::bad(format!(
                "launch_parameters.architecture: this server is {here}, not {other}"
            )));
        }
        if self.required_services.as_ref().is_some_and(|services| !services.is_empty()) {
            return Err(Failure::bad(
                "launch_parameters.required_services: containerized services are not supported by this server",
            ));
        }
        let lifecycle = self.lifecycle.as_ref();
        if lifecycle.is_some_and(|lifecycle| says(lifecycle.lifecycle_hooks.as_ref())) {
            return Err(Failure::bad(
                "launch_parameters.lifecycle.lifecycle_hooks: are not supported by this server; run the commands, then suspend",
            ));
        }
        let triggers = lifecycle.and_then(|lifecycle| lifecycle.resume_triggers.as_ref());
        if triggers.is_some_and(|triggers| triggers.axon_event == Some(true)) {
            return Err(Failure::bad(
                "launch_parameters.lifecycle.resume_triggers.axon_event: axons are not supported by this server",
            ));
        }
        Ok(())
    }

    /// Whether traffic wakes the devbox, if the client said so.
    pub(crate) fn wakes_on_http(&self) -> Option<bool> {
        self.lifecycle.as_ref()?.resume_triggers.as_ref()?.http
    }

    /// Gives a draft this size and life. Gives the seconds of each keep-alive; `None` where the devbox ends by idling.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn apply(&self, draft: &mut SandboxDraft) -> Result<Option<u64>> {
        self.check()?;
        draft.resources = self.resources()?;
        let of_lifecycle = self.lifecycle.as_ref().and_then(|lifecycle| lifecycle.after_idle.as_ref());
        if let (Some(one), Some(other)) = (&self.after_idle, of_lifecycle)
            && one != other
        {
            return Err(Failure::bad(
                "launch_parameters: after_idle and lifecycle.after_idle must have the same value",
            ));
        }
        let Some(idle) = of_lifecycle.or(self.after_idle.as_ref()) else {
            let asked = self.keep_alive_time_seconds;
            let keep = asked.map_or(Ok(KEEP_ALIVE_S), |asked| {
                seconds("launch_parameters.keep_alive_time_seconds", asked)
            })?;
            draft.ttl_ms = Some(keep.saturating_mul(1000));
            return Ok(Some(keep));
        };
        let field = "launch_parameters.after_idle.idle_time_seconds";
        draft.idle_timeout_ms = Some(seconds(field, idle.idle_time_seconds)?.saturating_mul(1000));
        let on_idle = match idle.on_idle.as_str() {
            "shutdown" => OnIdle::Delete,
            "suspend" => OnIdle::Hibernate,
            _ => {
                return Err(Failure::bad(
                    "launch_parameters.after_idle.on_idle: must be shutdown or suspend",
                ));
            }
        };
        draft.idle = IdlePolicy { on_idle, ..draft.idle };
        Ok(None)
    }

    /// Whether the client gave the size in numbers, and not by a name.
    pub(crate) fn is_custom(&self) -> bool {
        self.resource_size_request.as_deref() == Some("CUSTOM_SIZE")
    }

    /// Cores, memory and disk of the size that the client asks for; the server's own where it names none.
    pub(crate) fn resources(&self) -> Result<ResourcesDraft> {
        let (cpu_millis, memory, disk) = match self.resource_size_request.as_deref() {
            None => return Ok(ResourcesDraft::default()),
            Some("X_SMALL") => (500, 1, 4),
            Some("SMALL") => (1000, 2, 4),
            Some("MEDIUM") => (2000, 4, 8),
            Some("LARGE") => (2000, 8, 16),
            Some("X_LARGE") => (4000, 16, 16),
            Some("XX_LARGE") => (8000, 32, 16),
            Some("CUSTOM_SIZE") => return self.custom(),
            Some(_) => {
                return Err(Failure::bad(
                    "launch_parameters.resource_size_request: must be X_SMALL, SMALL, MEDIUM, LARGE, X_LARGE, XX_LARGE or CUSTOM_SIZE",
                ));
            }
        };
        Ok(ResourcesDraft {
            cpu_millis: Some(cpu_millis),
            memory_bytes: Some(memory * GIB),
            disk_bytes: Some(disk * GIB),
            ..ResourcesDraft::default()
        })
    }

    fn custom(&self) -> Result<ResourcesDraft> {
        let missing =
            || Failure::bad("launch_parameters: CUSTOM_SIZE needs custom_cpu_cores and custom_gb_memory");
        let cores = self.custom_cpu_cores.ok_or_else(missing)?;
        let memory = self.custom_gb_memory.ok_or_else(missing)?;
        if !(0.1..=1024.0).contains(&cores) {
            return Err(Failure::bad("launch_parameters.custom_cpu_cores: must lie between 0.1 and 1024"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 100 and 1024000"
        )]
        let cpu_millis = (cores * 1000.0).round() as u32;
        Ok(ResourcesDraft {
            cpu_millis: Some(cpu_millis),
            memory_bytes: Some(memory.saturating_mul(GIB)),
            disk_bytes: self.custom_disk_size.map(|size| size.saturating_mul(GIB)),
            ..ResourcesDraft::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str) -> Result<(SandboxDraft, Option<u64>)> {
        let launch: Launch = serde_json::from_str(text).unwrap();
        let mut draft = SandboxDraft::default();
        let keep = launch.apply(&mut draft)?;
        Ok((draft, keep))
    }

    #[test]
    fn sizes() {
        let (draft, keep) =
            applied(r#"{"resource_size_request":"MEDIUM","keep_alive_time_seconds":60}"#).unwrap();
        assert_eq!((draft.resources.cpu_millis, draft.resources.memory_bytes), (Some(2000), Some(4 * GIB)));
        assert_eq!((keep, draft.ttl_ms), (Some(60), Some(60_000)));
        let custom = r#"{"resource_size_request":"CUSTOM_SIZE","custom_cpu_cores":0.5,"custom_gb_memory":1}"#;
        assert_eq!(applied(custom).unwrap().0.resources.cpu_millis, Some(500));
        assert_eq!(applied("{}").unwrap().1, Some(KEEP_ALIVE_S));
    }

    #[test]
    fn idling_ends_keep_alive() {
        let text =
            r#"{"after_idle":{"idle_time_seconds":9,"on_idle":"suspend"},"keep_alive_time_seconds":60}"#;
        let (draft, keep) = applied(text).unwrap();
        assert_eq!((draft.idle_timeout_ms, draft.ttl_ms, keep), (Some(9000), None, None));
        assert_eq!(draft.idle.on_idle, OnIdle::Hibernate);
    }

    #[test]
    fn what_is_not_done_is_refused() {
        for text in [
            r#"{"architecture":"sparc"}"#,
            r#"{"required_services":["db"]}"#,
            r#"{"lifecycle":{"lifecycle_hooks":{"suspend_commands":["sync"]}}}"#,
            r#"{"lifecycle":{"resume_triggers":{"axon_event":true}}}"#,
            r#"{"resource_size_request":"HUGE"}"#,
            r#"{"resource_size_request":"CUSTOM_SIZE"}"#,
            r#"{"resource_size_request":"CUSTOM_SIZE","custom_cpu_cores":1e300,"custom_gb_memory":1}"#,
            r#"{"keep_alive_time_seconds":0}"#,
            r#"{"after_idle":{"idle_time_seconds":-1,"on_idle":"suspend"}}"#,
        ] {
            assert!(applied(text).is_err(), "{text}");
        }
        assert!(applied(r#"{"lifecycle":{"lifecycle_hooks":{"suspend_commands":null}}}"#).is_ok());
    }
}
