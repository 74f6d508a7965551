//! Messages about files: one path, directories, searches, whole trees as tar streams, and changes as they happen. All paths
//! are the sandbox's; what the guest answers about them is hostile text.

use std::collections::BTreeMap;

message! {
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
    /// Reads a path as a tar stream (`pack`): data records.
    Pack {
        /// File or directory. Member names are relative to its parent.
        #[prost(string, tag = "1")] pub path: String,
    }
    /// Unpacks a tar stream below a directory (`unpack`): the request body holds this, then data
    /// records. Members that lead outside the directory end it with [`Reason::Invalid`](super::Reason::Invalid).
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
