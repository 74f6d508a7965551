//! What is recorded: [`Event`], and its [`Witness`].
//!
//! An event is what a *witness* says. Witnesses differ in what they can know and in which attacker could make them lie,
//! so each event names its witness, and events of different witnesses are never merged: a guest's word for a connection
//! is another event than the gateway's record of it.
//!
//! No event has a place for a secret: environment variables are names, requests have no query and no headers, input
//! of terminals is counted. A command line that a caller writes is recorded without words that look like a credential.
//!
//! What an event says beyond its kind is in `kernel`, `network` and `server`, by the witness that usually says it.

mod kernel;
mod kind;
mod network;
mod server;

use atoll_core::id::ExecId;
use serde::{Deserialize, Serialize};

pub use kernel::{FileAction, FileEvent, Origin, ProcessExited, ProcessStarted, Program, Socket, Transport};
pub use kind::KINDS;
pub use network::{Connection, Destination, Dns, Http, PolicyDecision};
pub use server::{Call, Created, ExecEnded, ExecStarted};

/// The witness that saw it, from the one that is hardest to deceive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Witness {
    /// The kernel of the host.
    Host,
    /// The kernel of gVisor, which runs on the host with few rights.
    Sentry,
    /// The gateway through which every connection of a sandbox leaves.
    Gateway,
    /// This server.
    Server,
    /// The sandbox's own kernel or agent, for machines: what it says is a claim.
    Guest,
}

/// One thing that happened in a sandbox, to it, or because of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in microseconds since the epoch, by the host's clock as the witness read it.
    #[serde(rename = "at_us")]
    pub at_us: u64,
    /// The witness that saw it.
    pub witness: Witness,
    /// The exec that it belongs to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// The process that did it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// A process: pids are used again, a pid with its start is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The thread group id: as the host counts for [`Witness::Host`], as the sandbox counts for all others.
    pub pid: u32,
    /// When it was forked, in nanoseconds of the witness's boot clock; 0 when that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_ns: u64,
}

/// What happened. `kind` names it on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A process began to run a program (execve succeeded).
    ProcessStarted(ProcessStarted),
    /// A process was made without a new program (fork, clone without CLONE_THREAD).
    ProcessForked {
        /// The process that made it.
        parent: Process,
    },
    /// A process ended.
    ProcessExited(ProcessExited),
    /// A process asked for a connection.
    Connect(Socket),
    /// A process got a connection from a listening socket.
    Accept(Socket),
    /// A process listens.
    Listen(Socket),
    /// Something happened to a file under a watched path.
    File(FileEvent),
    /// The sandbox asked the resolver for a name.
    Dns(Dns),
    /// A request passed the gateway in a form that it could read.
    Http(Http),
    /// A connection through the gateway ended.
    Connection(Connection),
    /// The egress policy decided.
    Policy(PolicyDecision),
    /// A client called the API about this sandbox.
    Call(Call),
    /// A client typed into a terminal.
    TerminalInput {
        /// The API key that typed, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// How much.
        bytes: u64,
    },
    /// The sandbox was made.
    Created(Created),
    /// It went from one state to another.
    State {
        /// The new state, as the API names it.
        state: String,
        /// How it sleeps, when it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        /// Why, where there is a reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A snapshot of it was made.
    Snapshot {
        /// The snapshot.
        snapshot: String,
        /// What it is for: `snapshot`, `fork`, `checkpoint`, …
        purpose: String,
    },
    /// Another sandbox was made from it.
    Forked {
        /// The new sandbox. Not `sandbox`, which the API puts beside it: the one whose event it is.
        #[serde(default)]
        child: String,
    },
    /// It was put back to a snapshot, and the processes in it ended.
    RolledBack {
        /// The snapshot.
        snapshot: String,
    },
    /// What it may use or reach was changed. Names the fields that were, not their values.
    Limits {
        /// The fields.
        changed: Vec<String>,
        /// Fingerprint of the egress policy from now on, when that was changed.
        #[serde(default, skip_serializing_if = "is_zero")]
        policy_revision: u64,
    },
    /// A limit of memory was hit and the kernel killed a process inside.
    OutOfMemory,
    /// A budget was used up.
    BudgetExhausted {
        /// Which, in words.
        reason: String,
    },
    /// A command was started through the API.
    ExecStarted(ExecStarted),
    /// It ended.
    ExecEnded(ExecEnded),
    /// Events are missing here: each gap says how many, or that the number cannot be known.
    Lost(Lost),
    /// The recorder itself: began, went on after the server's end, stopped.
    Recorder(RecorderEvent),
}

/// Events that are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// How many; none when the number cannot be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Why, in words: which buffer overflowed, what was cut.
    pub reason: String,
}

/// What the recorder says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "recorder", rename_all = "snake_case")]
pub enum RecorderEvent {
    /// It began to record this sandbox, with these witnesses.
    Began {
        /// `on`, `strict`.
        mode: String,
    },
    /// A new server went on. After a clean end nothing is missing of what the server and the gateway saw.
    WentOn {
        /// Whether the server before it closed the journal.
        clean: bool,
    },
    /// The end of the journal was torn (a crash in the middle of a write) and was cut off.
    Repaired {
        /// How much was cut off.
        bytes: u64,
    },
    /// Old events were dropped, as retention says.
    Dropped {
        /// The first number that is still there.
        before: u64,
    },
    /// The clock of the host was set.
    ClockSet {
        /// By how much, milliseconds; negative: back.
        by_ms: i64,
    },
    /// From here on changes of files at and below a path are recorded; no witness recorded earlier ones.
    WatchesFiles {
        /// The path.
        path: String,
    },
    /// The server stopped in order; sandboxes go on.
    Paused,
    /// The sandbox is gone; nothing follows.
    Ended,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
const fn is_false(value: &bool) -> bool {
    !*value
}
