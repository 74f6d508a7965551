//! Protobuf messages. The tags are the contract: never reuse one.

use std::collections::BTreeMap;

macro_rules! message {
    ($($(#[$doc:meta])* $name:ident { $($body:tt)* })*) => {
        $($(#[$doc])* #[derive(Clone, PartialEq, Eq, prost::Message)] pub struct $name { $($body)* })*
    };
}

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

    /// The record of a file.
    FileInfo {
        /// Full path, or the name below the listed directory.
        #[prost(string, tag = "1")] pub path: String,
        /// A [`FileKind`].
        #[prost(enumeration = "FileKind", tag = "2")] pub kind: i32,
        /// Size in bytes.
        #[prost(uint64, tag = "3")] pub size: u64,
        /// Permission bits, `0o7777`.
        #[prost(uint32, tag = "4")] pub mode: u32,
        /// Owner id.
        #[prost(uint32, tag = "5")] pub uid: u32,
        /// Group id.
        #[prost(uint32, tag = "6")] pub gid: u32,
        /// Last modification, nanoseconds since the epoch.
        #[prost(int64, tag = "7")] pub modified_ns: i64,
        /// Where a symbolic link points.
        #[prost(string, tag = "8")] pub target: String,
        /// Owner name, empty when the id has none.
        #[prost(string, tag = "9")] pub user: String,
        /// Group name, empty when the id has none.
        #[prost(string, tag = "10")] pub group: String,
    }
    /// Describes one path (`stat`).
    Stat {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// Describe a symbolic link itself.
        #[prost(bool, tag = "2")] pub no_follow: bool,
    }
    /// Lists a directory (`list`): the answer is [`FileInfo`] records, then the end.
    List {
        /// The directory.
        #[prost(string, tag = "1")] pub path: String,
        /// Levels below it: 1 is its own entries. Symbolic links are not followed.
        #[prost(uint32, tag = "2")] pub depth: u32,
        /// Most entries to send; more are cut and said so by a [`Truncated`].
        #[prost(uint32, tag = "3")] pub max_entries: u32,
    }
    /// Finds files by the pattern of their path, or lines in them (`find`): the answer is [`Found`] records,
    /// then the end. Symbolic links are not followed, and neither `/proc` nor `/sys` is entered.
    Find {
        /// The directory below which to look.
        #[prost(string, tag = "1")] pub path: String,
        /// The pattern of paths below it; empty for all. `*`, `?` and `[…]` stand for characters of one name, `**` for
        /// any number of names.
        #[prost(string, tag = "2")] pub pattern: String,
        /// Text to look for in the files, as it is; empty to find the files themselves.
        #[prost(string, tag = "3")] pub text: String,
        /// Most records to send; more are cut and said so by a [`Truncated`].
        #[prost(uint32, tag = "4")] pub max_count: u32,
    }
    /// A match of the search.
    Found {
        /// The file. Its path is relative to the directory that was searched.
        #[prost(message, optional, tag = "1")] pub info: Option<FileInfo>,
        /// Number of the line, from 1; 0 when files are looked for.
        #[prost(uint64, tag = "2")] pub line: u64,
        /// The line, or its beginning.
        #[prost(string, tag = "3")] pub text: String,
    }
    /// Last record of a listing that was cut.
    Truncated {}
    /// Reads a file (`read`): the answer is a [`FileInfo`], then data records.
    Read {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// First byte.
        #[prost(uint64, tag = "2")] pub offset: u64,
        /// Most bytes; 0 for all.
        #[prost(uint64, tag = "3")] pub length: u64,
    }
    /// Writes a file (`write`): the request body holds this, then data records. The file appears
    /// whole or not at all: it is written beside its place and renamed when the body ends properly.
    Write {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// Permission bits of a new file; 0 for 0644. An existing file keeps its own unless set.
        #[prost(uint32, tag = "2")] pub mode: u32,
        /// Owner of a new file and of directories made for it: name or id, optionally `:group`.
        #[prost(string, tag = "3")] pub user: String,
        /// Make missing directories.
        #[prost(bool, tag = "4")] pub parents: bool,
        /// Write into the file that is there rather than beside it, and give it to `user`: a program that watches it or
        /// has it open sees it change, also half-way. A new file is made so, too.
        #[prost(bool, tag = "5")] pub in_place: bool,
    }
    /// Makes a directory (`mkdir`).
    Mkdir {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// Permission bits; 0 for 0755.
        #[prost(uint32, tag = "2")] pub mode: u32,
        /// Owner: name or id, optionally `:group`.
        #[prost(string, tag = "3")] pub user: String,
        /// Make missing parents, and do not mind if it exists.
        #[prost(bool, tag = "4")] pub parents: bool,
    }
    /// Removes a file or directory (`remove`).
    Remove {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// With everything below.
        #[prost(bool, tag = "2")] pub recursive: bool,
    }
    /// Renames (`rename`).
    Rename {
        /// From.
        #[prost(string, tag = "1")] pub from: String,
        /// To; replaced if it is a file, unless `no_replace`.
        #[prost(string, tag = "2")] pub to: String,
        /// Fail when `to` exists.
        #[prost(bool, tag = "3")] pub no_replace: bool,
    }
    /// Changes permission bits and owner (`chmod`).
    Chmod {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// New bits.
        #[prost(uint32, optional, tag = "2")] pub mode: Option<u32>,
        /// New owner: name or id, optionally `:group`; empty leaves it.
        #[prost(string, tag = "3")] pub user: String,
    }
    /// Says more about paths than a listing does (`describe`): the answer is a [`Described`] record for each, in
    /// order, then the end.
    Describe {
        /// The paths.
        #[prost(string, repeated, tag = "1")] pub paths: Vec<String>,
        /// Extended attributes whose names begin so are told; none when it is empty.
        #[prost(string, tag = "2")] pub attributes: String,
    }
    /// A path's own record, and that of the path it leads to.
    Described {
        /// The path itself, a symbolic link not followed; absent when there is nothing.
        #[prost(message, optional, tag = "1")] pub info: Option<FileInfo>,
        /// The path that it leads to in the end, if it is a symbolic link that leads to an existing one. The path is
        /// the real one.
        #[prost(message, optional, tag = "2")] pub resolved: Option<FileInfo>,
        /// The extended attributes that were asked for, without the beginning of their names, of the path that it leads
        /// to. Values that are no text are left out.
        #[prost(btree_map = "string, string", tag = "3")] pub attributes: BTreeMap<String, String>,
    }
    /// Replaces a file's extended attributes whose names begin with a prefix (`attributes`).
    SetAttributes {
        /// The path.
        #[prost(string, tag = "1")] pub path: String,
        /// The beginning of their names; must begin with `user.`.
        #[prost(string, tag = "2")] pub prefix: String,
        /// The rest of their names, and their values.
        #[prost(btree_map = "string, string", tag = "3")] pub attributes: BTreeMap<String, String>,
    }
    /// Success without more to say; also the number of bytes where one was written.
    Done {
        /// Bytes written.
        #[prost(uint64, tag = "1")] pub bytes: u64,
    }
    /// Reads a path as a tar stream (`pack`): data records.
    Pack {
        /// File or directory. Member names are relative to its parent.
        #[prost(string, tag = "1")] pub path: String,
    }
    /// Unpacks a tar stream below a directory (`unpack`): the request body holds this, then data
    /// records. Members that lead outside the directory end it with [`Reason::Invalid`].
    Unpack {
        /// The directory; made when it is absent.
        #[prost(string, tag = "1")] pub path: String,
        /// Owner of everything unpacked; empty keeps the archive's numbers.
        #[prost(string, tag = "2")] pub user: String,
    }

    /// Watches a path (`watch`): [`Watching`] once it is set up, then [`WatchEvent`] records until the
    /// host ends the stream.
    Watch {
        /// File or directory.
        #[prost(string, tag = "1")] pub path: String,
        /// With everything below, also what appears later.
        #[prost(bool, tag = "2")] pub recursive: bool,
        /// Report marks ([`MarkWatches`]).
        #[prost(bool, tag = "3")] pub marks: bool,
    }
    /// Puts a mark behind everything that has happened so far (`watch-mark`): each watch that reports marks sends it as
    /// a [`ChangeKind::Mark`] once it has sent the changes before it.
    MarkWatches {
        /// A number that grows with each call.
        #[prost(uint64, tag = "1")] pub mark: u64,
    }
    /// The watch is in place: changes from here on are reported.
    Watching {}
    /// One change.
    WatchEvent {
        /// A [`ChangeKind`].
        #[prost(enumeration = "ChangeKind", tag = "1")] pub kind: i32,
        /// The path.
        #[prost(string, tag = "2")] pub path: String,
        /// Where a moved path came from, when that is known.
        #[prost(string, tag = "3")] pub from: String,
        /// The number of a mark, or of a later one.
        #[prost(uint64, tag = "4")] pub mark: u64,
    }

    /// Connects to a port on the sandbox's loopback (`dial`): [`Done`] when connected, then data records both ways; end
    /// of body is end-of-file of that direction. The host tells by [`Ack`] how many bytes it has passed on.
    Dial {
        /// TCP port.
        #[prost(uint32, tag = "1")] pub port: u32,
        /// Most bytes under way to the host that it has not acknowledged; 0 for no limit. A connection that its client
        /// does not read must not use up the window that all operations share.
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
        /// To the explicit proxy of the sandbox's network instead: `port` is not looked at.
        #[prost(bool, tag = "3")] pub proxy: bool,
    }
    /// Listens on a port of the sandbox's loopback (`listen`): [`Listening`], then an [`Incoming`] for each
    /// connection. The guest stops listening when the stream ends.
    Listen {
        /// TCP port; 0 for any.
        #[prost(uint32, tag = "1")] pub port: u32,
    }
    /// Answer to [`Listen`].
    Listening {
        /// The port.
        #[prost(uint32, tag = "1")] pub port: u32,
    }
    /// A program in the sandbox connected. The connection waits a while to be taken.
    Incoming {
        /// Names the connection.
        #[prost(uint64, tag = "1")] pub connection: u64,
    }
    /// Takes a connection (`accept`): goes on like [`Dial`].
    Accept {
        /// From [`Incoming`].
        #[prost(uint64, tag = "1")] pub connection: u64,
        /// As in [`Dial`].
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
    }
    /// An SFTP session (`sftp`): goes on like [`Dial`]; the data are the protocol's packets.
    Sftp {
        /// The user it is for: name or id, optionally `:group`; empty for root.
        #[prost(string, tag = "1")] pub user: String,
        /// As in [`Dial`].
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
        /// Where relative paths begin; empty, or missing inside, for the user's home.
        #[prost(string, tag = "3")] pub cwd: String,
    }
    /// Lists listening TCP ports (`ports`).
    ListPorts {}
    /// Answer to [`ListPorts`].
    PortList {
        /// Ports, ascending, each once.
        #[prost(uint32, repeated, tag = "1")] pub ports: Vec<u32>,
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

/// The kind of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FileKind {
    /// Any other kind: device, socket, pipe.
    Other = 0,
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
}

/// The kind of change of a watched path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChangeKind {
    /// Events were lost: look again.
    Overflow = 0,
    /// Came into being.
    Created = 1,
    /// Content changed.
    Written = 2,
    /// Went away.
    Removed = 3,
    /// Renamed to `path`.
    Moved = 4,
    /// Permissions, owner or times changed.
    Attributes = 5,
    /// A mark: nothing happened.
    Mark = 6,
}
