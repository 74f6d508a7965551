//! The commands, by noun, and what is around every one of them: runtime, connection, exit code.

mod access;
mod agent;
mod agent_fork;
mod agent_layer;
mod agent_recipe;
mod agent_schedule;
mod backup;
mod build;
mod checkpoint;
mod code;
mod copy;
mod dashboard;
mod defaults;
mod doctor;
mod exec;
mod habits;
mod image;
mod key;
mod login;
mod mcp;
mod net;
mod node;
mod pipe;
mod policy;
mod pool;
mod port;
mod project;
mod purge;
mod refused;
mod registry;
mod restore;
mod results;
mod run;
mod sandbox;
mod secret;
mod serve;
mod service;
mod setup;
mod shared;
mod snapshot;
mod ssh;
mod system;
mod template;
mod top;
mod trace;
mod tunnel;
mod usage;
mod volume;

use std::process::ExitCode;

use crate::cli::{AgentCommand, Cli, Command, NetCommand, TraceArgs, TraceCommand};
use crate::complete;
use crate::config;
use crate::connection::{self, Connection};
use crate::failure::{EXIT_FAILURE, EXIT_USAGE, Failure, Result};
use crate::output::Printer;
use crate::printable::styled;

/// Stack of a thread that runs requests. An unoptimised build keeps every step of a request, from the router through a
/// dialect to the driver, in a frame of its own: two megabytes are not enough for the deepest.
const WORKER_STACK_BYTES: usize = 8 << 20;

/// Runs the command that was asked for.
pub(crate) fn main(cli: Cli) -> ExitCode {
    // Before any thread is started: it is going to leave this process's namespaces.
    if let Command::Vmm { jail } = &cli.command {
        return setup::vmm(jail);
    }
    if let Command::Sentry { jail } = &cli.command {
        return setup::sentry(jail);
    }
    if let Command::WatchLease { data_dir } = &cli.command {
        return crate::daemon::watch_lease(data_dir);
    }
    let printer = Printer::new(cli.global.json, !cli.global.no_color && !config::no_color());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().worker_threads(2).thread_stack_size(WORKER_STACK_BYTES);
    let runtime = match runtime.build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.failure(&Failure::io("cannot start", error));
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let result = runtime.block_on(dispatch(printer, cli));
    // A read of standard input or a stuck write may still be under way; nothing waits for it.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Arguments that make no sense, or a wish for help. Asked for JSON, an error is JSON here too.
pub(crate) fn misused(error: &clap::Error) -> ExitCode {
    let said = |option: &str| std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == option);
    let json = said("--json");
    let printer = Printer::new(json, !said("--no-color") && !config::no_color());
    if let Some(failure) = habits::unknown(error) {
        printer.failure(&failure);
        return ExitCode::from(failure.exit_code());
    }
    if json && error.use_stderr() {
        let text = styled(&error.render().ansi().to_string(), false);
        let first = text.lines().next().unwrap_or_default();
        let failure = Failure::Usage(first.strip_prefix("error: ").unwrap_or(first).to_owned());
        printer.failure(&failure);
        return ExitCode::from(failure.exit_code());
    }
    if error.use_stderr() {
        printer.misuse(error);
    } else {
        // Help and version, which have nothing of the arguments in them. If they cannot be printed, there is no other
        // place to report that.
        drop(error.print());
    }
    if let Some(hint) = habits::missing(error) {
        printer.hint(hint);
    }
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "every other command talks to a server")]
async fn dispatch(printer: Printer, cli: Cli) -> Result<u8> {
    match cli.command {
        Command::Completions { shell } => complete::script(shell).map(|()| 0),
        Command::Serve(args) => Box::pin(serve::serve(printer, *args)).await.map(|()| 0),
        Command::Doctor(args) => Box::pin(doctor::doctor(&cli.global, printer, &args)).await,
        Command::Purge(args) => purge::purge(printer, &args).map(|()| 0),
        Command::Backup(args) if args.shared.cluster => shared::backup(printer, args).await.map(|()| 0),
        Command::Backup(args) => backup::backup(printer, args).await.map(|()| 0),
        Command::Restore(args) if args.shared.cluster => shared::restore(printer, args).await.map(|()| 0),
        Command::Restore(args) => restore::restore(printer, args).await.map(|()| 0),
        Command::Setup(command) => Box::pin(setup::setup(printer, command)).await.map(|()| 0),
        Command::Net(NetCommand::Presets) => {
            // For the lists in it.
            config::load(&cli.global)?;
            net::presets(printer).map(|()| 0)
        }
        Command::Login(args) => login::login(&cli.global, printer, args).await.map(|()| 0),
        Command::Logout => login::logout(&cli.global, printer).await.map(|()| 0),
        Command::Agent(AgentCommand::Recipes) => agent_recipe::list(printer).map(|()| 0),
        Command::Trace(TraceArgs { command: Some(TraceCommand::Verify(args)), .. }) if args.dir.is_some() => {
            trace::verify_offline(printer, &args).map(|()| 0)
        }
        Command::Policy(command) if command.is_offline() => policy::policy(None, printer, command).await,
        command => {
            let connection = if matches!(command, Command::Run(_)) {
                Box::pin(connection::connect_or_embed(&cli.global)).await?
            } else {
                connection::connect(&cli.global).await?
            };
            with_connection(connection, printer, command).await
        }
    }
}

async fn with_connection(connection: Connection, printer: Printer, command: Command) -> Result<u8> {
    let result = Box::pin(connected(&connection, printer, command)).await;
    let result = result.map_err(|failure| connection.explain(failure));
    let down = connection.shutdown().await;
    let code = result?;
    down.map(|()| code)
}

async fn connected(connection: &Connection, printer: Printer, command: Command) -> Result<u8> {
    let client = &connection.client;
    let done = match command {
        Command::Run(args) => return run::run(connection, printer, args).await,
        Command::Exec(args) => return exec::exec(client, printer, args).await,
        Command::Attach(args) => return exec::attach(client, printer, args).await,
        Command::Logs(args) => return exec::logs(client, printer, args).await,
        Command::Shell(args) => return exec::shell(client, printer, args).await,
        Command::Ps(args) => exec::ps(client, printer, &args).await,
        Command::Kill(args) => exec::kill(client, printer, args).await,
        Command::Cp(args) => copy::copy(client, printer, args).await,
        Command::Create(args) => sandbox::create(client, printer, args).await,
        Command::Ls(args) => sandbox::ls(client, printer, args).await,
        Command::Rm(args) => sandbox::rm(client, printer, args).await,
        Command::Inspect(args) => sandbox::inspect(client, printer, args).await,
        Command::Update(args) => sandbox::update(client, printer, args).await,
        Command::Extend(args) => sandbox::extend(client, printer, args).await,
        Command::Metrics(args) => sandbox::metrics(client, printer, &args).await,
        Command::Top(args) => top::top(client, printer, args).await,
        Command::Net(command) => net::net(client, printer, command).await,
        Command::Pause(args) => usage::pause(client, printer, args).await,
        Command::Resume(args) => usage::resume(client, printer, args).await,
        Command::Usage(args) => usage::usage(client, printer, args).await,
        Command::Trace(args) => trace::trace(client, printer, args).await,
        Command::Policy(command) => return policy::policy(Some(client), printer, command).await,
        Command::Image(command) => image::image(client, printer, command).await,
        Command::Registry(command) => registry::registry(client, printer, command).await,
        Command::Template(command) => template::template(client, printer, command).await,
        Command::Checkpoint(args) => checkpoint::create(client, printer, args).await,
        Command::Checkpoints(args) => checkpoint::list(client, printer, args).await,
        Command::Rollback(args) => checkpoint::rollback(client, printer, &args.sandbox, Some(&args.to)).await,
        Command::Undo(args) => checkpoint::rollback(client, printer, &args.sandbox, None).await,
        Command::Diff(args) => checkpoint::diff(client, printer, args).await,
        Command::Fork(args) => checkpoint::fork(client, printer, args).await,
        Command::Secret(command) => secret::secret(client, printer, command).await,
        Command::Volume(command) => volume::volume(client, printer, command).await,
        Command::Build(command) => build::build(client, printer, command).await,
        Command::Node(command) => node::node(client, printer, command).await,
        Command::Pool(command) => pool::pool(client, printer, command).await,
        Command::Access(command) => access::access(client, printer, command).await,
        Command::Service(command) => service::service(client, printer, command).await,
        Command::Lease(command) => access::lease(client, printer, command).await,
        Command::Snapshot(command) => snapshot::snapshot(client, printer, command).await,
        Command::Project(command) => project::project(client, printer, command).await,
        Command::Key(command) => key::key(client, printer, command).await,
        Command::Port(command) => port::port(client, printer, command).await,
        Command::Tunnel(args) => Box::pin(tunnel::tunnel(client, printer, args)).await,
        Command::Mcp(args) => Box::pin(mcp::mcp(client, printer, args)).await,
        Command::Link(args) => port::link(client, printer, args).await,
        Command::Code(args) => return Box::pin(code::code(client, printer, args)).await,
        Command::Agent(command) => return agent::agent(client, printer, command).await,
        Command::Ssh(args) => return ssh::ssh(client, printer, args).await,
        Command::SshProxy => ssh::proxy(client).await,
        Command::SshKey(command) => ssh::ssh_key(client, printer, command).await,
        Command::Ca => system::ca(client, printer).await,
        Command::Dashboard(args) => dashboard::dashboard(client, printer, &args).await,
        Command::Info => system::info(client, printer).await,
        // Need no server to talk to and were dealt with.
        Command::Completions { .. }
        | Command::Serve(_)
        | Command::Doctor(_)
        | Command::Login(_)
        | Command::Logout
        | Command::Purge(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Setup(_)
        | Command::Vmm { .. }
        | Command::Sentry { .. }
        | Command::WatchLease { .. } => Ok(()),
    };
    done.map(|()| 0)
}
