//! Arguments that concern who may use a sandbox.

use atoll_core::sharing::{Role, Visibility};
use clap::Subcommand;

use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// Show who may use a sandbox
    Show {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Give a key a role on a sandbox, in place of the one it had
    Grant {
        /// Sandbox, by id or name
        sandbox: String,
        /// Id of the key: see 'atoll key ls'
        key: String,
        /// The most it may do: read, exec or manage
        #[arg(value_parser = parse_role)]
        role: Role,
    },
    /// Take a key's role away
    Revoke {
        /// Sandbox, by id or name
        sandbox: String,
        /// Id of the key
        key: String,
    },
    /// Say whether keys without a role see a sandbox: shared, private, or default
    Set {
        /// Sandbox, by id or name
        sandbox: String,
        /// Whether: shared, private, or default for what the server was started with
        #[arg(value_parser = parse_setting)]
        visibility: Setting,
    },
}

/// A visibility, or the server's default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting(pub(crate) Option<Visibility>);

fn parse_role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| format!("'{text}' is not a role: read, exec or manage"))
}

/// Reads `shared` or `private`.
pub(super) fn parse_visibility(text: &str) -> Result<Visibility, String> {
    Visibility::parse(text).ok_or_else(|| format!("'{text}' is neither shared nor private"))
}

fn parse_setting(text: &str) -> Result<Setting, String> {
    if text == "default" { Ok(Setting(None)) } else { parse_visibility(text).map(|one| Setting(Some(one))) }
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Have a sandbox for yourself for a time: commands and changes of others are refused
    Take {
        /// It ends by itself after this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, default_value = "10m")]
        ttl: u64,
        /// The name that others are shown
        #[arg(long, value_name = "NAME")]
        holder: Option<String>,
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Show who has a sandbox for itself
    Show {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Give a lease back
    Release {
        /// Also one that another key has
        #[arg(long)]
        force: bool,
        /// Sandbox, by id or name
        sandbox: String,
    },
}
