//! Arguments that concern API keys.

use atoll_api::{KeyFormat, Scope};
use clap::Subcommand;

use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print its secret, this once
    Create {
        /// The highest thing it may do
        #[arg(long, value_name = "read|exec|manage|admin", value_parser = parse_scope)]
        scope: Scope,
        /// It stops working after this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
        ttl: Option<u64>,
        /// Make it look like this vendor's keys; it opens the same
        #[arg(long = "for", value_name = "e2b|daytona|runloop|modal", value_parser = parse_format, default_value = "atoll",
            hide_default_value = true)]
        format: KeyFormat,
        /// The project that it belongs to, by id or name
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
        /// What it is for
        name: String,
    },
    /// List keys, and people who log in
    Ls,
    /// End all logins of people; who is still let in may log in again
    Logout {
        /// Ids, as 'atoll key ls' shows them
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
    /// Make keys stop working
    Rm {
        /// Ids
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

fn parse_format(text: &str) -> Result<KeyFormat, String> {
    if text == "langsmith" {
        return Err("LangSmith's clients take Atoll's own keys: leave --for out".to_owned());
    }
    KeyFormat::parse(text)
        .ok_or_else(|| format!("no keys look like those of '{text}': atoll, e2b, daytona, runloop or modal"))
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| format!("'{text}' is not a scope: read, exec, manage or admin"))
}
