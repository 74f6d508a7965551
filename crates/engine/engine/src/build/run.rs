//! The work of a build: images, plan, cache, then stage after stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use atoll_build::Ignore;
use atoll_build::context::{ContextIndex, Entry};
use atoll_build::graph::{self, Graph, Origin};
use atoll_build::key::Key;
use atoll_build::place::Place;
use atoll_build::plan::{Planner, StagePlan, State, Step, Work, plan_stage};
use atoll_build::recipe::{Action, Recipe};
use atoll_core::build::{BuildEvent, BuildFailure, BuildSpec, CommandText, StartFrom, StepState};
use atoll_core::id::SandboxId;
use atoll_core::spec::{DEFAULT_PATH, ImageDefaults, IsolationLevel, SandboxDraft, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_image::{NoProgress, PullOptions};
use tokio::runtime::Handle;

use super::cache::Kept;
use super::context::content_path;
use super::live::Live;
use crate::authorize::Caller;
use crate::clock::now_ms;
use crate::engine::Engine;

/// Largest `.dockerignore`, bytes.
const IGNORE_MAX_BYTES: u64 = 1 << 20;

/// A running build.
pub(super) struct Run<'a> {
    pub(super) engine: &'a Engine,
    pub(super) live: &'a Arc<Live>,
    recipe: &'a Recipe,
    context: &'a ContextIndex,
    pub(super) caller: &'a Caller,
    spec: BuildSpec,
}

/// A file system that a stage has or begins with.
#[derive(Debug, Clone)]
pub(super) struct FileSystem {
    /// The image, as it is named.
    pub(super) image: String,
    /// What was made on top of it.
    pub(super) kept: Option<Kept>,
}

/// What of an image matters here.
#[derive(Debug, Clone, Default)]
struct ImageFacts {
    digest: String,
    defaults: ImageDefaults,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
}

/// What will be done.
struct Plan {
    graph: Graph,
    stages: BTreeMap<usize, StagePlan>,
    /// Number of the first line of each stage, and of all lines.
    first: BTreeMap<usize, u32>,
    total: u32,
}

/// Where a step stands, for its lines in the log.
#[derive(Debug, Clone)]
pub(super) struct Numbered<'a> {
    pub(super) number: u32,
    total: u32,
    stage: Option<&'a str>,
    text: &'a str,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        live: &'a Arc<Live>,
        recipe: &'a Recipe,
        context: &'a ContextIndex,
        caller: &'a Caller,
    ) -> Self {
        Self { engine, live, recipe, context, caller, spec: live.record().spec }
    }

    pub(super) async fn run(&self) -> Result<TemplateSpec, BuildFailure> {
        let plan = self.plan().await?;
        let cached = if self.spec.no_cache {
            BTreeMap::new()
        } else {
            let steps = plan.stages.values().flat_map(|stage| &stage.steps);
            let keys: BTreeSet<String> = steps.map(|step| step.key.to_hex()).collect();
            self.engine.find_cached(&keys).await?
        };
        let begin = plan.schedule(&cached);
        let mut results: BTreeMap<usize, FileSystem> = BTreeMap::new();
        for (index, stage) in &plan.stages {
            let steps = plan.effective(*index);
            self.stage_lines(&plan, *index, begin.get(index).copied().unwrap_or(steps.len())).await?;
            let Some(begin) = begin.get(index).copied() else { continue };
            let before = begin.checked_sub(1).and_then(|at| cached.get(&stage.steps[at].key.to_hex()));
            let base = match (before, &plan.graph.bases[*index]) {
                (Some(kept), _) => FileSystem { image: kept.image.clone(), kept: Some(kept.clone()) },
                (None, Origin::Image(name)) => FileSystem { image: name.clone(), kept: None },
                (None, Origin::Stage(stage)) => results
                    .get(stage)
                    .cloned()
                    .ok_or_else(|| Error::new(Code::Internal, "a stage was not built"))?,
            };
            let made = self.stage(&plan, *index, begin, base, &results).await?;
            results.insert(*index, made);
        }
        let made = results
            .remove(&plan.graph.target)
            .ok_or_else(|| Error::new(Code::Internal, "the target was not built"))?;
        Ok(self.template(&plan, made)?)
    }

    // === planning ===

    async fn plan(&self) -> Result<Plan> {
        let ignore = self.ignore().await?;
        let planner = Planner {
            recipe: self.recipe,
            given: &self.spec.args,
            context: self.context,
            ignore: &ignore,
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            },
        };
        for note in &self.recipe.notes {
            self.note(note.clone()).await?;
        }
        for name in planner.unused_args() {
            self.note(format!("the argument {name} is not declared by any ARG, and not used")).await?;
        }
        let graph = Graph::new(self.recipe, &planner.bases()?, self.spec.target.as_deref())?;
        let images = self.images(&graph).await?;
        let isolation = self.spec.isolation.unwrap_or(IsolationLevel::Container).as_str();
        let mut stages: BTreeMap<usize, StagePlan> = BTreeMap::new();
        for index in graph.needed.iter().copied() {
            let base = match &graph.bases[index] {
                Origin::Stage(stage) => stages.get(stage).map(|plan| plan.end.clone()),
                Origin::Image(name) => images.get(name).map(|facts| state(facts, isolation)),
            };
            let missing = || Error::new(Code::Internal, "a stage has no base");
            let planned = {
                let key = |origin: &Origin| match origin {
                    Origin::Stage(stage) => stages.get(stage).map(|plan| plan.end.key).ok_or_else(missing),
                    Origin::Image(name) => {
                        images.get(name).map(|facts| Key::base(&facts.digest, isolation)).ok_or_else(missing)
                    }
                };
                plan_stage(&planner, index, base.ok_or_else(missing)?, &key)?
            };
            stages.insert(index, planned);
        }
        let (mut first, mut total) = (BTreeMap::new(), 0);
        for (index, stage) in &stages {
            first.insert(*index, total + 1);
            // Bounded by the limit on instructions.
            total += 1 + u32::try_from(stage.steps.len()).unwrap_or(u32::MAX);
        }
        Ok(Plan { graph, stages, first, total })
    }

    /// What is left out of the context.
    async fn ignore(&self) -> Result<Ignore> {
        if let Some(text) = &self.spec.ignore {
            return Ok(Ignore::parse(text));
        }
        let Some(Entry::File { size, digest, .. }) = self.context.entries.get(".dockerignore") else {
            return Ok(Ignore::default());
        };
        if *size > IGNORE_MAX_BYTES {
            return Err(Error::new(Code::TooLarge, "the .dockerignore is larger than 1 MiB"));
        }
        let bytes = tokio::fs::read(content_path(&self.context_dir(), digest)).await.map_err(|error| {
            tracing::error!(%error, "a context cannot be read");
            Error::new(Code::Internal, "the context cannot be read")
        })?;
        Ok(Ignore::parse(&String::from_utf8_lossy(&bytes)))
    }

    pub(super) fn context_dir(&self) -> std::path::PathBuf {
        self.engine.inner.build_dir(&self.live.id).join("context")
    }

    /// Every image that the needed stages begin with or copy from; pulled if it is not here.
    async fn images(&self, graph: &Graph) -> Result<BTreeMap<String, ImageFacts>> {
        let mut images = BTreeMap::new();
        for index in graph.needed.iter().copied() {
            let stage = &self.recipe.stages[index];
            let mut wanted = vec![(stage.place, graph.bases[index].clone())];
            for instruction in &stage.instructions {
                if let Action::Copy(copy) = &instruction.action
                    && let Some(from) = &copy.from
                {
                    let place = instruction.place;
                    wanted.push((place, graph::source(self.recipe, index, place, from)?));
                }
            }
            for (place, origin) in wanted {
                if let Origin::Image(name) = origin
                    && !images.contains_key(&name)
                {
                    let facts = self.image(place, &name).await?;
                    images.insert(name, facts);
                }
            }
        }
        Ok(images)
    }

    async fn image(&self, place: Place, name: &str) -> Result<ImageFacts> {
        if name == "host" {
            return Ok(ImageFacts { digest: "host".to_owned(), ..ImageFacts::default() });
        }
        let images = self.engine.images();
        let image = match images.resolve(name).map_err(|error| error.to_core()) {
            Ok(image) => image,
            Err(error) if error.code == Code::ImageNotFound => {
                self.note(format!("pulling {name}")).await?;
                let started = Instant::now();
                let image = self.pull(name).await.map_err(|error| placed(place, name, error))?;
                self.note(format!("pulled {name} in {:.1} s", started.elapsed().as_secs_f32())).await?;
                image
            }
            Err(error) => return Err(placed(place, name, error)),
        };
        Ok(ImageFacts {
            digest: image.digest.to_string(),
            defaults: image.defaults.clone(),
            entrypoint: image.entrypoint.clone(),
            cmd: image.cmd.clone(),
        })
    }

    /// Pulls with the stored credentials of the registry. On a thread of its own, which a cancelled build ends.
    async fn pull(&self, name: &str) -> Result<Arc<atoll_image::Image>> {
        let host = atoll_image::registry_of(name).map_err(|error| error.to_core())?;
        let credentials = self.engine.registry_credentials(&host).await?;
        let (images, name) = (self.engine.images().clone(), name.to_owned());
        let stop = self.live.cancel.child_token();
        let _stops_with_this = stop.clone().drop_guard();
        let runtime = Handle::current();
        let pulling = tokio::task::spawn_blocking(move || {
            let options = PullOptions { known: credentials.is_some(), credentials, ..PullOptions::default() };
            runtime.block_on(stop.run_until_cancelled(images.pull(&name, &options, &NoProgress)))
        });
        match pulling.await {
            Ok(Some(pulled)) => pulled.map_err(|error| error.to_core()),
            Ok(None) => Err(Error::new(Code::BuildCancelled, "the build was cancelled")),
            Err(error) => {
                tracing::error!(%error, "a pull panicked");
                Err(Error::new(Code::Internal, "the image could not be pulled"))
            }
        }
    }

    // === running ===

    /// What is said about a stage before its first step runs: its base and everything that is there already.
    async fn stage_lines(&self, plan: &Plan, index: usize, begin: usize) -> Result<()> {
        let base = format!("FROM {}", self.recipe.stages[index].base);
        let stage = &plan.stages[&index];
        let lines =
            std::iter::once(base.as_str()).chain(stage.steps[..begin].iter().map(|step| step.text.as_str()));
        for (at, text) in lines.enumerate() {
            let numbered = self.numbered(plan, index, at, text);
            self.step(&numbered, StepState::Cached, None).await?;
        }
        Ok(())
    }

    async fn stage(
        &self,
        plan: &Plan,
        index: usize,
        begin: usize,
        base: FileSystem,
        results: &BTreeMap<usize, FileSystem>,
    ) -> Result<FileSystem, BuildFailure> {
        let all = &plan.stages[&index].steps;
        let steps = plan.effective(index);
        let (mut now, mut sandbox) = (base, None);
        for (at, step) in steps.iter().enumerate().skip(begin) {
            let numbered = self.numbered(plan, index, at + 1, &step.text);
            self.step(&numbered, StepState::Started, None).await?;
            let started = Instant::now();
            let last = at + 1 == steps.len();
            match self.do_step(step, last, &numbered, &now, &mut sandbox, results).await {
                Ok(Some(kept)) => now.kept = Some(kept),
                Ok(None) => {}
                Err(mut failure) => {
                    failure.step.get_or_insert_with(|| step.text.clone());
                    self.step(&numbered, StepState::Failed, Some(started)).await?;
                    return Err(failure);
                }
            }
            self.step(&numbered, StepState::Done, Some(started)).await?;
        }
        // A working directory that is only named is made with each sandbox.
        for (at, step) in all.iter().enumerate().skip(steps.len().max(begin)) {
            let numbered = self.numbered(plan, index, at + 1, &step.text);
            self.step(&numbered, StepState::Done, None).await?;
        }
        if let Some(sandbox) = sandbox {
            self.engine.delete_sandbox(&sandbox).await?;
        }
        Ok(now)
    }

    async fn do_step(
        &self,
        step: &Step,
        last: bool,
        numbered: &Numbered<'_>,
        now: &FileSystem,
        sandbox: &mut Option<SandboxId>,
        results: &BTreeMap<usize, FileSystem>,
    ) -> Result<Option<Kept>, BuildFailure> {
        let started = Instant::now();
        let inside = match sandbox {
            Some(inside) => inside.clone(),
            None => sandbox.insert(self.sandbox(now).await.map_err(|error| at(step.place, error))?).clone(),
        };
        self.work(step, &inside, numbered, results).await?;
        atoll_failpoint::fail_point!("engine.build.worked");
        if matches!(step.work, Work::Directory(_)) && !last {
            return Ok(None);
        }
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (key, text) = (step.key.to_hex(), step.text.clone());
        let kept = self.engine.keep_step(inside, key, text, took_ms, self.caller.clone()).await;
        kept.map(Some).map_err(|error| at(step.place, error).into())
    }

    /// A sandbox on a file system, for steps.
    pub(super) async fn sandbox(&self, on: &FileSystem) -> Result<SandboxId> {
        let snapshot = on.kept.as_ref().map(|kept| kept.snapshot.to_string());
        let draft = SandboxDraft {
            image: snapshot.is_none().then(|| on.image.clone()),
            snapshot,
            isolation: self.spec.isolation,
            resources: self.spec.resources,
            egress: self.spec.egress.clone(),
            build: Some(self.live.id.clone()),
            ..SandboxDraft::default()
        };
        Ok(self.engine.create_sandbox(draft, self.caller).await?.id)
    }

    // === the result ===

    fn template(&self, plan: &Plan, made: FileSystem) -> Result<TemplateSpec> {
        let target = plan.graph.target;
        let end = &plan.stages[&target].end;
        let start = match &self.spec.start {
            None => None,
            Some(StartFrom::Command(command)) => Some(command.clone()),
            Some(StartFrom::Image) => {
                let argv: Vec<String> = end.entrypoint.iter().chain(&end.cmd).cloned().collect();
                if argv.is_empty() {
                    let place = self.recipe.stages[target].place;
                    return Err(place
                        .invalid("neither ENTRYPOINT nor CMD says what to start")
                        .hint("add one, or give a start command (--start-cmd)"));
                }
                Some(CommandText::Argv(argv))
            }
        };
        let template = TemplateSpec {
            snapshot: made.kept.map(|kept| kept.snapshot),
            env: end.env.clone(),
            user: end.user.clone(),
            workdir: end.workdir.clone(),
            start,
            ..self.spec.template(made.image)
        };
        template.validate()?;
        Ok(template)
    }

    // === the log ===

    fn numbered<'b>(&'b self, plan: &Plan, index: usize, at: usize, text: &'b str) -> Numbered<'b> {
        let first = plan.first.get(&index).copied().unwrap_or(1);
        Numbered {
            number: first.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)),
            total: plan.total,
            stage: self.recipe.stages[index].name.as_deref(),
            text,
        }
    }

    async fn step(&self, numbered: &Numbered<'_>, state: StepState, since: Option<Instant>) -> Result<()> {
        if state != StepState::Started {
            *self.engine.inner.builds.counts().steps.entry(state).or_default() += 1;
        }
        let event = BuildEvent::Step {
            at_ms: now_ms(),
            step: numbered.number,
            total: numbered.total,
            stage: numbered.stage.map(str::to_owned),
            text: numbered.text.to_owned(),
            state,
            took_ms: since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)),
        };
        self.live.journal.write(&event).await
    }

    async fn note(&self, text: String) -> Result<()> {
        self.live.journal.write(&BuildEvent::Note { at_ms: now_ms(), text }).await
    }
}

impl Plan {
    /// The steps of a stage that have to be there. In the target, directories at the end that are the working
    /// directory need not: every sandbox has its own made.
    fn effective(&self, index: usize) -> &[Step] {
        let Some(stage) = self.stages.get(&index) else { return &[] };
        let mut len = stage.steps.len();
        while index == self.graph.target
            && let Some(Step { work: Work::Directory(path), .. }) = stage.steps[..len].last()
            && stage.end.workdir.as_ref() == Some(path)
        {
            len -= 1;
        }
        &stage.steps[..len]
    }

    /// For each stage whose file system is needed, the first step that has to run.
    fn schedule(&self, cached: &BTreeMap<String, Kept>) -> BTreeMap<usize, usize> {
        let mut begin = BTreeMap::new();
        let mut open = vec![self.graph.target];
        while let Some(index) = open.pop() {
            if begin.contains_key(&index) {
                continue;
            }
            let steps = self.effective(index);
            let hit = steps.iter().rposition(|step| cached.contains_key(&step.key.to_hex()));
            let first = hit.map_or(0, |hit| hit + 1);
            begin.insert(index, first);
            if hit.is_none()
                && let Origin::Stage(base) = self.graph.bases[index]
            {
                open.push(base);
            }
            for step in &steps[first..] {
                if let Work::CopyFrom { from: Origin::Stage(stage), .. } = &step.work {
                    open.push(*stage);
                }
            }
        }
        begin
    }
}

fn state(facts: &ImageFacts, isolation: &str) -> State {
    let mut state = State::new(Key::base(&facts.digest, isolation));
    state.env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    state.env.extend(facts.defaults.env.clone());
    state.user.clone_from(&facts.defaults.user);
    state.workdir.clone_from(&facts.defaults.workdir);
    state.entrypoint.clone_from(&facts.entrypoint);
    state.cmd.clone_from(&facts.cmd);
    state
}

/// The same error with the place in front.
pub(super) fn at(place: Place, error: Error) -> Error {
    Error { message: format!("{place}: {}", error.message), ..error }
}

fn placed(place: Place, name: &str, error: Error) -> Error {
    let name = atoll_core::error::shorten(name);
    let message = format!("{place}: the image '{name}': {}", error.message);
    let error = Error { message, ..error };
    match error.hint {
        Some(_) => error,
        None => error.hint("FROM takes an image of a registry, one that was loaded, or 'host'"),
    }
}
