//! Builds: what is asked, and where one is in its life.
//!
//! ```text
//! waiting ──context──▶ queued ──room──▶ running ──▶ succeeded
//!    └───────────────────┴────────────────┴────▶ failed | cancelled
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::exec::OutputStream;
use crate::limits::{
    BUILD_ARGS_MAX_COUNT, BUILD_TIMEOUT_MAX_MS, DURATION_MAX_MS, READY_INTERVAL_DEFAULT_MS,
    READY_TIMEOUT_DEFAULT_MS, READY_TIMEOUT_MAX_MS,
};
use crate::policy::EgressPolicy;
use crate::service::{Restart, Services};
use crate::spec::{self, IsolationLevel, ResourcesDraft, TemplateSpec};

/// Before the name of a template where an image can stand: no image is named so.
pub const TEMPLATE_SCHEME: &str = "template://";
/// Before the id or `name:tag` of a snapshot where an image can stand.
pub const SNAPSHOT_SCHEME: &str = "snapshot://";
/// The text of the last step of a build that tries its template out.
pub const VERIFY_STEP: &str = "START what the template starts, and wait until it is ready";

/// Where a build is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BuildState {
    /// Its context has not come yet.
    Waiting,
    /// It waits for others to end.
    Queued,
    /// It runs.
    Running,
    /// Its template version is there.
    Succeeded,
    /// It ended without a template version; the error says why.
    Failed,
    /// A request ended it.
    Cancelled,
}

impl BuildState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether nothing will change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

impl std::fmt::Display for BuildState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a build ended without a template version. Kept by the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BuildFailure {
    /// Why, for machines.
    pub code: Code,
    /// What is wrong and where.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The step that failed, as it is shown, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Exit code of its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The last lines that its command wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl From<Error> for BuildFailure {
    fn from(error: Error) -> Self {
        let Error { code, message, hint } = error;
        Self { code, message, hint, step: None, exit_code: None, output: None }
    }
}

/// What happens to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum StepState {
    /// It begins.
    Started,
    /// It is there already.
    Cached,
    /// It is done.
    Done,
    /// It failed.
    Failed,
}

impl StepState {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Cached => "cached",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// One entry of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BuildEvent {
    /// Something worth knowing.
    Note {
        /// When.
        at_ms: u64,
        /// What.
        text: String,
    },
    /// A step moved on.
    Step {
        /// When.
        at_ms: u64,
        /// Which, from 1.
        step: u32,
        /// Of how many.
        total: u32,
        /// The stage that it belongs to, if it has a name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<String>,
        /// The instruction.
        text: String,
        /// What happened.
        state: StepState,
        /// How long it took, once it is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        took_ms: Option<u64>,
    },
    /// A command of a step wrote something.
    Output {
        /// When.
        at_ms: u64,
        /// Which step.
        step: u32,
        /// Whereto.
        stream: OutputStream,
        /// What; bytes that are no UTF-8 are `U+FFFD`.
        text: String,
    },
    /// The build ended: the last entry.
    End {
        /// When.
        at_ms: u64,
        /// How.
        state: BuildState,
        /// What it made, as `name:version`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<String>,
        /// Why it made nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<BuildFailure>,
    },
}

/// A command: a line for the shell, or program and arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CommandText {
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// Program and arguments.
    Argv(Vec<String>),
}

impl CommandText {
    /// As an exec takes it.
    #[must_use]
    pub fn to_command(&self) -> spec::Command {
        match self {
            Self::Shell(line) => spec::Command::Shell(line.clone()),
            Self::Argv(argv) => spec::Command::Argv(argv.clone()),
        }
    }

    fn validate(&self, field: &str) -> Result<()> {
        spec::command(field, &self.to_command())
    }
}

/// When a sandbox of a template is ready for its first caller: when a command succeeds, or a port is listened on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ready {
    /// Tried until it exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandText>,
    /// Looked at until something listens on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Give up after this long; 60 seconds when absent, at most ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Longest pause between attempts, of which the first come faster; 100 milliseconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
}

impl Ready {
    /// Checks form and range.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        match (&self.command, self.port) {
            (None, None) => return Err(Error::invalid("ready", "wants a command or a port")),
            (Some(_), Some(_)) => return Err(Error::invalid("ready", "wants a command or a port, not both")),
            (_, Some(0)) => return Err(Error::invalid("ready.port", "must lie between 1 and 65535")),
            (Some(command), None) => command.validate("ready.command")?,
            (None, Some(_)) => {}
        }
        if !(1..=READY_TIMEOUT_MAX_MS).contains(&self.timeout_ms()) {
            return Err(Error::invalid("ready.timeout_ms", "must lie between 1 millisecond and ten minutes"));
        }
        if !(10..=60_000).contains(&self.interval_ms()) {
            return Err(Error::invalid("ready.interval_ms", "must lie between 10 and 60,000"));
        }
        Ok(())
    }

    /// When to give up, milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.unwrap_or(READY_TIMEOUT_DEFAULT_MS)
    }

    /// Longest pause between attempts, milliseconds.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.interval_ms.unwrap_or(READY_INTERVAL_DEFAULT_MS)
    }
}

/// Checks what a template starts.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] naming the field.
pub fn validate_start(start: Option<&CommandText>, ready: Option<&Ready>) -> Result<()> {
    start.map_or(Ok(()), |start| start.validate("start"))?;
    ready.map_or(Ok(()), Ready::validate)
}

/// What the built template starts in each of its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum StartFrom {
    /// This command.
    Command(CommandText),
    /// What `ENTRYPOINT` and `CMD` say.
    Image,
}

/// One step of a step list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Step {
    /// The image to begin with; only first.
    From(String),
    /// Runs a command.
    Run(CommandText),
    /// Copies files of the context, or of an image.
    Copy(CopyStep),
    /// Sets variables.
    Env(BTreeMap<String, String>),
    /// Labels, for the record.
    Label(BTreeMap<String, String>),
    /// Changes the working directory.
    Workdir(String),
    /// Changes the user.
    User(String),
    /// Sets the default command.
    Cmd(CommandText),
    /// Sets the entry point.
    Entrypoint(CommandText),
}

/// A step that copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CopyStep {
    /// Paths or patterns in the context, as in `COPY`.
    pub sources: Vec<String>,
    /// Whereto: a directory if it ends with `/`.
    pub destination: String,
    /// An image to copy from instead of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Owner of the copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Permissions of the copies, octal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Symbolic links that the sources name are copied as links, wherever they lead; otherwise what they lead to is copied.
    /// Below a directory links are always copied as links. Not with `from`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_links: bool,
}

/// What a build is made of. Kept by the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildSpec {
    /// Name of the template of which it makes the next version.
    pub name: String,
    /// Tags that point to that version, once it is made.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The Dockerfile.
    pub dockerfile: Option<String>,
    /// The step list, instead.
    pub steps: Option<Vec<Step>>,
    /// The text of an ignore file; the context's `.dockerignore` when absent.
    pub ignore: Option<String>,
    /// Values of `ARG`s.
    pub args: BTreeMap<String, String>,
    /// The stage that is wanted, by name or number; the last when absent.
    pub target: Option<String>,
    /// Do every step again.
    pub no_cache: bool,
    /// What the template starts.
    pub start: Option<StartFrom>,
    /// When a sandbox of the template is ready.
    pub ready: Option<Ready>,
    /// When what the template starts is started again in the same boot; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Whether what the template starts is tried out before there is a version of it.
    #[serde(default)]
    pub verify: bool,
    /// Whether sandboxes of the template go on from the memory of one that is ready.
    #[serde(default)]
    pub memory: bool,
    /// Isolation level of the build and of the template.
    pub isolation: Option<IsolationLevel>,
    /// Limits of the steps' sandbox and of the template.
    pub resources: ResourcesDraft,
    /// Labels of the template.
    pub labels: BTreeMap<String, String>,
    /// What the steps may reach; the server's default when absent.
    pub egress: Option<EgressPolicy>,
    /// What sandboxes of the template may reach; the server's default when absent.
    pub template_egress: Option<EgressPolicy>,
    /// Time to live of the template's sandboxes, milliseconds.
    pub ttl_ms: Option<u64>,
    /// Idle timeout of the template's sandboxes, milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// Give up after this long, milliseconds.
    pub timeout_ms: Option<u64>,
    /// Services of the template; those of the template that it is built on when there are none.
    #[serde(default, skip_serializing_if = "Services::is_empty")]
    pub services: Services,
}

impl BuildSpec {
    /// Checks everything but the Dockerfile and the steps.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        spec::recipe_name("name", &self.name)?;
        spec::template_tags("tags", &self.tags)?;
        if self.dockerfile.is_some() == self.steps.is_some() {
            return Err(Error::invalid("dockerfile", "give either a Dockerfile or steps"));
        }
        if self.args.len() > BUILD_ARGS_MAX_COUNT {
            return Err(Error::invalid("args", format_args!("more than {BUILD_ARGS_MAX_COUNT} arguments")));
        }
        spec::env("args", &self.args)?;
        let start = match &self.start {
            Some(StartFrom::Command(command)) => Some(command),
            Some(StartFrom::Image) | None => None,
        };
        validate_start(start, self.ready.as_ref())?;
        if let Some(egress) = &self.egress {
            egress.validate("egress")?;
        }
        if self.timeout_ms.is_some_and(|ms| ms == 0 || ms > BUILD_TIMEOUT_MAX_MS.min(DURATION_MAX_MS)) {
            return Err(Error::invalid("timeout_ms", "must lie between 1 millisecond and one day"));
        }
        self.template("host".to_owned()).validate()
    }

    /// The recipe without what the steps make of it.
    #[must_use]
    pub fn template(&self, image: String) -> TemplateSpec {
        TemplateSpec {
            isolation: self.isolation,
            resources: self.resources,
            labels: self.labels.clone(),
            ttl_ms: self.ttl_ms,
            idle_timeout_ms: self.idle_timeout_ms,
            egress: self.template_egress.clone(),
            ready: self.ready.clone(),
            memory: self.memory,
            services: self.services.clone(),
            ..TemplateSpec::new(image)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        for state in BuildState::ALL {
            assert_eq!(BuildState::parse(state.as_str()), Some(state));
        }
    }

    #[test]
    fn ready_wants_one_thing() {
        let ready = |text: &str| serde_json::from_str::<Ready>(text).unwrap().validate();
        assert!(ready(r#"{"port":80}"#).is_ok());
        assert!(ready(r#"{"command":"true"}"#).is_ok());
        assert!(ready(r#"{"command":["true"],"timeout_ms":600000}"#).is_ok());
        for bad in [
            "{}",
            r#"{"port":0}"#,
            r#"{"port":1,"command":"x"}"#,
            r#"{"port":1,"timeout_ms":600001}"#,
            r#"{"command":""}"#,
            r#"{"port":1,"interval_ms":1}"#,
        ] {
            assert!(ready(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_are_read() {
        let text = r#"[{"from":"host"},{"run":"x"},{"run":["a"]},{"copy":{"sources":["a"],"destination":"/"}},{"env":{"A":"b"}}]"#;
        let steps: Vec<Step> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&steps).unwrap(), text);
        assert!(serde_json::from_str::<Step>(r#"{"fetch":"x"}"#).is_err());
    }
}
