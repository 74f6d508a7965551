//! Starting a process.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::spec::{Command, ExecDraft, TtySize};
use atoll_core::{Code, Error};
use atoll_guest_protocol::messages::{FileKind, Stat};

use super::feed::Feed;
use super::tty;
use crate::connect::{Fault, Kind, Requests};
use crate::envd::{Envd, info, paths};
use crate::wire::process::StartRequest;

/// Size of a terminal whose client gives none.
const TTY: TtySize = TtySize { cols: 80, rows: 24 };

/// Starts a process and follows it. When the client's time is over the process is killed.
pub(super) async fn start(
    envd: Envd,
    mut requests: Requests<StartRequest>,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Feed, Fault> {
    let request = requests.next().await?.unwrap_or_default();
    let draft = draft(&envd, request, limit).await?;
    let cwd = draft.cwd.clone();
    let engine = envd.engine();
    let view =
        engine.create_exec(envd.id(), draft, envd.recorded()).await.map_err(|error| match error.code {
            Code::CwdNotFound => no_cwd(cwd.as_deref().unwrap_or_default()),
            _ => envd.fault(&error),
        })?;
    if let Some(code) = view.record.exit.as_ref().and_then(|exit| exit.error) {
        let command = view.record.spec.argv.first().map_or("", String::as_str);
        return Err(not_started(code, command));
    }
    let reader = engine.output_whole(envd.id(), view.record.id.as_str()).await;
    let reader = reader.map_err(|error| envd.fault(&error))?.read_by(envd.recorded().key());
    Ok(Feed::new(&envd, &view, reader, keepalive, None))
}

/// The error for a program that could not be started, in the words of Go's `exec`.
fn not_started(code: Code, command: &str) -> Fault {
    let why = if code == Code::CommandNotFound { "no such file or directory" } else { "permission denied" };
    Fault::new(Kind::InvalidArgument, format!("error starting process: fork/exec {command}: {why}"))
}

fn no_cwd(cwd: &str) -> Fault {
    Fault::new(Kind::InvalidArgument, format!("cwd '{cwd}' does not exist"))
}

async fn draft(envd: &Envd, request: StartRequest, limit: Option<Duration>) -> Result<ExecDraft, Fault> {
    let process = request.process.unwrap_or_default();
    if process.cmd.is_empty() {
        return Err(Fault::new(Kind::InvalidArgument, "the command is empty"));
    }
    let argv = std::iter::once(process.cmd).chain(process.args).collect();
    let milliseconds = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let cwd = match process.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(directory(envd, &cwd).await?),
        None => None,
    };
    let tty = request.pty.map(|pty| pty.size.map_or(TTY, |size| tty(&size)));
    Ok(ExecDraft {
        env: environment(envd, process.envs)?,
        cwd,
        user: envd.user.clone(),
        tty,
        stdin: request.stdin.unwrap_or(true),
        // Rounded up: a process cannot live for no time.
        timeout_ms: limit.map(|limit| milliseconds(limit).max(1)),
        tag: request.tag.filter(|tag| !tag.is_empty()),
        ..ExecDraft::new(Command::Argv(argv))
    })
}

/// The variables by which programs see that they run in a sandbox, and those that the client sent, which win.
fn environment(envd: &Envd, sent: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Fault> {
    let record = envd.engine().sandbox(envd.id()).map_err(|error| Fault::of(&error))?;
    let mut env = info::variables(&record);
    env.extend(sent);
    Ok(env)
}

/// The working directory that the client means. The kernel's own error would not say that it is no directory.
async fn directory(envd: &Envd, cwd: &str) -> Result<String, Fault> {
    let guest = envd.guest().await.map_err(|error| Fault::of(&error))?;
    let path = paths::resolve(envd, &guest, cwd).await?;
    let found = guest.stat(Stat { path: path.clone(), no_follow: false }).await;
    match found.map_err(atoll_engine::guest_error) {
        Ok(info) if info.kind() == FileKind::Directory => Ok(path),
        Ok(_) => Err(Fault::new(Kind::InvalidArgument, format!("cwd '{path}' is not a directory"))),
        Err(Error { code: Code::FileNotFound | Code::NotADirectory, .. }) => Err(no_cwd(&path)),
        Err(error) => Err(envd.fault(&error)),
    }
}
