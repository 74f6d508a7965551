//! Execs, one request at a time. For a live connection see [`crate::attach`].

use atoll_api::{
    CreateExec, Exec, ExecList, ExecWithOutput, OutputChunk, OutputPage, SignalExec, StdinWritten,
};
use atoll_core::exec::{ExecState, Exit};
use atoll_core::spec::TtySize;
use bytes::Bytes;
use futures::Stream;
use http::Method;
use serde::Deserialize;

use crate::sse::{Event, Events};
use crate::{Client, ClientError, Result};

/// Which execs to list.
#[derive(Debug, Clone, Default)]
pub struct ListExecs {
    /// Only in this state.
    pub state: Option<ExecState>,
    /// Size of the page.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// Which output to read, and how long to wait for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputQuery {
    /// First byte, counted over both streams.
    pub offset: u64,
    /// In place of the offset: what was written at this time (milliseconds since the epoch) or later; up to a second earlier.
    pub since_ms: Option<u64>,
    /// Wait this long for the first byte, milliseconds, at most 60,000.
    pub wait_ms: u64,
    /// Return at most this many bytes; the server's choice when absent.
    pub max_bytes: Option<u64>,
}

/// What the event stream of an exec says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Output.
    Output(OutputChunk),
    /// Bytes `from..to` were dropped because the log's limit was reached.
    Gap {
        /// First dropped byte.
        from: u64,
        /// One past the last dropped byte.
        to: u64,
    },
    /// Last: how it ended.
    Exit {
        /// Where it ended up.
        state: ExecState,
        /// How it ended.
        exit: Exit,
        /// One past the last byte of output.
        offset: u64,
    },
}

#[derive(Deserialize)]
struct Gap {
    from: u64,
    to: u64,
}

#[derive(Deserialize)]
struct Ended {
    state: ExecState,
    exit: Exit,
    offset: u64,
}

fn read_event(event: &Event) -> Result<Option<ExecEvent>> {
    let read =
        match event.name.as_str() {
            "output" => serde_json::from_str(&event.data).map(ExecEvent::Output),
            "gap" => serde_json::from_str(&event.data).map(|Gap { from, to }| ExecEvent::Gap { from, to }),
            "exit" => serde_json::from_str(&event.data)
                .map(|Ended { state, exit, offset }| ExecEvent::Exit { state, exit, offset }),
            _ => return Ok(None),
        };
    read.map(Some).map_err(|error| ClientError::Protocol(format!("an event of the exec: {error}")))
}

/// An exec is named by its id, its sandbox by id or name.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Runs a command.
    pub async fn create_exec(&self, sandbox: &str, create: &CreateExec) -> Result<ExecWithOutput> {
        let request = self.request(Method::POST, self.in_sandbox(sandbox, &["execs"])).json(create);
        self.call_waiting(request, create.wait_ms.unwrap_or(0)).await
    }

    /// One page of execs, newest first.
    pub async fn list_execs(&self, sandbox: &str, list: &ListExecs) -> Result<ExecList> {
        let target = self
            .in_sandbox(sandbox, &["execs"])
            .maybe("state", list.state)
            .maybe("limit", list.limit)
            .maybe("cursor", list.cursor.as_deref());
        self.call(self.request(Method::GET, target)).await
    }

    /// One exec. Waits up to `wait_ms` (at most 60,000) for its exit.
    pub async fn get_exec(&self, sandbox: &str, exec: &str, wait_ms: u64) -> Result<Exec> {
        let target = self.in_sandbox(sandbox, &["execs", exec]).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }

    /// Output from an offset on, as much as there is.
    pub async fn exec_output(&self, sandbox: &str, exec: &str, query: OutputQuery) -> Result<OutputPage> {
        let target = self
            .in_sandbox(sandbox, &["execs", exec, "output"])
            .query("offset", query.offset)
            .maybe("since_ms", query.since_ms)
            .query("wait_ms", query.wait_ms)
            .maybe("max_bytes", query.max_bytes);
        self.call_waiting(self.request(Method::GET, target), query.wait_ms).await
    }

    /// Output as events, until the exit or until the connection breaks.
    pub async fn exec_events(
        &self,
        sandbox: &str,
        exec: &str,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<ExecEvent>> + Send + Unpin + use<>> {
        let target = self.in_sandbox(sandbox, &["execs", exec, "events"]).query("offset", offset);
        let response = self.open(self.request(Method::GET, target)).await?;
        let events = Events::new(self.clone(), response);
        Ok(Box::pin(futures::stream::try_unfold(events, |mut events| async move {
            while let Some(event) = events.next().await? {
                if let Some(event) = read_event(&event)? {
                    return Ok(Some((event, events)));
                }
            }
            Ok(None)
        })))
    }

    /// Writes to standard input, and closes it afterwards if `close`.
    pub async fn write_stdin(
        &self,
        sandbox: &str,
        exec: &str,
        data: Bytes,
        close: bool,
    ) -> Result<StdinWritten> {
        let target = self.in_sandbox(sandbox, &["execs", exec, "stdin"]).flag("close", close);
        self.call(self.request(Method::POST, target).body(data)).await
    }

    /// Sends a signal.
    pub async fn signal_exec(&self, sandbox: &str, exec: &str, signal: &SignalExec) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["execs", exec, "signal"]);
        self.call_empty(self.request(Method::POST, target).json(signal)).await
    }

    /// Changes the terminal's size.
    pub async fn resize_exec(&self, sandbox: &str, exec: &str, size: TtySize) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["execs", exec, "resize"]);
        self.call_empty(self.request(Method::POST, target).json(&size)).await
    }

    /// Kills the whole process tree.
    pub async fn kill_exec(&self, sandbox: &str, exec: &str) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["execs", exec]);
        self.call_empty(self.request(Method::DELETE, target)).await
    }
}
