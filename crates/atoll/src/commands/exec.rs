//! Execs: `exec`, `attach`, `logs`, `shell`, `ps`, `kill`.

use std::collections::VecDeque;

use atoll_api::{CreateExec, Exec, ExecList, SignalExec};
use atoll_client::{AttachEvent, Client, ListExecs, OutputQuery, ResumePolicy};
use atoll_core::exec::ExitReason;
use atoll_core::limits::{EXECS_KEPT_MAX_COUNT, PAGE_MAX_COUNT};
use atoll_core::spec::shown;
use atoll_core::{Code, Error};

use super::{refused, sandbox};
use crate::cli::{AttachArgs, ExecArgs, KillArgs, LogsArgs, PsArgs, ShellArgs, StreamArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, now_ms, table};
use crate::session::{self, Finished, Mode, Program, Target};
use crate::signals::Stops;
use crate::terminal;

/// The best shell there is.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi";
/// Characters of a command that a table shows.
const COMMAND_CHARS: usize = 60;

/// How to be attached, from the arguments.
pub(super) fn mode(printer: Printer, args: &StreamArgs) -> Result<Mode> {
    if !args.tty {
        return Ok(if args.interactive { Mode::Input } else { Mode::Output });
    }
    if printer.is_json() {
        return Err(Failure::Usage("a terminal has no JSON: use --tty without --json".to_owned()));
    }
    if !terminal::is_interactive() {
        return Err(Failure::Usage(
            "--tty needs a terminal: standard input or output is none; leave -t out".to_owned(),
        ));
    }
    Ok(Mode::Terminal(args.detach_keys.clone()))
}

/// Sets the fields of the exec that the mode decides.
pub(super) fn with_mode(mode: &Mode, create: CreateExec) -> CreateExec {
    match mode {
        Mode::Output => create,
        Mode::Input => CreateExec { stdin: true, ..create },
        Mode::Terminal(_) => CreateExec { stdin: true, tty: Some(terminal::size()), ..create },
    }
}

/// Runs a command in a sandbox and stays with it.
async fn run_in(
    client: &Client,
    printer: Printer,
    sandbox: &str,
    mode: &Mode,
    create: CreateExec,
) -> Result<u8> {
    let mut stops = Stops::catch()?;
    let name = create.argv.as_ref().and_then(|argv| argv.first()).cloned();
    let program = Program { name: name.as_deref(), hint: None };
    let created = client.create_exec(sandbox, &with_mode(mode, create)).await?;
    let target = Target { client, sandbox, exec: &created.exec.id };
    match session::drive(printer, target, mode, 0, &mut stops).await {
        Ok(finished) => {
            let exit = finished.exit().cloned();
            let code = finish(printer, target, finished, program);
            // A shell ends as its last command did, which may be long ago.
            if let Some(exit) = exit.filter(|_| name.is_some()) {
                refused::tell(printer, target, &exit, created.exec.created_at_ms, true).await;
            }
            Ok(code)
        }
        Err(failure) => {
            if failure.is_closed_pipe() {
                hang_up(printer, target).await;
            }
            Err(failure)
        }
    }
}

/// Sends SIGHUP, as a closed terminal does: the reader of the command's output has gone, and we started the command.
async fn hang_up(printer: Printer, target: Target<'_>) {
    let signal = SignalExec { signal: "HUP".to_owned(), tree: true };
    if let Err(error) = target.client.signal_exec(target.sandbox, target.exec, &signal).await
        && error.code() != Some(Code::ExecEnded)
    {
        printer.warn(&format!("nobody reads the output, and the command goes on: {error}"));
    }
}

/// The exit code of a session, with a word where there is none.
pub(super) fn finish(printer: Printer, target: Target<'_>, finished: Finished, program: Program<'_>) -> u8 {
    match finished {
        Finished::Exited(exit) => session::exit_code(printer, &exit, program),
        Finished::Detached => {
            printer.note(&format!(
                "\ndetached; come back with: atoll attach {} {}",
                target.sandbox, target.exec
            ));
            0
        }
    }
}

/// `atoll exec`
pub(super) async fn exec(client: &Client, printer: Printer, args: ExecArgs) -> Result<u8> {
    let mode = mode(printer, &args.stream)?;
    let create = CreateExec {
        argv: Some(args.argv),
        env: sandbox::variables(args.env_file, args.env),
        cwd: args.workdir,
        user: args.user,
        profile: args.profile,
        timeout_ms: args.timeout,
        idle_timeout_ms: args.idle_timeout,
        ..CreateExec::default()
    };
    if args.detach {
        let created = client.create_exec(&args.sandbox, &create).await?;
        printer.result(&created.exec, || created.exec.id.clone())?;
        return Ok(0);
    }
    run_in(client, printer, &args.sandbox, &mode, create).await
}

/// `atoll shell`
pub(super) async fn shell(client: &Client, printer: Printer, args: ShellArgs) -> Result<u8> {
    let stream = StreamArgs { interactive: true, tty: true, detach_keys: args.detach_keys };
    let mode = mode(printer, &stream)?;
    let create = CreateExec {
        shell: Some(SHELL.to_owned()),
        cwd: args.workdir,
        user: args.user,
        ..CreateExec::default()
    };
    run_in(client, printer, &args.sandbox, &mode, create).await
}

/// `atoll attach`
pub(super) async fn attach(client: &Client, printer: Printer, args: AttachArgs) -> Result<u8> {
    let mut stops = Stops::catch()?;
    let exec = client.get_exec(&args.sandbox, &args.exec, 0).await?;
    let mode = if args.no_stdin || exec.state.is_final() {
        Mode::Output
    } else {
        let stream = StreamArgs { interactive: true, tty: exec.tty, detach_keys: args.detach_keys };
        mode(printer, &stream)?
    };
    let target = Target { client, sandbox: &args.sandbox, exec: &exec.id };
    let finished = session::drive(printer, target, &mode, args.offset, &mut stops).await?;
    let program = Program { name: exec.argv.first().map(String::as_str), hint: None };
    Ok(finish(printer, target, finished, program))
}

/// `atoll logs`: the exit code says whether the output could be read, not how the command ended.
pub(super) async fn logs(client: &Client, printer: Printer, args: LogsArgs) -> Result<u8> {
    let LogsArgs { follow, offset, tail, since, sandbox, exec } = args;
    let exec = match exec {
        Some(exec) => exec,
        None => newest(client, &sandbox).await?,
    };
    let offset = match (tail, since) {
        (Some(lines), _) => offset_of_last(client, &sandbox, &exec, lines).await?,
        (None, Some(ms)) => offset_since(client, &sandbox, &exec, ms).await?,
        (None, None) => offset,
    };
    let mut output = client.follow_output(&sandbox, &exec, offset, follow, ResumePolicy::default());
    while let Some(event) = output.next().await? {
        // The exit is the end, which the loop sees by itself.
        let _exit = session::show_event(printer, event).await?;
    }
    Ok(0)
}

/// The command that was started last.
async fn newest(client: &Client, sandbox: &str) -> Result<String> {
    let list = ListExecs { limit: Some(1), ..ListExecs::default() };
    let newest = client.list_execs(sandbox, &list).await?.items.into_iter().next();
    newest.map(|exec| exec.id).ok_or_else(|| {
        let error = Error::new(Code::ExecNotFound, format!("no command was run in '{sandbox}' yet"));
        Failure::Plain(error.hint(format!("run one: atoll exec {sandbox} -- CMD")))
    })
}

/// Where the output of the last so many milliseconds begins.
async fn offset_since(client: &Client, sandbox: &str, exec: &str, ms: u64) -> Result<u64> {
    let since_ms = Some(now_ms().saturating_sub(ms));
    let query = OutputQuery { since_ms, max_bytes: Some(1), ..OutputQuery::default() };
    let page = client.exec_output(sandbox, exec, query).await?;
    Ok(page.chunks.first().map_or(page.next_offset, |chunk| chunk.offset))
}

/// Where the last lines of the output that there is begin. A line is counted where it ends, whichever stream it is on.
async fn offset_of_last(client: &Client, sandbox: &str, exec: &str, lines: usize) -> Result<u64> {
    let mut output = client.follow_output(sandbox, exec, 0, false, ResumePolicy::default());
    // Where lines begin: one more than asked for, as the last may have no end yet.
    let mut begins = VecDeque::from([0]);
    let mut end = 0;
    while let Some(event) = output.next().await? {
        let AttachEvent::Output { offset, data, .. } = event else { continue };
        for (at, _) in data.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            begins.push_back(offset + at as u64 + 1);
            if begins.len() > lines.saturating_add(1) {
                begins.pop_front();
            }
        }
        end = offset + data.len() as u64;
    }
    // Output that ends with a line's end has no line after it.
    if begins.back() == Some(&end) {
        begins.pop_back();
    }
    let skipped = begins.len().saturating_sub(lines);
    Ok(begins.get(skipped).copied().unwrap_or(end))
}

/// `atoll ps`
pub(super) async fn ps(client: &Client, printer: Printer, args: &PsArgs) -> Result<()> {
    let mut items: Vec<Exec> = Vec::new();
    let mut list = ListExecs { limit: Some(PAGE_MAX_COUNT), ..ListExecs::default() };
    while items.len() < EXECS_KEPT_MAX_COUNT {
        let page = client.list_execs(&args.sandbox, &list).await?;
        let last = page.items.is_empty();
        items.extend(page.items);
        list.cursor = page.next_cursor;
        if last || list.cursor.is_none() {
            break;
        }
    }
    let list = ExecList { items, next_cursor: None };
    let ids = args.quiet.then(|| list.items.iter().map(|exec| exec.id.as_str()));
    printer.names_or(&list, ids, || {
        table(["ID", "PID", "USER", "STATE", "EXIT", "AGE", "BY", "COMMAND"], list.items.iter().map(row))
    })
}

fn row(exec: &Exec) -> [String; 8] {
    let command: String = clean(&shown(&exec.argv)).chars().take(COMMAND_CHARS).collect();
    let code = exec.exit.as_ref().and_then(|exit| exit.code);
    [
        exec.id.clone(),
        exec.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        exec.user.clone(),
        how_it_is(exec),
        code.map(|code| code.to_string()).unwrap_or_default(),
        age(exec.created_at_ms),
        exec.started_by.clone().unwrap_or_default(),
        command,
    ]
}

/// Its state; for an exec that did not end by itself, the cause of its end.
fn how_it_is(exec: &Exec) -> String {
    let Some(exit) = &exec.exit else { return exec.state.to_string() };
    let words = match exit.reason {
        ExitReason::Exited => "exited",
        ExitReason::Signaled => "signaled",
        ExitReason::OutOfMemory => "out of memory",
        ExitReason::TimedOut => "timed out",
        ExitReason::IdleTimedOut => "idle timed out",
        ExitReason::Killed => "killed",
        ExitReason::Disconnected => "disconnected",
        ExitReason::SandboxPaused => "sandbox paused",
        ExitReason::BudgetExhausted => "budget exhausted",
        ExitReason::RolledBack => "rolled back",
        ExitReason::NotStarted => "not started",
        ExitReason::SandboxDied => "sandbox died",
    };
    words.to_owned()
}

/// `atoll kill`
pub(super) async fn kill(client: &Client, printer: Printer, args: KillArgs) -> Result<()> {
    let KillArgs { signal, tree, sandbox, exec } = args;
    let done = serde_json::json!({ "exec": exec, "signal": signal });
    match signal {
        Some(signal) => client.signal_exec(&sandbox, &exec, &SignalExec { signal, tree }).await?,
        None => client.kill_exec(&sandbox, &exec).await?,
    }
    printer.result(&done, String::new)
}
