//! Completion: the shell runs this program at each TAB. The program prints commands, options, and the names of
//! sandboxes, templates, volumes and images on the server.
//!
//! ```text
//! atoll completions SHELL ─▶ a script that says: run `atoll` with the variable COMPLETE
//! TAB ─▶ COMPLETE=SHELL atoll -- WORDS… ─▶ here, before anything else ─▶ candidates
//! ```
//!
//! It asks only a configured server for names, and only for a moment, because the user waits at the prompt. If this
//! fails it completes nothing and prints nothing: a message would stand in the middle of the user's command line.

use std::ffi::OsStr;
use std::io::Write as _;
use std::time::Duration;

use atoll_client::{Client, ListSandboxes, ListSnapshots};
use clap::{Arg, Command, Parser as _};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::{CompleteEnv, Shells};
use futures::future::BoxFuture;

use crate::cli::Cli;
use crate::connection;
use crate::failure::{Failure, Result};
use crate::printable::is_hostile;

/// The variable by which a shell asks.
const VARIABLE: &str = "COMPLETE";
/// How long somebody who types waits for names.
const PATIENCE: Duration = Duration::from_millis(700);
/// Most names.
const NAMES_MAX_COUNT: u32 = 200;

/// Answers a shell that asks for candidates; does nothing otherwise.
pub(crate) fn answer() {
    CompleteEnv::with_factory(|| for_people(Cli::program())).var(VARIABLE).complete();
}

/// Prints the script that makes a shell ask.
pub(crate) fn script(shell: clap_complete::Shell) -> Result<()> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells.completer(&name);
    let completer =
        completer.ok_or_else(|| Failure::Usage(format!("there is no completion for '{name}'")))?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "atoll", "atoll", "atoll", &mut script);
    written.map_err(|error| Failure::io("cannot write the script", error))?;
    std::io::stdout().write_all(&script).map_err(Failure::Output)
}

/// The program without the commands that only it gives itself, with names for arguments.
fn for_people(program: Command) -> Command {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let (commands, args): (Vec<_>, Vec<_>) = (shown.collect(), program.get_arguments().cloned().collect());
    let bare = Command::new("atoll").version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    // Its own options for that are among the arguments.
    let bare = bare.disable_help_flag(true).disable_version_flag(true).disable_help_subcommand(true);
    with_names(bare.args(args).subcommands(commands))
}

fn with_names(command: Command) -> Command {
    command.mut_args(named).mut_subcommands(with_names)
}

/// An argument, with names where it is called after what has such.
fn named(arg: Arg) -> Arg {
    let list: Names = match arg.get_id().as_str() {
        // Either is a local path or one in a sandbox.
        "source" | "destination" => return arg.add(ArgValueCompleter::new(places)),
        "sandbox" | "sandboxes" => sandboxes,
        "template" | "templates" => templates,
        "volume" | "volumes" => volumes,
        "image" | "images" => images,
        "snapshot" | "snapshots" => snapshots,
        "agent" | "agents" => agents,
        "secret" => secrets,
        "project" | "projects" => projects,
        _ => return arg,
    };
    arg.add(ArgValueCandidates::new(move || candidates(list)))
}

type Names = fn(Client) -> BoxFuture<'static, Option<Vec<String>>>;

fn sandboxes(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = ListSandboxes { limit: Some(NAMES_MAX_COUNT), ..ListSandboxes::default() };
        let page = client.list_sandboxes(&list).await.ok()?;
        Some(page.items.into_iter().map(|sandbox| sandbox.name.unwrap_or(sandbox.id)).collect())
    })
}

fn templates(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_templates().await.ok()?;
        Some(list.items.into_iter().map(|template| template.name).collect())
    })
}

fn volumes(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_volumes().await.ok()?;
        Some(list.items.into_iter().map(|volume| volume.name).collect())
    })
}

fn images(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_images().await.ok()?;
        Some(list.items.into_iter().flat_map(|image| image.names).collect())
    })
}

fn snapshots(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_snapshots(&ListSnapshots::default()).await.ok()?;
        Some(list.items.into_iter().flat_map(|snapshot| snapshot.tags).collect())
    })
}

fn agents(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_agents().await.ok()?;
        Some(list.items.into_iter().map(|agent| agent.name).collect())
    })
}

fn secrets(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_secrets(None).await.ok()?;
        Some(list.items.into_iter().map(|secret| secret.name).collect())
    })
}

fn projects(client: Client) -> BoxFuture<'static, Option<Vec<String>>> {
    Box::pin(async move {
        let list = client.list_projects().await.ok()?;
        Some(list.items.into_iter().map(|project| project.name).collect())
    })
}

/// What files are copied from and to: local paths, and sandboxes with the `:` before their paths.
fn places(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(current);
    let text = current.to_string_lossy();
    if !text.contains(['/', ':']) {
        let names = ask(sandboxes).unwrap_or_default();
        let names = names.into_iter().filter(|name| name.starts_with(text.as_ref()));
        found.extend(names.map(|name| CompletionCandidate::new(format!("{name}:"))));
    }
    found
}

fn candidates(list: Names) -> Vec<CompletionCandidate> {
    let names = ask(list).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Asks the server that is configured, also by options that were typed already.
fn ask(list: Names) -> Option<Vec<String>> {
    let client = connection::configured(&typed()).ok()??;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let names = runtime.block_on(async { tokio::time::timeout(PATIENCE, list(client)).await.ok()? });
    // A look-up of a host name may still be under way.
    runtime.shutdown_background();
    // Shells print them.
    names.map(|names| names.into_iter().filter(|name| !name.contains(is_hostile)).collect())
}

/// The options that every command has, as far as they were typed: behind `--` stand the words of the command line.
fn typed() -> crate::cli::GlobalArgs {
    let mut words = std::env::args_os().skip_while(|word| word != OsStr::new("--")).skip(2);
    let mut given = vec![std::ffi::OsString::from("atoll")];
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let is =
            |name: &str| text == name || text.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        if !["--url", "--api-key-file", "--config"].into_iter().any(is) {
            continue;
        }
        let alone = !text.contains('=');
        given.push(word);
        if alone {
            given.extend(words.next());
        }
    }
    given.push("info".into());
    Cli::try_parse_from(given).map(|cli| cli.global).unwrap_or_default()
}
