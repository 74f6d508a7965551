//! What callers can do with agents and sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_core::agent::{AgentSpec, ModelUsage, SessionStatus};
use atoll_core::id::{AgentId, SandboxId, SessionId};
use atoll_core::limits::{
    AGENT_MESSAGE_MAX_BYTES, AGENT_MESSAGES_WAITING_MAX_COUNT, AGENT_SESSIONS_ALL_MAX_COUNT,
    AGENT_THREAD_MAX_BYTES, IDEMPOTENCY_KEY_MAX_BYTES,
};
use atoll_core::spec::{self, ExecSpec, IdempotencyKey};
use atoll_core::{Code, Error, Result};
use atoll_store::{AgentRecord, EventRecord, SessionRecord, StoreError, Whereabouts};
use serde_json::{Value, json};

use crate::authorize::{Caller, EffectivePermission};
use crate::boxed;
use crate::clock::random;
use crate::cluster;
use crate::engine::Engine;
use crate::errors::store_error;

use super::{AgentGrant, AgentShared, SessionShared, SessionView, Wish, agent_not_found, driver};

/// What an agent is asked to be.
#[derive(Debug, Clone)]
pub struct AgentDraft {
    /// Its name, unique among agents.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox: SandboxId,
    /// What it is.
    pub spec: AgentSpec,
}

impl Engine {
    /// Declares an agent. Nothing runs before a client sends it a message.
    ///
    /// # Errors
    /// An error of the draft or the sandbox; [`Code::NameTaken`]; [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_agent(&self, draft: AgentDraft) -> Result<AgentRecord> {
        let AgentDraft { name, sandbox, mut spec } = draft;
        spec::name("name", &name)?;
        spec.validate()?;
        let sandbox = self.inner.sandbox(&sandbox)?;
        if let Some(layer) =
            spec.layer.as_ref().filter(|layer| !sandbox.record().spec.layers.contains_key(*layer))
        {
            return Err(Error::invalid("layer", format_args!("the sandbox has no agent layer '{layer}'")));
        }
        // What only shows together with what the sandbox has, such as the size of all variables.
        if let Some(draft) = spec.to_exec(&name, "", IdempotencyKey::server("x")) {
            ExecSpec::resolve(draft, &sandbox.record().spec)?;
        }
        if let Some(serves) = &mut spec.serves {
            let ready = sandbox.services.find(&serves.service)?.view().record.spec.ready;
            let port = Some(serves.port).filter(|port| *port != 0).or(ready.and_then(|ready| ready.port));
            serves.port = port.ok_or_else(|| {
                Error::invalid("port", "is needed: the service does not say on which port it is ready")
            })?;
        }
        let created_ms = self.inner.now_ms();
        let id = AgentId::from_parts(created_ms, random()?);
        let record = AgentRecord { id, name, sandbox: sandbox.id.clone(), spec, created_ms };
        let shared = AgentShared::new(record.clone(), sandbox.record().project.as_ref());
        self.forget_gone_agents();
        self.inner.agents.enter(&shared)?;
        if let Err(error) = self.inner.store.insert_agent(&record).await {
            self.inner.agents.leave(&shared);
            return Err(match error {
                StoreError::NotFound => SandboxId::not_found(sandbox.id.as_str()),
                error => store_error(error),
            });
        }
        Ok(record)
    }

    /// Those whose sandboxes were deleted: their rows went with these.
    pub(super) fn forget_gone_agents(&self) {
        for agent in self.inner.agents.all() {
            if self.inner.find(agent.sandbox()).is_none() {
                self.inner.agents.leave(&agent);
            }
        }
    }

    /// The agent with this name or id, if there is one.
    fn find_agent(&self, text: &str) -> Option<Arc<AgentShared>> {
        self.inner.agents.get(text).filter(|agent| self.inner.find(agent.sandbox()).is_some())
    }

    /// The agent that an administrator means by a name that none has which is of no project: that of a project, when it is
    /// the only one.
    fn only_agent(&self, caller: &Caller, name: &str) -> Option<Arc<AgentShared>> {
        let mut named = self.inner.agents.all().into_iter().filter(|agent| agent.record.name == name);
        let found = named.next().filter(|_| caller.is_admin())?;
        if named.next().is_none() { Some(found) } else { None }
    }

    /// Finds an agent that a caller may know of, and what it may do with the sandbox that this lives in.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`].
    pub(crate) fn seen_agent(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<(AgentGrant, EffectivePermission)> {
        let missing = || agent_not_found(text);
        let kept = caller.kept(text);
        let found = self.find_agent(&kept).or_else(|| self.only_agent(caller, text));
        if found.is_none() {
            cluster::missing(Whereabouts::Agent(kept));
        }
        let agent = found.ok_or_else(missing)?;
        let sandbox = self.inner.find(agent.sandbox()).ok_or_else(missing)?;
        let permission = self.on_sandbox(caller, &sandbox).ok_or_else(missing)?;
        Ok((AgentGrant { id: agent.record.id.clone(), sandbox: sandbox.id.clone() }, permission))
    }

    pub(super) fn agent_by_id(&self, id: &AgentId) -> Result<Arc<AgentShared>> {
        self.find_agent(id.as_str()).ok_or_else(|| agent_not_found(id.as_str()))
    }

    /// What an agent asked of models, with all of its sessions.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`].
    pub fn agent_usage(&self, id: &AgentId) -> Result<ModelUsage> {
        Ok(self.agent_by_id(id)?.usage())
    }

    /// The agents that a caller may know of, by name.
    #[must_use]
    pub fn agents(&self, caller: &Caller) -> Vec<AgentRecord> {
        let seen = |agent: &Arc<AgentShared>| {
            let sandbox = self.inner.find(agent.sandbox())?;
            self.on_sandbox(caller, &sandbox).map(|_| agent.record.clone())
        };
        self.inner.agents.all().iter().filter_map(seen).collect()
    }

    /// One agent.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`].
    pub fn agent(&self, id: &AgentId) -> Result<AgentRecord> {
        Ok(self.agent_by_id(id)?.record.clone())
    }

    /// Ends every session of an agent and forgets it; deletes its sandbox if that was made for it.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], and what resists.
    #[boxed]
    pub async fn remove_agent(&self, id: &AgentId) -> Result<()> {
        let agent = self.agent_by_id(id)?;
        agent.leaving.store(true, Ordering::SeqCst);
        // A task that is beginning a session has begun it when this lock is had, and no task begins one after that.
        drop(agent.making.lock().await);
        let ended = self.end_agent(&agent).await;
        if ended.is_err() {
            agent.leaving.store(false, Ordering::SeqCst);
        }
        ended
    }

    async fn end_agent(&self, agent: &Arc<AgentShared>) -> Result<()> {
        if agent.record.spec.own_sandbox {
            // First: the agent's rows go with the sandbox's, and a crash in between leaves an agent that can be removed.
            match self.delete_sandbox(agent.sandbox()).await {
                Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                _ => {}
            }
        } else {
            for session in agent.all() {
                match session.ask(Wish::Remove).await {
                    // Nothing runs in a sandbox that failed; the rows go with the agent's.
                    Err(error) if error.code == Code::SandboxFailed => {}
                    removed => removed?,
                }
            }
        }
        self.inner.store.delete_agent(&agent.record.id).await.map_err(store_error)?;
        self.inner.agents.leave(agent);
        Ok(())
    }

    /// Begins a session, or finds the one of this thread. Says whether it is new.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::InvalidArgument`], [`Code::LimitExceeded`], [`Code::SandboxFailed`].
    #[boxed]
    pub async fn create_session(&self, agent: &AgentId, thread: Option<&str>) -> Result<(SessionView, bool)> {
        thread.map_or(Ok(()), check_thread)?;
        let agent = self.agent_by_id(agent)?;
        let sandbox = self.inner.sandbox(agent.sandbox())?;
        // Of two callers that want the same thread one makes it.
        let _turn = agent.making.lock().await;
        if agent.leaving.load(Ordering::SeqCst) {
            return Err(agent_not_found(&agent.record.name));
        }
        if let Some(session) = thread.and_then(|thread| agent.session(thread).ok()) {
            return Ok((session.view(), false));
        }
        if sandbox.dead.is_cancelled() {
            return Err(Error::new(Code::SandboxFailed, "the sandbox of the agent is not alive"));
        }
        self.forget_gone_agents();
        let all: usize = self.inner.agents.all().iter().map(|agent| agent.lock().len()).sum();
        if all >= AGENT_SESSIONS_ALL_MAX_COUNT {
            let why = format!("there are {AGENT_SESSIONS_ALL_MAX_COUNT} sessions already");
            return Err(Error::new(Code::LimitExceeded, why).hint("delete some"));
        }
        let created_ms = self.inner.now_ms();
        let record = SessionRecord {
            id: SessionId::from_parts(created_ms, random()?),
            agent: agent.record.id.clone(),
            thread: thread.map(str::to_owned),
            status: SessionStatus::new(agent.record.spec.adapter),
            events: 0,
            created_ms,
        };
        let (session, inbox) = SessionShared::new(record.clone());
        agent.enter(&session)?;
        if let Err(error) = self.inner.store.insert_agent_session(&record).await {
            agent.leave(&record.id);
            return Err(match error {
                StoreError::NotFound => agent_not_found(&agent.record.name),
                error => store_error(error),
            });
        }
        driver::spawn(self, &agent, &session, &sandbox, inbox);
        Ok((session.view(), true))
    }

    /// The sessions of an agent, the oldest first.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`].
    pub fn sessions(&self, agent: &AgentId) -> Result<Vec<SessionView>> {
        Ok(self.agent_by_id(agent)?.all().iter().map(|session| session.view()).collect())
    }

    /// One session, by its id or thread.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::SessionNotFound`].
    pub fn session(&self, agent: &AgentId, session: &str) -> Result<SessionView> {
        Ok(self.agent_by_id(agent)?.session(session)?.view())
    }

    /// Ends a session's process, if there is one, and forgets the session with its events.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::SessionNotFound`].
    #[boxed]
    pub async fn remove_session(&self, agent: &AgentId, session: &str) -> Result<()> {
        let agent = self.agent_by_id(agent)?;
        let session = agent.session(session)?;
        match session.ask(Wish::Remove).await {
            Err(error) if error.code == Code::SandboxFailed => {
                let id = session.id();
                agent.inherit(self, &session).await;
                self.inner.store.delete_agent_session(&id).await.map_err(store_error)?;
                agent.leave(&id);
                Ok(())
            }
            removed => removed,
        }
    }

    /// Takes a message for an agent: it is worked on after those before it, and the sandbox is woken for that. The same
    /// message sent again with the same key is the one that was taken. Says whether it is new.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::TooLarge`], [`Code::IdempotencyMismatch`], [`Code::LimitExceeded`],
    /// [`Code::SandboxFailed`].
    #[boxed]
    pub async fn send_message(
        &self,
        agent: &AgentId,
        session: &str,
        text: &str,
        key: Option<&str>,
    ) -> Result<(EventRecord, bool)> {
        check_text(text)?;
        if let Some(key) = key {
            check_word("key", key, IDEMPOTENCY_KEY_MAX_BYTES)?;
        }
        let key = key.map(IdempotencyKey::client).transpose()?;
        self.take_message(agent, session, json!({ "text": text }), key.as_ref()).await
    }

    /// The same, with all that the message's event says.
    pub(super) async fn take_message(
        &self,
        agent: &AgentId,
        session: &str,
        data: Value,
        key: Option<&IdempotencyKey>,
    ) -> Result<(EventRecord, bool)> {
        let agent = self.agent_by_id(agent)?;
        let session = agent.session(session)?;
        if self.inner.sandbox(agent.sandbox())?.dead.is_cancelled() {
            return Err(Error::new(Code::SandboxFailed, "the sandbox of the agent is not alive"));
        }
        let id = session.id();
        let delivered = session.record.borrow().status.delivered;
        let most = AGENT_MESSAGES_WAITING_MAX_COUNT as u64;
        let store = &self.inner.store;
        let (now, key) = (self.inner.now_ms(), key.map(IdempotencyKey::to_string));
        let key = key.as_deref();
        let (event, new) = match store.append_agent_message(&id, key, &data, now, delivered, most).await {
            Ok(Some(appended)) => appended,
            Ok(None) => {
                return Err(Error::new(
                    Code::LimitExceeded,
                    format!("{most} messages wait for the agent already"),
                )
                .hint("wait until it has worked on some"));
            }
            Err(StoreError::NotFound) => return Err(SessionId::not_found(id.as_str())),
            Err(error) => return Err(store_error(error)),
        };
        if !new && event.data != data {
            return Err(Error::new(
                Code::IdempotencyMismatch,
                "the key was used before with another message",
            )
            .hint("use a new key for a new message"));
        }
        // Also for a message that was there: the task that stored it may not have told of it yet.
        session.published(event.number);
        if new {
            session.message.send_modify(|last| *last = (*last).max(event.number));
            // A full inbox is one that is going to be looked into.
            drop(session.wishes.try_send(Wish::Look));
        }
        Ok((event, new))
    }

    /// Asks an agent to end the work on its message; its process is killed if it does not. Messages that wait stay.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::SandboxFailed`].
    #[boxed]
    pub async fn cancel_session(&self, agent: &AgentId, session: &str) -> Result<()> {
        self.agent_by_id(agent)?.session(session)?.ask(Wish::Cancel).await
    }

    /// Answers an approval with one of its options.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], [`Code::InvalidState`] when it does not wait, [`Code::InvalidArgument`].
    #[boxed]
    pub async fn answer_approval(
        &self,
        agent: &AgentId,
        session: &str,
        approval: &str,
        option: &str,
    ) -> Result<()> {
        let session = self.agent_by_id(agent)?.session(session)?;
        session.ask(|reply| Wish::Answer(approval.to_owned(), option.to_owned(), reply)).await
    }

    /// Takes up what an earlier process kept.
    pub(crate) async fn recover_agents(&self) -> Result<()> {
        self.recover_agents_of(None).await?;
        self.inner.agents.taken_up.cancel();
        Ok(())
    }

    /// The same, of one sandbox only if it is named.
    pub(crate) async fn recover_agents_of(&self, only: Option<&SandboxId>) -> Result<()> {
        let is_of = |agent: &AgentShared| only.is_none_or(|only| agent.sandbox() == only);
        for record in self.inner.store.list_agents().await.map_err(store_error)? {
            let project = self.inner.find(&record.sandbox).and_then(|sandbox| sandbox.record().project);
            let agent = AgentShared::new(record, project.as_ref());
            if !is_of(&agent) {
                continue;
            }
            // One that could not be taken up is not there; its agents stay recorded.
            if self.inner.find(agent.sandbox()).is_some()
                && let Err(error) = self.inner.agents.enter(&agent)
            {
                tracing::error!(agent = agent.record.name, %error, "an agent was not taken up");
            }
        }
        for record in self.inner.store.list_agent_sessions().await.map_err(store_error)? {
            let agent = self.inner.agents.all().into_iter().find(|agent| agent.record.id == record.agent);
            let Some(agent) = agent.filter(|agent| is_of(agent)) else { continue };
            let sandbox = self.inner.sandbox(agent.sandbox())?;
            let (session, inbox) = SessionShared::new(record);
            if let Err(error) = agent.enter(&session) {
                tracing::error!(agent = agent.record.name, %error, "a session was not taken up");
                continue;
            }
            driver::spawn(self, &agent, &session, &sandbox, inbox);
        }
        Ok(())
    }
}

/// A message.
pub(super) fn check_text(text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid("text", "is empty"));
    }
    if text.len() > AGENT_MESSAGE_MAX_BYTES {
        return Err(Error::new(Code::TooLarge, "text: more than 256 KiB")
            .hint("write it to a file in the sandbox, and name that"));
    }
    Ok(())
}

/// A name of a thread.
pub(super) fn check_thread(thread: &str) -> Result<()> {
    check_word("thread", thread, AGENT_THREAD_MAX_BYTES)?;
    if thread.parse::<SessionId>().is_ok() {
        return Err(Error::invalid("thread", "looks like an id").hint("choose another name"));
    }
    Ok(())
}

/// A word that a client made up.
fn check_word(field: &str, text: &str, max: usize) -> Result<()> {
    if (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("must be 1 to {max} printable ASCII characters")))
}
