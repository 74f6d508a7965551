//! Protobuf messages. The tags are the contract: never reuse one.
//!
//! Here is what concerns a connection and the sandbox as a whole; `exec`, `files` and `ports` have the messages about
//! those. In which of them a message is written down does not travel.

macro_rules! message {
    ($($(#[$doc:meta])* $name:ident { $($body:tt)* })*) => {
        $($(#[$doc])* #[derive(Clone, PartialEq, Eq, prost::Message)] pub struct $name { $($body)* })*
    };
}

mod exec;
mod files;
mod ports;

pub use exec::{
    Ack, AttachExec, Confine, ExecInfo, ExecList, Exited, ForgetExec, ListExecs, ProfileStep, ResizeExec,
    SignalExec, StartExec, Started, TtySize, WriteStdin,
};
pub use files::{
    ChangeKind, Chmod, Describe, Described, FileInfo, FileKind, Find, Found, List, MarkWatches, Mkdir, Pack,
    Read, Remove, Rename, SetAttributes, Stat, Truncated, Unpack, Watch, WatchEvent, Watching, Write,
};
pub use ports::{Accept, Dial, Incoming, ListPorts, Listen, Listening, PortList, Sftp};

/// Why the guest refused or failed. The numeric value travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// Anything without a reason of its own; see the message.
    Other = 0,
    /// No such file or directory.
    NotFound = 1,
    /// Exists already.
    Exists = 2,
    /// Not a directory.
    NotADirectory = 3,
    /// Is a directory.
    IsADirectory = 4,
    /// Directory not empty.
    NotEmpty = 5,
    /// Permission denied (`EACCES`, `EPERM`, read-only).
    Denied = 6,
    /// No space left in the sandbox.
    NoSpace = 7,
    /// A path or a member is malformed.
    Invalid = 8,
    /// No such exec.
    NoSuchExec = 9,
    /// The exec has ended.
    ExecEnded = 10,
    /// Standard input is closed, or there is none.
    StdinClosed = 11,
    /// The exec has no terminal.
    NotATerminal = 12,
    /// The working directory does not exist.
    CwdNotFound = 13,
    /// The user does not exist.
    UserNotFound = 14,
    /// The command does not exist.
    CommandNotFound = 15,
    /// The command cannot be executed.
    CommandNotExecutable = 16,
    /// Nothing listens on the port.
    PortClosed = 17,
    /// No more processes can be made in the sandbox.
    NoProcesses = 18,
    /// Out of memory in the sandbox.
    NoMemory = 19,
    /// An exec with this id exists already with another spec.
    Conflict = 20,
    /// A program listens on the port already.
    PortTaken = 21,
}

message! {
    /// A refusal or failure; ends any operation.
    Failure {
        /// A [`Reason`].
        #[prost(enumeration = "Reason", tag = "1")] pub reason: i32,
        /// A short sentence. Hostile text: the host bounds and cleans it before showing.
        #[prost(string, tag = "2")] pub message: String,
    }

    /// First operation on every connection (`hello`): who are you, is it you?
    Hello {
        /// The host's [`crate::VERSION`].
        #[prost(uint32, tag = "1")] pub version: u32,
        /// The sandbox the host believes it talks to.
        #[prost(string, tag = "2")] pub sandbox_id: String,
    }
    /// Answer to [`Hello`].
    Welcome {
        /// The guest's [`crate::VERSION`].
        #[prost(uint32, tag = "1")] pub version: u32,
        /// Random, made when this guest started: tells a restarted guest from the same one.
        #[prost(string, tag = "2")] pub boot_id: String,
    }

    /// Sets identity, environment and clock (`configure`). May be repeated.
    Configure {
        /// Host name.
        #[prost(string, tag = "1")] pub hostname: String,
        /// Nanoseconds since the epoch to set the clock to; 0 leaves it (containers share the host's).
        #[prost(uint64, tag = "2")] pub clock_unix_ns: u64,
        /// Directory to make when it is absent, owned by `workdir_user`; empty for none.
        #[prost(string, tag = "3")] pub workdir: String,
        /// Owner of a working directory that had to be made.
        #[prost(string, tag = "4")] pub workdir_user: String,
    }

    /// Makes programs accept certificates of this authority (`trust`). May be repeated.
    InstallTrust {
        /// The authority's certificate, PEM.
        #[prost(string, tag = "1")] pub ca_pem: String,
        /// Public authorities, PEM, for an image that has no list of them.
        #[prost(string, tag = "2")] pub roots_pem: String,
    }
    /// Success without more to say; also the number of bytes where one was written.
    Done {
        /// Bytes written.
        #[prost(uint64, tag = "1")] pub bytes: u64,
    }

    /// The sandbox's use of resources, seen from inside (`metrics`).
    GetMetrics {}
    /// Answer to [`GetMetrics`].
    Metrics {
        /// Processes.
        #[prost(uint32, tag = "1")] pub processes: u32,
        /// Size of the root file system, bytes.
        #[prost(uint64, tag = "2")] pub disk_total_bytes: u64,
        /// Used of it, bytes.
        #[prost(uint64, tag = "3")] pub disk_used_bytes: u64,
        /// Resident memory of the agent itself, bytes.
        #[prost(uint64, tag = "4")] pub agent_rss_bytes: u64,
        /// Seconds since the guest started.
        #[prost(uint64, tag = "5")] pub uptime_s: u64,
        /// One-minute load average, thousandths.
        #[prost(uint32, tag = "6")] pub load_1m_millis: u32,
        /// Memory of all processes, resident, bytes (double counts shared pages).
        #[prost(uint64, tag = "7")] pub processes_rss_bytes: u64,
    }
}
