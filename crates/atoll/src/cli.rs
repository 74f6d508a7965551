//! Arguments.

use std::path::PathBuf;

use atoll_api::Scope;
use atoll_core::idle::OnIdle;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::IsolationLevel;
use atoll_core::volume::VolumeMountDraft;
use clap::{Args, Parser, Subcommand};

mod access;
mod build;
mod egress;
mod ingress;
mod inject;
mod pool;
mod secret;
mod server;
mod snapshot;
mod usage;
mod volume;

pub(crate) use access::{AccessCommand, LeaseCommand};
pub(crate) use build::{BuildArgs, BuildCacheCommand, BuildCommand};
pub(crate) use egress::{EgressArgs, NetCommand, read as read_policy};
pub(crate) use ingress::{
    Forward, LinkArgs, PortCommand, PortUrlArgs, Reverse, SshArgs, SshKeyCommand, TunnelArgs,
};
pub(crate) use pool::{PoolCommand, PoolOf, parse_pool};
pub(crate) use secret::{SecretCommand, SetSecretArgs};
pub(crate) use server::{DoctorArgs, LogFormat, MicrovmArgs, ServeArgs, SetupCommand, SetupMicrovmArgs};
pub(crate) use snapshot::{
    CheckpointArgs, CheckpointsArgs, DiffArgs, ForkArgs, RollbackArgs, SnapshotCommand,
};
pub(crate) use usage::{BudgetArgs, IdleArgs, PauseArgs, ResumeArgs, UsageArgs};
pub(crate) use volume::{VolumeCommand, parse_mount};

use crate::terminal::DetachKeys;
use crate::units::{parse_bytes, parse_cpu_millis, parse_duration_ms, parse_pair};

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
#[derive(Debug, Args)]
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
    /// Who may use a sandbox
    #[command(subcommand)]
    Access(AccessCommand),
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
    /// The bytes of an SSH connection on standard input and output
    #[command(hide = true)]
    SshProxy,
    /// SSH keys
    #[command(subcommand)]
    SshKey(SshKeyCommand),
    /// Show what the server is
    Info,
    /// Show what this host enforces, or what is left over on it
    Doctor(DoctorArgs),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
}

fn parse_isolation(text: &str) -> Result<IsolationLevel, String> {
    let levels = [IsolationLevel::Container, IsolationLevel::Microvm];
    levels
        .into_iter()
        .find(|level| level.as_str() == text)
        .ok_or_else(|| "write container or microvm".to_owned())
}

/// Limits.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Cores, such as 2, 0.5 or 500m
    #[arg(long, value_name = "CORES", value_parser = parse_cpu_millis)]
    pub(crate) cpu: Option<u32>,
    /// Memory, such as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Processes and threads
    #[arg(long, value_name = "COUNT")]
    pub(crate) pids: Option<u32>,
}

/// What a sandbox is made of.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// Image: 'host', or one that was pulled, loaded or imported
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// Template, as NAME or NAME:VERSION
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Snapshot to begin with: id, NAME or NAME:TAG
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub(crate) snapshot: Option<String>,
    /// How strongly it is cut off: container (the default) or microvm
    #[arg(long, value_name = "LEVEL", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Take checkpoints by itself, when it is made and after every command, and keep this many
    #[arg(long, value_name = "COUNT")]
    pub(crate) auto_checkpoints: Option<u32>,
    /// Name of the sandbox
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Variable for every command in it
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Label
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Working directory; made if it is absent
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Writable disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Delete it this long after creation, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ttl: Option<u64>,
    /// Delete it after this long without use, such as 30m; see --on-idle
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) idle_timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) idle: IdleArgs,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    /// Mount a volume, as VOLUME:/PATH or VOLUME:/PATH:ro (repeatable)
    #[arg(short, long, value_name = "VOLUME:/PATH", value_parser = parse_mount)]
    pub(crate) volume: Vec<VolumeMountDraft>,
}

/// How to be attached to a command.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// Pass standard input on
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Run it on a terminal (implies -i)
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Keys that detach from a terminal
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: DetachKeys,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// Delete the sandbox afterwards (the default)
    #[arg(long, conflicts_with = "keep")]
    pub(crate) rm: bool,
    /// Keep the sandbox
    #[arg(long)]
    pub(crate) keep: bool,
    /// Kill the command this long after its start, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// Do not wait: print the command's id
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    /// Variable
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Kill it this long after its start, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// Kill it after this long without output
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) idle_timeout: Option<u64>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Id of the command
    pub(crate) exec: String,
    /// Begin with this byte of the output, counted over both streams
    #[arg(long, default_value_t = 0)]
    pub(crate) offset: u64,
    /// Do not pass standard input on
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Keys that detach from a terminal
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: DetachKeys,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Go on until the command ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin with this byte of the output, counted over both streams
    #[arg(long, default_value_t = 0)]
    pub(crate) offset: u64,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Id of the command
    pub(crate) exec: String,
}

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Keys that detach from the terminal
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: DetachKeys,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// Owner of what is written in the sandbox
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// SANDBOX:/PATH, a local path, or - for a tar on standard input
    pub(crate) source: String,
    /// SANDBOX:/PATH, a local path, or - for a tar on standard output
    pub(crate) destination: String,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Also those that failed or are being deleted
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only with this label
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Only in this state
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    pub(crate) state: Option<SandboxState>,
}

fn parse_state(text: &str) -> Result<SandboxState, String> {
    SandboxState::parse(text).ok_or_else(|| {
        format!("'{text}' is not a state: creating, running, pausing, paused, resuming, deleting or failed")
    })
}

#[derive(Debug, Args)]
pub(crate) struct SandboxArg {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Do not ask, and do not mind if one does not exist
    #[arg(short, long)]
    pub(crate) force: bool,
    /// All sandboxes, or all with the given labels
    #[arg(long, conflicts_with = "sandboxes")]
    pub(crate) all: bool,
    /// With --all: only with this label
    #[arg(short, long, requires = "all", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Sandboxes, by id or name
    #[arg(required_unless_present = "all", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Send this signal to its process group instead, such as TERM or 15
    #[arg(short, long)]
    pub(crate) signal: Option<String>,
    /// Send the signal to the whole process tree
    #[arg(long, requires = "signal")]
    pub(crate) tree: bool,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Id of the command
    pub(crate) exec: String,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Id of a command
    pub(crate) exec: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// New name; the host name inside stays
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Variable of later execs; the others stay
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Label; those given replace all that were there
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Delete it this long from now, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) ttl: Option<Lifetime>,
    /// Delete it after this long without use, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) idle_timeout: Option<Lifetime>,
    /// What happens when the idle timeout ends
    #[arg(long, value_name = "delete|freeze|hibernate", value_parser = usage::parse_on_idle)]
    pub(crate) on_idle: Option<OnIdle>,
    /// Freeze it between commands after this long without use, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) idle_freeze: Option<Lifetime>,
    /// Hibernate it after it has been paused in memory for this long, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) hibernate_after: Option<Lifetime>,
    /// Delete it after it has been paused for this long, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) delete_paused_after: Option<Lifetime>,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

/// A duration in milliseconds, or no end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime(pub(crate) Option<u64>);

fn parse_lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "none" { Ok(Lifetime(None)) } else { parse_duration_ms(text).map(|ms| Lifetime(Some(ms))) }
}

#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// From now, such as 2h
    #[arg(value_parser = parse_duration_ms)]
    pub(crate) duration: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from a registry
    Pull {
        /// os/architecture; the host's when absent
        #[arg(long)]
        platform: Option<String>,
        /// Speak plain HTTP to this registry
        #[arg(long)]
        insecure_http: bool,
        /// Certificate authorities to trust for this registry, PEM
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Such as docker.io/library/python:3.12
        reference: String,
    },
    /// Load a 'docker save' tar, an OCI layout tar or an OCI layout directory
    Load {
        /// Tar, directory, or - for a tar on standard input
        path: PathBuf,
    },
    /// Make an image of the tar of a root file system
    Import {
        /// Tar, or - for standard input
        path: PathBuf,
        /// Name for the image
        name: String,
    },
    /// List images
    Ls,
    /// Remove images
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove all images that nothing uses
    Prune,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistryCommand {
    /// Store credentials. The password is asked for, or read from standard input
    Login {
        /// User name
        #[arg(short, long)]
        username: String,
        /// Read the password from standard input
        #[arg(long)]
        password_stdin: bool,
        /// Registry, such as ghcr.io or localhost:5000
        host: String,
    },
    /// List registries with stored credentials
    Ls,
    /// Forget the credentials of a registry
    Logout {
        /// Registry
        host: String,
    },
}

#[expect(clippy::large_enum_variant, reason = "there is one of it")]
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build a template from a Dockerfile
    Build(Box<BuildArgs>),
    /// Make a template, or the next version of one
    Create(TemplateArgs),
    /// List templates
    Ls,
    /// Show a template
    Show {
        /// NAME or NAME:VERSION
        template: String,
    },
    /// Remove a template, or one version of it
    Rm {
        /// NAME or NAME:VERSION
        template: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// Name
    pub(crate) name: String,
    /// Image
    #[arg(long, value_name = "IMAGE", required_unless_present = "snapshot")]
    pub(crate) image: Option<String>,
    /// How strongly it is cut off: container (the default) or microvm
    #[arg(long, value_name = "LEVEL", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Snapshot that its sandboxes begin with, instead of an image: id, NAME or NAME:TAG
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub(crate) snapshot: Option<String>,
    /// Variable for every command
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Label for every sandbox
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    /// Writable disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Command to run in every sandbox from its creation on, for /bin/sh
    #[arg(long, value_name = "CMD")]
    pub(crate) start_cmd: Option<String>,
    /// A sandbox is ready when this command succeeds
    #[arg(long, value_name = "CMD")]
    pub(crate) ready_cmd: Option<String>,
    /// A sandbox is ready when something listens on this port
    #[arg(long, value_name = "PORT", conflicts_with = "ready_cmd")]
    pub(crate) ready_port: Option<u16>,
    /// Give up on a sandbox that is not ready after this long [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ready_timeout: Option<u64>,
    /// Delete sandboxes this long after creation
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ttl: Option<u64>,
    /// Delete sandboxes after this long without use
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) idle_timeout: Option<u64>,
    /// Keep this many warm: COUNT, or MIN..MAX to follow demand
    #[arg(long, value_name = "COUNT", value_parser = parse_pool)]
    pub(crate) pool: Option<PoolSpec>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print its secret, this once
    Create {
        /// The highest thing it may do: read, exec, manage or admin
        #[arg(long, value_parser = parse_scope)]
        scope: Scope,
        /// It stops working after this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
        ttl: Option<u64>,
        /// What it is for
        name: String,
    },
    /// List keys
    Ls,
    /// Make keys stop working
    Rm {
        /// Ids
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| format!("'{text}' is not a scope: read, exec, manage or admin"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
