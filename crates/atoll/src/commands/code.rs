//! Code interpreters: `atoll code …`

use std::path::Path;

use atoll_api::{Cell, CellEvent, Context, CreateContext, RunCell};
use atoll_client::Client;
use atoll_core::code::CellEventKind;
use atoll_core::exec::OutputStream;
use atoll_core::id::ContextId;
use atoll_core::limits::WAIT_MAX_MS;
use atoll_core::{Code, Error};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::results::{self, Results};
use crate::cli::{CodeArgs, CodeCommand, ContextArg};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::signals::Stops;

/// Characters of a digest that a table shows.
const DIGEST_CHARS: usize = 12;

/// `atoll code …`
pub(super) async fn code(client: &Client, printer: Printer, args: CodeArgs) -> Result<u8> {
    match args.command {
        None => return run(client, printer, args).await,
        Some(CodeCommand::Contexts { sandbox }) => {
            let list = client.list_contexts(&sandbox).await?;
            let header = ["ID", "NAME", "LANGUAGE", "DIRECTORY", "AGE"];
            printer.result(&list, || table(header, list.items.iter().map(row)))?;
        }
        Some(CodeCommand::Cells(ContextArg { sandbox, context })) => {
            cells(client, printer, &sandbox, &context).await?;
        }
        Some(CodeCommand::Show { save, context: ContextArg { sandbox, context }, cell }) => {
            let of = Of { client, sandbox: &sandbox, context: &context, cell: &cell };
            return show(printer, of, save.as_deref()).await;
        }
        Some(CodeCommand::Interrupt(ContextArg { sandbox, context })) => {
            client.interrupt_context(&sandbox, &context).await?;
            printer.done(&serde_json::json!({ "interrupted": context }))?;
        }
        Some(CodeCommand::Restart(ContextArg { sandbox, context })) => {
            client.restart_context(&sandbox, &context).await?;
            printer.done(&serde_json::json!({ "restarted": context }))?;
        }
        Some(CodeCommand::Rm { sandbox, contexts }) => {
            for context in &contexts {
                client.delete_context(&sandbox, context).await?;
            }
            printer.removed(&contexts)?;
        }
    }
    Ok(0)
}

fn row(context: &Context) -> [String; 5] {
    [
        context.id.clone(),
        context.name.clone().unwrap_or_default(),
        context.language.clone(),
        context.cwd.clone().unwrap_or_default(),
        age(context.created_at_ms),
    ]
}

async fn cells(client: &Client, printer: Printer, sandbox: &str, context: &str) -> Result<()> {
    let mut list = client.list_cells(sandbox, context, None).await?;
    while let Some(cursor) = list.next_cursor.take() {
        let next = client.list_cells(sandbox, context, Some(&cursor)).await?;
        list.items.extend(next.items);
        list.next_cursor = next.next_cursor;
    }
    let header = ["ID", "STATE", "COUNT", "BYTES", "DIGEST", "AGE"];
    printer.result(&list, || table(header, list.items.iter().map(cell_row)))
}

fn cell_row(cell: &Cell) -> [String; 6] {
    [
        cell.id.clone(),
        cell.state.as_str().replace('_', " "),
        cell.execution_count.map(|count| count.to_string()).unwrap_or_default(),
        cell.code_bytes.to_string(),
        cell.code_digest.chars().take(DIGEST_CHARS).collect(),
        age(cell.created_at_ms),
    ]
}

/// The code that is meant: an argument, a file, or standard input.
async fn text(args: &CodeArgs) -> Result<String> {
    let mut text = String::new();
    match (&args.file, args.code.as_deref()) {
        (Some(file), _) => {
            text = tokio::fs::read_to_string(file)
                .await
                .map_err(|error| Failure::io(format!("cannot read {}", file.display()), error))?;
        }
        (None, None | Some("-")) => {
            let read = tokio::io::stdin().read_to_string(&mut text).await;
            read.map_err(|error| Failure::io("cannot read standard input", error))?;
        }
        (None, Some(code)) => code.clone_into(&mut text),
    }
    Ok(text)
}

/// The context that is meant, which is made if it is named and there is none.
async fn open(client: &Client, sandbox: &str, args: &CodeArgs) -> Result<Context> {
    if let Some(named) = &args.context
        && (args.language.is_none() || named.parse::<ContextId>().is_ok())
    {
        match client.get_context(sandbox, named).await {
            Err(error)
                if error.code() == Some(Code::ContextNotFound) && named.parse::<ContextId>().is_err() => {}
            found => return Ok(found?),
        }
    }
    let language = args.language.clone().unwrap_or_else(|| "python".to_owned());
    let name = args.context.clone().unwrap_or_else(|| language.clone());
    let create = CreateContext {
        name: Some(name),
        language: Some(language),
        cwd: args.workdir.clone(),
        ..CreateContext::default()
    };
    Ok(client.create_context(sandbox, &create).await?)
}

/// Runs code, and stays until it has ended; the exit code says how.
async fn run(client: &Client, printer: Printer, args: CodeArgs) -> Result<u8> {
    let sandbox = args.sandbox.as_deref().unwrap_or_default();
    let code = text(&args).await?;
    let mut stops = Stops::catch()?;
    let context = open(client, sandbox, &args).await?;
    let run =
        RunCell { code, env: args.env.into_iter().collect(), timeout_ms: args.timeout, ..RunCell::default() };
    let cell = client.run_cell(sandbox, &context.id, &run).await?.cell;
    if args.detach {
        printer.result(&cell, || cell.id.clone())?;
        return Ok(0);
    }
    let of = Of { client, sandbox, context: &context.id, cell: &cell.id };
    let mut results = Results::new(args.save.as_deref());
    let mut asked = false;
    let mut following = std::pin::pin!(follow(printer, of, &mut results));
    loop {
        tokio::select! {
            ended = &mut following => return ended,
            stop = stops.next() => {
                if asked {
                    return Err(stop.failure());
                }
                // The code's output about the interrupt is still shown. A user who asks again does not want to see it.
                asked = true;
                client.interrupt_cell(sandbox, &context.id, &cell.id).await?;
            }
        }
    }
}

/// A cell.
#[derive(Clone, Copy)]
struct Of<'a> {
    client: &'a Client,
    sandbox: &'a str,
    context: &'a str,
    cell: &'a str,
}

/// Shows the output of a cell so far, and as it comes; the exit code says how the cell ended.
async fn show(printer: Printer, of: Of<'_>, save: Option<&Path>) -> Result<u8> {
    follow(printer, of, &mut Results::new(save)).await
}

async fn follow(printer: Printer, of: Of<'_>, results: &mut Results) -> Result<u8> {
    let mut after = 0;
    loop {
        let page = of.client.cell_events(of.sandbox, of.context, of.cell, after, WAIT_MAX_MS).await?;
        for event in &page.items {
            if let Some(code) = tell(printer, event, results).await? {
                return Ok(code);
            }
        }
        if page.ended {
            return Ok(0);
        }
        after = page.next_after;
    }
}

/// Shows an event. The last one gives the exit code.
async fn tell(printer: Printer, event: &CellEvent, results: &mut Results) -> Result<Option<u8>> {
    let field = |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default();
    if printer.is_json() {
        printer.stream_item(event)?;
    }
    let shows = !printer.is_json();
    match event.kind {
        CellEventKind::Stdout if shows => {
            printer.exec_output(OutputStream::Stdout, field("text").to_owned().into()).await?;
        }
        CellEventKind::Stderr if shows => {
            printer.exec_output(OutputStream::Stderr, field("text").to_owned().into()).await?;
        }
        CellEventKind::Result => results.take(printer, &event.data).await?,
        CellEventKind::Error if shows => {
            let traceback = results::plain(field("traceback"));
            let name = format!("{}: {}", field("name"), field("value"));
            printer.note(if traceback.is_empty() { name.trim_end_matches(": ") } else { &traceback });
        }
        CellEventKind::Problem if shows => printer.warn(field("text")),
        CellEventKind::Reset if shows => {
            printer.warn("the context has a new kernel, which remembers nothing");
        }
        CellEventKind::End => return ended(field("state"), field("reason"), field("text")).map(Some),
        CellEventKind::Stdout
        | CellEventKind::Stderr
        | CellEventKind::Error
        | CellEventKind::Problem
        | CellEventKind::Reset
        | CellEventKind::Started => {}
    }
    Ok(None)
}

/// The exit code of a cell: as a shell's for a command that was interrupted, or ran out of time.
fn ended(state: &str, reason: &str, text: &str) -> Result<u8> {
    const INTERRUPTED: u8 = 130;
    const TIMED_OUT: u8 = 124;
    match state {
        "done" => Ok(0),
        "error" => Ok(1),
        "interrupted" => Ok(INTERRUPTED),
        "timed_out" => Ok(TIMED_OUT),
        _ if reason == "interpreter_missing" => Err(Failure::Plain(atoll_core::code::missing())),
        _ => {
            let why = if text.is_empty() { reason.replace('_', " ") } else { text.to_owned() };
            Err(Failure::Plain(Error::new(Code::InterpreterFailed, format!("the cell failed: {why}"))))
        }
    }
}
