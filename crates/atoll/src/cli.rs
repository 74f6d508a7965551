//! Arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod access;
mod acme;
mod agent;
mod build;
mod code;
mod egress;
mod env;
mod examples;
mod exec;
mod execution;
mod groups;
mod image;
mod ingress;
mod inject;
mod key;
mod layout;
mod mcp;
mod net;
mod node;
mod policy;
mod pool;
mod profiles;
mod project;
mod sandbox;
mod secret;
mod server;
mod service;
mod services;
mod shared;
mod snapshot;
mod template;
mod top;
mod trace;
mod usage;
mod volume;

pub(crate) use access::{AccessCommand, LeaseCommand};
pub(crate) use acme::AcmeArgs;
pub(crate) use agent::{
    AgentCommand, BuildAgentArgs, ForkAgentArgs, Keep, RecipeArgs, ScheduleCommand, SessionArg, UpArgs,
    UpdateAgentArgs,
};
pub(crate) use build::{BuildArgs, BuildCacheCommand, BuildCommand, BuildSecret, SecretSource};
pub(crate) use code::{CodeArgs, CodeCommand, ContextArg};
pub(crate) use egress::{EgressArgs, Named, read as read_policy};
pub(crate) use env::EnvFile;
pub(crate) use exec::{AttachArgs, ExecArgs, KillArgs, LogsArgs, RunArgs, ShellArgs, StreamArgs};
pub(crate) use execution::ExecutionArgs;
pub(crate) use image::{ImageCommand, RegistryCommand};
pub(crate) use ingress::{
    Forward, LinkArgs, PortCommand, PortUrlArgs, Reverse, SshArgs, SshKeyCommand, TunnelArgs,
};
pub(crate) use inject::{InjectArgs, parse_secret};
pub(crate) use key::KeyCommand;
pub(crate) use mcp::McpArgs;
pub(crate) use net::{ChangeArgs, NetCommand, rules as net_rules};
pub(crate) use node::NodeCommand;
pub(crate) use policy::{ExplainArgs, LearnArgs, PolicyCommand, ReplayArgs, TestArgs};
pub(crate) use pool::{PoolCommand, PoolOf, parse_pool};
pub(crate) use profiles::{ProfileArgs, TraceFilesArgs};
pub(crate) use project::{Limit, ProjectArgs, ProjectCommand};
pub(crate) use sandbox::{
    CopyArgs, ExtendArgs, InspectArgs, LimitArgs, LsArgs, PsArgs, RmArgs, SandboxArg, SandboxArgs, UpdateArgs,
};
pub(crate) use secret::{SecretCommand, SetSecretArgs};
pub(crate) use server::{
    Advertised, BackupArgs, DashboardArgs, DoctorArgs, GvisorArgs, LOCALHOST, LogFormat, LoginArgs,
    MicrovmArgs, OidcArgs, PurgeArgs, RestoreArgs, ServeArgs, SetupCommand, SetupMicrovmArgs, parse_domain,
};
pub(crate) use service::{AddServiceArgs, ServiceArg, ServiceCommand};
pub(crate) use services::ServicesArgs;
pub(crate) use shared::SharedArgs;
pub(crate) use snapshot::{
    CheckpointArgs, CheckpointsArgs, DiffArgs, ForkArgs, RollbackArgs, SnapshotCommand,
};
pub(crate) use template::{DefaultsArgs, TemplateArgs, TemplateCommand};
pub(crate) use top::{TopArgs, TopSort};
pub(crate) use trace::{ExportArgs, TraceArgs, TraceCommand, TraceOf, VerifyArgs};
pub(crate) use usage::{BudgetArgs, IdleArgs, PauseArgs, ResumeArgs, UsageArgs};
pub(crate) use volume::{VolumeCommand, parse_mount};

/// Computers for AI agents, on your own machines.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    propagate_version = true,
    max_term_width = 100,
    disable_help_subcommand = true,
    disable_help_flag = true,
    disable_version_flag = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The program with everything that its help says.
    pub(crate) fn program() -> clap::Command {
        groups::in_groups(examples::with_examples(layout::laid_out(Self::command())))
    }

    /// Reads the arguments of this process; `atoll help COMMAND` is `atoll COMMAND --help`.
    ///
    /// # Errors
    /// What is wrong with them, or what was asked for instead of a command.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut given: Vec<OsString> = std::env::args_os().collect();
        if given.get(1).is_some_and(|first| first == "help") {
            given.remove(1);
            given.push("--help".into());
        }
        let mut program = Self::program();
        if given.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--no-color") {
            // For what is wrong with the arguments: it is said before they are known.
            program = program.color(ColorChoice::Never);
        }
        let mut matches = program.try_get_matches_from_mut(given)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut program))
    }
}

/// Whether the command that this process was called with has an option.
pub(crate) fn called_has(option: &str) -> bool {
    let mut command = Cli::program();
    for said in std::env::args_os().skip(1) {
        if let Some(next) = command.find_subcommand(said).cloned() {
            command = next;
        }
    }
    command.get_arguments().any(|arg| arg.get_long() == Some(option))
}

/// What every command takes.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Address of the server [env: ATOLL_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// File that holds the API key [env: ATOLL_API_KEY holds the key itself]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Configuration file [default: $XDG_CONFIG_HOME/atoll/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON: one document, or one per line for streams
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print without colours [env: NO_COLOR]
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server, in the foreground
    Serve(Box<ServeArgs>),
    /// Make a sandbox, run a command in it, delete the sandbox
    Run(RunArgs),
    /// Make a sandbox
    Create(SandboxArgs),
    /// Run a command in a sandbox
    Exec(ExecArgs),
    /// Run code in a context that remembers
    Code(CodeArgs),
    /// Attach to a running command
    Attach(AttachArgs),
    /// Show the output of a command
    Logs(LogsArgs),
    /// Open a shell in a sandbox
    Shell(ShellArgs),
    /// Copy files into and out of a sandbox
    Cp(CopyArgs),
    /// List sandboxes
    Ls(LsArgs),
    /// List the commands of a sandbox
    Ps(PsArgs),
    /// Delete sandboxes
    Rm(RmArgs),
    /// Send a signal to a command, or kill its process tree
    Kill(KillArgs),
    /// Show everything about a sandbox or one of its commands, as JSON
    Inspect(InspectArgs),
    /// Change labels, lifetime, limits or network of a sandbox
    Update(UpdateArgs),
    /// Let a sandbox live for a time from now
    Extend(ExtendArgs),
    /// Pause sandboxes: they stand still until they are used
    Pause(PauseArgs),
    /// Resume paused sandboxes
    Resume(ResumeArgs),
    /// Show what a sandbox uses
    Metrics(SandboxArg),
    /// Show what all sandboxes use, as it changes
    Top(TopArgs),
    /// Take a checkpoint of a sandbox: a snapshot that belongs to it
    Checkpoint(CheckpointArgs),
    /// List the checkpoints of a sandbox
    Checkpoints(CheckpointsArgs),
    /// Put a sandbox back to a checkpoint; what runs in it ends
    Rollback(RollbackArgs),
    /// Put a sandbox back to before the last command, if there is a checkpoint of that
    Undo(SandboxArg),
    /// Show which files were added, changed and removed between two points of a sandbox
    Diff(DiffArgs),
    /// Make sandboxes that go on from where one is
    Fork(ForkArgs),
    /// Show and change what sandboxes may do on the network
    #[command(subcommand)]
    Net(NetCommand),
    /// Show what a sandbox did and what was done with it, also of one that is gone
    Trace(TraceArgs),
    /// Learn a policy from what sandboxes did, try one on it, test one
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show what sandboxes used, also those that are gone
    Usage(UsageArgs),
    /// Manage images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Manage credentials for image registries
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Manage templates, and build them
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Manage secrets: values that sandboxes use and never see
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Manage volumes: storage that outlives sandboxes, shared by several
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Follow and cancel builds of templates
    #[command(subcommand)]
    Build(BuildCommand),
    /// Manage warm pools: sandboxes that run before anybody asks
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Manage the servers that share a PostgreSQL database
    #[command(subcommand)]
    Node(NodeCommand),
    /// Say who may use a sandbox
    #[command(subcommand)]
    Access(AccessCommand),
    /// Run agents that live in sandboxes, and talk to them
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Manage services: commands of a sandbox that should always run
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Have a sandbox for yourself for a time
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Manage snapshots of sandboxes' disks
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Manage projects: teams apart, with quotas and defaults
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Manage API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show ports of a sandbox, and make links to them
    #[command(subcommand)]
    Port(PortCommand),
    /// Reach ports of a sandbox on this machine, or show local ports in it
    Tunnel(TunnelArgs),
    /// Print a link to a file of a sandbox
    Link(LinkArgs),
    /// Give sandboxes to an agent, as tools of the Model Context Protocol
    Mcp(McpArgs),
    /// Log in to a sandbox with ssh
    Ssh(SshArgs),
    /// Prepare this host for what needs more than the program
    #[command(subcommand)]
    Setup(SetupCommand),
    /// Turn into the VMM of a machine
    #[command(hide = true)]
    Vmm {
        /// What to start and in what, as JSON
        jail: String,
    },
    /// Start a sandbox in gVisor
    #[command(hide = true)]
    Sentry {
        /// What to start and in what, as JSON
        jail: String,
    },
    /// Make the sandboxes of a node stand still when its lease ends
    #[command(hide = true)]
    WatchLease {
        /// Data directory of the node
        data_dir: PathBuf,
    },
    /// The bytes of an SSH connection on standard input and output
    #[command(hide = true)]
    SshProxy,
    /// Manage SSH keys
    #[command(subcommand)]
    SshKey(SshKeyCommand),
    /// Print the authority of a server with --tls: what clients must trust
    Ca,
    /// Print a link that signs a browser in to the dashboard
    Dashboard(DashboardArgs),
    /// Keep a server's address and key in the configuration file, once they work
    Login(LoginArgs),
    /// Take a server's address and key out of the configuration file
    Logout,
    /// Show what the server is
    Info,
    /// Show what this host enforces, or what is left over on it
    Doctor(DoctorArgs),
    /// Write everything of an installation to one file, while its server is stopped
    Backup(BackupArgs),
    /// Make a data directory of what 'atoll backup' wrote, or only verify it
    Restore(RestoreArgs),
    /// End an installation: everything in its data directory, and of it on this host
    Purge(PurgeArgs),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
}
#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::program().debug_assert();
    }
}
