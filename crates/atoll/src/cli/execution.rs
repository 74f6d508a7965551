//! Which programs may run in a sandbox, in arguments.

use std::path::Path;

use atoll_core::execution::{ExecutionAction, ExecutionMode, ExecutionPolicy, ExecutionRule, Programs};
use clap::Args;
use serde::de::DeserializeOwned;

use super::egress::half;
use crate::failure::{Failure, Result};

/// Largest policy in a file, bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// What a digest begins with.
const ALGORITHMS: [&str; 2] = ["sha256:", "blake3:"];

/// Which programs may run: those of `--execution`, and by rules, those that deny before those that allow. Other orders and messages are
/// written as JSON, in a file.
#[derive(Debug, Default, Args)]
pub(crate) struct ExecutionArgs {
    /// Which programs may run: all, those that the image brought, unchanged, or only those of --allow-program (containers only);
    /// or the name of a file with the whole policy as JSON
    #[arg(help_heading = "Programs", long, value_name = "any|image|listed|FILE")]
    pub(crate) execution: Option<String>,
    /// What happens to others: they are killed, or only told of in the journal
    #[arg(help_heading = "Programs", long, value_name = "enforce|observe", value_parser = parse_mode)]
    pub(crate) execution_mode: Option<ExecutionMode>,
    /// Let this program of the image run: /usr/bin/git, /opt/tools/*, /opt/tools/**, sha256:DIGEST, package:NAME, or
    /// layer:sha256:DIGEST (repeatable)
    #[arg(help_heading = "Programs", long, value_name = "PROGRAM")]
    pub(crate) allow_program: Vec<String>,
    /// Do not let this program of the image run (repeatable)
    #[arg(help_heading = "Programs", long, value_name = "PROGRAM")]
    pub(crate) deny_program: Vec<String>,
}

impl ExecutionArgs {
    /// The policy, if there is one.
    pub(crate) fn policy(&self) -> Result<Option<ExecutionPolicy>> {
        if self.execution.is_none() && self.allow_program.is_empty() && self.deny_program.is_empty() {
            return match self.execution_mode {
                Some(_) => {
                    Err(Failure::Usage("--execution-mode is of a policy: give --execution, too".into()))
                }
                None => Ok(None),
            };
        }
        let mut policy = match self.execution.as_deref() {
            None => ExecutionPolicy::default(),
            Some(text) => match Programs::parse(text) {
                Some(programs) => ExecutionPolicy { programs, ..ExecutionPolicy::default() },
                None => read(Path::new(text), "execution").map_err(|why| {
                    Failure::Usage(format!(
                        "--execution: write any, image, listed, or the name of a file: {text}: {why}"
                    ))
                })?,
            },
        };
        policy.rules.extend(self.deny_program.iter().map(|what| rule(ExecutionAction::Deny, what)));
        policy.rules.extend(self.allow_program.iter().map(|what| rule(ExecutionAction::Allow, what)));
        policy.mode = self.execution_mode.unwrap_or(policy.mode);
        Ok(Some(policy))
    }
}

fn rule(action: ExecutionAction, what: &str) -> ExecutionRule {
    let rule = ExecutionRule { action, ..ExecutionRule::default() };
    if let Some(package) = what.strip_prefix("package:") {
        ExecutionRule { package: Some(package.to_owned()), ..rule }
    } else if let Some(layer) = what.strip_prefix("layer:") {
        ExecutionRule { layer: Some(layer.to_owned()), ..rule }
    } else if ALGORITHMS.iter().any(|algorithm| what.starts_with(algorithm)) {
        ExecutionRule { digest: Some(what.to_owned()), ..rule }
    } else {
        ExecutionRule { path: Some(what.to_owned()), ..rule }
    }
}

/// Reads from a file what stands there under this key, or is all of it.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read<T: DeserializeOwned>(path: &Path, key: &str) -> std::result::Result<T, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > FILE_MAX_BYTES {
        return Err("it is too large".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    half(&text, key).map_err(|error| error.to_string())
}

fn parse_mode(text: &str) -> std::result::Result<ExecutionMode, String> {
    match text {
        "enforce" => Ok(ExecutionMode::Enforce),
        "observe" => Ok(ExecutionMode::Observe),
        _ => Err("write enforce or observe".to_owned()),
    }
}
