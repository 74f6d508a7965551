//! Arguments that concern commands in sandboxes.

use clap::Args;

use super::SandboxArgs;
use super::env::{EnvFile, parse_env, parse_env_file};
use crate::terminal::DetachKeys;
use crate::units::parse_duration_ms;

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
    pub(crate) stream: StreamArgs,
    /// Delete the sandbox afterwards, as is done unless --keep is given
    #[arg(long, conflicts_with = "keep")]
    pub(crate) rm: bool,
    /// Keep the sandbox
    #[arg(long)]
    pub(crate) keep: bool,
    /// Kill the command this long after its start, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// Do not wait: print the command's id
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    /// Variable; KEY alone: with the value that it has here (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// File of KEY=VALUE, one in a line; those of -e come before them (repeatable)
    #[arg(long, value_name = "FILE", value_parser = parse_env_file)]
    pub(crate) env_file: Vec<EnvFile>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Profile of the sandbox that it runs in [default: the sandbox's]
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Kill it this long after its start, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// Kill it after this long without output
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) idle_timeout: Option<u64>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
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
    /// Begin with the last so many lines
    #[arg(short = 'n', long, value_name = "LINES", conflicts_with = "offset")]
    pub(crate) tail: Option<usize>,
    /// Only what was written in the last so long, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, conflicts_with_all = ["offset", "tail"])]
    pub(crate) since: Option<u64>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Id of the command [default: the newest]
    pub(crate) exec: Option<String>,
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
