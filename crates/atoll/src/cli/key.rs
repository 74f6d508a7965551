//! Arguments that concern API keys.

use atoll_api::Scope;
use clap::Subcommand;

use crate::units::parse_duration_ms;

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
