//! A limit on everything an image, a registry or an archive can make us do. Units last.

use std::time::Duration;

/// Largest manifest or index, bytes. The registry specification asks for 4 MiB.
pub const MANIFEST_MAX_BYTES: u64 = 4 << 20;
/// Largest image configuration, bytes.
pub const CONFIG_MAX_BYTES: u64 = 8 << 20;
/// Largest answer of a token server, bytes.
pub const TOKEN_MAX_BYTES: u64 = 256 << 10;
/// Layers in one image. Overlayfs itself stops at 500.
pub const LAYERS_MAX_COUNT: usize = 256;
/// Manifests in one index.
pub const INDEX_MAX_COUNT: usize = 1024;
/// Indexes inside indexes.
pub const INDEX_MAX_DEPTH: usize = 4;
/// Largest compressed layer, bytes.
pub const BLOB_MAX_BYTES: u64 = 64 << 30;
/// Layers that are fetched at once.
pub const FETCH_PARALLEL_COUNT: usize = 4;
/// Entries in one layer.
pub const ENTRIES_MAX_COUNT: u64 = 2_000_000;
/// Files in a saved image archive.
pub const ARCHIVE_FILES_MAX_COUNT: usize = 4096;
/// Longest path in an archive, bytes.
pub const PATH_MAX_BYTES: usize = 4095;
/// Longest component of a path, bytes.
pub const NAME_MAX_BYTES: usize = 255;
/// Deepest directory in an archive, and in what it unpacks to, where links lead, too.
pub const DEPTH_MAX_COUNT: usize = 256;
/// Paths of directories that one layer describes, bytes, with [`DIRECTORY_COST_BYTES`] for each: they are in memory until
/// the layer is whole.
pub const DIRECTORIES_MAX_BYTES: usize = 128 << 20;
/// What a directory costs beside its path, bytes.
pub const DIRECTORY_COST_BYTES: usize = 96;
/// Names that are looked up, in one layer and in those below, to find where the layer's entries belong: some minutes' work.
pub const LOOKUPS_MAX_COUNT: u64 = 64 << 20;
/// Symbolic links followed while one parent directory is looked up, as in the kernel.
pub const SYMLINKS_MAX_COUNT: usize = 40;
/// Largest extended header or long name in an archive, bytes.
pub const EXTENSION_MAX_BYTES: u64 = 1 << 20;
/// Largest extended attribute, bytes (Linux `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_MAX_BYTES: usize = 64 << 10;
/// Extended attributes of one file.
pub const XATTRS_MAX_COUNT: usize = 128;
/// Data segments of one sparse file.
pub const SPARSE_SEGMENTS_MAX_COUNT: usize = 65_536;
/// All layers of one image unpacked, bytes, unless the operator says otherwise.
pub const UNPACKED_DEFAULT_BYTES: u64 = 64 << 30;
/// A layer may unpack to this many bytes, however small it is when compressed.
pub const RATIO_FREE_BYTES: u64 = 1 << 30;
/// Beyond [`RATIO_FREE_BYTES`], unpacked bytes per compressed byte. Gzip cannot exceed 1032.
pub const RATIO_MAX: u64 = 2_000;
/// No byte from the registry for this long is a stall.
pub const STALL_DEFAULT: Duration = Duration::from_secs(30);
/// So many bytes have to come of one answer in each [`FLOW_WINDOW`] that is spent waiting for it: 140 kbit/s.
pub const FLOW_MIN_BYTES: u64 = 1 << 20;
/// See [`FLOW_MIN_BYTES`].
pub const FLOW_WINDOW: Duration = Duration::from_secs(60);
/// Time to make a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts in a row that brought less than [`FLOW_MIN_BYTES`], after which a registry counts as unavailable.
pub const ATTEMPTS_MAX_COUNT: u32 = 5;
/// Attempts for one blob, with progress or without.
pub const ATTEMPTS_TOTAL_MAX_COUNT: u32 = 200;
/// First pause between attempts; it doubles.
pub const BACKOFF_MIN: Duration = Duration::from_millis(250);
/// Longest pause between attempts, also when the registry asks for a longer one.
pub const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// Redirects followed for one request.
pub const REDIRECTS_MAX_COUNT: usize = 5;
/// Longest description of an image that nodes give each other, bytes.
pub const DOCUMENT_MAX_BYTES: usize = 1 << 20;
/// Shortest prefix of a digest that stands for an image.
pub const DIGEST_PREFIX_MIN_CHARS: usize = 12;
/// Longest text taken over from an image's configuration into messages and listings, bytes.
pub const TEXT_MAX_BYTES: usize = 256;
/// How often the progress of an unpacking layer is reported.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
