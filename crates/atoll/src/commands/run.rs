//! `run`: a sandbox for one command.
//!
//! The sandbox is deleted at the end, whatever happens after it was made, unless the user wants to
//! keep it or detached. If this program is killed the sandbox ends by its idle timeout.

use atoll_api::CreateExec;
use atoll_client::Client;
use serde::Serialize;

use super::{exec, refused, sandbox};
use crate::cli::{RunArgs, SandboxArgs};
use crate::connection::Connection;
use crate::failure::Result;
use crate::output::Printer;
use crate::session::{self, Mode, Program, Target};
use crate::signals::Stops;

/// Idle timeout, milliseconds, after which a sandbox goes that no `atoll run` deleted.
const ABANDONED_AFTER_MS: u64 = 10 * 60 * 1000;

/// First line with `--json`.
#[derive(Serialize)]
#[serde(tag = "type", rename = "started")]
struct Started<'a> {
    sandbox: &'a str,
    exec: &'a str,
}

/// `atoll run`
pub(super) async fn run(connection: &Connection, printer: Printer, args: RunArgs) -> Result<u8> {
    let client = &connection.client;
    let program = args.argv.first().cloned();
    let hint = program.as_deref().filter(|_| of_defaults(&args.sandbox)).map(as_image);
    let program = Program { name: program.as_deref(), hint: hint.as_deref() };
    let mode = exec::mode(printer, &args.stream)?;
    let mut stops = Stops::catch()?;
    let mut request = sandbox::request(args.sandbox)?;
    if !args.keep {
        request.idle_timeout_ms.get_or_insert(ABANDONED_AFTER_MS);
    }
    let create = CreateExec { argv: Some(args.argv), timeout_ms: args.timeout, ..CreateExec::default() };

    // The request is not given up on a first signal: the server may make the sandbox anyway, and then it would not be
    // deleted.
    let creating = sandbox::make(client, printer, &request);
    tokio::pin!(creating);
    let mut stopped = None;
    let made = loop {
        tokio::select! {
            made = &mut creating => break made?,
            stop = stops.next() => if stopped.replace(stop).is_some() {
                return Err(stop.failure());
            },
        }
    };

    let result = match stopped {
        Some(stop) => Err(stop.failure()),
        None => {
            let made = Made { sandbox: &made.id, stays: args.keep };
            run_in(client, printer, made, &mode, create, program, &mut stops).await
        }
    };
    let (code, detached) = match result {
        Ok((code, detached)) => (Ok(code), detached),
        Err(failure) => (Err(failure), false),
    };
    if detached {
        return code;
    }
    if args.keep {
        printer.note(&format!("kept: {}", made.id));
        return code;
    }
    let deleted = tokio::select! {
        deleted = client.delete_sandbox(&made.id) => deleted,
        stop = stops.next() => return Err(stop.failure()),
    };
    match (code, deleted) {
        (Ok(code), Ok(())) => Ok(code),
        (Ok(code), Err(error)) => {
            printer.warn(&format!("the sandbox {} was not deleted: {error}", made.id));
            Ok(code)
        }
        (Err(failure), _) => Err(failure),
    }
}

/// Whether nothing was said of what the sandbox is made of.
fn of_defaults(args: &SandboxArgs) -> bool {
    args.image.is_none() && args.template.is_none() && args.snapshot.is_none()
}

/// What somebody may have meant who wrote an image where docker has it.
fn as_image(word: &str) -> String {
    format!("the first word is the command; an image goes before it: atoll run --image {word} -- CMD")
}

/// The sandbox for the command, and whether it is there afterwards.
#[derive(Clone, Copy)]
struct Made<'a> {
    sandbox: &'a str,
    stays: bool,
}

/// The exit code, and whether the user detached.
async fn run_in(
    client: &Client,
    printer: Printer,
    made: Made<'_>,
    mode: &Mode,
    create: CreateExec,
    program: Program<'_>,
    stops: &mut Stops,
) -> Result<(u8, bool)> {
    let Made { sandbox, stays } = made;
    let created = client.create_exec(sandbox, &exec::with_mode(mode, create)).await?;
    let target = Target { client, sandbox, exec: &created.exec.id };
    if printer.is_json() {
        printer.stream_item(&Started { sandbox, exec: target.exec })?;
    }
    let finished = session::drive(printer, target, mode, 0, stops).await?;
    let exit = finished.exit().cloned();
    let code = exec::finish(printer, target, finished, program);
    if let Some(exit) = &exit {
        refused::tell(printer, target, exit, created.exec.created_at_ms, stays).await;
    }
    Ok((code, exit.is_none()))
}
