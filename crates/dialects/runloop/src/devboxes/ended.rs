//! Devboxes that ended. The engine forgets a sandbox with its end; the clients ask for it once more, to see that it
//! is shut down. What was last said of each devbox is kept in memory, the newest few thousand of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_dialect_kit::time::now_ms;
use atoll_store::SandboxRecord;
use serde_json::{Value, json};

/// Devboxes that are remembered.
const KEPT_MAX_COUNT: usize = 5000;
/// Bytes of what was said of one; beyond that its metadata and parameters are left out.
const VIEW_MAX_BYTES: usize = 4 << 10;

#[derive(Debug, Clone)]
struct Seen {
    view: Value,
    owner: Option<KeyId>,
    expires_ms: Option<u64>,
    idles: bool,
    /// When it was shut down over this protocol.
    shut_ms: Option<u64>,
}

/// What was last said of devboxes. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended(Arc<Mutex<BTreeMap<String, Seen>>>);

impl Ended {
    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Seen>> {
        // A map is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was said of a devbox that lives.
    pub(crate) fn note(&self, record: &SandboxRecord, view: &Value) {
        let mut view = view.clone();
        if view.to_string().len() > VIEW_MAX_BYTES {
            view["metadata"] = json!({});
            view["launch_parameters"] = json!({});
            view["name"] = view["id"].clone();
        }
        let seen = Seen {
            view,
            owner: record.owner.clone(),
            expires_ms: record.expires_ms,
            idles: record.spec.idle_timeout_ms.is_some(),
            shut_ms: None,
        };
        let mut table = self.table();
        // One that is being taken apart is looked at, too.
        let shut_ms = table.get(record.id.as_str()).and_then(|known| known.shut_ms);
        table.insert(record.id.to_string(), Seen { shut_ms, ..seen });
        // Ids sort by age.
        while table.len() > KEPT_MAX_COUNT {
            table.pop_first();
        }
    }

    /// It was shut down, by a call.
    pub(crate) fn shut(&self, id: &SandboxId) {
        if let Some(seen) = self.table().get_mut(id.as_str()) {
            seen.shut_ms = Some(now_ms());
        }
    }

    /// What became of a devbox that the engine does not know, if the key may know of it; `None` sees all.
    pub(crate) fn find(&self, id: &str, sees: Option<&KeyId>) -> Option<Value> {
        let mut table = self.table();
        let seen =
            table.get_mut(id).filter(|seen| sees.is_none_or(|key| seen.owner.as_ref() == Some(key)))?;
        let expired = seen.expires_ms.is_some_and(|end| end <= now_ms());
        let reason = match seen.shut_ms {
            None if expired => "keep_alive_timeout",
            None if seen.idles => "idle",
            Some(_) | None => "api_shutdown",
        };
        let end_ms = match (seen.shut_ms, seen.expires_ms) {
            (None, Some(end)) if expired => end,
            (Some(at), _) => at,
            (None, _) => now_ms(),
        };
        // So that it is the same when it is asked for again.
        if reason == "api_shutdown" {
            seen.shut_ms = Some(end_ms);
        }
        let mut view = seen.view.clone();
        view["status"] = "shutdown".into();
        view["shutdown_reason"] = reason.into();
        view["end_time_ms"] = end_ms.into();
        if let Some(transitions) = view["state_transitions"].as_array_mut() {
            transitions.push(json!({"status": "shutdown", "transition_time_ms": end_ms}));
        }
        Some(view)
    }
}
