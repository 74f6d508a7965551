//! Arguments that concern agents.

use std::path::PathBuf;

use atoll_core::agent::Adapter;
use atoll_core::policy::{Action, Rule};
use clap::{Args, Subcommand};

use super::egress::{Named, named};
use super::env::parse_env;
use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Declare an agent that lives in a sandbox; it runs when it is sent a message. With --name, make everything that it needs from
    /// a recipe ('atoll agent recipes'): atoll agent up opencode --name fix-tests --workdir ./project
    Up(Box<UpArgs>),
    /// List the recipes for agents
    Recipes,
    /// List agents
    Ls,
    /// List the sessions of an agent
    Sessions {
        /// Name of the agent
        agent: String,
    },
    /// Send a message and show what the agent says until it is done
    Send {
        #[command(flatten)]
        session: SessionArg,
        /// Sent again with the same key, the message is taken once
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Do not wait: print the message's number
        #[arg(short, long)]
        detach: bool,
        /// What to say; - reads standard input
        #[arg(required = true, value_name = "TEXT")]
        text: Vec<String>,
    },
    /// Show what is said in a session, and send what is typed, line by line
    Attach {
        #[command(flatten)]
        session: SessionArg,
        /// Begin after this event
        #[arg(long, default_value_t = 0)]
        after: u64,
    },
    /// Show what was said in a session
    Logs {
        #[command(flatten)]
        session: SessionArg,
        /// Begin after this event
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// Go on with what is said from now on
        #[arg(short, long)]
        follow: bool,
    },
    /// Pause the sandboxes of agents; a message wakes them
    Pause {
        /// Names of the agents
        #[arg(required = true, value_name = "AGENT")]
        agents: Vec<String>,
    },
    /// Ask an agent to end what it works on
    Cancel {
        #[command(flatten)]
        session: SessionArg,
    },
    /// Answer what an agent wants to know
    Answer {
        #[command(flatten)]
        session: SessionArg,
        /// Id of the approval
        approval: String,
        /// Id of one of its options
        option: String,
    },
    /// Make a version of an agent's program: a layer that agents have at /opt/agents/NAME
    Build(BuildAgentArgs),
    /// List the versions of agents' programs
    Versions {
        /// Name of the program [default: all]
        name: Option<String>,
    },
    /// Put another version of their program in the sandboxes of agents, at once
    Update(UpdateAgentArgs),
    /// Give a message to several forks of an agent, each in a fork of its sandbox, and compare what became of it
    Fork(Box<ForkAgentArgs>),
    /// Manage messages to an agent by time
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// End agents and forget them; a sandbox that was made for one is deleted with it
    Rm {
        /// Names of the agents
        #[arg(required = true, value_name = "AGENT")]
        agents: Vec<String>,
    },
}

/// Which forks, what they are told, and which is kept.
#[derive(Debug, Args)]
pub(crate) struct ForkAgentArgs {
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 2)]
    pub(crate) count: u32,
    /// What to say to each
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: String,
    /// A line for /bin/sh, run in the sandbox of each when it is done; its exit code is shown
    #[arg(long, value_name = "COMMAND")]
    pub(crate) judge: Option<String>,
    /// Keep one and delete the others: its number, or "passed" for the first whose judge exited with 0
    #[arg(long, value_name = "BEST", value_parser = parse_keep)]
    pub(crate) keep: Option<Keep>,
    /// With the sandbox's processes and memory, at the isolation level microvm
    #[arg(long)]
    pub(crate) memory: bool,
    /// What the names of the forks begin with [default: the agent's and "-fork"]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Name of the agent
    pub(crate) agent: String,
}

/// Which fork is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The first whose judge exited with 0.
    Passed,
    /// The one with this number.
    Number(usize),
}

fn parse_keep(text: &str) -> Result<Keep, String> {
    match text.parse() {
        _ if text == "passed" => Ok(Keep::Passed),
        Ok(number) if number > 0 => Ok(Keep::Number(number)),
        _ => Err("the number of a fork, or passed".to_owned()),
    }
}

/// What is sent by time.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Send a message again and again; each wakes the sandbox as any message does
    Create {
        /// Each time that so much time has passed, such as 30m; at least 1s
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, required_unless_present = "cron")]
        every: Option<u64>,
        /// Minute, hour, day of the month, month, day of the week: '0 9 * * 1-5'
        #[arg(long, value_name = "EXPRESSION", conflicts_with = "every")]
        cron: Option<String>,
        /// Time zone of that, such as Europe/Berlin [default: UTC]
        #[arg(long, value_name = "ZONE", requires = "cron")]
        time_zone: Option<String>,
        /// Name of the thread that gets it; a new name begins a new session
        #[arg(short, long, value_name = "THREAD", default_value = "main")]
        session: String,
        /// Name of the agent
        agent: String,
        /// What to say
        #[arg(required = true, value_name = "TEXT")]
        text: Vec<String>,
    },
    /// List the schedules of an agent
    Ls {
        /// Name of the agent
        agent: String,
    },
    /// Send nothing more by schedules
    Rm {
        /// Name of the agent
        agent: String,
        /// Ids of the schedules
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
}

/// Where a program comes from.
#[derive(Debug, Args)]
pub(crate) struct BuildAgentArgs {
    /// Name of the version [default: the number after the highest]
    #[arg(long = "as", value_name = "VERSION")]
    pub(crate) tag: Option<String>,
    /// Install this package from npm, as NAME or NAME@VERSION
    #[arg(long, value_name = "PACKAGE", group = "source")]
    pub(crate) npm: Option<String>,
    /// Install this package from PyPI into a virtual environment, as NAME or NAME==VERSION
    #[arg(long, value_name = "PACKAGE", group = "source")]
    pub(crate) pypi: Option<String>,
    /// Take it from the directory /opt/agents/NAME of a sandbox
    #[arg(long, value_name = "SANDBOX", group = "source")]
    pub(crate) sandbox: Option<String>,
    /// Image in which a package is installed, as FROM of a Dockerfile names it: it has npm, or python3 with venv
    #[arg(long, value_name = "IMAGE")]
    pub(crate) from: Option<String>,
    /// Name of the program
    pub(crate) name: String,
    /// A directory here, or a tar (- for standard input), with what is to be at /opt/agents/NAME
    #[arg(group = "source", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// Which agents, and what they get.
#[derive(Debug, Args)]
pub(crate) struct UpdateAgentArgs {
    /// The version; an older one is a rollback [default: the latest]
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<String>,
    /// All agents of this program
    #[arg(long, value_name = "PROGRAM", conflicts_with = "agents", required_unless_present = "agents")]
    pub(crate) all: Option<String>,
    /// Of these, those in sandboxes of this template, in any version
    #[arg(long, value_name = "TEMPLATE", requires = "all")]
    pub(crate) template: Option<String>,
    /// Names of agents
    #[arg(value_name = "AGENT")]
    pub(crate) agents: Vec<String>,
}

/// Which session.
#[derive(Debug, Args)]
pub(crate) struct SessionArg {
    /// Name of the thread, or id of the session; a new name begins a new session
    #[arg(short, long, value_name = "THREAD", default_value = "main")]
    pub(crate) session: String,
    /// Name of the agent
    pub(crate) agent: String,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// The sandbox it lives in, by id or name
    #[arg(long, value_name = "SANDBOX", required_unless_present_any = ["template", "made"], conflicts_with = "template")]
    pub(crate) sandbox: Option<String>,
    /// Make a sandbox of this template for it
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Take what is not said here from a file: JSON, as POST /v1/agents takes it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// What it speaks: on standard input and output jsonl or acp, as a service opencode or http [default: jsonl]
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: Option<Adapter>,
    /// The service of the sandbox that is its server, instead of a command
    #[arg(long, value_name = "SERVICE", conflicts_with = "argv")]
    pub(crate) service: Option<String>,
    /// Where that listens, if not on the port on which the service is ready
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// The program that it is of, which it has at /opt/agents/NAME, optionally in a version
    #[arg(long, value_name = "NAME[:VERSION]")]
    pub(crate) layer: Option<String>,
    /// Variable (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory. With --name a directory here: the sandbox gets a copy of what is in it
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The profile of its sandbox that its processes begin in
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Most tokens of models that it may use, with all of its sessions
    #[arg(long, value_name = "COUNT")]
    pub(crate) budget_tokens: Option<u64>,
    /// Most requests to models, with all of its sessions
    #[arg(long, value_name = "COUNT")]
    pub(crate) budget_requests: Option<u64>,
    /// Most tokens of models that each of its sessions may use
    #[arg(long, value_name = "COUNT")]
    pub(crate) session_tokens: Option<u64>,
    /// Most requests to models of each of its sessions
    #[arg(long, value_name = "COUNT")]
    pub(crate) session_requests: Option<u64>,
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Its name; with --name the recipe: one of 'atoll agent recipes', or a folder such as ./mine
    pub(crate) name: String,
    /// The command
    #[arg(trailing_var_arg = true, required_unless_present_any = ["file", "service", "made"], value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

/// What an agent of a recipe needs besides.
#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// Make an agent of this name from a recipe, and a sandbox of the same name: builds the template if there is none
    #[arg(help_heading = "From a recipe", id = "made", long = "name", value_name = "NAME", conflicts_with_all = ["sandbox", "template",
          "file", "adapter", "service", "port", "layer", "argv"])]
    pub(crate) made: Option<String>,
    /// Let it use a secret: that of the recipe's model, or NAME=HOST as with 'atoll create'. What the server does not have yet it
    /// gets from the variable NAME here, or asks for (repeatable)
    #[arg(help_heading = "From a recipe", long, value_name = "NAME[=HOST[,…]]", requires = "made")]
    pub(crate) secret: Vec<String>,
    /// What it may reach besides its model, such as @pypi; the building of its template may, too (repeatable)
    #[arg(help_heading = "From a recipe", long, value_name = "DOMAIN|@PRESET", requires = "made",
          value_parser = |text: &str| named(Action::Allow, text))]
    pub(crate) allow: Vec<Named>,
    /// The same for addresses, such as 10.1.0.0/16:5432 (repeatable)
    #[arg(help_heading = "From a recipe", long, value_name = "CIDR", requires = "made",
          value_parser = |text: &str| Rule::parse_cidr(Action::Allow, text))]
    pub(crate) allow_cidr: Vec<Rule>,
    /// The image that its template begins with; host is this machine's programs
    #[arg(help_heading = "From a recipe", long = "from", value_name = "IMAGE", requires = "made")]
    pub(crate) base: Option<String>,
    /// Build its template anew
    #[arg(help_heading = "From a recipe", long, requires = "made")]
    pub(crate) rebuild: bool,
}
