//! Arguments that concern sandboxes.

use atoll_core::idle::OnIdle;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::Durability;
use atoll_core::spec::IsolationLevel;
use atoll_core::volume::VolumeMountDraft;
use clap::Args;

use super::access::parse_visibility;
use super::env::{EnvFile, parse_env, parse_env_file};
use super::usage::parse_on_idle;
use super::{
    BudgetArgs, EgressArgs, ExecutionArgs, IdleArgs, ProfileArgs, ServicesArgs, TraceFilesArgs, parse_mount,
};
use crate::units::{parse_bytes, parse_bytes_per_second, parse_cpu_millis, parse_duration_ms, parse_pair};

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
    /// Disk reads and writes together, in bytes per second, such as 50M/s, or 'none'; microvm only
    #[arg(long, value_name = "RATE", value_parser = parse_io_bytes)]
    pub(crate) io_bytes: Option<Rate<u64>>,
    /// Disk reads and writes together, in operations per second, or 'none'; microvm only
    #[arg(long, value_name = "COUNT", value_parser = parse_io_operations)]
    pub(crate) io_operations: Option<Rate<u32>>,
}

/// So much per second, or as much as the host can.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate<T>(pub(crate) Option<T>);

fn parse_durability(text: &str) -> Result<Durability, String> {
    if text == "exec" {
        return Ok(Durability { every_ms: None, after_exec: true });
    }
    parse_duration_ms(text).map(|ms| Durability { every_ms: Some(ms), after_exec: false })
}

fn parse_io_bytes(text: &str) -> Result<Rate<u64>, String> {
    if text == "none" { Ok(Rate(None)) } else { parse_bytes_per_second(text).map(|rate| Rate(Some(rate))) }
}

fn parse_io_operations(text: &str) -> Result<Rate<u32>, String> {
    if text == "none" {
        return Ok(Rate(None));
    }
    let count = text.strip_suffix("/s").unwrap_or(text).parse();
    let count = count.map_err(|_none| format!("'{text}' is not a number: write it like 500, or 'none'"))?;
    Ok(Rate(Some(count)))
}

/// Reads the name of an isolation level.
pub(super) fn parse_isolation(text: &str) -> Result<IsolationLevel, String> {
    let levels = [IsolationLevel::Container, IsolationLevel::Gvisor, IsolationLevel::Microvm];
    levels
        .into_iter()
        .find(|level| level.as_str() == text)
        .ok_or_else(|| "write container, gvisor or microvm".to_owned())
}

/// What a sandbox is made of.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// Image: 'host', or one that was pulled, loaded or imported
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// Template, as NAME, NAME:VERSION or NAME:TAG
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Snapshot to begin with: id, NAME or NAME:TAG
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub(crate) snapshot: Option<String>,
    /// Go on from the snapshot's memory, too, with the processes that ran when it was taken
    #[arg(long)]
    pub(crate) from_memory: bool,
    /// How strongly it is cut off [default: the server's, usually container]
    #[arg(long, value_name = "container|gvisor|microvm", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Take checkpoints by itself, when it is made and after every command, and keep this many
    #[arg(long, value_name = "COUNT")]
    pub(crate) auto_checkpoints: Option<u32>,
    /// On several machines with an object store: copy its disk there this often, such as 30s, or 'exec' for after every command;
    /// when its node dies another goes on from there (repeatable)
    #[arg(long, value_name = "WHEN", value_parser = parse_durability)]
    pub(crate) durability: Vec<Durability>,
    /// Name of the sandbox
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Who sees it: all keys, or you and whom you grant a role [default: the server's, usually shared]
    #[arg(long, value_name = "shared|private", value_parser = parse_visibility)]
    pub(crate) visibility: Option<Visibility>,
    /// Variable for every command in it; KEY alone: with the value that it has here (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// File of KEY=VALUE, one in a line; those of -e come before them (repeatable)
    #[arg(long, value_name = "FILE", value_parser = parse_env_file)]
    pub(crate) env_file: Vec<EnvFile>,
    /// Label (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// In a cluster: label that the node must have on which it is made (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) node_label: Vec<(String, String)>,
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
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
    #[command(flatten)]
    pub(crate) profiles: ProfileArgs,
    #[command(flatten)]
    pub(crate) trace_files: TraceFilesArgs,
    #[command(flatten)]
    pub(crate) services: ServicesArgs,
    /// Mount a volume, or a directory of one, as VOLUME[/DIRECTORY]:/PATH[:ro] (repeatable)
    #[arg(short, long, value_name = "VOLUME:/PATH", value_parser = parse_mount)]
    pub(crate) volume: Vec<VolumeMountDraft>,
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
    /// Only their ids, one in a line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Only with this label (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Only in this state
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    pub(crate) state: Option<SandboxState>,
    /// Only of this project, by id or name
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
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
pub(crate) struct PsArgs {
    /// Only their ids, one in a line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Do not ask, and do not mind if one does not exist
    #[arg(short, long, visible_alias = "yes")]
    pub(crate) force: bool,
    /// All sandboxes, or all with the given labels
    #[arg(long, conflicts_with = "sandboxes")]
    pub(crate) all: bool,
    /// With --all: only with this label (repeatable)
    #[arg(short, long, requires = "all", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Sandboxes, by id or name
    #[arg(required_unless_present = "all", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
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
    /// Variable of later execs; the others stay (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Label; those given replace all that were there (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Delete it this long from now, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) ttl: Option<Lifetime>,
    /// Delete it after this long without use, or 'none'
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub(crate) idle_timeout: Option<Lifetime>,
    /// What happens when the idle timeout ends
    #[arg(long, value_name = "delete|freeze|hibernate", value_parser = parse_on_idle)]
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
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
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
