//! Making and unmaking one member.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::pool::Mold;
use atoll_core::spec::{Command, ExecDraft, IsolationLevel, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::{Isolation, Plan};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::create::Planned;
use crate::engine::Inner;
use crate::errors::isolation_error;
use crate::exec::{Ahead, run_to_end, take_over_ahead};
use crate::memory::Saved;
use crate::sandbox::{connect, destroy, remove_logs};
use crate::start::starts_ahead;

/// Longest that a member's first command may take.
const REHEARSAL_MAX: Duration = Duration::from_secs(10);

/// How the members of a pool are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) mold: Mold,
    /// The id and the host name are each member's own.
    pub(crate) plan: Plan,
    /// What a sandbox is that asks for nothing else. Placeholders of secrets are not in it.
    pub(crate) spec: SandboxSpec,
    /// Whether a command from its image or template may run in it before it has an owner.
    pub(crate) may_run: bool,
}

/// A running, ready sandbox without an owner.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: SandboxId,
    pub(crate) client: GuestClient,
    pub(crate) recipe: Arc<Recipe>,
    /// Its network is open, and what its template starts runs and is ready.
    pub(crate) started: bool,
    /// The start command, if that is a process.
    pub(crate) ahead: Option<Ahead>,
    pub(super) born_ms: u64,
    /// Ends the task that watches it, when it is claimed or dropped.
    pub(super) _watch: DropGuard,
}

/// Makes one. On error nothing is left. The filler is free for others as soon as all that is left is to wait
/// for what the template starts.
pub(super) async fn make(
    inner: &Inner,
    recipe: &Arc<Recipe>,
    id: &SandboxId,
    filler: OwnedSemaphorePermit,
) -> Result<(Member, CancellationToken)> {
    let made = tokio::select! {
        made = try_make(inner, recipe, id, filler) => made,
        () = inner.shutdown.cancelled() => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
    };
    let (client, ahead) = match made {
        Ok(made) => made,
        Err(error) => {
            unmake(inner, recipe.spec.isolation, id).await;
            return Err(error);
        }
    };
    let watch = CancellationToken::new();
    let member = Member {
        id: id.clone(),
        client,
        recipe: Arc::clone(recipe),
        started: starts_ahead(&recipe.spec),
        ahead,
        born_ms: inner.now_ms(),
        _watch: watch.clone().drop_guard(),
    };
    Ok((member, watch))
}

async fn try_make(
    inner: &Inner,
    recipe: &Recipe,
    id: &SandboxId,
    filler: OwnedSemaphorePermit,
) -> Result<(GuestClient, Option<Ahead>)> {
    let spec = &recipe.spec;
    let driver = inner.driver(spec.isolation)?;
    let plan = Plan { id: id.clone(), hostname: id.to_string(), ..recipe.plan.clone() };
    if let Some(saved) = inner.find_memory(spec, &recipe.mold) {
        match go_on(inner, driver.as_ref(), &plan, spec, &saved).await {
            Ok((client, ahead)) => {
                inner.memories.worked(spec.template.as_deref());
                return Ok((client, Some(ahead)));
            }
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a member cannot go on from its template's memory");
                inner.memories.failed(saved, &error, inner.now_ms());
                clear(inner, driver.as_ref(), id).await?;
            }
        }
    }
    let client = isolate(inner, driver.as_ref(), &plan, spec).await?;
    let started = async {
        if recipe.may_run {
            rehearse(driver.as_ref(), &client, id, spec).await;
        }
        if !starts_ahead(spec) {
            return Ok(None);
        }
        inner.attach_network(driver.as_ref(), id, spec).await?;
        drop(filler);
        inner.pools.nudge.notify_one();
        let ahead = inner.start_ahead(&client, id, spec).await?;
        atoll_failpoint::fail_point!("engine.pool.started");
        Ok(ahead)
    };
    let ahead = inner.disk.unless_full(started).await?;
    Ok((client, ahead))
}

/// Makes the instance, and tells its guest what it is.
async fn isolate(
    inner: &Inner,
    driver: &dyn Isolation,
    plan: &Plan,
    spec: &SandboxSpec,
) -> Result<GuestClient> {
    driver.create(plan).await.map_err(|error| isolation_error(&error))?;
    atoll_failpoint::fail_point!("engine.pool.isolated");
    let met = async {
        let client = connect(driver, &plan.id).await?;
        if needs_configuring(spec) {
            inner.introduce(driver, &client, &plan.hostname, spec).await?;
        }
        Ok(client)
    };
    inner.disk.unless_full(met).await
}

/// Makes a member in which everything runs already.
async fn go_on(
    inner: &Inner,
    driver: &dyn Isolation,
    plan: &Plan,
    spec: &SandboxSpec,
    saved: &Saved,
) -> Result<(GuestClient, Ahead)> {
    let (plan, exec) = saved.begin(plan, spec, None, inner.now_ms())?;
    let client = isolate(inner, driver, &plan, spec).await?;
    inner.attach_network(driver, &plan.id, spec).await?;
    saved.give_log(inner, &exec).await?;
    let ahead = inner.disk.unless_full(take_over_ahead(inner, &client, exec)).await?;
    atoll_failpoint::fail_point!("engine.pool.started");
    Ok((client, ahead))
}

/// Runs a command that does nothing, so that the first command that a caller waits for is not the first of all: a
/// machine that was restored does everything slowly once. Whether it succeeds does not matter.
async fn rehearse(driver: &dyn Isolation, client: &GuestClient, id: &SandboxId, spec: &SandboxSpec) {
    if spec.isolation == IsolationLevel::Container {
        return;
    }
    let draft = ExecDraft::new(Command::Argv(vec!["true".to_owned()]));
    if let Err(error) = run_to_end(driver, client, id, spec, draft, REHEARSAL_MAX).await {
        tracing::debug!(sandbox = %id, %error, "a member of a pool runs nothing yet");
    }
}

/// Whether the guest has to be told more than it knows from its making.
fn needs_configuring(spec: &SandboxSpec) -> bool {
    spec.workdir.is_some() || spec.egress.looks_inside()
}

impl Recipe {
    /// How what was planned is made again and again, with this specification.
    pub(super) fn of(planned: &Planned, spec: SandboxSpec, may_run: bool) -> Self {
        // Not the recipe's: two plannings of the same thing are equal.
        let (id, hostname) = (SandboxId::from_parts(0, 0), String::new());
        let plan = Plan { id, hostname, ..planned.plan.clone() };
        Self { mold: planned.mold.clone(), plan, spec, may_run }
    }

    /// Whether a member can be made what was planned.
    pub(super) fn can_become(&self, planned: &Planned) -> bool {
        self.mold.serves(&planned.mold).is_ok()
    }

    /// Whether the guest of a member has to be told something before it is what `spec` says.
    pub(crate) fn differs_inside(&self, spec: &SandboxSpec) -> bool {
        let ours = &self.spec;
        (&spec.workdir, &spec.user) != (&ours.workdir, &ours.user) && spec.workdir.is_some()
            || spec.egress.looks_inside() && !ours.egress.looks_inside()
    }
}

/// Removes everything that there is of a member.
pub(super) async fn unmake(inner: &Inner, isolation: IsolationLevel, id: &SandboxId) {
    let Ok(driver) = inner.driver(isolation) else { return };
    if let Err(error) = clear(inner, driver.as_ref(), id).await {
        // The next start, and `doctor --leaks`, find it: it has no row.
        tracing::error!(sandbox = %id, %error, "a member of a pool could not be removed");
    }
}

async fn clear(inner: &Inner, driver: &dyn Isolation, id: &SandboxId) -> Result<()> {
    inner.gateway.detach(id);
    destroy(driver, id).await?;
    remove_logs(inner, id).await
}
