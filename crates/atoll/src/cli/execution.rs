//! Which programs may run in a sandbox, in arguments.

use atoll_core::execution::{ExecutionMode, ExecutionPolicy, Programs};
use clap::Args;

/// Which programs may run.
#[derive(Debug, Default, Args)]
pub(crate) struct ExecutionArgs {
    /// Which programs may run: all, or those that the image brought, unchanged (containers only)
    #[arg(help_heading = "Programs", long, value_name = "any|image", value_parser = parse_programs)]
    pub(crate) execution: Option<Programs>,
    /// What happens to others: they are killed, or only told of in the journal
    #[arg(help_heading = "Programs", long, value_name = "enforce|observe", requires = "execution", value_parser = parse_mode)]
    pub(crate) execution_mode: Option<ExecutionMode>,
}

impl ExecutionArgs {
    /// The policy, if there is one.
    pub(crate) fn policy(&self) -> Option<ExecutionPolicy> {
        let programs = self.execution?;
        Some(ExecutionPolicy { programs, mode: self.execution_mode.unwrap_or_default() })
    }
}

fn parse_programs(text: &str) -> Result<Programs, String> {
    Programs::parse(text).ok_or_else(|| "write any or image".to_owned())
}

fn parse_mode(text: &str) -> Result<ExecutionMode, String> {
    match text {
        "enforce" => Ok(ExecutionMode::Enforce),
        "observe" => Ok(ExecutionMode::Observe),
        _ => Err("write enforce or observe".to_owned()),
    }
}
