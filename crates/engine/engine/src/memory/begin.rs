//! Going on from a copy.

use std::io;

use atoll_core::id::KeyId;
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_isolation::{CarriedExec, DiskSource, Plan};
use atoll_store::ExecRecord;

use super::{Saved, make};
use crate::engine::Inner;
use crate::exec::new_record;

impl Saved {
    /// How a sandbox goes on from here: its plan, and the row of the start command in it.
    ///
    /// # Errors
    /// [`Code::Internal`] when the host has no randomness.
    pub(crate) fn begin(
        &self,
        plan: &Plan,
        spec: &SandboxSpec,
        started_by: Option<&KeyId>,
        now_ms: u64,
    ) -> Result<(Plan, ExecRecord)> {
        // A spec that fits a copy has a start command.
        let start = spec.start.as_ref().ok_or_else(|| Error::new(Code::Internal, "nothing is started"))?;
        let record = new_record(&plan.id, spec, ExecDraft::new(start.to_command()), started_by, now_ms)?;
        let record = ExecRecord { pid: self.about.pid, ..record };
        let carried = CarriedExec { was: self.about.exec.clone(), is: record.id.clone() };
        let disk = DiskSource::WithMemory(self.record.id.clone(), Some(carried));
        Ok((Plan { disk, ..plan.clone() }, record))
    }

    /// Gives the exec of [`Self::begin`] the output that it had at the moment of the copy.
    ///
    /// # Errors
    /// [`Code::Internal`] when the host's disk refuses.
    pub(crate) async fn give_log(&self, inner: &Inner, exec: &ExecRecord) -> Result<()> {
        let (from, to) = (self.dir.join(make::LOG), inner.log_dir(&exec.sandbox, &exec.id));
        let copied = tokio::task::spawn_blocking(move || make::copy_log(&from, &to)).await;
        copied.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|error| make::host_error(&error))
    }
}
