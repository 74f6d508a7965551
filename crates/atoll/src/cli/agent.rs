//! Arguments that concern agents.

use atoll_core::agent::Adapter;
use clap::{Args, Subcommand};

use crate::units::parse_pair;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Declare an agent that lives in a sandbox; it runs when it is sent a message
    Up(Box<UpArgs>),
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
    /// End agents and forget them; a sandbox that was made for one is deleted with it
    Rm {
        /// Names of the agents
        #[arg(required = true, value_name = "AGENT")]
        agents: Vec<String>,
    },
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
    #[arg(long, value_name = "SANDBOX", required_unless_present = "template", conflicts_with = "template")]
    pub(crate) sandbox: Option<String>,
    /// Make a sandbox of this template for it
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// What it speaks on standard input and output: jsonl, acp
    #[arg(long, value_name = "ADAPTER", default_value = "jsonl")]
    pub(crate) adapter: Adapter,
    /// Variable
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Its name
    pub(crate) name: String,
    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}
