//! Instructions to steps: variables put in, paths made absolute, each step with the key of its result.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::error::shorten;
use atoll_core::spec;
use atoll_core::{Error, Result};

use crate::Ignore;
use crate::context::ContextIndex;
use crate::copy::{self, Selection};
use crate::graph::{self, Origin};
use crate::key::Key;
use crate::mounts::Mounted;
use crate::place::Place;
use crate::recipe::{Action, Arg, Command, Copy, Instruction, Mount, Recipe, Source};
use crate::words;

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
        words::expand(text, self.recipe.escape, variable).map_err(|why| place.invalid(why))
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

/// Plans one stage, which begins with `base`. `origin_key` gives the key of what a `COPY --from` takes from.
///
/// # Errors
/// What is wrong, with the place.
pub fn plan_stage(
    planner: &Planner<'_>,
    index: usize,
    base: State,
    origin_key: &dyn Fn(&Origin) -> Result<Key>,
) -> Result<StagePlan> {
    let globals = planner.globals()?;
    let mut stage = Stage { planner, index, state: base, args: BTreeMap::new(), globals, steps: Vec::new() };
    for instruction in &planner.recipe.stages[index].instructions {
        stage.instruction(instruction, origin_key)?;
    }
    Ok(StagePlan { steps: stage.steps, end: stage.state })
}

pub(crate) struct Stage<'a> {
    pub(crate) planner: &'a Planner<'a>,
    pub(crate) index: usize,
    pub(crate) state: State,
    args: BTreeMap<String, String>,
    globals: BTreeMap<String, String>,
    steps: Vec<Step>,
}

impl Stage<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.state.env.get(name).or_else(|| self.args.get(name)).cloned()
    }

    pub(crate) fn expand(&self, place: Place, text: &str) -> Result<String> {
        self.planner.expand(place, text, &|name| self.variable(name))
    }

    fn instruction(
        &mut self,
        instruction: &Instruction,
        origin_key: &dyn Fn(&Origin) -> Result<Key>,
    ) -> Result<()> {
        let place = instruction.place;
        match &instruction.action {
            Action::Arg(args) => return self.declare(args),
            Action::Env(pairs) => {
                // All pairs of one instruction see the values from before the instruction.
                let pairs = self.pairs(place, pairs)?;
                for (name, value) in pairs {
                    self.chain("env", [name.as_bytes(), value.as_bytes()]);
                    self.state.env.insert(name, value);
                }
                spec::env("ENV", &self.state.env).map_err(|error| placed(place, &error))?;
            }
            // For the record: neither changes what runs.
            Action::Label(pairs) => drop(self.pairs(place, pairs)?),
            Action::Expose(ports) => {
                for port in ports {
                    self.expand(place, port)?;
                }
            }
            Action::User(user) => {
                let user = self.expand(place, user)?;
                spec::user("USER", &user).map_err(|error| placed(place, &error))?;
                self.chain("user", [user.as_bytes()]);
                self.state.user = Some(user);
            }
            Action::Shell(shell) => {
                let fields: Vec<&[u8]> = shell.iter().map(String::as_bytes).collect();
                self.state.key = self.state.key.then("shell", fields);
                self.state.shell.clone_from(shell);
            }
            Action::Cmd(command) => self.state.cmd = self.state.argv(command.clone()),
            Action::Entrypoint(command) => {
                self.state.entrypoint = self.state.argv(command.clone());
                // The base's default command belonged to the base's entry point.
                self.state.cmd.clear();
            }
            Action::Workdir(path) => {
                let path = copy::absolute(self.state.cwd(), &self.expand(place, path)?);
                spec::path("WORKDIR", &path).map_err(|error| placed(place, &error))?;
                self.chain("workdir", [path.as_bytes()]);
                self.state.workdir = Some(path.clone());
                self.push(instruction, Work::Directory(path));
            }
            Action::Run(command, mounts) => self.run(instruction, command, mounts, origin_key)?,
            Action::Copy(copy) => self.copy(instruction, copy, origin_key)?,
        }
        Ok(())
    }

    fn chain<'b>(&mut self, kind: &str, fields: impl IntoIterator<Item = &'b [u8]>) {
        self.state.key = self.state.key.then(kind, fields);
    }

    fn push(&mut self, instruction: &Instruction, work: Work) {
        let key = self.state.key;
        self.steps.push(Step { place: instruction.place, text: instruction.text.clone(), key, work });
    }

    fn declare(&mut self, args: &[Arg]) -> Result<()> {
        for arg in args {
            let value = self.planner.argument(arg, &|name| self.variable(name))?;
            let value = value
                .or_else(|| self.globals.get(&arg.name).cloned())
                .or_else(|| self.planner.platform(&arg.name));
            if let Some(value) = value {
                self.args.insert(arg.name.clone(), value);
            }
        }
        spec::env("ARG", &self.args)
            .map_err(|error| args.first().map_or_else(|| error.clone(), |arg| placed(arg.place, &error)))
    }

    fn pairs(&self, place: Place, pairs: &[(String, String)]) -> Result<Vec<(String, String)>> {
        pairs
            .iter()
            .map(|(name, value)| Ok((self.expand(place, name)?, self.expand(place, value)?)))
            .collect()
    }

    fn run(
        &mut self,
        instruction: &Instruction,
        command: &Command,
        mounts: &[Mount],
        origin_key: &dyn Fn(&Origin) -> Result<Key>,
    ) -> Result<()> {
        let argv = self.state.argv(command.clone());
        let mut identities = Vec::new();
        let mut mounted = Vec::new();
        for mount in mounts {
            mounted.push(self.mount(mount, origin_key, &mut identities)?);
        }
        let mut fields: Vec<&[u8]> = vec![b"argv"];
        fields.extend(argv.iter().map(String::as_bytes));
        fields.push(b"args");
        for (name, value) in self.args.iter().filter(|(name, _)| !PROXIES.contains(&name.as_str())) {
            fields.extend([name.as_bytes(), value.as_bytes()]);
        }
        fields.extend(identities.iter().map(Vec::as_slice));
        let key = self.state.key.then("run", fields);
        let given = self.planner.given.iter().filter(|(name, _)| PROXIES.contains(&name.as_str()));
        let mut env: BTreeMap<String, String> =
            given.map(|(name, value)| (name.clone(), value.clone())).collect();
        env.extend(self.args.clone());
        env.extend(self.state.env.clone());
        spec::command("RUN", &spec::Command::Argv(argv.clone()))
            .map_err(|error| placed(instruction.place, &error))?;
        let user = self.state.user.clone().unwrap_or_else(|| "root".to_owned());
        let work = Work::Run { argv, env, user, cwd: self.state.cwd().to_owned(), mounts: mounted };
        self.state.key = key;
        self.push(instruction, work);
        Ok(())
    }

    fn copy(
        &mut self,
        instruction: &Instruction,
        copy: &Copy,
        origin_key: &dyn Fn(&Origin) -> Result<Key>,
    ) -> Result<()> {
        let place = instruction.place;
        let destination = self.expand(place, &copy.destination)?;
        let chown = copy.chown.as_ref().map(|text| self.expand(place, text)).transpose()?;
        if let Some(owner) = &chown {
            spec::user("--chown", owner).map_err(|error| placed(place, &error))?;
        }
        let sources: Vec<Source> = copy
            .sources
            .iter()
            .map(|source| match source {
                Source::Path(path) => self.expand(place, path).map(Source::Path),
                Source::Address(url) => self.expand(place, url).map(Source::Address),
                inline @ Source::Inline { .. } => Ok(inline.clone()),
            })
            .collect::<Result<_>>()?;
        let path = copy::absolute(self.state.cwd(), &destination);
        spec::path("destination", &path).map_err(|error| placed(place, &error))?;
        let to = Target { path, directory: copy::names_directory(&destination), chown, chmod: copy.chmod };
        let mode = to.chmod.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let owner = to.chown.clone().unwrap_or_default();
        let directory = [u8::from(to.directory)];
        let how: [&[u8]; 4] = [to.path.as_bytes(), &directory, owner.as_bytes(), mode.as_bytes()];
        let work = match (&copy.from, &sources[..]) {
            (None, [Source::Address(url)]) => {
                let digest = copy.checksum.clone().unwrap_or_default();
                let fields = how.into_iter().chain([url.as_bytes(), digest.as_bytes()]);
                self.state.key = self.state.key.then("fetch", fields);
                Work::Fetch { url: url.clone(), checksum: copy.checksum.clone(), to }
            }
            (None, _) => {
                let planner = self.planner;
                let (context, ignore) = (planner.context, planner.ignore);
                let from = copy::Files { context, ignore, keep_links: copy.keep_links };
                let selection = copy::select(place, &sources, &destination, from)?;
                let digest = selection.digest();
                self.state.key = self.state.key.then("copy", how.into_iter().chain([&digest[..]]));
                Work::CopyContext { selection, to }
            }
            (Some(from), _) => {
                let from = graph::source(self.planner.recipe, self.index, place, from)?;
                let sources = paths(place, &sources, &to)?;
                let origin = origin_key(&from)?.to_hex();
                let fields =
                    how.into_iter().chain([origin.as_bytes()]).chain(sources.iter().map(String::as_bytes));
                self.state.key = self.state.key.then("copy-from", fields);
                Work::CopyFrom { from, sources, to }
            }
        };
        self.push(instruction, work);
        Ok(())
    }
}

/// Sources of a `COPY --from`: from the root there.
fn paths(place: Place, sources: &[Source], to: &Target) -> Result<Vec<String>> {
    let path = |source: &Source| match source {
        Source::Path(path) => Ok(copy::absolute("/", path)),
        Source::Address(_) | Source::Inline { .. } => {
            Err(place.invalid("neither an address nor a here-document comes from another stage"))
        }
    };
    let paths = sources.iter().map(path).collect::<Result<Vec<_>>>()?;
    if (paths.len() > 1 || paths.iter().any(|path| copy::is_pattern(path))) && !to.directory {
        return Err(place
            .invalid("several sources need a destination that is a directory")
            .hint("end the destination with '/'"));
    }
    Ok(paths)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
