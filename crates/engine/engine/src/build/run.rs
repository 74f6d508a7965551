//! The work of a build: images, plan, cache, then stage after stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_build::Ignore;
use atoll_build::context::Entry;
use atoll_build::graph::{Graph, Origin};
use atoll_build::place::Place;
use atoll_build::plan::{StagePlan, Step, Work};
use atoll_build::recipe::Recipe;
use atoll_core::build::{
    BuildEvent, BuildFailure, BuildSpec, CommandText, StartFrom, StepState, VERIFY_STEP,
};
use atoll_core::id::SandboxId;
use atoll_core::spec::{IsolationLevel, ResourcesDraft, SandboxDraft, TemplateSpec};
use atoll_core::{Code, Error, Result};
use tokio::time::Instant;

use super::base::{Base, FileSystem, Sources};
use super::cache::Kept;
use super::context::{Context, content_path};
use super::inputs::Inputs;
use super::live::Live;
use crate::authorize::Caller;
use crate::clock::Clock;
use crate::engine::Engine;

/// Largest `.dockerignore`, bytes.
const IGNORE_MAX_BYTES: u64 = 1 << 20;

/// A running build.
pub(super) struct Run<'a> {
    pub(super) engine: &'a Engine,
    pub(super) live: &'a Arc<Live>,
    pub(super) recipe: &'a Recipe,
    context: &'a Arc<Context>,
    pub(super) caller: &'a Caller,
    pub(super) spec: BuildSpec,
}

/// What will be done.
struct Plan {
    graph: Graph,
    /// What the stages begin with and copy from that is no stage.
    bases: BTreeMap<String, Base>,
    stages: BTreeMap<usize, StagePlan>,
    /// Number of the first line of each stage, and of all lines.
    first: BTreeMap<usize, u32>,
    total: u32,
    /// The last line is that what the template starts is tried out.
    verifies: bool,
}

/// Where a step stands, for its lines in the log.
#[derive(Debug, Clone)]
pub(super) struct Numbered<'a> {
    pub(super) number: u32,
    total: u32,
    stage: Option<&'a str>,
    text: &'a str,
}

impl Numbered<'_> {
    pub(super) const fn text(&self) -> &str {
        self.text
    }

    /// The line behind those of all stages.
    const fn last(plan: &Plan) -> Self {
        Self { number: plan.total, total: plan.total, stage: None, text: VERIFY_STEP }
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        live: &'a Arc<Live>,
        recipe: &'a Recipe,
        context: &'a Arc<Context>,
        caller: &'a Caller,
    ) -> Self {
        Self { engine, live, recipe, context, caller, spec: live.record().spec }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.engine.inner.clock
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
        let mut sources = Sources { bases: &plan.bases, stages: BTreeMap::new() };
        for (index, stage) in &plan.stages {
            let steps = plan.effective(*index);
            self.stage_lines(&plan, *index, begin.get(index).copied().unwrap_or(steps.len())).await?;
            let Some(begin) = begin.get(index).copied() else { continue };
            let before = begin.checked_sub(1).and_then(|at| cached.get(&stage.steps[at].key.to_hex()));
            let base = match before {
                Some(kept) => FileSystem { image: kept.image.clone(), kept: Some(kept.clone()) },
                None => sources.of(&plan.graph.bases[*index])?,
            };
            let made = self.stage(&plan, *index, begin, base, &sources).await?;
            sources.stages.insert(*index, made);
        }
        let made = sources.of(&Origin::Stage(plan.graph.target))?;
        let template = self.template(&plan, made)?;
        if plan.verifies {
            self.verify(&template, &Numbered::last(&plan)).await?;
        }
        Ok(template)
    }

    // === planning ===

    async fn plan(&self) -> Result<Plan> {
        let inputs = Inputs {
            recipe: self.recipe.clone(),
            given: self.spec.args.clone(),
            context: Arc::clone(self.context),
            ignore: self.ignore().await?,
            budget: Arc::default(),
        };
        for note in &self.recipe.notes {
            self.note(note.clone()).await?;
        }
        for name in inputs.planner().unused_args() {
            self.note(format!("the argument {name} is not declared by any ARG, and not used")).await?;
        }
        let names = inputs.planner().bases()?;
        let graph = Graph::new(self.recipe, &names, self.spec.target.as_deref())?;
        let bases = self.bases(&graph).await?;
        let isolation = self.spec.isolation.unwrap_or(IsolationLevel::Container).as_str();
        let states = bases.iter().map(|(name, base)| (name.clone(), base.state(isolation)));
        let stages = inputs.stages(graph.clone(), states.collect()).await?;
        let (mut first, mut total) = (BTreeMap::new(), 0);
        for (index, stage) in &stages {
            first.insert(*index, total + 1);
            // Bounded by the limit on instructions.
            total += 1 + u32::try_from(stage.steps.len()).unwrap_or(u32::MAX);
        }
        let mut plan = Plan { graph, bases, stages, first, total, verifies: false };
        plan.verifies = self.spec.verify && self.starts(&plan);
        plan.total += u32::from(plan.verifies);
        Ok(plan)
    }

    /// What is left out of the context.
    async fn ignore(&self) -> Result<Ignore> {
        if let Some(text) = &self.spec.ignore {
            return Ok(Ignore::parse(text));
        }
        let Some(Entry::File { size, digest, .. }) = self.context.index.entries.get(".dockerignore") else {
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
        sources: &Sources<'_>,
    ) -> Result<FileSystem, BuildFailure> {
        let all = &plan.stages[&index].steps;
        let steps = plan.effective(index);
        let (mut now, mut sandbox) = (base, None);
        for (at, step) in steps.iter().enumerate().skip(begin) {
            let numbered = self.numbered(plan, index, at + 1, &step.text);
            self.step(&numbered, StepState::Started, None).await?;
            let started = self.clock().instant();
            let last = at + 1 == steps.len();
            match self.do_step(step, last, &numbered, &now, &mut sandbox, sources).await {
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
        sources: &Sources<'_>,
    ) -> Result<Option<Kept>, BuildFailure> {
        let started = self.clock().instant();
        let inside = match sandbox {
            Some(inside) => inside.clone(),
            None => sandbox.insert(self.sandbox(now).await.map_err(|error| at(step.place, error))?).clone(),
        };
        self.work(step, &inside, numbered, sources).await?;
        atoll_failpoint::fail_point!("engine.build.worked");
        if matches!(step.work, Work::Directory(_)) && !last {
            return Ok(None);
        }
        let took_ms = u64::try_from(self.clock().since(started).as_millis()).unwrap_or(u64::MAX);
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
            resources: self.resources(on),
            egress: self.spec.egress.clone(),
            build: Some(self.live.id.clone()),
            ..SandboxDraft::default()
        };
        Ok(self.engine.create_sandbox(draft, self.caller).await?.id)
    }

    /// The limits that were asked for. A disk cannot shrink: what is made on a larger one keeps its size.
    fn resources(&self, on: &FileSystem) -> ResourcesDraft {
        let mut resources = self.spec.resources;
        let least = on.kept.as_ref().map_or(0, |kept| kept.disk_bytes);
        resources.disk_bytes = resources.disk_bytes.filter(|asked| *asked >= least);
        resources
    }

    // === the result ===

    /// Whether sandboxes of the template start something.
    fn starts(&self, plan: &Plan) -> bool {
        let below = plan.recipe_below(plan.graph.target);
        let BuildSpec { start, ready, services, .. } = &self.spec;
        start.is_some()
            || ready.is_some()
            || !services.is_empty()
            || below.is_some_and(|recipe| {
                recipe.start.is_some() || recipe.ready.is_some() || !recipe.services.is_empty()
            })
    }

    fn template(&self, plan: &Plan, made: FileSystem) -> Result<TemplateSpec> {
        let target = plan.graph.target;
        let end = &plan.stages[&target].end;
        let base = plan.recipe_below(target);
        let start = match &self.spec.start {
            None => base.and_then(|recipe| recipe.start.clone()),
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
        let mut ready = self.spec.ready.clone();
        if self.spec.start.is_none() && ready.is_none() {
            ready = base.and_then(|recipe| recipe.ready.clone());
        }
        // It is about the start command, and is inherited with it.
        let mut restart = self.spec.restart;
        if self.spec.start.is_none() && restart.is_none() {
            restart = base.and_then(|recipe| recipe.restart);
        }
        let mut services = self.spec.services.clone();
        if services.is_empty() {
            services = base.map(|recipe| recipe.services.clone()).unwrap_or_default();
        }
        let template = TemplateSpec {
            resources: self.resources(&made),
            services,
            ready,
            restart,
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

    pub(super) async fn step(
        &self,
        numbered: &Numbered<'_>,
        state: StepState,
        since: Option<Instant>,
    ) -> Result<()> {
        if state != StepState::Started {
            *self.engine.inner.builds.counts().steps.entry(state).or_default() += 1;
        }
        let event = BuildEvent::Step {
            at_ms: self.clock().now_ms(),
            step: numbered.number,
            total: numbered.total,
            stage: numbered.stage.map(str::to_owned),
            text: numbered.text.to_owned(),
            state,
            took_ms: since
                .map(|since| u64::try_from(self.clock().since(since).as_millis()).unwrap_or(u64::MAX)),
        };
        self.live.journal.write(&event).await
    }

    pub(super) async fn note(&self, text: String) -> Result<()> {
        self.live.journal.write(&BuildEvent::Note { at_ms: self.clock().now_ms(), text }).await
    }
}

impl Plan {
    /// The recipe of the template that a stage stands on, if it does.
    fn recipe_below(&self, stage: usize) -> Option<&TemplateSpec> {
        let mut origin = &self.graph.bases[stage];
        loop {
            match origin {
                Origin::Stage(below) => origin = &self.graph.bases[*below],
                Origin::Image(name) => return self.bases.get(name)?.recipe.as_deref(),
            }
        }
    }

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
                open.extend(step.work.origins().filter_map(|origin| match origin {
                    Origin::Stage(stage) => Some(*stage),
                    Origin::Image(_) => None,
                }));
            }
        }
        begin
    }
}

/// The same error with the place in front.
pub(super) fn at(place: Place, error: Error) -> Error {
    Error { message: format!("{place}: {}", error.message), ..error }
}
