//! A journal on disk: the segments of one sandbox.

mod checkpoint;
mod reader;
mod segment;
mod writer;

pub(crate) use checkpoint::{Checkpoint, Header, VERSION};
pub use reader::{Numbered, Reader};
pub use segment::journals;
pub(crate) use segment::{Segment, Unpacked, list, read, read_head};
pub(crate) use writer::{JournalWriter, Moment, Opened, by_server};

#[cfg(test)]
mod tests;
