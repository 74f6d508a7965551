//! Arguments about projects.

use atoll_core::sharing::Visibility;
use atoll_core::spec::IsolationLevel;
use clap::{Args, Subcommand};

use super::EgressArgs;
use super::access::parse_visibility;
use super::sandbox::parse_isolation;
use crate::units::{parse_bytes, parse_cpu_millis, parse_duration_ms};

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectCommand {
    /// Make a project: keys and what they make, apart from those of others
    Create(Box<ProjectArgs>),
    /// List projects
    Ls,
    /// Show a project: quota, how much of it is used, and defaults
    Show {
        /// Project, by id or name
        project: String,
    },
    /// Change a project. What is not said stays as it is
    Set {
        #[command(flatten)]
        args: Box<ProjectArgs>,
        /// Give it another name
        #[arg(long, value_name = "NAME")]
        rename: Option<String>,
    },
    /// Remove projects to which nothing belongs any more
    Rm {
        /// Projects, by id or name
        #[arg(required = true, value_name = "PROJECT")]
        projects: Vec<String>,
    },
}

/// A number, or none at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

fn limit<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    if text == "none" { Ok(Limit(None)) } else { parse(text).map(|value| Limit(Some(value))) }
}

fn count(text: &str) -> Result<Limit<u64>, String> {
    limit(text, |text| text.parse().map_err(|_none| format!("'{text}' is no number, and not 'none'")))
}

fn size(text: &str) -> Result<Limit<u64>, String> {
    limit(text, parse_bytes)
}

fn cores(text: &str) -> Result<Limit<u64>, String> {
    limit(text, |text| {
        // The cores of many: more than one sandbox may have.
        match text.parse::<u64>() {
            Ok(cores) => cores.checked_mul(1000).ok_or_else(|| format!("'{text}' is too much")),
            Err(_) => parse_cpu_millis(text).map(u64::from),
        }
    })
}

fn duration(text: &str) -> Result<Limit<u64>, String> {
    limit(text, parse_duration_ms)
}

/// What a project may have, and what its sandboxes are.
#[derive(Debug, Args)]
pub(crate) struct ProjectArgs {
    /// Name; to change one also its id
    #[arg(value_name = "PROJECT")]
    pub(crate) name: String,
    /// Sandboxes that exist, or 'none' for no limit
    #[arg(help_heading = "Quota", long, value_name = "COUNT", value_parser = count)]
    pub(crate) max_sandboxes: Option<Limit<u64>>,
    /// Sandboxes that run: all but paused ones
    #[arg(help_heading = "Quota", long, value_name = "COUNT", value_parser = count)]
    pub(crate) max_running: Option<Limit<u64>>,
    /// CPU limits of sandboxes that run, together, such as 16
    #[arg(help_heading = "Quota", long, value_name = "CORES", value_parser = cores)]
    pub(crate) max_cpu: Option<Limit<u64>>,
    /// Memory limits of sandboxes that run, together, such as 32GiB
    #[arg(help_heading = "Quota", long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_memory: Option<Limit<u64>>,
    /// Disk limits of sandboxes that exist, together, such as 500GiB
    #[arg(help_heading = "Quota", long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_disk: Option<Limit<u64>>,
    /// Take all defaults away, before those that are said here
    #[arg(help_heading = "Defaults of its sandboxes", long)]
    pub(crate) no_defaults: bool,
    /// Image
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// Isolation level
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "LEVEL", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Cores, such as 2, 0.5 or 500m
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "CORES", value_parser = parse_cpu_millis)]
    pub(crate) cpu: Option<u32>,
    /// Memory, such as 512MiB
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Disk, such as 5GiB
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Whether the other keys of the project see a sandbox
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "shared|private", value_parser = parse_visibility)]
    pub(crate) visibility: Option<Visibility>,
    /// Delete it this long after creation, or 'none'
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Limit<u64>>,
    /// Delete it after this long without use, or 'none'
    #[arg(help_heading = "Defaults of its sandboxes", long, value_name = "DURATION", value_parser = duration)]
    pub(crate) idle_timeout: Option<Limit<u64>>,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
}
