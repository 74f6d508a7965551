//! Arguments of the commands about ports, tunnels, links and SSH.

use std::net::IpAddr;
use std::path::PathBuf;

use atoll_core::access::parse_port;
use clap::{Args, Subcommand};

use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum PortCommand {
    /// List the ports on which something listens, with their addresses
    Ls {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Print a link to a port, for a browser or to pass on
    Url(PortUrlArgs),
    /// Open a port, or the page that lists all of them, in a browser
    Open {
        /// The link works this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, default_value = "12h")]
        ttl: u64,
        /// Sandbox, by id or name
        sandbox: String,
        /// Port [default: the page with all ports]
        #[arg(value_parser = one_port)]
        port: Option<u16>,
    },
    /// Let everybody reach a port, without a link, until it is taken back
    Publish {
        /// Only this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
        ttl: Option<u64>,
        /// Sandbox, by id or name
        sandbox: String,
        /// Port
        #[arg(value_parser = one_port)]
        port: u16,
    },
    /// List who may reach ports and files of a sandbox by links, and which ports are public
    Access {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Take links and publications back: connections through them are cut
    Revoke {
        /// Sandbox, by id or name
        sandbox: String,
        /// Ids, as 'atoll port access' lists them
        #[arg(required = true, value_name = "ACCESS")]
        accesses: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PortUrlArgs {
    /// The link works this long [default: as long as the sandbox]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ttl: Option<u64>,
    /// What the link is for
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Port
    #[arg(value_parser = one_port)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// The link works this long [default: as long as the sandbox]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ttl: Option<u64>,
    /// Media type of the answer, such as text/plain
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) media_type: Option<String>,
    /// Let a browser show it rather than save it
    #[arg(long)]
    pub(crate) inline: bool,
    /// SANDBOX:/PATH
    pub(crate) file: String,
}

#[derive(Debug, Args)]
pub(crate) struct TunnelArgs {
    /// Show a local port inside the sandbox, there on 127.0.0.1 (repeatable)
    #[arg(short, long, value_name = "LOCAL[:PORT]", value_parser = parse_reverse)]
    pub(crate) reverse: Vec<Reverse>,
    /// Address to listen on here
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) bind: IpAddr,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Ports of the sandbox; LOCAL is the port here, 0 for any free one [default: the same]
    #[arg(required_unless_present = "reverse", value_name = "[LOCAL:]PORT", value_parser = parse_forward)]
    pub(crate) ports: Vec<Forward>,
}

/// A port of the sandbox that is reached here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) port: u16,
    pub(crate) local: u16,
}

/// A port here that is reached inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reverse {
    pub(crate) local: u16,
    pub(crate) port: u16,
}

fn one_port(text: &str) -> Result<u16, String> {
    parse_port(text).ok_or_else(|| format!("'{text}' is not a port from 1 to 65535"))
}

fn parse_forward(text: &str) -> Result<Forward, String> {
    match text.split_once(':') {
        None => one_port(text).map(|port| Forward { port, local: port }),
        Some(("0", port)) => Ok(Forward { port: one_port(port)?, local: 0 }),
        Some((local, port)) => Ok(Forward { port: one_port(port)?, local: one_port(local)? }),
    }
}

fn parse_reverse(text: &str) -> Result<Reverse, String> {
    let (local, port) = text.split_once(':').unwrap_or((text, text));
    Ok(Reverse { local: one_port(local)?, port: one_port(port)? })
}

#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// User inside [default: the sandbox's own]
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Print what to put into ~/.ssh/config instead, for scp, sftp, rsync and editors
    #[arg(long, conflicts_with = "command")]
    pub(crate) print_config: bool,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Command to run [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SshKeyCommand {
    /// Register an SSH public key: who logs in with it may do what your API key may
    Add {
        /// It stops working after this long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
        ttl: Option<u64>,
        /// What it is for [default: the file's name]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Such as ~/.ssh/id_ed25519.pub, or - for standard input
        file: PathBuf,
    },
    /// List SSH keys
    Ls,
    /// Make SSH keys stop working
    Rm {
        /// Ids
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        assert_eq!(parse_forward("80"), Ok(Forward { port: 80, local: 80 }));
        assert_eq!(parse_forward("8080:80"), Ok(Forward { port: 80, local: 8080 }));
        assert_eq!(parse_forward("0:80"), Ok(Forward { port: 80, local: 0 }));
        assert_eq!(parse_reverse("5432"), Ok(Reverse { local: 5432, port: 5432 }));
        assert_eq!(parse_reverse("5432:6000"), Ok(Reverse { local: 5432, port: 6000 }));
        for bad in ["", "0", "80:", ":80", "80:x", "70000", "80:80:80"] {
            assert!(parse_forward(bad).is_err(), "{bad}");
        }
        assert!(parse_reverse("0:80").is_err());
    }
}
