//! Commands: `run`, `start`, `read_output`, `stop`.

use std::time::{Duration, Instant};

use atoll_api::{CreateExec, OutputPage, SignalExec};
use atoll_client::{AttachEvent, Client, OutputQuery, ResumePolicy};
use atoll_core::Code;
use atoll_core::exec::{ExecState, Exit, OutputStream};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use serde::Serialize;

use crate::error::{Result, ToolError};
use crate::excerpt::{Excerpt, Shown};
use crate::session::Session;
use crate::types::{
    Ended, LeftOut, Output, ReadOutputParams, RunParams, StartParams, Started, StopParams, Stopped,
};

/// Seconds that `run` gives a command unless told otherwise, and at most.
const RUN_SECONDS: u32 = 120;
const RUN_MAX_SECONDS: u32 = 3600;
/// Bytes that are shown of the beginning and of the end of an output.
const SHOWN_BYTES: usize = 16 << 10;
/// Bytes of one answer of `read_output` unless told otherwise, and at most.
const PAGE_BYTES: u32 = 32 << 10;
const PAGE_MAX_BYTES: u32 = 64 << 10;
/// Longest wait of `read_output`, seconds: clients commonly give up after sixty.
const WAIT_MAX_SECONDS: u32 = 50;
/// Bytes of a progress message, of the newest output.
const PROGRESS_BYTES: usize = 2 << 10;
/// Progress is told at most this often, and at least so often that a client knows that we live.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
const PROGRESS_SILENCE: Duration = Duration::from_secs(10);
/// How long a command that was killed is waited for.
const KILL_WAIT_MS: u64 = 2_000;

/// The name of a value that is an enumeration in the API.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// Runs a command to its end.
pub(crate) async fn run(
    session: &Session,
    params: RunParams,
    context: &RequestContext<RoleServer>,
) -> Result<Ended> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let seconds = params.timeout_seconds.unwrap_or(RUN_SECONDS);
    if !(1..=RUN_MAX_SECONDS).contains(&seconds) {
        return Err(ToolError::new(
            Code::InvalidArgument,
            format!("timeout_seconds: {seconds} is not between 1 and {RUN_MAX_SECONDS}"),
            "use 'start' for what takes longer",
        ));
    }
    let create = CreateExec {
        shell: Some(params.command),
        env: params.env,
        cwd: params.cwd,
        timeout_ms: Some(u64::from(seconds) * 1000),
        ..CreateExec::default()
    };
    // Not given up when the request is cancelled: the command may run then, and must be killed.
    let exec = match session.client.create_exec(&sandbox, &create).await {
        Ok(created) => created.exec.id,
        Err(error) => return Err(session.explain(&sandbox, error).await),
    };
    let progress = Progress::new(context);
    let followed = tokio::select! {
        followed = follow(&session.client, &sandbox, &exec, progress) => Some(followed),
        () = context.ct.cancelled() => None,
        () = session.ended.cancelled() => None,
    };
    match followed {
        Some(Ok((shown, exit))) => Ok(ended(sandbox, exec, shown, exit.as_ref())),
        Some(Err(error)) => Err(session.explain(&sandbox, error).await),
        None => {
            if let Err(error) = session.client.kill_exec(&sandbox, &exec).await {
                tracing::warn!(%sandbox, %exec, %error, "a command whose request was cancelled was not killed");
            }
            Err(ToolError::new(
                Code::ExecEnded,
                "the request was cancelled and its command killed",
                "run it again",
            ))
        }
    }
}

fn ended(sandbox: String, exec: String, shown: Shown, exit: Option<&Exit>) -> Ended {
    Ended {
        exec,
        sandbox,
        exit_code: exit.and_then(|exit| exit.code),
        reason: exit.map_or_else(|| "lost".to_owned(), |exit| name(&exit.reason)),
        stdout: shown.stdout,
        stderr: shown.stderr,
        left_out: shown.left_out.map(|(from, to)| LeftOut { from, to }),
        output_bytes: shown.end,
    }
}

/// Reads output until the exit.
async fn follow(
    client: &Client,
    sandbox: &str,
    exec: &str,
    mut progress: Progress,
) -> std::result::Result<(Shown, Option<Exit>), atoll_client::ClientError> {
    let mut excerpt = Excerpt::new(SHOWN_BYTES, SHOWN_BYTES);
    let mut follower = client.follow_output(sandbox, exec, 0, true, ResumePolicy::default());
    loop {
        let next = {
            let next = follower.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    next = &mut next => break next?,
                    () = progress.due() => progress.tell().await,
                }
            }
        };
        match next {
            Some(AttachEvent::Output { stream, data, .. }) => {
                excerpt.push(stream, &data);
                progress.add(&data);
            }
            Some(AttachEvent::Gap { from, to }) => excerpt.gap(from, to),
            Some(AttachEvent::Exit { exit, .. }) => return Ok((excerpt.show(), Some(exit))),
            Some(_) => {}
            None => return Ok((excerpt.show(), None)),
        }
    }
}

/// Tells the client of new output, if it asked for that.
struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    /// The newest output that was not told, at most [`PROGRESS_BYTES`].
    text: Vec<u8>,
    steps: u32,
    told: Instant,
}

impl Progress {
    fn new(context: &RequestContext<RoleServer>) -> Self {
        let to = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        Self { to, text: Vec::new(), steps: 0, told: Instant::now() }
    }

    fn add(&mut self, data: &[u8]) {
        if self.to.is_some() {
            self.text.extend_from_slice(&data[data.len().saturating_sub(PROGRESS_BYTES)..]);
            let over = self.text.len().saturating_sub(PROGRESS_BYTES);
            self.text.drain(..over);
        }
    }

    /// Waits until something should be told.
    async fn due(&self) {
        if self.to.is_none() {
            return std::future::pending().await;
        }
        let pause = if self.text.is_empty() { PROGRESS_SILENCE } else { PROGRESS_EVERY };
        tokio::time::sleep_until((self.told + pause).into()).await;
    }

    async fn tell(&mut self) {
        let Some((peer, token)) = &self.to else { return };
        self.steps += 1;
        self.told = Instant::now();
        let mut progress = ProgressNotificationParam::new(token.clone(), f64::from(self.steps));
        if !self.text.is_empty() {
            progress = progress.with_message(String::from_utf8_lossy(&self.text).into_owned());
            self.text.clear();
        }
        // A client that has gone is noticed elsewhere.
        drop(peer.notify_progress(progress).await);
    }
}

/// Starts a command and does not wait.
pub(crate) async fn start(session: &Session, params: StartParams) -> Result<Started> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let create = CreateExec {
        shell: Some(params.command),
        env: params.env,
        cwd: params.cwd,
        timeout_ms: params.timeout_seconds.map(|seconds| u64::from(seconds) * 1000),
        ..CreateExec::default()
    };
    match session.client.create_exec(&sandbox, &create).await {
        Ok(created) => Ok(Started { exec: created.exec.id, sandbox }),
        Err(error) => Err(session.explain(&sandbox, error).await),
    }
}

/// A piece of a command's output.
pub(crate) async fn read_output(
    session: &Session,
    params: ReadOutputParams,
    context: &RequestContext<RoleServer>,
) -> Result<Output> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let max = params.max_bytes.unwrap_or(PAGE_BYTES).clamp(1, PAGE_MAX_BYTES);
    let wait_ms = u64::from(params.wait_seconds.unwrap_or(0).min(WAIT_MAX_SECONDS)) * 1000;
    let query = OutputQuery {
        offset: params.offset,
        wait_ms,
        max_bytes: Some(u64::from(max)),
        ..OutputQuery::default()
    };
    let page = tokio::select! {
        page = session.client.exec_output(&sandbox, &params.exec, query) => page,
        () = context.ct.cancelled() => return Err(cancelled()),
        () = session.ended.cancelled() => return Err(cancelled()),
    };
    match page {
        Ok(page) => output(page),
        Err(error) => Err(session.explain(&sandbox, error).await),
    }
}

fn cancelled() -> ToolError {
    ToolError::new(Code::Timeout, "the request was cancelled", "ask again")
}

fn output(page: OutputPage) -> Result<Output> {
    let mut streams = [Vec::new(), Vec::new()];
    let done = page.chunks.is_empty() && page.state.is_final();
    for chunk in page.chunks {
        let bytes = chunk.bytes()?;
        streams[usize::from(chunk.stream == OutputStream::Stderr)].extend_from_slice(&bytes);
    }
    let [stdout, stderr] = streams.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Output {
        stdout,
        stderr,
        next_offset: page.next_offset,
        dropped_until: page.gap_until,
        done,
        state: page.state.to_string(),
        exit_code: page.exit.as_ref().and_then(|exit| exit.code),
        reason: page.exit.as_ref().map(|exit| name(&exit.reason)),
    })
}

/// Kills a command with everything it started, or sends it a signal.
pub(crate) async fn stop(session: &Session, params: StopParams) -> Result<Stopped> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let client = &session.client;
    let done = match params.signal {
        Some(signal) => client.signal_exec(&sandbox, &params.exec, &SignalExec { signal, tree: false }).await,
        None => client.kill_exec(&sandbox, &params.exec).await,
    };
    let state = match done {
        Ok(()) => client.get_exec(&sandbox, &params.exec, KILL_WAIT_MS).await.map(|exec| exec.state),
        // A command that has ended needs no stopping.
        Err(error) if error.code() == Some(Code::ExecEnded) => Ok(ExecState::Exited),
        Err(error) => Err(error),
    };
    match state {
        Ok(state) => Ok(Stopped { exec: params.exec, state: state.to_string() }),
        Err(error) => Err(session.explain(&sandbox, error).await),
    }
}
