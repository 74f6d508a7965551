//! How much of what is kept.

use std::time::Duration;

/// Most characters of any text in an event; longer ones are cut.
pub const TEXT_MAX_CHARS: usize = 512;
/// Most characters of a name in a list.
pub const NAME_MAX_CHARS: usize = 128;
/// Most arguments, variables or addresses in one event.
pub const LIST_MAX_COUNT: usize = 64;
/// Most characters of all arguments of a command together.
pub const ARGV_MAX_CHARS: usize = 4096;
/// Largest record, bytes: what the limits above allow, as JSON with everything escaped.
pub const RECORD_MAX_BYTES: usize = 128 << 10;
/// Most events of one sandbox that wait to be written; what comes then is lost and counted.
pub const WAITING_MAX_COUNT: usize = 8192;
/// Most events of all sandboxes together that wait to be written.
pub const WAITING_ALL_MAX_COUNT: usize = 65_536;
/// A segment is closed and compressed when it has so many bytes.
pub const SEGMENT_MAX_BYTES: u64 = 1 << 20;
/// A checkpoint is signed after so many records.
pub const CHECKPOINT_EVERY_COUNT: u64 = 256;
/// A checkpoint is signed when records have waited for one so long.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(5);
/// A step of the wall clock that is more than this is an event.
pub const CLOCK_STEP_MIN: Duration = Duration::from_secs(2);
