//! Arguments that concern services.

use atoll_core::build::CommandText;
use atoll_core::service::{Restart, ServiceHealth, ServiceReady};
use clap::{Args, Subcommand};

use super::env::parse_env;
use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Declare a service: a command that should always run. It starts at once
    Add(Box<AddServiceArgs>),
    /// List the services of a sandbox
    Ls {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Show a service
    Show(ServiceArg),
    /// Show what a service wrote, over all its runs
    Logs {
        /// Go on with what it writes
        #[arg(short, long)]
        follow: bool,
        /// Begin with this byte of the log
        #[arg(long, default_value_t = 0)]
        offset: u64,
        #[command(flatten)]
        service: ServiceArg,
    },
    /// End a service's run and begin another, also of one that was stopped or given up
    Restart(ServiceArg),
    /// End a service's run; it stays stopped until it is restarted
    Stop(ServiceArg),
    /// End services and forget them
    Rm {
        /// Sandbox, by id or name
        sandbox: String,
        /// Names of the services
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
    },
}

/// Which service.
#[derive(Debug, Args)]
pub(crate) struct ServiceArg {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Name of the service
    pub(crate) service: String,
}

#[derive(Debug, Args)]
pub(crate) struct AddServiceArgs {
    /// When to start it again: always, on-failure, never
    #[arg(long, value_name = "POLICY", default_value = "always")]
    pub(crate) restart: Restart,
    /// First pause before that; doubles with each early end [default: 500ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) backoff: Option<u64>,
    /// Longest such pause [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) backoff_max: Option<u64>,
    /// Give it up after so many early ends in a row; 0: never [default: 10]
    #[arg(long, value_name = "COUNT")]
    pub(crate) give_up_after: Option<u32>,
    /// Kill it this long after it was asked to end [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) stop_timeout: Option<u64>,
    /// It is ready when something listens on this port
    #[arg(long, value_name = "PORT", conflicts_with = "ready_command")]
    pub(crate) ready_port: Option<u16>,
    /// It is ready when this path on the port answers with a status from 200 to 399
    #[arg(long, value_name = "PATH", requires = "ready_port")]
    pub(crate) ready_path: Option<String>,
    /// It is ready when this shell line ends with 0
    #[arg(long, value_name = "LINE")]
    pub(crate) ready_command: Option<String>,
    /// It counts as failed when it is not ready after this long [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ready_timeout: Option<u64>,
    /// Something must go on listening on this port
    #[arg(long, value_name = "PORT", conflicts_with = "health_command")]
    pub(crate) health_port: Option<u16>,
    /// This path on the port must go on answering with a status from 200 to 399
    #[arg(long, value_name = "PATH", requires = "health_port")]
    pub(crate) health_path: Option<String>,
    /// This shell line must go on ending with 0
    #[arg(long, value_name = "LINE")]
    pub(crate) health_command: Option<String>,
    /// Pause between looks at whether it works [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) health_interval: Option<u64>,
    /// Kill it after so many bad looks in a row [default: 3]
    #[arg(long, value_name = "COUNT")]
    pub(crate) health_failures: Option<u32>,
    /// Start it only when this other service of the sandbox is ready, or has done its work (repeatable)
    #[arg(long, value_name = "SERVICE")]
    pub(crate) after: Vec<String>,
    /// Variable (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Wait until it is ready; fail if it ends or is given up
    #[arg(long)]
    pub(crate) wait: bool,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Name of the service
    pub(crate) name: String,
    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

impl AddServiceArgs {
    /// When it is ready.
    pub(crate) fn ready(&self) -> Option<ServiceReady> {
        let named = self.ready_port.is_some() || self.ready_command.is_some() || self.ready_timeout.is_some();
        named.then(|| ServiceReady {
            command: self.ready_command.clone().map(CommandText::Shell),
            port: self.ready_port,
            path: self.ready_path.clone(),
            interval_ms: None,
            timeout_ms: self.ready_timeout,
        })
    }

    /// Whether it works.
    pub(crate) fn health(&self) -> Option<ServiceHealth> {
        let named = self.health_port.is_some()
            || self.health_command.is_some()
            || self.health_interval.is_some()
            || self.health_failures.is_some();
        named.then(|| ServiceHealth {
            command: self.health_command.clone().map(CommandText::Shell),
            port: self.health_port,
            path: self.health_path.clone(),
            interval_ms: self.health_interval,
            timeout_ms: None,
            failures: self.health_failures,
        })
    }
}
