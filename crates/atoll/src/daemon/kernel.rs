//! The host's kernel as a witness of the flight recorder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::trace::TraceMode;
use atoll_recorder::event::{Event, What, Witness as Who};
use atoll_recorder::{Mode, Recorder};
use atoll_witness::{Sink, Witness, is_mounted};

use super::DataDir;

/// Where the witness pins its programs and rings, in a directory that is named after the installation. Not in the data
/// directory, because that could not be removed then.
const PLACE: &str = "/run/atoll";

fn place(installation: &str) -> PathBuf {
    Path::new(PLACE).join(format!("witness-{installation}"))
}

/// Writes the kernel's events into journals.
#[derive(Debug)]
struct Journals {
    recorder: Recorder,
}

impl Sink for Journals {
    fn takes(&self, sandbox: &SandboxId) -> bool {
        self.recorder.mode(sandbox) != Mode::Off
    }

    fn record(&self, sandbox: &SandboxId, event: Event) {
        self.recorder.record(sandbox, event);
    }

    fn written(&self, sandbox: &SandboxId) {
        if let Err(error) = self.recorder.wait_written(sandbox) {
            // The journal itself says which events are missing.
            tracing::debug!(%sandbox, %error, "what the kernel told is not written");
        }
    }

    fn last(&self, sandbox: &SandboxId, max: usize) -> Vec<Event> {
        let mut last = self.recorder.last(sandbox, Who::Host, max).unwrap_or_else(|error| {
            tracing::warn!(%sandbox, %error, "cannot read what the kernel told an earlier server");
            Vec::new()
        });
        last.retain(|event| !matches!(event.what, What::Lost(_)));
        last
    }
}

/// A sink that takes no events, for a witness that is opened only to look at pinned programs or to remove them.
#[derive(Debug)]
struct Nobody;

impl Sink for Nobody {
    fn takes(&self, _: &SandboxId) -> bool {
        false
    }

    fn record(&self, _: &SandboxId, _: Event) {}

    fn written(&self, _: &SandboxId) {}

    fn last(&self, _: &SandboxId, _: usize) -> Vec<Event> {
        Vec::new()
    }
}

/// Opens the witness if this server records sandboxes, or an earlier one did; otherwise says why there is none. Without
/// it journals have only the events of the other witnesses.
pub(super) async fn open_witness(
    dir: &DataDir,
    recorder: &Recorder,
    mode: TraceMode,
) -> Result<Arc<Witness>, String> {
    let place = place(dir.installation());
    if mode == TraceMode::Off && !is_mounted(&place) {
        return Err("the server was started with --trace off".to_owned());
    }
    let sink = Arc::new(Journals { recorder: recorder.clone() });
    let opened = tokio::task::spawn_blocking(move || Witness::open(&place, sink)).await;
    match opened.map_err(|error| error.to_string())? {
        Ok(witness) => Ok(Arc::new(witness)),
        Err(error) => {
            tracing::warn!(%error, "journals are without what the host's kernel saw");
            Err(error.to_string())
        }
    }
}

/// Opens the programs and rings that an earlier server left in the kernel, if it left some.
pub(crate) fn left_in_kernel(dir: &DataDir) -> Result<Arc<Witness>, String> {
    if !is_mounted(&place(dir.installation())) {
        return Err("nothing is pinned in the kernel".to_owned());
    }
    try_witness(dir)
        .inspect_err(|error| tracing::warn!(%error, "cannot look at what is pinned in the kernel"))
}

/// Removes the pins that keep programs in the kernel, for an installation whose sandboxes are gone.
pub(crate) fn leave_kernel(installation: &str) {
    atoll_witness::close_pins(&place(installation));
}

/// Opens a witness to see whether this host's kernel can be one. The caller closes it.
pub(crate) fn try_witness(dir: &DataDir) -> Result<Arc<Witness>, String> {
    Witness::open(&place(dir.installation()), Arc::new(Nobody))
        .map(Arc::new)
        .map_err(|error| error.to_string())
}
