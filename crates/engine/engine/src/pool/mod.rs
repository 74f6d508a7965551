//! Warm pools: running, ready sandboxes without an owner, made before a caller asks for one.
//!
//! ```text
//! refresh (templates, settings) ─▶ pools ─▶ round: who goes, who is made ─▶ fillers (few, low priority)
//! create asks again (`demand`) ──────▲                                          │ member
//! create ── claim ───────────────────┴──────────────────────────────────────────┘
//!             └▶ actor: name, limits, Configure, one commit ─▶ running
//! ```
//!
//! A member has no row: until it is claimed, no caller was told of it. An orderly stop destroys members; after
//! `kill -9` the next start finds things on the host that no row knows, and removes them. A claim is a removal from a
//! queue in memory; if anything goes wrong after it, the sandbox is created in the ordinary way, so a pool makes
//! creations quicker and never makes them fail.

mod calls;
mod claim;
mod demand;
mod fill;
mod manager;
mod measure;
mod member;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::pool::{Demand, PoolSpec};
use tokio::sync::{Notify, Semaphore};

use self::demand::Asked;

pub use calls::{PoolOrigin, PoolView, PoolsView};
pub(crate) use claim::Claim;
pub(crate) use fill::{make_alone, remove};
pub(crate) use manager::start;
pub(crate) use member::{Member, Recipe};

/// The settings of pools that the engine is given at start.
#[derive(Debug, Clone, Default)]
pub struct PoolConfig {
    /// Memory that the members of all pools may take together, bytes. Without any there are no pools.
    pub memory_bytes: u64,
    /// Members that are made at the same time; at least one.
    pub fillers: usize,
    /// Pools of images, by the image's name.
    pub images: Vec<(String, PoolSpec)>,
    /// Most members that are kept ready of a kind that is asked for again and again without having a pool. With 0 none
    /// are.
    pub by_demand_max: u32,
}

/// What a pool is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolName {
    /// The newest version of a template.
    Template(String),
    /// An image, with default limits.
    Image(String),
    /// What is asked for again and again, and has no pool of its own.
    Demand(Wanted),
}

/// What a pool by demand is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The template, as `name:version`, if one was named.
    pub template: Option<String>,
    /// The image.
    pub image: String,
    /// Tells what is the same here and differs in limits. Never used again by the same server.
    pub number: u64,
}

impl Wanted {
    /// The template or the image, for people.
    #[must_use]
    pub fn of(&self) -> &str {
        self.template.as_deref().unwrap_or(&self.image)
    }
}

impl std::fmt::Display for PoolName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Template(name) => write!(f, "template:{name}"),
            Self::Image(name) => write!(f, "image:{name}"),
            Self::Demand(wanted) => write!(f, "demand:{}#{}", wanted.of(), wanted.number),
        }
    }
}

impl PoolName {
    /// Reads the text form of the name of a pool that was set up: one of a template or an image.
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("template", name) => Some(Self::Template(name.to_owned())),
            ("image", name) => Some(Self::Image(name.to_owned())),
            _ => None,
        }
    }
}

/// First guess at how long making a member takes.
const MAKE_GUESS_MS: u64 = 10;

/// One pool.
#[derive(Debug)]
struct Pool {
    spec: PoolSpec,
    origin: PoolOrigin,
    /// How members are made; absent while its template or image cannot be used.
    recipe: Option<Arc<Recipe>>,
    /// Why nothing can be made.
    problem: Option<String>,
    /// Oldest first.
    ready: VecDeque<Member>,
    making: u32,
    demand: Demand,
    hits: u64,
    misses: u64,
    made: u64,
    failed: u64,
    /// What one member takes, bytes; 0 when none was measured yet.
    member_bytes: u64,
    /// Nothing is made before this, after a failure.
    rests_until_ms: u64,
    rest_ms: u64,
    /// When it was asked last.
    asked_ms: u64,
    /// How long before that it was asked the time before.
    apart_ms: u64,
    /// What the last round allowed.
    target: u32,
}

impl Pool {
    fn new(spec: PoolSpec, origin: PoolOrigin, now_ms: u64) -> Self {
        Self {
            spec,
            origin,
            recipe: None,
            problem: None,
            ready: VecDeque::new(),
            making: 0,
            demand: Demand::new(now_ms, MAKE_GUESS_MS),
            hits: 0,
            misses: 0,
            made: 0,
            failed: 0,
            member_bytes: 0,
            rests_until_ms: 0,
            rest_ms: 0,
            asked_ms: 0,
            apart_ms: 0,
            target: 0,
        }
    }
}

/// All pools, and every id that a pool may have something on the host for.
#[derive(Debug, Default)]
struct State {
    pools: BTreeMap<PoolName, Pool>,
    ids: BTreeSet<SandboxId>,
    /// What was asked for lately and has no pool.
    asked: Asked,
    /// Members whose pool is gone, for the manager to remove.
    orphans: Vec<Member>,
    closed: bool,
}

/// The pools of an engine.
#[derive(Debug)]
pub(crate) struct Pools {
    config: PoolConfig,
    state: Mutex<State>,
    /// Wakes the manager.
    nudge: Notify,
    /// Templates, images or settings changed.
    dirty: AtomicBool,
    /// Creations under way that a caller waits for.
    foreground: AtomicUsize,
    foreground_ended: Notify,
    fillers: Arc<Semaphore>,
}

impl Pools {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            fillers: Arc::new(Semaphore::new(config.fillers.max(1))),
            config,
            state: Mutex::default(),
            nudge: Notify::new(),
            dirty: AtomicBool::new(true),
            foreground: AtomicUsize::new(0),
            foreground_ended: Notify::new(),
        }
    }

    /// Held for look-ups and small changes, never across an await.
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding it would leave counts that are off by one, which the next round mends.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a template, an image or a setting changed.
    pub(crate) fn changed(&self) {
        self.dirty.store(true, Ordering::Relaxed);
        self.nudge.notify_one();
    }

    /// Whether something on the host with this id belongs to a pool.
    pub(crate) fn holds(&self, id: &SandboxId) -> bool {
        self.lock().ids.contains(id)
    }

    /// Every id that a pool may have something on the host for.
    pub(crate) fn ids(&self) -> BTreeSet<SandboxId> {
        self.lock().ids.clone()
    }

    /// Digests of the images that members stand on. Pools by demand keep none ([`Self::let_go`]).
    pub(crate) fn images(&self) -> Vec<String> {
        let state = self.lock();
        let set_up = state.pools.values().filter(|pool| !pool.is_by_demand());
        let recipes = set_up.flat_map(|pool| {
            pool.recipe.iter().chain(pool.ready.iter().map(|member| &member.recipe)).map(Arc::clone)
        });
        recipes.filter_map(|recipe| recipe.mold.image.clone()).collect()
    }

    /// Creations under way that a caller waits for.
    pub(crate) fn creating(&self) -> u64 {
        self.foreground.load(Ordering::Relaxed) as u64
    }

    /// Whether a member of a template's or image's own pool waits. One by demand serves only requests with its limits.
    pub(crate) fn is_warm(&self, template: Option<&str>, image: Option<&str>) -> bool {
        let name = match (template, image) {
            (Some(template), None) => {
                PoolName::Template(template.split(':').next().unwrap_or_default().to_owned())
            }
            (None, Some(image)) => PoolName::Image(image.to_owned()),
            _ => return false,
        };
        self.lock().pools.get(&name).is_some_and(|pool| !pool.ready.is_empty())
    }

    /// Counts a creation that a caller waits for, as long as the guard lives: fillers let it go first.
    pub(crate) fn foreground(&self) -> Foreground<'_> {
        self.foreground.fetch_add(1, Ordering::Relaxed);
        Foreground(self)
    }
}

/// See [`Pools::foreground`].
#[derive(Debug)]
pub(crate) struct Foreground<'a>(&'a Pools);

impl Drop for Foreground<'_> {
    fn drop(&mut self) {
        if self.0.foreground.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.foreground_ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [PoolName::Template("web".into()), PoolName::Image("ghcr.io/a/b:1@sha256:c".into())] {
            assert_eq!(PoolName::parse(&name.to_string()), Some(name));
        }
        assert_eq!(PoolName::parse("web"), None);
        assert_eq!(PoolName::parse("other:web"), None);
    }
}
