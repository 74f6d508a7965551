//! Arguments that concern code interpreters.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::env::parse_env;
use crate::units::parse_duration_ms;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct CodeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CodeCommand>,
    /// Language [default: the one of the context, or python]
    #[arg(short, long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Context, by name or id; made if there is none of the name [default: one named after the language]
    #[arg(short, long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// Working directory of a context that is made
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Variable of this cell (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Interrupt it after this long, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// Save pictures and other results in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
    /// Do not wait: print the cell's id
    #[arg(short, long, conflicts_with = "save")]
    pub(crate) detach: bool,
    /// Run the code in this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "code")]
    pub(crate) file: Option<PathBuf>,
    /// Sandbox, by id or name
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    /// The code; standard input when it is - or absent
    pub(crate) code: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CodeCommand {
    /// List the contexts of a sandbox
    Contexts {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// List what a context ran
    Cells(ContextArg),
    /// Show what a cell said, from its beginning to its end
    Show {
        /// Save pictures and other results in this directory
        #[arg(long, value_name = "DIR")]
        save: Option<PathBuf>,
        #[command(flatten)]
        context: ContextArg,
        /// Id of the cell
        cell: String,
    },
    /// Interrupt what a context runs; what it remembers stays
    Interrupt(ContextArg),
    /// Give a context a new kernel, which remembers nothing
    Restart(ContextArg),
    /// End contexts
    Rm {
        /// Sandbox, by id or name
        sandbox: String,
        /// Contexts, by name or id
        #[arg(required = true, value_name = "CONTEXT")]
        contexts: Vec<String>,
    },
}

/// Which context.
#[derive(Debug, Args)]
pub(crate) struct ContextArg {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Context, by name or id
    pub(crate) context: String,
}
