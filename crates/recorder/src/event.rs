//! What is recorded: [`Event`], and its [`Witness`].
//!
//! An event is what a *witness* says. Witnesses differ in what they can know and in which attacker could make them lie,
//! so each event names its witness, and events of different witnesses are never merged: a guest's word for a connection
//! is another event than the gateway's record of it.
//!
//! No event has a place for a secret: environment variables are names, requests have no query and no headers, input
//! of terminals is counted. A command line that a caller writes is recorded without words that look like a credential.

mod kind;

use std::net::{IpAddr, SocketAddr};

use atoll_core::id::ExecId;
use serde::{Deserialize, Serialize};

pub use kind::KINDS;

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

/// A program that began to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStarted {
    /// Arguments, cut as [`crate::limits`] says.
    pub argv: Vec<String>,
    /// Whether arguments were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Working directory, as the sandbox sees it; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// User id inside.
    pub uid: u32,
    /// Path of the program, as the caller named it: a hint, `file` is what ran.
    pub path: String,
    /// What ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Program>,
    /// The process that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Process>,
    /// The profile that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// The file that a process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Device of the real file.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// BLAKE3 or SHA-256 of its content, as `blake3:…` or `sha256:…`, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The image layer that brought it, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
}

/// Where a program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A layer of the image, unchanged.
    Image,
    /// Written or changed in the sandbox.
    Written,
    /// A volume, a memory file, or anything else.
    Other,
    /// What this installation shows to a sandbox whose processes may ask for other profiles: `atoll-run`, and the doors to profiles.
    Atoll,
}

/// A process that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExited {
    /// What it gave to `exit`, when it was not killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// CPU time of all its threads, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_us: u64,
    /// Most memory it had, bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_peak_bytes: u64,
}

/// An end of a connection, as a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// `tcp`, `udp`.
    pub protocol: Transport,
    /// This end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// The other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Anything else.
    Other,
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// What was done.
    pub action: FileAction,
    /// To which path, as the sandbox sees it.
    pub path: String,
    /// The new path of a renamed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Digest of what was written, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAction {
    /// Made.
    Created,
    /// Closed after writing.
    Written,
    /// Removed.
    Deleted,
    /// Got another name.
    Renamed,
}

/// A question to the resolver and its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// The name.
    pub name: String,
    /// `A`, `AAAA`, …
    pub record: String,
    /// `NOERROR`, `NXDOMAIN`, `REFUSED`, `SERVFAIL`.
    pub answer: String,
    /// Addresses of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Whether it was looked up although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
}

/// A request that the gateway saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// Number of the connection, as in [`Connection::connection`].
    pub connection: u64,
    /// Method.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path without the query.
    pub path: String,
    /// Status of the answer; none when there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes of the request's body.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// Bytes of the answer's body.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received_bytes: u64,
    /// From the request's head to the answer's head, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_us: u64,
    /// From the request's head to the end of the answer, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duration_us: u64,
    /// The rule that allowed it, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Whether it passed although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// Names of the secrets that were put in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Where it led, as the policy was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Box<Destination>>,
}

/// Where something leads on the network, as the policy was asked about it: enough to ask another policy the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The name that is meant when it is one, or all that it may be meant by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The address; none when only a name was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Whether the address is the host's own, or leads to the server.
    #[serde(default, skip_serializing_if = "is_false")]
    pub own: bool,
    /// The network that the operator closed and that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Whether it is TLS.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tls: bool,
    /// The request's method, where the policy was asked about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The request's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A connection through the gateway, at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Counts a sandbox's connections since its network was taken up. Not `number`, which is the event's own beside it.
    pub connection: u64,
    /// The name it was meant for, if that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where it led, when it got so far as to lead anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What it spoke, as far as its first bytes told: `tls`, `http`, `tcp`, `proxy`, `udp`.
    pub protocol: String,
    /// Bytes out of the sandbox.
    pub sent_bytes: u64,
    /// Bytes into it.
    pub received_bytes: u64,
    /// How long it was open, microseconds.
    pub duration_us: u64,
}

/// A decision of the egress policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDecision {
    /// Whether it may pass.
    pub allowed: bool,
    /// Where it was decided: `dns`, `connect`, `request`, `limit`.
    pub stage: String,
    /// What it was about: `GET https://example.com/x`, `example.com:443`.
    pub subject: String,
    /// The rule, or that there is none, in words.
    pub rule: String,
    /// Which policy decided: its fingerprint, as in [`What::Limits`].
    pub policy_revision: u64,
    /// How often the same was decided since the last such event, this one included, when more than once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u64,
    /// Whether it passed although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// What would allow it, as arguments of the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<String>,
    /// Where it led; none for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Box<Destination>>,
}

/// A call of an API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `atoll`, `langsmith`, `e2b`, `ssh`, …
    pub protocol: String,
    /// HTTP method, or the word of the protocol.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// The id of the API key; none when the caller had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The person whose key it is, if a person logged in: the issuer's name for them, and the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Their address for mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The name that the caller gave for the client that works with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The id of the request, as in the server's log.
    pub request_id: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// The error's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Until the answer's head, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_us: u64,
    /// The trace that the caller belongs to (W3C `traceparent`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// What a sandbox was made as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `container`, `gvisor`, `microvm`.
    pub isolation: String,
    /// The image or snapshot it was made from.
    pub source: String,
    /// The key that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// CPU, in thousandths of a core.
    pub cpu_millis: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
}

/// A command that was started through the API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// Arguments.
    pub argv: Vec<String>,
    /// Whether arguments were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Working directory; empty: the image's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// User; empty: the image's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Names of the variables that were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Whether it runs on a terminal.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tty: bool,
    /// The key that asked; none for what a template starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Pid inside, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The caller's span (W3C `traceparent`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A command that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnded {
    /// Exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How it came to its end, as the API names it.
    pub reason: String,
    /// CPU time of its whole tree, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_us: u64,
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
