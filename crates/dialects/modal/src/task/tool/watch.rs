//! Changes of files: a line for each.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_core::Error;
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::client::WatchStream;
use atoll_guest_protocol::messages::{ChangeKind, Watch, WatchEvent};
use serde_json::json;

use super::Tool;
use crate::task::Inside;

/// Longest time that one command watches, seconds.
const WATCH_MAX_S: u64 = 24 * 3600;

/// The directory or file to watch, and how.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) recursive: bool,
    /// Words of events; all when absent.
    pub(super) filter: Option<Vec<String>>,
    pub(super) timeout_secs: Option<u64>,
}

/// Begins to watch: reports the changes from now on.
///
/// # Errors
/// The guest's errors.
pub(super) async fn begin(
    inside: &Inside,
    tool: &Arc<Tool>,
    lease: GuestLease,
    wanted: Wanted,
) -> Result<(), Error> {
    let request = Watch { path: wanted.path, recursive: wanted.recursive, marks: false };
    let changes = lease.watch(request).await.map_err(guest_error)?;
    let limit = Duration::from_secs(wanted.timeout_secs.unwrap_or(WATCH_MAX_S).min(WATCH_MAX_S));
    let (weak, token) = (Arc::downgrade(tool), inside.asker.app.host.draining_token());
    let following = follow(weak.clone(), lease, changes, wanted.filter);
    tokio::spawn(async move {
        let over = token.run_until_cancelled(tokio::time::timeout(limit, following)).await;
        if let Some(tool) = weak.upgrade() {
            match over {
                Some(Ok(Err(error))) => tool.failed(&error),
                _ => tool.end(),
            }
        }
    });
    Ok(())
}

async fn follow(
    tool: Weak<Tool>,
    _lease: GuestLease,
    mut changes: WatchStream,
    filter: Option<Vec<String>>,
) -> Result<(), Error> {
    let mut ended = match tool.upgrade() {
        Some(tool) => tool.progress.subscribe(),
        None => return Ok(()),
    };
    loop {
        let change = tokio::select! {
            change = changes.next() => change.map_err(guest_error)?,
            _ = ended.wait_for(|progress| progress.code.is_some()) => return Ok(()),
        };
        let (Some(change), Some(tool)) = (change, tool.upgrade()) else { return Ok(()) };
        let Some(word) = word(&change) else { continue };
        if filter.as_ref().is_some_and(|filter| !filter.iter().any(|wanted| wanted == word)) {
            continue;
        }
        let paths: Vec<&str> = [change.from.as_str(), change.path.as_str()]
            .into_iter()
            .filter(|path| !path.is_empty())
            .collect();
        let line = format!("{}\n", json!({"event_type": word, "paths": paths}));
        if !tool.say(line.as_bytes()) {
            return Ok(());
        }
    }
}

/// The protocol's word for a change.
pub(crate) fn word(change: &WatchEvent) -> Option<&'static str> {
    match change.kind() {
        ChangeKind::Created => Some("Create"),
        ChangeKind::Written | ChangeKind::Attributes | ChangeKind::Moved => Some("Modify"),
        ChangeKind::Removed => Some("Remove"),
        ChangeKind::Overflow => Some("Unknown"),
        ChangeKind::Mark => None,
    }
}
