//! Names, limits, and the header.

use serde::{Deserialize, Serialize};

/// The format that this program writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// Directory in a data directory into which a backup is unpacked. While it is there, the data directory is not whole.
pub const STAGING: &str = ".restoring";

/// Comes first.
pub(crate) const HEADER: &[u8] = b"atoll-backup/header.json";
/// Comes last.
pub(crate) const MANIFEST: &[u8] = b"atoll-backup/manifest.jsonl";
/// What the names of members begin with.
pub(crate) const DATA: &[u8] = b"data";

/// Largest header, bytes.
pub(crate) const HEADER_MAX_BYTES: u64 = 64 << 10;
/// Longest line of a manifest, bytes: two paths, each byte of which is escaped.
pub(crate) const LINE_MAX_BYTES: u64 = 64 << 10;
/// Longest name of a member, bytes: the longest in a layer, and where that lies.
pub(crate) const PATH_MAX_BYTES: usize = 4096 + 512;
/// Longest name of one file, bytes.
pub(crate) const NAME_MAX_BYTES: usize = 255;
/// Deepest member.
pub(crate) const DEPTH_MAX_COUNT: usize = 300;
/// Largest extended header, bytes: its parts are bounded where they are made.
pub(crate) const PAX_MAX_BYTES: u64 = 16 << 20;
/// Most stretches of data in one file with holes: what is between them is written as zeros where there are more.
pub(crate) const SEGMENTS_MAX_COUNT: usize = 1 << 20;

/// Paths in a data directory that are not in a backup: they belong to this host alone, to the file system or to other
/// servers, or any server makes them anew.
const LEFT_OUT: [&[u8]; 18] = [
    b"lock",
    b"lost+found",
    b"reserve",
    b"ephemeral",
    b"run",
    b"atoll.db-shm",
    b"images/tmp",
    b"containers/scratch",
    b"containers/skeleton",
    b"containers/trash",
    b"gvisor/scratch",
    b"machines/scratch",
    b"microvm/download",
    b"microvm/kernel.new",
    b"microvm/kernel.tree",
    b"microvm/setup",
    b"storage/pool.img.new",
    STAGING.as_bytes(),
];

/// Whether a path within the data directory is left out of a backup.
pub(crate) fn is_left_out(path: &[u8]) -> bool {
    LEFT_OUT.contains(&path)
}

/// Whether a path within the data directory is in a layer of an image, where links and attributes are as in the image.
pub(crate) fn is_in_layer(path: &[u8]) -> bool {
    path.starts_with(b"images/layers/")
}

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The format, see [`FORMAT`].
    pub format: u32,
    /// Version of the program that made it.
    pub program: String,
    /// When, milliseconds since the epoch.
    pub created_at_ms: u64,
    /// Files, directories and links in it.
    pub members: u64,
    /// Bytes of their content, without holes.
    pub bytes: u64,
    /// What it is a backup of.
    pub of: Subject,
}

/// What a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Name of the installation: eight hexadecimal digits.
    pub installation: String,
    /// Whether the database is in it.
    pub database: bool,
    /// Whether the vault's key is in it.
    pub vault_key: bool,
}
