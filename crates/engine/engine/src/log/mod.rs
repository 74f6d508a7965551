//! The output log of one exec: append-only, with offsets, on the host's disk.
//!
//! Both streams share one sequence of bytes, in the order the guest read them; an *offset* counts
//! bytes of both together from the start of the exec. The log is a directory of segments, each named
//! by the offset of its first byte:
//!
//! ```text
//! 0000000000000000.data   the bytes
//! 0000000000000000.idx    16 bytes per change of stream, and each second: offset u64BE, stream u8, time u56BE
//! ```
//!
//! The time is in milliseconds since the epoch; 0 in logs of versions that kept none. An index record is written *before* the bytes it describes and says which stream they belong to
//! until the next record. So after `kill -9` at any instant the length of the newest data file is the
//! truth: every byte that arrived has its stream, and a record that points at the end is simply not
//! used yet. What the guest sent but the log does not have was never acknowledged and is sent again.
//!
//! When more than the exec's limit is kept, or all execs of the sandbox or of the installation together keep more than
//! theirs ([`Logs`]), whole segments go, oldest first; a reader that wanted them is told with [`Piece::Gap`].

mod budget;
mod reader;
mod reading;
mod segment;
mod writer;

pub(crate) use budget::{LogShare, Logs};
pub use reader::Piece;
pub(crate) use reader::{LogReader, extent, offset_since};
pub(crate) use reading::{Holding, Reading};
pub(crate) use writer::LogWriter;

/// Most bytes of one segment. Dropping works by segments, so this is also the grain of what is kept.
const SEGMENT_MAX_BYTES: u64 = 8 << 20;
/// A log keeps at least this many segments' worth, so that dropping one never empties it.
const SEGMENTS_PER_LOG: u64 = 4;
/// How often at least the index says what time it is, while something is written.
const TIMES_EVERY_MS: u64 = 1000;
/// Most bytes that one read returns.
pub const READ_MAX_BYTES: usize = 256 << 10;
/// Bytes that all readers of output together hold, which a client has not taken yet; those of one key hold no more than is
/// left to others ([`Reading`]). A reader that finds no room takes [`READ_LEAST_BYTES`] at once: it is slower, and none
/// waits for another.
pub(crate) const READING_MAX_BYTES: usize = 64 << 20;
/// Bytes that a reader may hold when others hold too many.
pub(crate) const READ_LEAST_BYTES: usize = 4 << 10;

/// Where a log begins and ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// First byte that is still kept.
    pub first: u64,
    /// One past the last byte.
    pub end: u64,
}

#[cfg(test)]
mod tests;
