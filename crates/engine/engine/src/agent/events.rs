//! Reading what was said: any number of readers, each from where it wants.

use std::time::Duration;

use atoll_core::id::{AgentId, SessionId};
use atoll_core::{Code, Error, Result};
use atoll_store::EventRecord;
use tokio::time::Instant;

use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

use super::SessionView;

/// What there is of a session after a number.
#[derive(Debug)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<EventRecord>,
    /// Events before the first of these are not kept any more.
    pub gap: bool,
    /// The session.
    pub view: SessionView,
}

impl Engine {
    /// Events of a session after a number, at most `limit`; waits while there are none.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::SessionNotFound`], [`Code::OffsetOutOfRange`].
    #[boxed]
    pub async fn session_events(
        &self,
        agent: &AgentId,
        session: &str,
        after: u64,
        limit: u32,
        wait: Duration,
    ) -> Result<EventPage> {
        let shared = self.agent_by_id(agent)?.session(session)?;
        let mut record = shared.record.subscribe();
        let deadline = Instant::now() + wait;
        loop {
            let last = record.borrow_and_update().events;
            if after > last {
                return Err(Error::new(Code::OffsetOutOfRange, format!("the last event is {last}"))
                    .hint("ask after the number of the last event that you have, or after 0"));
            }
            if after < last {
                let id = shared.id();
                let events = self.inner.store.agent_events(&id, after, limit).await;
                let mut events = events.map_err(store_error)?;
                // An event may be in the database before it is published here: a client that had it could not ask for
                // what comes after it.
                events.retain(|event| event.number <= last);
                let gap = events.first().is_some_and(|event| event.number > after + 1);
                if !events.is_empty() {
                    return Ok(EventPage { events, gap, view: shared.view() });
                }
            }
            let changed = tokio::time::timeout_at(deadline, record.changed()).await;
            // Readers are woken, too, when it was removed.
            if !self.agent_by_id(agent)?.has(&shared) {
                return Err(SessionId::not_found(session));
            }
            if !matches!(changed, Ok(Ok(()))) {
                return Ok(EventPage { events: Vec::new(), gap: false, view: shared.view() });
            }
        }
    }
}
