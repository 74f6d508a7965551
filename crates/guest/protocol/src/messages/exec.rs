//! Messages about execs: the host starts one and names it, attaches to its stream, acknowledges output, writes input and
//! sends signals; the guest tells its pid and its end, and forgets it when the host has recorded that.

use std::collections::BTreeMap;

message! {
    /// Terminal size.
    TtySize {
        /// Columns.
        #[prost(uint32, tag = "1")] pub cols: u32,
        /// Rows.
        #[prost(uint32, tag = "2")] pub rows: u32,
    }

    /// Starts an exec and streams it (`exec-start`). Starting an id that runs already, with an equal
    /// message, attaches instead: a retry does not run twice.
    StartExec {
        /// The exec's id, chosen by the host.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// Program and arguments.
        #[prost(string, repeated, tag = "2")] pub argv: Vec<String>,
        /// The whole environment, `NAME` to value. `HOME`, `USER`, `LOGNAME` and `SHELL` are added
        /// from the user database where absent.
        #[prost(btree_map = "string, string", tag = "3")] pub env: BTreeMap<String, String>,
        /// Working directory; empty for the user's home (or `/` when that is missing).
        #[prost(string, tag = "4")] pub cwd: String,
        /// User name or id, optionally `:group`.
        #[prost(string, tag = "5")] pub user: String,
        /// Run on a terminal of this size.
        #[prost(message, optional, tag = "6")] pub tty: Option<TtySize>,
        /// Keep standard input open for `exec-stdin`; otherwise it is `/dev/null`.
        #[prost(bool, tag = "7")] pub stdin: bool,
        /// The profile that it is in, and those that its processes can get into; none where it is in none.
        #[prost(message, repeated, tag = "8")] pub profiles: Vec<Confine>,
        /// When the program has ended, kill the remaining processes of all that it started; the exec has ended when
        /// none is left.
        #[prost(bool, tag = "9")] pub end_tree: bool,
    }

    /// Limits of a process in a profile: it sees nothing of processes outside the profile, and not all files.
    Confine {
        /// Files and directories whose content it neither sees nor changes.
        #[prost(string, repeated, tag = "1")] pub hide: Vec<String>,
        /// Files and directories that it does not change.
        #[prost(string, repeated, tag = "2")] pub read_only: Vec<String>,
        /// The profiles that executing a program leads to; when empty, the profile stays.
        #[prost(message, repeated, tag = "3")] pub steps: Vec<ProfileStep>,
        /// Memory that each of its processes may write to, bytes; 0 for no limit.
        #[prost(uint64, tag = "4")] pub memory_bytes: u64,
        /// Processes of its user with which it makes no more; 0 for no limit.
        #[prost(uint32, tag = "5")] pub processes: u32,
        /// CPU time of each of its processes, seconds; 0 for no limit.
        #[prost(uint32, tag = "6")] pub cpu_seconds: u32,
    }
    /// Executing a program leads to a profile.
    ProfileStep {
        /// Its path, `/DIRECTORY/*`, `/DIRECTORY/**`, or `*` for all that are not named.
        #[prost(string, tag = "1")] pub program: String,
        /// Place of the profile in [`StartExec::profiles`].
        #[prost(uint32, tag = "2")] pub profile: u32,
        /// It is a door: the program that it runs next is the one that was asked for, and leads to no other profile.
        #[prost(bool, tag = "3")] pub door: bool,
    }

    /// Streams an exec from an offset (`exec-attach`), after a reconnect.
    AttachExec {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// First output byte wanted. Everything below is safe on the host: attaching acknowledges it.
        #[prost(uint64, tag = "2")] pub offset: u64,
    }
    /// Host → guest on an exec stream: everything below `offset` is safe on the host.
    Ack {
        /// One past the last byte that is safe.
        #[prost(uint64, tag = "1")] pub offset: u64,
    }
    /// Guest → host, first on an exec stream.
    Started {
        /// Process id inside the sandbox.
        #[prost(uint32, tag = "1")] pub pid: u32,
        /// Offset of the first output byte that will follow on this stream.
        #[prost(uint64, tag = "2")] pub offset: u64,
    }
    /// Guest → host, last on an exec stream: the main process ended. All output it and its pipes'
    /// other holders wrote before the drain ended has been sent.
    Exited {
        /// Exit code, if it returned.
        #[prost(int32, optional, tag = "1")] pub code: Option<i32>,
        /// Signal, if one ended it.
        #[prost(int32, optional, tag = "2")] pub signal: Option<i32>,
        /// CPU time of the tree, microseconds, as far as the guest knows.
        #[prost(uint64, tag = "3")] pub cpu_us: u64,
    }

    /// Writes standard input (`exec-stdin`): the request body holds this, then data records. The
    /// answer comes when all bytes are in the guest's buffer.
    WriteStdin {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// Close standard input after these bytes (end-of-file; on a terminal Ctrl-D).
        #[prost(bool, tag = "2")] pub close: bool,
    }
    /// Sends a signal (`exec-signal`).
    SignalExec {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// Linux signal number, 1 to 64.
        #[prost(int32, tag = "2")] pub signal: i32,
        /// To every process the exec made, wherever it moved; otherwise to its process group.
        #[prost(bool, tag = "3")] pub tree: bool,
    }
    /// Changes the terminal's size (`exec-resize`).
    ResizeExec {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// The new size.
        #[prost(message, optional, tag = "2")] pub size: Option<TtySize>,
    }
    /// The host has the exit on its disk; the guest may forget the exec (`exec-forget`).
    ForgetExec {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
    }
    /// Lists what the guest remembers (`exec-list`).
    ListExecs {}
    /// One exec the guest remembers.
    ExecInfo {
        /// The exec's id.
        #[prost(string, tag = "1")] pub exec_id: String,
        /// Process id inside the sandbox.
        #[prost(uint32, tag = "2")] pub pid: u32,
        /// Whether the main process has ended.
        #[prost(bool, tag = "3")] pub exited: bool,
    }
    /// Answer to [`ListExecs`].
    ExecList {
        /// All of them.
        #[prost(message, repeated, tag = "1")] pub execs: Vec<ExecInfo>,
    }
}
