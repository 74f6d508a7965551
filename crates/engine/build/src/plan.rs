//! Instructions to steps: variables put in, paths made absolute, each step with the key of its result.
//!
//! Here is what a plan consists of, and the [`Planner`], which knows what is given to the whole build; `stage` goes through one
//! stage.

mod stage;

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::error::shorten;
use atoll_core::spec;
use atoll_core::{Error, Result};

use crate::Ignore;
use crate::budget::Budget;
use crate::context::ContextIndex;
use crate::copy::Selection;
use crate::graph::Origin;
use crate::key::Key;
use crate::mounts::Mounted;
use crate::place::Place;
use crate::recipe::{Action, Arg, Command, Recipe};
use crate::words;

pub(crate) use stage::Stage;
pub use stage::plan_stage;

/// Arguments that every build has without declaring them. They reach commands, but not the cache keys: they
/// say how to download files, not which.
const PROXIES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// What a stage has become so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Identity of the file system.
    pub key: Key,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// User of commands; the image's root when absent.
    pub user: Option<String>,
    /// Working directory.
    pub workdir: Option<String>,
    /// Program and first arguments that run a line.
    pub shell: Vec<String>,
    /// Entry point.
    pub entrypoint: Vec<String>,
    /// Default command.
    pub cmd: Vec<String>,
}

impl State {
    /// A state with only an identity.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            key,
            env: BTreeMap::new(),
            user: None,
            workdir: None,
            shell: vec!["/bin/sh".to_owned(), "-c".to_owned()],
            entrypoint: Vec::new(),
            cmd: Vec::new(),
        }
    }

    /// Where relative paths begin.
    #[must_use]
    pub fn cwd(&self) -> &str {
        self.workdir.as_deref().unwrap_or("/")
    }

    fn argv(&self, command: Command) -> Vec<String> {
        match command {
            Command::Argv(argv) => argv,
            Command::Shell(line) => self.shell.iter().cloned().chain([line]).collect(),
        }
    }
}

/// One step: what is shown as a line and can be in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it was written.
    pub place: Place,
    /// As it is shown.
    pub text: String,
    /// Key of the file system after it.
    pub key: Key,
    /// What is done.
    pub work: Work,
}

/// What a step does in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Runs a command.
    Run {
        /// Program and arguments.
        argv: Vec<String>,
        /// Environment on top of the sandbox's.
        env: BTreeMap<String, String>,
        /// The user who runs it.
        user: String,
        /// Where.
        cwd: String,
        /// Files that it sees while it runs.
        mounts: Vec<Mounted>,
    },
    /// Makes a directory, if there is none.
    Directory(String),
    /// Writes files of the context.
    CopyContext {
        /// The files.
        selection: Selection,
        /// Whereto.
        to: Target,
    },
    /// Writes a file that a server has.
    Fetch {
        /// Its address.
        url: String,
        /// Digest that it must have, SHA-256 in hexadecimal digits.
        checksum: Option<String>,
        /// Whereto.
        to: Target,
    },
    /// Writes files of another stage or an image.
    CopyFrom {
        /// From where.
        from: Origin,
        /// Absolute paths or patterns there.
        sources: Vec<String>,
        /// Whereto.
        to: Target,
    },
}

impl Work {
    /// The stages and images that it takes files of.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        let (copied, mounts) = match self {
            Self::CopyFrom { from, .. } => (Some(from), &[][..]),
            Self::Run { mounts, .. } => (None, &mounts[..]),
            Self::Directory(_) | Self::CopyContext { .. } | Self::Fetch { .. } => (None, &[][..]),
        };
        let mounted = mounts.iter().filter_map(|mount| match mount {
            Mounted::From { from, .. } => Some(from),
            Mounted::Context { .. } | Mounted::Secret { .. } => None,
        });
        copied.into_iter().chain(mounted)
    }
}

/// Whereto files are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Absolute.
    pub path: String,
    /// The Dockerfile or step list writes it as a directory.
    pub directory: bool,
    /// Owner of the copies.
    pub chown: Option<String>,
    /// Permissions of the copies.
    pub chmod: Option<u32>,
}

/// A stage, ready to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// In order.
    pub steps: Vec<Step>,
    /// Its state after the last step.
    pub end: State,
}

/// The inputs of planning.
#[derive(Debug)]
pub struct Planner<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Arguments of the caller.
    pub given: &'a BTreeMap<String, String>,
    /// The context.
    pub context: &'a ContextIndex,
    /// The paths of it that are left out.
    pub ignore: &'a Ignore,
    /// Architecture as Docker names it, such as `amd64`.
    pub architecture: &'a str,
    /// What the plan may take.
    pub budget: &'a Budget,
}

impl Planner<'_> {
    fn platform(&self, name: &str) -> Option<String> {
        match name {
            "TARGETPLATFORM" | "BUILDPLATFORM" => Some(format!("linux/{}", self.architecture)),
            "TARGETOS" | "BUILDOS" => Some("linux".to_owned()),
            "TARGETARCH" | "BUILDARCH" => Some(self.architecture.to_owned()),
            "TARGETVARIANT" | "BUILDVARIANT" => Some(String::new()),
            _ => None,
        }
    }

    fn expand(&self, place: Place, text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String> {
        if !self.recipe.variables {
            return Ok(text.to_owned());
        }
        // Each value that is put in counts, also one that is dropped again: `${NAME:+}` is short and reads all of it.
        let counted = |name: &str| {
            let value = if self.budget.is_full() { None } else { variable(name) };
            self.budget.keep(value.as_ref().map_or(0, String::len));
            value
        };
        let value = words::expand(text, self.recipe.escape, &counted);
        self.budget.keep(value.as_ref().map_or(0, String::len));
        self.budget.check(place)?;
        value.map_err(|why| place.invalid(why))
    }

    /// Values of the arguments before the first `FROM`.
    fn globals(&self) -> Result<BTreeMap<String, String>> {
        let mut values = BTreeMap::new();
        for arg in &self.recipe.args {
            if let Some(value) =
                self.argument(arg, &|name| values.get(name).cloned().or_else(|| self.platform(name)))?
            {
                values.insert(arg.name.clone(), value);
            }
        }
        Ok(values)
    }

    fn argument(&self, arg: &Arg, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>> {
        if let Some(given) = self.given.get(&arg.name) {
            return Ok(Some(given.clone()));
        }
        arg.default.as_ref().map(|text| self.expand(arg.place, text, variable)).transpose()
    }

    /// Refuses a platform that is not the host's.
    fn check_platform(&self, place: Place, asked: &str) -> Result<()> {
        let (os, architecture) = asked.split_once('/').unwrap_or((asked, self.architecture));
        // A variant only narrows down what the architecture says.
        let architecture = architecture.split('/').next().unwrap_or_default();
        if os == "linux" && architecture == self.architecture {
            return Ok(());
        }
        let what = format!("--platform={}", shorten(asked));
        Err(place
            .unsupported(what, &format!("leave it out: this host builds for linux/{}", self.architecture)))
    }

    /// The names behind each `FROM`, with variables put in.
    ///
    /// # Errors
    /// [`atoll_core::Code::BuildFileInvalid`] with the place.
    pub fn bases(&self) -> Result<Vec<String>> {
        let globals = self.globals()?;
        let lookup = |name: &str| globals.get(name).cloned().or_else(|| self.platform(name));
        let base = |stage: &crate::recipe::Stage| {
            if let Some((place, platform)) = &stage.platform {
                self.check_platform(*place, &self.expand(*place, platform, &lookup)?)?;
            }
            let name = self.expand(stage.place, &stage.base, &lookup)?;
            if name.is_empty() {
                return Err(stage
                    .place
                    .invalid(format_args!("'{}' is empty: the argument has no value", shorten(&stage.base)))
                    .hint("give it one: --build-arg NAME=VALUE, or a default behind ARG NAME="));
            }
            spec::image_reference("image", &name).map_err(|error| placed(stage.place, &error))?;
            Ok(name)
        };
        self.recipe.stages.iter().map(base).collect()
    }

    /// Arguments that were given and that no `ARG` asks for.
    #[must_use]
    pub fn unused_args(&self) -> Vec<String> {
        let in_stages = self.recipe.stages.iter().flat_map(|stage| &stage.instructions);
        let declared =
            in_stages.filter_map(
                |instruction| {
                    if let Action::Arg(args) = &instruction.action { Some(args) } else { None }
                },
            );
        let declared: BTreeSet<&str> =
            declared.flatten().chain(&self.recipe.args).map(|arg| arg.name.as_str()).collect();
        let unused = |name: &&String| !declared.contains(name.as_str()) && !PROXIES.contains(&name.as_str());
        self.given.keys().filter(unused).cloned().collect()
    }
}

pub(crate) fn placed(place: Place, error: &Error) -> Error {
    place.invalid(&error.message)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
