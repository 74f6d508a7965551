//! Arguments about standing still and about what is used.

use atoll_api::UsageGroup;
use atoll_core::idle::OnIdle;
use atoll_core::sandbox::PauseMode;
use atoll_core::usage::{Budget, OnExhausted};
use clap::Args;

use crate::units::{parse_bytes, parse_duration_ms};

/// What a sandbox does while it is not used, and what it may use.
#[derive(Debug, Default, Args)]
pub(crate) struct IdleArgs {
    /// When the idle timeout ends: delete it, freeze it in memory, or hibernate it to disk
    #[arg(help_heading = "Lifetime and budget", long, value_name = "delete|freeze|hibernate", value_parser = parse_on_idle)]
    pub(crate) on_idle: Option<OnIdle>,
    /// Freeze it between commands after this long without use, such as 500ms
    #[arg(help_heading = "Lifetime and budget", long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) idle_freeze: Option<u64>,
    /// Hibernate it after it has been paused in memory for this long
    #[arg(help_heading = "Lifetime and budget", long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) hibernate_after: Option<u64>,
    /// Delete it after it has been paused for this long
    #[arg(help_heading = "Lifetime and budget", long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) delete_paused_after: Option<u64>,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
}

/// Hard limits over a sandbox's whole life.
#[derive(Debug, Default, Args)]
pub(crate) struct BudgetArgs {
    /// Stop it when it has used this much CPU time, such as 10m
    #[arg(help_heading = "Lifetime and budget", long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) budget_cpu: Option<u64>,
    /// Stop it when it has run for this long; paused time does not count
    #[arg(help_heading = "Lifetime and budget", long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) budget_running: Option<u64>,
    /// Stop it when so much has left it, such as 1GiB
    #[arg(help_heading = "Lifetime and budget", long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) budget_egress: Option<u64>,
    /// Delete it then, instead of pausing it
    #[arg(help_heading = "Lifetime and budget", long)]
    pub(crate) budget_delete: bool,
}

impl BudgetArgs {
    /// The budget that the arguments mean; `None` when they say nothing.
    pub(crate) fn budget(&self) -> Option<Budget> {
        let budget = Budget {
            cpu_ms: self.budget_cpu,
            running_ms: self.budget_running,
            egress_bytes: self.budget_egress,
            on_exhausted: if self.budget_delete { OnExhausted::Delete } else { OnExhausted::Pause },
        };
        (budget != Budget::default()).then_some(budget)
    }
}

pub(super) fn parse_on_idle(text: &str) -> Result<OnIdle, String> {
    OnIdle::parse(text).ok_or_else(|| format!("'{text}' is not delete, freeze or hibernate"))
}

/// Pausing.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// What to keep: everything in memory, everything on disk, or the files only
    #[arg(long, value_name = "frozen|memory|filesystem", value_parser = parse_mode, default_value = "frozen")]
    pub(crate) mode: PauseMode,
    /// Sandboxes, by id or name
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
}

/// Resuming.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Sandboxes, by id or name
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
}

fn parse_mode(text: &str) -> Result<PauseMode, String> {
    PauseMode::parse(text).ok_or_else(|| format!("'{text}' is not frozen, memory or filesystem"))
}

/// What was used.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Add up by this
    #[arg(long, value_name = "total|sandbox|key|project|hour", value_parser = parse_group, default_value = "sandbox")]
    pub(crate) by: UsageGroup,
    /// Only on account of the key with this id
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only of sandboxes of this project, by id or name
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    /// Only the last of it, such as 24h; whole hours
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) since: Option<u64>,
    /// Only this sandbox: id or name, or the id of one that is gone
    pub(crate) sandbox: Option<String>,
}

fn parse_group(text: &str) -> Result<UsageGroup, String> {
    [UsageGroup::Total, UsageGroup::Sandbox, UsageGroup::Key, UsageGroup::Project, UsageGroup::Hour]
        .into_iter()
        .find(|group| group.as_str() == text)
        .ok_or_else(|| format!("'{text}' is not total, sandbox, key, project or hour"))
}
