//! Forks: several sandboxes that go on from where another is.
//!
//! The engine takes one snapshot of the parent, which goes on, and makes one sandbox from it for each child, as every
//! sandbox is made, on a clone of the snapshot's disk; an only child gets that disk itself. A child is handed out once its
//! guest has confirmed its identity and what the template starts is ready. A child gets the parent's limits, environment, policy, labels and visibility. It does not get what identifies
//! the parent: id, name, host name, machine id, grants. Processes and memory stay with the parent, unless the caller
//! asks for them: then they go on in each child, where they belong to no exec, and what the template starts is not
//! started again.

use std::collections::BTreeMap;

use atoll_core::id::SandboxId;
use atoll_core::limits::FORK_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_core::snapshot::{Purpose, SnapshotKind};
use atoll_core::spec::SandboxSpec;
use atoll_core::{Code, Error, Result, spec};
use atoll_isolation::{DiskSource, Plan};
use atoll_recorder::What;
use atoll_store::{SandboxRecord, SnapshotRecord};
use futures::future::join_all;

use crate::authorize::Caller;
use crate::boxed;
use crate::create::NewSandbox;
use crate::engine::{Engine, Inner};
use crate::sandbox::{self, Origin, SandboxShared};
use crate::service::Declared;

use super::{SnapshotOrder, check_memory};

/// The name that holds the snapshot of a fork under way. What a crash leaves of it is removed at the next start.
pub(super) const HOLDER: &str = "a fork under way";

/// Whether a snapshot is that of a fork under way.
pub(super) fn holds(snapshot: &SnapshotRecord) -> bool {
    matches!(&snapshot.purpose, Purpose::Held(by) if by == HOLDER)
}

/// A fork that a caller wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForkOrder {
    /// How many children.
    pub count: u32,
    /// The point to go on from: a checkpoint's number, or a snapshot. Now when absent.
    pub at: Option<String>,
    /// Name of a single child, or what the names of several begin with: `name-1`, `name-2`, ….
    pub name: Option<String>,
    /// With the parent's processes and memory.
    pub memory: bool,
    /// Labels on top of the parent's.
    pub labels: BTreeMap<String, String>,
    /// Variables on top of the parent's.
    pub env: BTreeMap<String, String>,
    /// Time to live, milliseconds; as long as the parent was given, when it was made or last, when absent.
    pub ttl_ms: Option<u64>,
}

impl ForkOrder {
    fn validate(&self) -> Result<()> {
        if !(1..=FORK_MAX_COUNT).contains(&self.count) {
            let why = format_args!("{} is not between 1 and {FORK_MAX_COUNT}", self.count);
            return Err(Error::invalid("count", why));
        }
        (1..=self.count).filter_map(|number| self.name(number)).try_for_each(|name| spec::name("name", &name))
    }

    fn name(&self, number: u32) -> Option<String> {
        let name = self.name.as_ref()?;
        Some(if self.count == 1 { name.clone() } else { format!("{name}-{number}") })
    }
}

impl Engine {
    /// Makes children of a sandbox, which goes on. Each child or its error, in order.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`]; when there is nothing to make children from, as
    /// [`Self::create_snapshot`] and, with `at`, [`Self::ready_snapshot`].
    #[boxed]
    pub async fn fork_sandbox(
        &self,
        parent: &SandboxId,
        order: &ForkOrder,
        caller: &Caller,
    ) -> Result<Vec<Result<SandboxRecord>>> {
        order.validate()?;
        // Children would stand still in the middle of their making.
        self.inner.disk.check()?;
        let parent = self.inner.sandbox(parent)?;
        let taken = match &order.at {
            Some(at) => self.point(&parent.record(), at, caller).await?,
            None => {
                let held = SnapshotOrder::without_name(Purpose::Held(HOLDER.to_owned()), None);
                let kind = if order.memory { SnapshotKind::Memory } else { SnapshotKind::Disk };
                let held = SnapshotOrder { kind, ..held };
                self.create_snapshot(&parent.id, held, caller).await?
            }
        };
        if order.memory {
            check_memory(&taken)?;
        }
        let (engine, order, caller) = (self.clone(), order.clone(), caller.clone());
        let parent = parent.record();
        // When the caller stops waiting, the children are made and the snapshot is removed all the same.
        let making = async move {
            atoll_failpoint::fail_point!("engine.fork.taken");
            let children =
                (1..=order.count).map(|number| engine.child(&parent, &taken, &order, number, &caller));
            let children = join_all(children).await;
            atoll_failpoint::fail_point!("engine.fork.made");
            if order.at.is_none()
                && let Err(error) = engine.delete_unused_snapshot(&taken).await
            {
                tracing::error!(snapshot = %taken.id, %error, "what a fork was made from stays until the next start");
            }
            children
        };
        let made = self.inner.tracker.spawn(making).await;
        made.map_err(|_panicked| Error::new(Code::Internal, "the fork broke off"))
    }

    async fn child(
        &self,
        parent: &SandboxRecord,
        from: &SnapshotRecord,
        order: &ForkOrder,
        number: u32,
        caller: &Caller,
    ) -> Result<SandboxRecord> {
        let mut of_child = SandboxSpec {
            snapshot: Some(from.id.clone()),
            ttl_ms: order.ttl_ms.or_else(|| life(parent)),
            ..parent.spec.clone()
        };
        of_child.env.extend(order.env.clone());
        let mut labels = parent.labels.clone();
        labels.extend(order.labels.clone());
        spec::labels("labels", &labels)?;
        spec::env("env", &of_child.env)?;
        let new = NewSandbox {
            name: order.name(number),
            project: caller.project().or(parent.project.as_ref().filter(|_| caller.is_admin())).cloned(),
            spec: of_child,
            labels,
            annotations: BTreeMap::new(),
            image_digest: parent.image_digest.clone(),
            owner: caller.key.clone(),
            request: None,
        };
        let mut record = new.record(self.inner.now_ms())?;
        // The secrets that may be injected for the parent are checked anew, for the child and the caller that asks for
        // it.
        let secrets = self.inner.private_secrets(&parent.id)?;
        if record.project != parent.project && !(record.spec.volumes.is_empty() && secrets.is_empty()) {
            // A role on the sandbox is none on these, and may be taken away again.
            let why = "its volumes, or its own secrets, belong to another project";
            return Err(Error::new(Code::Forbidden, why).hint("fork it with a key of its project"));
        }
        let (before, mut egress) = (parent.spec.egress.clone(), parent.spec.egress.clone());
        self.inner.prepare_rules(&record, caller.key(), &mut egress, &before, &secrets)?;
        record.spec.egress = egress;
        let mounts = record.spec.volumes.clone();
        let artifact = from.id.clone();
        let disk = match (order.memory, &order.at) {
            (true, _) => DiskSource::WithMemory(artifact, None),
            // Nobody else can name the snapshot, and there is no other child: a second clone would be made in vain.
            (false, None) if order.count == 1 => DiskSource::Moved(artifact),
            (false, _) => DiskSource::Artifact(artifact),
        };
        let plan = self.plan_for(&record, disk)?;
        let shared = SandboxShared::new(record, &self.inner)?;
        let services = Declared::enter(&shared, order.memory)?;
        // A key that must not see the parent must not see its children.
        self.inner.acl.hold(&shared.id, self.inner.acl.get(&parent.id).visibility);
        // A parent that was deleted meanwhile has neither visibility nor secrets any more.
        self.inner.stays(&parent.id).inspect_err(|_gone| self.inner.acl.forget(&shared.id))?;
        self.inner.enter(&shared, true).inspect_err(|_taken| self.inner.acl.forget(&shared.id))?;
        self.inner.check_volumes(&mounts).inspect_err(|_gone| self.inner.leave(&shared.id))?;
        self.inner.secrets.hold(&shared.id, secrets, Some(&parent.id));
        sandbox::spawn(&self.inner, &shared, Origin::Create(plan, None));
        if let Err(error) = shared.made().await {
            return Err(self.unless_removed(from, error).await);
        }
        shared.trace.note(&parent.id, What::Forked { child: shared.id.to_string() });
        self.started(&shared, services).await?;
        Ok(shared.record())
    }

    /// The error of a creation from a snapshot. When the snapshot was removed meanwhile, the error says that.
    async fn unless_removed(&self, from: &SnapshotRecord, error: Error) -> Error {
        if error.code != Code::Internal {
            return error;
        }
        match self.snapshot(&from.id).await {
            Err(gone) if gone.code == Code::SnapshotNotFound => gone,
            Ok(_) | Err(_) => error,
        }
    }

    /// How a sandbox with this record is made, on this disk.
    pub(crate) fn plan_for(&self, record: &SandboxRecord, disk: DiskSource) -> Result<Plan> {
        Ok(Plan {
            root: self.exact_root(record.image_digest.as_deref(), &record.spec.image)?,
            disk,
            ..self.inner.plan_of(record)?
        })
    }
}

impl Inner {
    /// Whether a sandbox is there and stays: what is kept in memory beside its record was its own until now.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`]; [`Code::InvalidState`] when it is being deleted.
    fn stays(&self, id: &SandboxId) -> Result<()> {
        if self.sandbox(id)?.state() == SandboxState::Deleting {
            return Err(Error::new(Code::InvalidState, "the sandbox is being deleted"));
        }
        Ok(())
    }
}

/// How long a sandbox was given to live when it was made, or when that was changed last. Of one that an earlier version
/// made it is only known when it ends: then this is the time from its creation to its end.
pub(crate) fn life(record: &SandboxRecord) -> Option<u64> {
    let end = record.expires_ms?;
    Some(record.spec.ttl_ms.unwrap_or_else(|| end.saturating_sub(record.created_ms)))
}
