//! The host's kernel as a witness of a container: the driver tells it of the container before the first process runs,
//! and when the last has ended.
//!
//! A host whose kernel cannot be a witness runs containers all the same: their journals have what other witnesses saw,
//! and name the witness that is missing.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use atoll_core::id::SandboxId;
use atoll_isolation::{IsolationError, Plan, RootFs};
use atoll_witness::{Facts, Gate, Layer};

use crate::step::failed;
use crate::{Inner, lock};

impl Inner {
    /// Makes the witness see the connections of all sandboxes of this driver.
    pub(crate) fn hook(&self) {
        let Ok(witness) = &self.witness else { return };
        let hooked = self.cgroups.unified_parent().map(|parent| witness.hook(parent.as_fd()));
        match hooked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "connections of sandboxes are not recorded by the kernel");
            }
            Err(error) => tracing::warn!(%error, "connections of sandboxes are not recorded by the kernel"),
        }
    }

    /// Begins to watch a sandbox, which has its cgroups and no process yet, and to hold back programs that may not run
    /// in it. `disk` is its own, `is_new` when no process of this sandbox has run on it.
    pub(crate) fn watch(
        &self,
        plan: &Plan,
        first_id: u32,
        disk: BorrowedFd<'_>,
        is_new: bool,
    ) -> Result<(), IsolationError> {
        let gate = self.gate_for(plan, disk, is_new)?;
        let Ok(witness) = &self.witness else { return Ok(()) };
        let (mut facts, closed) = (facts(plan, self.skeleton.dir(), first_id), gate.is_closed());
        facts.doors = self.doors.dir(&plan.execution.profiles)?;
        let watched =
            self.cgroups.number(&plan.id).map(|number| witness.watch(&plan.id, number, facts, gate));
        match watched {
            Ok(Err(error)) if closed => Err(lock::cannot_because(&error)),
            Err(error) if closed => Err(error),
            watched => {
                self.complain(&plan.id, watched);
                Ok(())
            }
        }
    }

    /// Goes on watching a sandbox that an earlier server made, whether or not that server had told the kernel of it.
    pub(crate) fn watch_again(&self, id: &SandboxId) {
        let Some(witness) = self.witness.as_ref().ok().filter(|witness| !witness.watches(id)) else { return };
        let first_id = self.records.of(id).first_id().unwrap_or_default();
        let watched = self.cgroups.number(id).map(|number| {
            witness.watch_running(id, number, Facts { first_id, ..Facts::default() }, Gate::default())
        });
        self.complain(id, watched);
    }

    fn complain(&self, id: &SandboxId, watched: Result<Result<(), atoll_witness::Missing>, IsolationError>) {
        match watched {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%id, %error, "the kernel does not tell of a sandbox"),
            Err(error) => tracing::warn!(%id, %error, "the kernel does not tell of a sandbox"),
        }
    }

    /// Ends watching one without processes.
    pub(crate) fn forget(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let Ok(witness) = &self.witness else { return Ok(()) };
        witness
            .forget(id)
            .map_err(|error| failed("stop watching a sandbox".to_owned(), std::io::Error::other(error)))
    }
}

fn facts(plan: &Plan, skeleton: &Path, first_id: u32) -> Facts {
    let layers = match &plan.root {
        RootFs::Host => vec![Layer { name: "host".to_owned(), dir: skeleton.to_owned() }],
        RootFs::Layers(dirs) => dirs.iter().map(|dir| layer(dir)).collect(),
    };
    let bound_root = lock::bound_root(&plan.root);
    let bound = bound_root.iter().map(|(device, _)| *device).collect();
    Facts { first_id, layers, bound, bound_root, image_until_ms: plan.execution.image_until_ms, doors: None }
}

fn layer(dir: &Path) -> Layer {
    Layer { name: layer_name(dir), dir: dir.to_owned() }
}

/// The name of a layer: its digest, after which the directory around its tree is named. When its tree depends on the
/// layers below, the directory is named after the digest of all of them, and so is the layer.
pub(crate) fn layer_name(dir: &Path) -> String {
    let names = dir.iter().rev().take(2).filter_map(|name| name.to_str());
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut digests = names.filter_map(|name| match name.strip_suffix("-chain") {
        Some(chain) => is_digest(chain).then(|| format!("chain:{chain}")),
        None => is_digest(name).then(|| format!("sha256:{name}")),
    });
    let last = || dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    digests.next().unwrap_or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_called_by_its_digest() {
        let digest = "a".repeat(64);
        for (dir, name) in [
            (format!("/data/layers/{digest}/root"), format!("sha256:{digest}")),
            (format!("/data/layers/{digest}-chain/root"), format!("chain:{digest}")),
            ("/data/skeleton/0123".to_owned(), "0123".to_owned()),
        ] {
            assert_eq!(layer_name(Path::new(&dir)), name);
        }
    }
}
