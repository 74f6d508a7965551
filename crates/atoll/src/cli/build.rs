//! Arguments of builds.

use std::path::PathBuf;

use atoll_build::mounts::is_secret_id;
use atoll_core::service::Restart;
use atoll_core::spec::IsolationLevel;
use clap::{Args, Subcommand};

use super::sandbox::parse_isolation;
use super::{EgressArgs, LimitArgs, ServicesArgs};
use crate::units::{parse_bytes, parse_duration_ms, parse_pair};

/// What to build.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The context: what COPY takes files from
    #[arg(value_name = "DIR")]
    pub(crate) context: PathBuf,
    /// Dockerfile, or a step list if its name ends with .json [default: DIR/Dockerfile]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the template [default: the directory's]
    #[arg(short = 't', long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Tag for the version that is built, as in NAME:TAG (repeatable)
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// Value for an ARG (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) build_arg: Vec<(String, String)>,
    /// Secret that commands may mount (RUN --mount=type=secret), as id=NAME,src=FILE or id=NAME,env=VARIABLE (repeatable)
    #[arg(long, value_name = "id=NAME,src=FILE", value_parser = parse_build_secret)]
    pub(crate) build_secret: Vec<BuildSecret>,
    /// Stage to build, by name or number [default: the last]
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// Do every step again
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Command to run in every sandbox of the template, for /bin/sh
    #[arg(long, value_name = "CMD")]
    pub(crate) start_cmd: Option<String>,
    /// Run what ENTRYPOINT and CMD say in every sandbox of the template
    #[arg(long, conflicts_with = "start_cmd")]
    pub(crate) start_image: bool,
    #[command(flatten)]
    pub(crate) services: ServicesArgs,
    /// When to start that again after it ended: always, on-failure, never [default: never]
    #[arg(long, value_name = "POLICY")]
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
    /// Start what the template starts once before there is a version of it: what fails then fails the build
    #[arg(long)]
    pub(crate) verify: bool,
    /// Boot one sandbox of the template until it is ready, and let the others go on from its memory (microvm)
    #[arg(long)]
    pub(crate) from_memory: bool,
    /// How strongly the build and the sandboxes are cut off [default: container]
    #[arg(long, value_name = "container|gvisor|microvm", value_parser = parse_isolation)]
    pub(crate) isolation: Option<IsolationLevel>,
    /// Label for every sandbox of the template (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Writable disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Give up on the build after this long [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) timeout: Option<u64>,
    /// What the steps may reach
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    /// File with what sandboxes of the template may reach, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) template_egress: Option<PathBuf>,
    /// Print the id of the build and do not wait for it
    #[arg(short, long)]
    pub(crate) detach: bool,
}

/// A secret, and where its value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BuildSecret {
    pub(crate) id: String,
    pub(crate) from: SecretSource,
}

/// Where the value of a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecretSource {
    File(PathBuf),
    Variable(String),
}

/// Reads `id=NAME,src=FILE` or `id=NAME,env=VARIABLE`; as Docker does, the variable `NAME` without either.
fn parse_build_secret(text: &str) -> Result<BuildSecret, String> {
    let (mut id, mut from) = (None, None);
    for field in text.split(',') {
        match field.split_once('=') {
            Some(("id", name)) if is_secret_id(name) => id = Some(name.to_owned()),
            Some(("id", name)) => return Err(format!("'{name}' is no name of a secret")),
            Some(("src" | "source", file)) if !file.is_empty() => {
                from = Some(SecretSource::File(file.into()));
            }
            Some(("env", name)) if !name.is_empty() => from = Some(SecretSource::Variable(name.to_owned())),
            Some(("type", "file" | "env")) => {}
            _ => return Err(format!("'{field}': write id=NAME,src=FILE or id=NAME,env=VARIABLE")),
        }
    }
    let id = id.ok_or_else(|| "write id=NAME,src=FILE: the name that the Dockerfile has".to_owned())?;
    let from = from.unwrap_or_else(|| SecretSource::Variable(id.clone()));
    Ok(BuildSecret { id, from })
}

/// Builds that were begun.
#[derive(Debug, Subcommand)]
pub(crate) enum BuildCommand {
    /// List builds
    Ls,
    /// Show a build, as JSON
    Show {
        /// Id of the build
        build: String,
    },
    /// Show what a build did
    Log {
        /// Go on until it ends
        #[arg(short, long)]
        follow: bool,
        /// Id of the build
        build: String,
    },
    /// End builds
    Cancel {
        /// Ids
        #[arg(required = true, value_name = "BUILD")]
        builds: Vec<String>,
    },
    /// Manage what is kept of steps
    #[command(subcommand)]
    Cache(BuildCacheCommand),
}

/// The cache of steps.
#[derive(Debug, Subcommand)]
pub(crate) enum BuildCacheCommand {
    /// List what is kept
    Ls,
    /// Remove what was not used for the longest time
    Prune {
        /// Keep this much, such as 5GiB
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
        keep: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets() {
        let read = |text: &str| parse_build_secret(text).map(|secret| (secret.id, secret.from));
        let file = |path: &str| SecretSource::File(path.into());
        assert_eq!(read("id=key,src=/a/b"), Ok(("key".to_owned(), file("/a/b"))));
        assert_eq!(read("type=file,source=b,id=key"), Ok(("key".to_owned(), file("b"))));
        assert_eq!(read("id=KEY"), Ok(("KEY".to_owned(), SecretSource::Variable("KEY".to_owned()))));
        for bad in ["", "key", "src=/a", "id=,src=/a", "id=a/b,src=/a", "id=a,src=", "id=a,size=1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
