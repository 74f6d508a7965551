//! What the stages of a build are planned from, and the thread that plans them.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_build::graph::{Graph, Origin};
use atoll_build::key::Key;
use atoll_build::plan::{Planner, StagePlan, State, plan_stage};
use atoll_build::recipe::Recipe;
use atoll_build::{Budget, Ignore};
use atoll_core::{Code, Error, Result};

use super::context::Context;

/// What the stages are planned from.
pub(super) struct Inputs {
    pub(super) recipe: Recipe,
    pub(super) given: BTreeMap<String, String>,
    pub(super) context: Arc<Context>,
    pub(super) ignore: Ignore,
    pub(super) budget: Arc<Budget>,
}

impl Inputs {
    pub(super) fn planner(&self) -> Planner<'_> {
        Planner {
            recipe: &self.recipe,
            given: &self.given,
            context: &self.context.index,
            ignore: &self.ignore,
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            },
            budget: &self.budget,
        }
    }

    /// The stages that are needed, planned by a thread of their own: names and patterns of a client are compared for as long
    /// as the budget lasts. `bases` are the states in which images are.
    pub(super) async fn stages(
        self,
        graph: Graph,
        bases: BTreeMap<String, State>,
    ) -> Result<BTreeMap<usize, StagePlan>> {
        // A build that is cancelled, or over its time, leaves no thread behind.
        let _wanted = Wanted(Arc::clone(&self.budget));
        let planning = tokio::task::spawn_blocking(move || self.planned(&graph, &bases));
        planning.await.map_err(|error| {
            tracing::error!(%error, "the plan of a build could not be made");
            Error::new(Code::Internal, "the build could not be planned")
        })?
    }

    fn planned(&self, graph: &Graph, bases: &BTreeMap<String, State>) -> Result<BTreeMap<usize, StagePlan>> {
        let planner = self.planner();
        let mut stages: BTreeMap<usize, StagePlan> = BTreeMap::new();
        for index in graph.needed.iter().copied() {
            let state = |origin: &Origin| match origin {
                Origin::Stage(stage) => stages.get(stage).map(|plan| &plan.end),
                Origin::Image(name) => bases.get(name),
            };
            let missing = || Error::new(Code::Internal, "a stage has no base");
            let base = state(&graph.bases[index]).ok_or_else(missing)?.clone();
            let key = |origin: &Origin| -> Result<Key> { Ok(state(origin).ok_or_else(missing)?.key) };
            let planned = plan_stage(&planner, index, base, &key)?;
            stages.insert(index, planned);
        }
        Ok(stages)
    }
}

/// Somebody waits for a thread that compares names with patterns: when this goes, the thread ends.
pub(super) struct Wanted(pub(super) Arc<Budget>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.end();
    }
}
