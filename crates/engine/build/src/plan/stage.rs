//! One stage of a recipe, instruction by instruction: each changes the stage's state, and some are steps.

use std::collections::BTreeMap;

use atoll_core::{Result, spec};

use super::{PROXIES, Planner, StagePlan, State, Step, Target, Work, placed};
use crate::copy;
use crate::graph::{self, Origin};
use crate::key::Key;
use crate::place::Place;
use crate::recipe::{Action, Arg, Command, Copy, Instruction, Mount, Source};

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
        let of_env = env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        self.planner.budget.keep(of_env + argv.iter().map(String::len).sum::<usize>());
        self.planner.budget.check(instruction.place)?;
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
                let (context, ignore, budget) = (planner.context, planner.ignore, planner.budget);
                let from = copy::Files { context, ignore, keep_links: copy.keep_links, budget };
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
