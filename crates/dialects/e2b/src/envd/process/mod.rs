//! `process.Process`: processes are execs of the engine. A pid is the exec's own inside; a tag is its tag.

mod delivered;
mod end;
mod feed;
mod input;
mod start;

use std::time::Duration;

use atoll_core::exec::ExecState;
use atoll_core::spec::TtySize;
use atoll_engine::{ExecQuery, ExecView};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::HeaderMap;

use super::{Envd, info};
use crate::connect::{Fault, Kind, Requests, streamed, timeout, unary};
use crate::wire::process::{
    ConnectRequest, Empty, ListRequest, ListResponse, ProcessConfig, ProcessInfo, ProcessSelector, Selector,
    SendSignalRequest, Signal, UpdateRequest,
};

pub(crate) use delivered::Delivered;

/// How long after its end a process can still be connected to, milliseconds.
const RETAINED_MS: u64 = 30_000;
/// Ended processes that are searched.
const RETAINED_COUNT: u32 = 100;
/// How long a kill waits for the end.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Pause after which an idle stream sends a keepalive, when the client asks for no other.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// Serves one call.
pub(crate) async fn call(envd: Envd, method: &str, request: Request) -> Response {
    match method {
        "List" => unary(request, async |_: ListRequest| list(&envd).await).await,
        "Start" => {
            let keepalive = keepalive(request.headers());
            match timeout(request.headers()) {
                Ok(limit) => {
                    let begin =
                        async |requests: Requests<_>| start::start(envd, requests, limit, keepalive).await;
                    streamed(request, begin).await
                }
                Err(fault) => fault.into_response(),
            }
        }
        "Connect" => {
            let keepalive = keepalive(request.headers());
            match timeout(request.headers()) {
                Ok(limit) => {
                    let begin = async |mut requests: Requests<ConnectRequest>| {
                        let request = requests.next().await?.unwrap_or_default();
                        feed::attach(&envd, &request, limit, keepalive).await
                    };
                    streamed(request, begin).await
                }
                Err(fault) => fault.into_response(),
            }
        }
        "Update" => unary(request, async |message| update(&envd, message).await).await,
        "StreamInput" => {
            streamed(request, async |requests: Requests<_>| input::stream(&envd, requests).await).await
        }
        "SendInput" => unary(request, async |message| input::send(&envd, message).await).await,
        "SendSignal" => unary(request, async |message| signal(&envd, message).await).await,
        "CloseStdin" => unary(request, async |message| input::close(&envd, message).await).await,
        _ => super::no_such_method(method),
    }
}

/// How often the client wants a message, in seconds.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let header = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds =
        header.and_then(|text| text.parse::<u64>().ok()).filter(|seconds| (1..=3600).contains(seconds));
    seconds.map_or(KEEPALIVE, Duration::from_secs)
}

fn missing(selector: &Selector) -> Fault {
    let what = match selector {
        Selector::Pid(pid) => format!("pid {pid}"),
        Selector::Tag(tag) => format!("tag {}", tag.chars().take(64).collect::<String>()),
    };
    Fault::new(Kind::NotFound, format!("process with {what} not found"))
}

fn selector(process: Option<ProcessSelector>) -> Result<Selector, Fault> {
    process
        .and_then(|process| process.selector)
        .ok_or_else(|| Fault::new(Kind::InvalidArgument, "the process is missing: give a pid or a tag"))
}

fn is_it(view: &ExecView, selector: &Selector) -> bool {
    match selector {
        Selector::Pid(pid) => view.record.pid == Some(*pid),
        Selector::Tag(tag) => view.record.spec.tag.as_ref() == Some(tag),
    }
}

/// The running process that the client means.
async fn running(envd: &Envd, process: Option<ProcessSelector>) -> Result<ExecView, Fault> {
    let selector = selector(process)?;
    let running = envd.engine().running_execs(envd.id()).await.map_err(|error| Fault::of(&error))?;
    running.into_iter().find(|view| is_it(view, &selector)).ok_or_else(|| missing(&selector))
}

/// The same, or a process that ended a moment ago.
async fn running_or_retained(envd: &Envd, process: Option<ProcessSelector>) -> Result<ExecView, Fault> {
    let selector = selector(process)?;
    let fault = |error: &atoll_core::Error| Fault::of(error);
    let running = envd.engine().running_execs(envd.id()).await.map_err(|error| fault(&error))?;
    if let Some(found) = running.into_iter().find(|view| is_it(view, &selector)) {
        return Ok(found);
    }
    let query =
        ExecQuery { states: vec![ExecState::Exited], limit: Some(RETAINED_COUNT), ..ExecQuery::default() };
    let (ended, _) = envd.engine().execs(envd.id(), &query).await.map_err(|error| fault(&error))?;
    let since = envd.engine().now_ms().saturating_sub(RETAINED_MS);
    let lately = |view: &ExecView| view.record.ended_ms.is_some_and(|ended| ended >= since);
    ended.into_iter().find(|view| is_it(view, &selector) && lately(view)).ok_or_else(|| missing(&selector))
}

async fn list(envd: &Envd) -> Result<ListResponse, Fault> {
    let fault = |error: &atoll_core::Error| Fault::of(error);
    let record = envd.engine().sandbox(envd.id()).map_err(|error| fault(&error))?;
    let mut own = record.spec.exec_env();
    own.extend(info::variables(&record));
    let running = envd.engine().running_execs(envd.id()).await.map_err(|error| fault(&error))?;
    let describe = |view: ExecView| {
        let record = view.record;
        let mut argv = record.spec.argv.into_iter();
        let config = ProcessConfig {
            cmd: argv.next().unwrap_or_default(),
            args: argv.collect(),
            // Variables of the sandbox are not the process's own.
            envs: record.spec.env.into_iter().filter(|(name, value)| own.get(name) != Some(value)).collect(),
            cwd: record.spec.cwd,
        };
        Some(ProcessInfo { config: Some(config), pid: record.pid?, tag: record.spec.tag })
    };
    let mut processes: Vec<ProcessInfo> = running.into_iter().filter_map(describe).collect();
    processes.sort_by_key(|process| process.pid);
    Ok(ListResponse { processes })
}

async fn update(envd: &Envd, request: UpdateRequest) -> Result<Empty, Fault> {
    let view = running(envd, request.process).await?;
    if let Some(size) = request.pty.and_then(|pty| pty.size) {
        let size = tty(&size);
        let resized = envd.engine().resize_exec(envd.id(), view.record.id.as_str(), size).await;
        resized.map_err(|error| envd.fault(&error))?;
    }
    Ok(Empty {})
}

/// A size as the engine takes it; the engine refuses numbers that are out of range.
fn tty(size: &crate::wire::process::Size) -> TtySize {
    let edge = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    TtySize { cols: edge(size.cols), rows: edge(size.rows) }
}

async fn signal(envd: &Envd, request: SendSignalRequest) -> Result<Empty, Fault> {
    let view = running(envd, request.process).await?;
    let name = match Signal::try_from(request.signal) {
        Ok(Signal::Sigkill) => "KILL",
        Ok(Signal::Sigterm) => "TERM",
        Ok(Signal::Unspecified) | Err(_) => {
            return Err(Fault::new(
                Kind::Unimplemented,
                "the signal is not supported: SIGTERM and SIGKILL are",
            ));
        }
    };
    // SIGKILL also kills the process's children; a process that gets SIGTERM looks after its own children.
    let tree = name == "KILL";
    let sent = envd.engine().signal_exec(envd.id(), view.record.id.as_str(), name, tree).await;
    sent.map_err(|error| envd.fault(&error))?;
    if tree {
        // The answer waits for the end, so that a client that reads it finds the process gone.
        let ended = envd.engine().wait_exec(envd.id(), view.record.id.as_str(), KILL_WAIT).await;
        ended.map_err(|error| envd.fault(&error))?;
    }
    Ok(Empty {})
}
