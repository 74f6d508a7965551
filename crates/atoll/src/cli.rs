//! Arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

mod access;
mod agent;
mod build;
mod code;
mod egress;
mod exec;
mod execution;
mod image;
mod ingress;
mod inject;
mod key;
mod mcp;
mod net;
mod node;
mod policy;
mod pool;
mod profiles;
mod sandbox;
mod secret;
mod server;
mod service;
mod services;
mod snapshot;
mod template;
mod trace;
mod usage;
mod volume;

pub(crate) use access::{AccessCommand, LeaseCommand};
pub(crate) use agent::{
    AgentCommand, BuildAgentArgs, ForkAgentArgs, Keep, RecipeArgs, ScheduleCommand, SessionArg, UpArgs,
    UpdateAgentArgs,
};
pub(crate) use build::{BuildArgs, BuildCacheCommand, BuildCommand, BuildSecret, SecretSource};
pub(crate) use code::{CodeArgs, CodeCommand, ContextArg};
pub(crate) use egress::{EgressArgs, Named, read as read_policy};
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
pub(crate) use sandbox::{
    CopyArgs, ExtendArgs, InspectArgs, LimitArgs, LsArgs, RmArgs, SandboxArg, SandboxArgs, UpdateArgs,
};
pub(crate) use secret::{SecretCommand, SetSecretArgs};
pub(crate) use server::{
    Advertised, BackupArgs, DashboardArgs, DoctorArgs, GvisorArgs, LOCALHOST, LogFormat, LoginArgs,
    MicrovmArgs, PurgeArgs, RestoreArgs, ServeArgs, SetupCommand, SetupMicrovmArgs,
};
pub(crate) use service::{AddServiceArgs, ServiceArg, ServiceCommand};
pub(crate) use services::ServicesArgs;
pub(crate) use snapshot::{
    CheckpointArgs, CheckpointsArgs, DiffArgs, ForkArgs, RollbackArgs, SnapshotCommand,
};
pub(crate) use template::{DefaultsArgs, TemplateArgs, TemplateCommand};
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
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
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
    Serve(ServeArgs),
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
    Ps(SandboxArg),
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
    /// Take a checkpoint of a sandbox: a snapshot that belongs to it
    Checkpoint(CheckpointArgs),
    /// List the checkpoints of a sandbox
    Checkpoints(CheckpointsArgs),
    /// Put a sandbox back to a checkpoint; what runs in it ends
    Rollback(RollbackArgs),
    /// Put a sandbox back to before the last command, as far as there is a checkpoint of that
    Undo(SandboxArg),
    /// Show which files were added (A), changed (C) and removed (R) between two points of a sandbox
    Diff(DiffArgs),
    /// Make sandboxes that go on from where one is
    Fork(ForkArgs),
    /// What sandboxes do on the network
    #[command(subcommand)]
    Net(NetCommand),
    /// Show what a sandbox did and what was done with it, also of one that is gone
    Trace(TraceArgs),
    /// Learn a policy from what sandboxes did, try one on it, test one
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show what sandboxes used, also those that are gone
    Usage(UsageArgs),
    /// Images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Credentials for image registries
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Templates
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Values that sandboxes use and never see
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Volumes: storage that outlives sandboxes, shared by several
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Builds of templates
    #[command(subcommand)]
    Build(BuildCommand),
    /// Warm pools: sandboxes that run before anybody asks
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Servers that share a PostgreSQL database
    #[command(subcommand)]
    Node(NodeCommand),
    /// Who may use a sandbox
    #[command(subcommand)]
    Access(AccessCommand),
    /// Agents that live in sandboxes
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Services: commands of a sandbox that should always run
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Have a sandbox for yourself for a time
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Snapshots of sandboxes' disks
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Ports of a sandbox, and links to them
    #[command(subcommand)]
    Port(PortCommand),
    /// Reach ports of a sandbox on this machine, or show local ports in it
    Tunnel(TunnelArgs),
    /// Print a link to a file of a sandbox
    Link(LinkArgs),
    /// Give sandboxes to an agent, as tools of the Model Context Protocol on standard input and output
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
    /// SSH keys
    #[command(subcommand)]
    SshKey(SshKeyCommand),
    /// Print the authority of a server with --tls: what clients must trust
    Ca,
    /// Print a link that signs a browser in to the dashboard
    Dashboard(DashboardArgs),
    /// Keep the address of a server and a key for it in the configuration file, once they work
    Login(LoginArgs),
    /// Take them out of the configuration file
    Logout,
    /// Show what the server is
    Info,
    /// Show what this host enforces, or what is left over on it
    Doctor(DoctorArgs),
    /// Write everything of an installation to one file, while its server is stopped
    Backup(BackupArgs),
    /// Make a data directory of what 'atoll backup' wrote, or only verify it
    Restore(RestoreArgs),
    /// End an installation: its sandboxes, snapshots, volumes, images, keys and everything else in its data directory
    Purge(PurgeArgs),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
}
#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
