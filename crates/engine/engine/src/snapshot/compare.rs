//! What changed in a sandbox between two points.

use atoll_core::Result;
use atoll_core::id::SandboxId;
use atoll_core::snapshot::{Comparison, Purpose};
use atoll_store::SnapshotRecord;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::isolation_error;

use super::SnapshotOrder;

/// The name that holds the snapshot of a comparison with now. What a crash leaves of it is removed at the next start.
pub(super) const HOLDER: &str = "a comparison under way";
/// The word for the present.
const NOW: &str = "now";

impl Engine {
    /// What differs between two points of a sandbox: numbers of checkpoints, snapshots that fit it, or `now`.
    /// Without `from`, from its image; without `to`, until now.
    ///
    /// # Errors
    /// [`atoll_core::Code::SandboxNotFound`], [`atoll_core::Code::SnapshotNotFound`],
    /// [`atoll_core::Code::SnapshotIncompatible`]; for now, as [`Self::create_snapshot`].
    #[boxed]
    pub async fn compare(
        &self,
        sandbox: &SandboxId,
        from: Option<&str>,
        to: Option<&str>,
        with_text: bool,
        caller: &Caller,
    ) -> Result<Comparison> {
        let record = self.inner.sandbox(sandbox)?.record();
        let is_now = |point: &str| point == NOW;
        let needs_now = to.is_none_or(is_now) || from.is_some_and(is_now);
        let mut points = Vec::new();
        for point in [from, to].into_iter().flatten().filter(|point| !is_now(point)) {
            points.push(self.point(&record, point, caller).await?);
        }
        let now = if needs_now { Some(self.hold_now(sandbox, caller).await?) } else { None };
        let mut points = points.into_iter();
        let mut pick = |point: &str| if is_now(point) { now.clone() } else { points.next() };
        let from = from.and_then(&mut pick);
        let to = pick(to.unwrap_or(NOW));
        let compared = self.compare_points(from.as_ref(), to.as_ref(), with_text).await;
        if let Some(now) = now
            && let Err(error) = self.delete_unused_snapshot(&now).await
        {
            tracing::error!(snapshot = %now.id, %error, "what was compared stays until the next start");
        }
        compared
    }

    async fn hold_now(&self, sandbox: &SandboxId, caller: &Caller) -> Result<SnapshotRecord> {
        let purpose = Purpose::Held(HOLDER.to_owned());
        let order = SnapshotOrder::without_name(purpose, None);
        self.create_snapshot(sandbox, order, caller).await
    }

    async fn compare_points(
        &self,
        from: Option<&SnapshotRecord>,
        to: Option<&SnapshotRecord>,
        with_text: bool,
    ) -> Result<Comparison> {
        let Some(to) = to else { return Ok(Comparison::default()) };
        let (root, _digest) = self.root_of(&to.manifest)?;
        let driver = self.inner.driver(to.manifest.isolation)?;
        let compared = driver.compare(&root, from.map(|from| &from.id), &to.id, with_text).await;
        compared.map_err(|error| isolation_error(&error))
    }
}
