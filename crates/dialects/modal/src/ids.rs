//! Ids in the protocol's form.
//!
//! The clients tell the two generations of sandboxes apart by their ids, so a sandbox has two names here. A client uses
//! the one that it was told:
//!
//! ```text
//! engine   sb06f2k3z9xw1m4t8q7e5c            older clients                 newer clients
//! sandbox                                    sb-V106f2k3z9xw1m4t8q7e5c     sb-06f2k3z9xw1m4t8q7e5c
//! task                                       ta-06f2k3z9xw1m4t8q7e5c       ta-06f2k3z9xw1m4t8q7e5cV
//! ```
//!
//! Newer clients take an id with twenty-two letters and digits after `sb-` for one of the older generation.

use atoll_core::id::{SandboxId, SnapshotId, VolumeId};

use crate::grpc::{Fault, Result};

/// Comes before the body of a sandbox's id, for older clients.
const OLD: &str = "V1";
/// Comes after the body of a task's id, for newer clients.
const NEW: char = 'V';

/// The clients that an id is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Before 1.6, and those that ask for it.
    V1,
    V2,
}

fn body(id: &SandboxId) -> &str {
    &id.as_str()[SandboxId::PREFIX.len()..]
}

/// A sandbox, as clients of a generation know it.
pub(crate) fn sandbox(id: &SandboxId, generation: Generation) -> String {
    match generation {
        Generation::V1 => format!("sb-{OLD}{}", body(id)),
        Generation::V2 => format!("sb-{}", body(id)),
    }
}

/// The task of a sandbox.
pub(crate) fn task(id: &SandboxId, generation: Generation) -> String {
    match generation {
        Generation::V1 => format!("ta-{}", body(id)),
        Generation::V2 => format!("ta-{}{NEW}", body(id)),
    }
}

/// Reads the id of a sandbox; also in the form of the native API.
///
/// # Errors
/// `NOT_FOUND`, as for a sandbox that is not there.
pub(crate) fn parse_sandbox(text: &str) -> Result<(SandboxId, Generation)> {
    let (body, generation) = match text.strip_prefix("sb-") {
        Some(rest) => match rest.strip_prefix(OLD) {
            Some(old) => (old, Generation::V1),
            None => (rest, Generation::V2),
        },
        None => (text.strip_prefix("sb").unwrap_or_default(), Generation::V2),
    };
    let id = format!("sb{body}").parse().map_err(|_malformed| no_sandbox(text))?;
    Ok((id, generation))
}

/// Reads the id of a task.
///
/// # Errors
/// `NOT_FOUND`.
pub(crate) fn parse_task(text: &str) -> Result<(SandboxId, Generation)> {
    let rest = text.strip_prefix("ta-").unwrap_or_default();
    let (body, generation) = match rest.strip_suffix(NEW) {
        Some(body) => (body, Generation::V2),
        None => (rest, Generation::V1),
    };
    let unknown =
        |_malformed| Fault::not_found(format!("task '{}' not found", atoll_core::error::shorten(text)));
    Ok((format!("sb{body}").parse().map_err(unknown)?, generation))
}

/// The error for a sandbox that does not exist, or that the key may not know of.
pub(crate) fn no_sandbox(text: &str) -> Fault {
    Fault::not_found(format!("Sandbox '{}' not found", atoll_core::error::shorten(text)))
}

/// The id of a snapshot, with a prefix of the protocol.
pub(crate) fn snapshot(prefix: &str, id: &SnapshotId) -> String {
    format!("{prefix}-{id}")
}

/// Reads the id of a snapshot.
pub(crate) fn parse_snapshot(prefix: &str, text: &str) -> Option<SnapshotId> {
    text.strip_prefix(prefix)?.strip_prefix('-')?.parse().ok()
}

/// The id of a volume.
pub(crate) fn volume(id: &VolumeId) -> String {
    format!("vo-{}", &id.as_str()[VolumeId::PREFIX.len()..])
}

/// Reads the id of a volume.
///
/// # Errors
/// `NOT_FOUND`.
pub(crate) fn parse_volume(text: &str) -> Result<VolumeId> {
    let unknown = || Fault::not_found(format!("Volume '{}' not found", atoll_core::error::shorten(text)));
    let body = text.strip_prefix("vo-").ok_or_else(unknown)?;
    format!("vo{body}").parse().map_err(|_malformed| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_their_generation() {
        let id = SandboxId::from_parts(1_700_000_000_000, 42);
        for generation in [Generation::V1, Generation::V2] {
            assert_eq!(parse_sandbox(&sandbox(&id, generation)).unwrap(), (id.clone(), generation));
            assert_eq!(parse_task(&task(&id, generation)).unwrap(), (id.clone(), generation));
        }
        assert_eq!(sandbox(&id, Generation::V1).len(), "sb-".len() + 22);
        assert_eq!(parse_sandbox(id.as_str()).unwrap().0, id);
        for bad in ["", "sb-", "sb-../../etc", "ta-x", "sb-V1"] {
            assert!(parse_sandbox(bad).is_err() && parse_task(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn volumes_and_snapshots() {
        let (volume_id, snapshot_id) = (VolumeId::from_parts(5, 6), SnapshotId::from_parts(7, 8));
        assert_eq!(parse_volume(&volume(&volume_id)).unwrap(), volume_id);
        assert_eq!(parse_snapshot("im", &snapshot("im", &snapshot_id)), Some(snapshot_id.clone()));
        assert_eq!(parse_snapshot("sn", &snapshot("im", &snapshot_id)), None);
    }
}
