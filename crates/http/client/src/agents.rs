//! Agents that live in sandboxes, and sessions with them.

use atoll_api::{
    Agent, AgentEvent, AgentEventPage, AgentList, AgentSchedule, AgentScheduleList, AgentSession,
    AgentSessionList, AnswerApproval, CreateAgent, CreateAgentSchedule, CreateAgentSession, ForkAgent,
    ForkedAgents, SendAgentMessage, UpdateAgent,
};
use http::Method;

use crate::{Client, Result};

/// An agent is named by its id or name, a session by its id or thread.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Declares an agent.
    pub async fn create_agent(&self, create: &CreateAgent) -> Result<Agent> {
        self.submit(Method::POST, self.target(["v1", "agents"]), create).await
    }

    /// All agents that the key may know of.
    pub async fn list_agents(&self) -> Result<AgentList> {
        self.call(self.request(Method::GET, self.target(["v1", "agents"]))).await
    }

    /// One agent.
    pub async fn get_agent(&self, agent: &str) -> Result<Agent> {
        self.call(self.request(Method::GET, self.target(["v1", "agents", agent]))).await
    }

    /// Puts another version of its program in its sandbox.
    pub async fn update_agent(&self, agent: &str, update: &UpdateAgent) -> Result<Agent> {
        self.submit(Method::POST, self.target(["v1", "agents", agent, "update"]), update).await
    }

    /// Makes forks of an agent. Each has its own outcome.
    pub async fn fork_agent(&self, agent: &str, fork: &ForkAgent) -> Result<ForkedAgents> {
        self.submit(Method::POST, self.target(["v1", "agents", agent, "fork"]), fork).await
    }

    /// Ends its sessions and forgets it.
    pub async fn delete_agent(&self, agent: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "agents", agent]))).await
    }

    /// Begins a session, or finds the one of a thread.
    pub async fn create_agent_session(
        &self,
        agent: &str,
        create: &CreateAgentSession,
    ) -> Result<AgentSession> {
        self.submit(Method::POST, self.target(["v1", "agents", agent, "sessions"]), create).await
    }

    /// Its sessions.
    pub async fn list_agent_sessions(&self, agent: &str) -> Result<AgentSessionList> {
        self.call(self.request(Method::GET, self.target(["v1", "agents", agent, "sessions"]))).await
    }

    /// One session.
    pub async fn get_agent_session(&self, agent: &str, session: &str) -> Result<AgentSession> {
        let target = self.target(["v1", "agents", agent, "sessions", session]);
        self.call(self.request(Method::GET, target)).await
    }

    /// Ends and forgets a session.
    pub async fn delete_agent_session(&self, agent: &str, session: &str) -> Result<()> {
        let target = self.target(["v1", "agents", agent, "sessions", session]);
        self.call_empty(self.request(Method::DELETE, target)).await
    }

    /// Sends a message.
    pub async fn send_agent_message(
        &self,
        agent: &str,
        session: &str,
        message: &SendAgentMessage,
    ) -> Result<AgentEvent> {
        let target = self.target(["v1", "agents", agent, "sessions", session, "messages"]);
        self.submit(Method::POST, target, message).await
    }

    /// Asks the agent to end the work on its message.
    pub async fn cancel_agent_session(&self, agent: &str, session: &str) -> Result<()> {
        let target = self.target(["v1", "agents", agent, "sessions", session, "cancel"]);
        self.call_empty(self.request(Method::POST, target)).await
    }

    /// Answers an approval.
    pub async fn answer_approval(
        &self,
        agent: &str,
        session: &str,
        approval: &str,
        answer: &AnswerApproval,
    ) -> Result<()> {
        let target = self.target(["v1", "agents", agent, "sessions", session, "approvals", approval]);
        self.call_empty(self.request(Method::POST, target).json(answer)).await
    }

    /// Events after a number. Waits up to `wait_ms` (at most 60,000) when there are none yet.
    pub async fn agent_events(
        &self,
        agent: &str,
        session: &str,
        after: u64,
        wait_ms: u64,
    ) -> Result<AgentEventPage> {
        let target = self.target(["v1", "agents", agent, "sessions", session, "events"]);
        let target = target.query("after", after).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }

    /// Has messages sent to an agent by time.
    pub async fn create_agent_schedule(
        &self,
        agent: &str,
        create: &CreateAgentSchedule,
    ) -> Result<AgentSchedule> {
        let target = self.target(["v1", "agents", agent, "schedules"]);
        self.call(self.request(Method::POST, target).json(create)).await
    }

    /// The schedules of an agent, the oldest first.
    pub async fn list_agent_schedules(&self, agent: &str) -> Result<AgentScheduleList> {
        self.call(self.request(Method::GET, self.target(["v1", "agents", agent, "schedules"]))).await
    }

    /// One schedule.
    pub async fn get_agent_schedule(&self, agent: &str, schedule: &str) -> Result<AgentSchedule> {
        let target = self.target(["v1", "agents", agent, "schedules", schedule]);
        self.call(self.request(Method::GET, target)).await
    }

    /// Forgets a schedule.
    pub async fn delete_agent_schedule(&self, agent: &str, schedule: &str) -> Result<()> {
        let target = self.target(["v1", "agents", agent, "schedules", schedule]);
        self.call_empty(self.request(Method::DELETE, target)).await
    }
}
