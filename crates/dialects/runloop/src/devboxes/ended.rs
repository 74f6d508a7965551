//! Devboxes that ended. The engine forgets a sandbox with its end; the clients ask for it once more, to see that it is
//! shut down. The server remembers the last answer about each of the newest few thousand devboxes.

use atoll_core::id::{KeyId, SandboxId};
use atoll_dialect_kit::remembered::Remembered;
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most devboxes that are remembered.
const KEPT_MAX_COUNT: usize = 5000;
/// Bytes of the answer about one devbox; a larger answer is kept without its metadata and parameters.
const VIEW_MAX_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Seen {
    view: Value,
    owner: Option<KeyId>,
    expires_ms: Option<u64>,
    idles: bool,
    /// When a client shut it down over this protocol.
    shut_ms: Option<u64>,
}

/// The last answers about devboxes. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Ended(Remembered<Seen>);

impl Ended {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self(Remembered::new(engine, "runloop", KEPT_MAX_COUNT))
    }

    /// Remembers the answer about a devbox that lives.
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
        // Clients may also read a devbox that is being deleted: its time of shutdown is kept.
        self.0.change(&record.id, |known| {
            Some(Seen { shut_ms: known.and_then(|known| known.shut_ms), ..seen })
        });
    }

    /// Notes that a call shut the devbox down.
    pub(crate) fn shut(&self, id: &SandboxId, now_ms: u64) {
        self.0.change(id, |seen| Some(Seen { shut_ms: Some(now_ms), ..seen? }));
    }

    /// The last answer about a devbox that the engine does not know, if the key may know of it; `None` sees all.
    pub(crate) fn find(&self, id: &str, sees: Option<&KeyId>, now_ms: u64) -> Option<Value> {
        let id = id.parse().ok()?;
        let seen = self.0.get(&id)?;
        if sees.is_some_and(|key| seen.owner.as_ref() != Some(key)) {
            return None;
        }
        let expired = seen.expires_ms.is_some_and(|end| end <= now_ms);
        let reason = match seen.shut_ms {
            None if expired => "keep_alive_timeout",
            None if seen.idles => "idle",
            Some(_) | None => "api_shutdown",
        };
        let end_ms = match (seen.shut_ms, seen.expires_ms) {
            (None, Some(end)) if expired => end,
            (Some(at), _) => at,
            (None, _) => now_ms,
        };
        // So that a client that asks again gets the same answer.
        if reason == "api_shutdown" {
            self.0.change(&id, |seen| Some(Seen { shut_ms: Some(end_ms), ..seen? }));
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
