//! Arguments that concern templates.

use atoll_core::pool::PoolSpec;
use atoll_core::service::Restart;
use atoll_core::spec::IsolationLevel;
use clap::{Args, Subcommand};

use super::env::parse_env;
use super::sandbox::parse_isolation;
use super::{BuildArgs, EgressArgs, ExecutionArgs, LimitArgs, ProfileArgs, ServicesArgs, parse_pool};
use crate::units::{parse_bytes, parse_duration_ms, parse_pair};

#[expect(clippy::large_enum_variant, reason = "there is one of it")]
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build a template from a Dockerfile
    Build(Box<BuildArgs>),
    /// Build the templates that clients of other vendors' protocols expect
    BuildDefaults(Box<DefaultsArgs>),
    /// Make a template, or the next version of one
    Create(TemplateArgs),
    /// List templates
    Ls {
        /// Only their names, one in a line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show a template
    Show {
        /// NAME, NAME:VERSION or NAME:TAG
        template: String,
    },
    /// Point tags to a version of a template: NAME:TAG stands wherever NAME:VERSION can
    Tag {
        /// NAME (its newest version) or NAME:VERSION
        template: String,
        /// Tags
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<String>,
    },
    /// Remove tags of a template; the versions stay
    Untag {
        /// NAME
        template: String,
        /// Tags
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<String>,
    },
    /// List tags of a template, or what one of them has meant
    Tags {
        /// NAME
        template: String,
        /// List what this tag has meant, the newest first
        tag: Option<String>,
    },
    /// Remove a template, or one version of it
    Rm {
        /// NAME or NAME:VERSION
        template: String,
    },
}

/// Which default templates to build, and from what.
#[derive(Debug, Args)]
pub(crate) struct DefaultsArgs {
    /// Templates [default: all but desktop, which is large]
    #[arg(value_name = "NAME", value_parser = ["base", "modal-debian-slim", "runloop", "daytona", "code-interpreter-v1", "desktop"])]
    pub(crate) names: Vec<String>,
    /// Image to begin with: Debian, something made of it, or 'host'
    #[arg(long, value_name = "IMAGE", default_value = "docker.io/library/debian:bookworm")]
    pub(crate) from: String,
    /// Value for an ARG of the recipe, such as PIP_INDEX_URL (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) build_arg: Vec<(String, String)>,
    /// Do every step again
    #[arg(long)]
    pub(crate) no_cache: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Writable disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Give up on a build after this long [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// What the steps may reach, instead of @debian, @pypi and @npm
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// Name
    pub(crate) name: String,
    /// Image
    #[arg(long, value_name = "IMAGE", required_unless_present = "snapshot")]
    pub(crate) image: Option<String>,
    /// How strongly it is cut off [default: the server's, usually container]
    #[arg(long, value_name = "container|gvisor|microvm", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Snapshot that its sandboxes begin with, instead of an image: id, NAME or NAME:TAG
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub(crate) snapshot: Option<String>,
    /// Variable for every command (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Label for every sandbox (repeatable)
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
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
    #[command(flatten)]
    pub(crate) profiles: ProfileArgs,
    #[command(flatten)]
    pub(crate) services: ServicesArgs,
    /// Writable disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Command to run in every sandbox from its creation on, for /bin/sh
    #[arg(long, value_name = "CMD")]
    pub(crate) start_cmd: Option<String>,
    /// When to start that again after it ended: always, on-failure, never [default: never]
    #[arg(long, value_name = "POLICY", requires = "start_cmd")]
    pub(crate) restart: Option<Restart>,
    /// A sandbox is ready when this command succeeds
    #[arg(long, value_name = "CMD")]
    pub(crate) ready_cmd: Option<String>,
    /// A sandbox is ready when something listens on this port
    #[arg(long, value_name = "PORT", conflicts_with = "ready_cmd")]
    pub(crate) ready_port: Option<u16>,
    /// Give up on a sandbox that is not ready after this long [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ready_timeout: Option<u64>,
    /// Boot one sandbox until it is ready, and let the others go on from its memory (microvm)
    #[arg(long, requires = "start_cmd")]
    pub(crate) from_memory: bool,
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
