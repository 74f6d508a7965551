//! Schedules: messages to agents by time.
//!
//! One task looks after all of them. What it sends has a key of the schedule and the time it was due at, and the next
//! time is recorded only when the message was taken: if the server dies in between, the next one sends the same message
//! with the same key, which is taken once. Times that were missed while no server ran are made up for by one message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_core::agent::{ScheduleRun, ScheduleSpec, ScheduleStatus};
use atoll_core::id::{AgentId, SandboxId, ScheduleId};
use atoll_core::limits::{
    AGENT_SCHEDULE_TEXT_MAX_BYTES, AGENT_SCHEDULES_ALL_MAX_COUNT, AGENT_SCHEDULES_MAX_COUNT,
    AGENT_SCHEDULES_SANDBOX_MAX_COUNT,
};
use atoll_core::spec::IdempotencyKey;
use atoll_core::{Code, Error, Result};
use atoll_store::{ScheduleRecord, StoreError};
use futures::{StreamExt as _, stream};
use serde_json::json;

use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

use super::calls::{check_text, check_thread};
use super::driver::RETRY;
use super::due::Timer;
use super::{AgentShared, agent_not_found};

/// Agents that are sent to side by side.
const AGENTS_AT_ONCE: usize = 64;
/// Schedules are looked at again after this, nudge or not.
const LOOK_EVERY_MS: u64 = 30_000;

impl Engine {
    /// Has messages sent to an agent by time, from now on.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::InvalidArgument`], [`Code::TooLarge`], [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_schedule(&self, agent: &AgentId, spec: ScheduleSpec) -> Result<ScheduleRecord> {
        check_thread(&spec.thread)?;
        check_text(&spec.text)?;
        if spec.text.len() > AGENT_SCHEDULE_TEXT_MAX_BYTES {
            let why = format!("text: more than {} KiB", AGENT_SCHEDULE_TEXT_MAX_BYTES >> 10);
            return Err(
                Error::new(Code::TooLarge, why).hint("write it to a file in the sandbox, and name that")
            );
        }
        let created_ms = self.inner.now_ms();
        let agent = self.agent_by_id(agent)?;
        self.check_room(&agent)?;
        // A time that never comes is looked for a long time.
        let when = spec.when.clone();
        let next = move || Timer::new(&when, created_ms).map(|timer| timer.next(created_ms));
        let next = tokio::task::spawn_blocking(next).await;
        let next =
            next.map_err(|_panicked| Error::new(Code::Internal, "looking for the next time broke off"))?;
        let next_ms = next?.ok_or_else(|| Error::invalid("cron", "there is no such time"))?;
        let record = ScheduleRecord {
            id: ScheduleId::from_parts(created_ms, random()?),
            agent: agent.record.id.clone(),
            spec,
            status: ScheduleStatus { next_ms, last: None },
            created_ms,
        };
        // Before it is stored, so that no two take the last place. It is not due yet.
        agent.enter_schedule(record.clone())?;
        if let Err(error) = self.inner.store.insert_schedule(&record).await {
            agent.schedules().remove(&record.id);
            return Err(match error {
                StoreError::NotFound => agent_not_found(&agent.record.name),
                error => store_error(error),
            });
        }
        self.inner.scheduled.notify_one();
        Ok(record)
    }

    /// Refuses more schedules than there may be: of all, and of a sandbox, so that no sandbox has those of all.
    fn check_room(&self, agent: &AgentShared) -> Result<()> {
        self.forget_gone_agents();
        let (mut all, mut own) = (0, 0);
        for other in self.inner.agents.all() {
            let count = other.schedules().len();
            all += count;
            own += if other.sandbox() == agent.sandbox() { count } else { 0 };
        }
        if own >= AGENT_SCHEDULES_SANDBOX_MAX_COUNT {
            let most = AGENT_SCHEDULES_SANDBOX_MAX_COUNT;
            return Err(limit(&format!("the agents of this sandbox have {most} schedules already")));
        }
        if all >= AGENT_SCHEDULES_ALL_MAX_COUNT {
            return Err(limit(&format!("there are {AGENT_SCHEDULES_ALL_MAX_COUNT} schedules already")));
        }
        Ok(())
    }

    /// The schedules of an agent, the oldest first.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`].
    pub fn schedules(&self, agent: &AgentId) -> Result<Vec<ScheduleRecord>> {
        Ok(self.agent_by_id(agent)?.schedules().values().cloned().collect())
    }

    /// One schedule.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::ScheduleNotFound`].
    pub fn schedule(&self, agent: &AgentId, schedule: &str) -> Result<ScheduleRecord> {
        let agent = self.agent_by_id(agent)?;
        let found = agent.schedules().get(&schedule.parse()?).cloned();
        found.ok_or_else(|| ScheduleId::not_found(schedule))
    }

    /// Forgets a schedule. Nothing is sent by it once this has answered.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::ScheduleNotFound`].
    #[boxed]
    pub async fn remove_schedule(&self, agent: &AgentId, schedule: &str) -> Result<()> {
        let agent = self.agent_by_id(agent)?;
        let _turn = agent.scheduling.lock().await;
        let id = self.schedule(&agent.record.id, schedule)?.id;
        self.inner.store.delete_schedule(&id).await.map_err(store_error)?;
        agent.schedules().remove(&id);
        Ok(())
    }

    /// Takes up what an earlier process kept, and starts the task that sends.
    pub(crate) async fn recover_schedules(&self) -> Result<()> {
        self.enter_schedules(None).await?;
        let (engine, shutdown) = (self.clone(), self.inner.shutdown.clone());
        self.inner.tracker.spawn(async move {
            // To be dropped in the middle is what a `kill -9` does, too.
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = engine.send_by_time() => {}
            }
        });
        Ok(())
    }

    /// Enters the schedules of agents that were taken up, in one sandbox only if it is named.
    pub(crate) async fn enter_schedules(&self, only: Option<&SandboxId>) -> Result<()> {
        for record in self.inner.store.list_schedules().await.map_err(store_error)? {
            // One whose agent could not be taken up stays recorded.
            if let Ok(agent) = self.agent_by_id(&record.agent)
                && only.is_none_or(|only| agent.sandbox() == only)
                && let Err(error) = agent.enter_schedule(record)
            {
                tracing::error!(agent = agent.record.name, %error, "a schedule was not taken up");
            }
        }
        Ok(())
    }

    async fn send_by_time(&self) {
        loop {
            let failed = AtomicBool::new(false);
            // Those whose sandboxes were deleted are gone, and only not forgotten yet.
            let mut agents = self.inner.agents.all();
            agents.retain(|agent| self.inner.find(agent.sandbox()).is_some());
            // Side by side: an agent with many schedules does not hold up those of other agents.
            let failed_too = &failed;
            stream::iter(&agents)
                .for_each_concurrent(AGENTS_AT_ONCE, |agent| async move {
                    if !self.send_all_due(agent).await {
                        failed_too.store(true, Ordering::Relaxed);
                    }
                })
                .await;
            let look_ms = self.inner.now_ms().saturating_add(LOOK_EVERY_MS);
            let next = agents.iter().filter_map(|agent| agent.next_due()).fold(look_ms, u64::min);
            let rest = async {
                if failed.into_inner() {
                    tokio::time::sleep(RETRY).await;
                } else {
                    self.inner.clock.sleep_until_ms(next).await;
                }
            };
            tokio::select! {
                () = self.inner.scheduled.notified() => {}
                () = rest => {}
            }
        }
    }

    /// Sends what is due to an agent; says whether that was done.
    async fn send_all_due(&self, agent: &Arc<AgentShared>) -> bool {
        let due: Vec<ScheduleId> = {
            let (now, schedules) = (self.inner.now_ms(), agent.schedules());
            let due = schedules.values().filter(|schedule| schedule.status.next_ms <= now);
            due.map(|schedule| schedule.id.clone()).collect()
        };
        let mut all = true;
        for id in due {
            if let Err(error) = self.send_due(agent, &id).await {
                tracing::warn!(schedule = %id, %error, "a message cannot be sent by time now, trying again");
                all = false;
            }
        }
        all
    }

    /// Sends what is due, and records when the next is.
    ///
    /// # Errors
    /// What may not be so in a moment; then nothing is recorded.
    async fn send_due(&self, agent: &Arc<AgentShared>, id: &ScheduleId) -> Result<()> {
        let _turn = agent.scheduling.lock().await;
        let Some(schedule) = agent.schedules().get(id).cloned() else { return Ok(()) };
        let now = self.inner.now_ms();
        let timer = Timer::new(&schedule.spec.when, schedule.created_ms);
        let sent = match &timer {
            Ok(timer) => {
                let Some(due) = timer.due(schedule.status.next_ms, now) else { return Ok(()) };
                self.send_scheduled(&schedule, due).await.map(|number| (due, number))
            }
            // A time zone that is not known any more.
            Err(error) => Err(error.clone()),
        };
        let last = match sent {
            Ok((due_at_ms, number)) => ScheduleRun { due_at_ms, message: Some(number), error: None },
            Err(error) if matches!(error.code, Code::StoreUnavailable | Code::ShuttingDown) => {
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(schedule = %id, %error, "a message was not sent when it was due");
                let code = error.code.as_str().to_owned();
                ScheduleRun { due_at_ms: schedule.status.next_ms, message: None, error: Some(code) }
            }
        };
        atoll_failpoint::fail_point!("engine.schedule.sent");
        let next_ms = timer.ok().and_then(|timer| timer.next(now)).unwrap_or(u64::MAX);
        let status = ScheduleStatus { next_ms, last: Some(last) };
        self.inner.store.update_schedule(id, &status).await.map_err(store_error)?;
        if let Some(schedule) = agent.schedules().get_mut(id) {
            schedule.status = status;
        }
        Ok(())
    }

    /// Sends the message that was due at a time, unless that was done; gives its number.
    async fn send_scheduled(&self, schedule: &ScheduleRecord, due_ms: u64) -> Result<u64> {
        let spec = &schedule.spec;
        // The caller that has a lease is alone: no other begins anything in the sandbox, and a schedule sends for no
        // caller.
        let agent = self.agent_by_id(&schedule.agent)?;
        if self.lease(agent.sandbox())?.is_some() {
            return Err(Error::new(Code::SandboxLeased, "somebody has a lease on the sandbox"));
        }
        let (session, _new) = self.create_session(&schedule.agent, Some(&spec.thread)).await?;
        let key = IdempotencyKey::server(format!("atoll-schedule-{}-{due_ms}", schedule.id));
        let data = json!({ "text": spec.text, "schedule": schedule.id, "due_at_ms": due_ms });
        let session = session.record.id;
        let (event, _new) = self.take_message(&schedule.agent, session.as_str(), data, Some(&key)).await?;
        Ok(event.number)
    }
}

impl AgentShared {
    fn enter_schedule(&self, record: ScheduleRecord) -> Result<()> {
        let mut schedules = self.schedules();
        if schedules.len() >= AGENT_SCHEDULES_MAX_COUNT {
            return Err(limit(&format!("the agent has {AGENT_SCHEDULES_MAX_COUNT} schedules already")));
        }
        schedules.insert(record.id.clone(), record);
        Ok(())
    }

    /// When the next message is due.
    fn next_due(&self) -> Option<u64> {
        self.schedules().values().map(|schedule| schedule.status.next_ms).min()
    }
}

fn limit(why: &str) -> Error {
    Error::new(Code::LimitExceeded, why).hint("delete some")
}
