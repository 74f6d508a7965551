//! The flight recorder: what a sandbox did, and what was done with it, outside its reach.
//!
//! ```text
//! engine, gateway, server, kernel programs
//!        │ Recorder::record(sandbox, event): bounded, never waits
//!        ▼
//!   queue of each journal ── one thread writes them down, many events with one write
//!        │
//!   TRACE_DIR/SANDBOX/00000000000000000001.log      the open segment
//!                     00000000000000000001.log.zst  a closed one: when the sandbox is gone another thread makes it, because
//!                                                   answers wait for the one that writes
//!        │
//!   Reader (from any number on)   verify (offline, with the public key)   OCSF
//! ```
//!
//! # What a journal promises
//!
//! Every record is a link of a BLAKE3 chain that begins with the sandbox's id; every so often, and at the end of each
//! segment, the end of the chain is signed with the installation's Ed25519 key. An attacker who changes, removes, adds
//! or moves a record after it was signed cannot hide it without that key. Events that are missing because a buffer was
//! full, a disk was full or a server was killed are themselves recorded as a gap.

mod abroad;
mod chain;
mod clip;
pub mod event;
#[cfg(test)]
mod fuzz;
mod journal;
mod key;
pub mod limits;
pub mod ocsf;
mod recorder;
mod redact;
mod summary;
mod verify;

pub use abroad::{Adopted, Piece, pieces, settled, unsettled};
pub use atoll_core::trace::TraceMode as Mode;
pub use event::{Event, What, Witness};
pub use journal::{Numbered, Reader, journals};
pub use key::{KeyError, PublicKey, SigningKey};
pub use recorder::{Config, NotWritten, Recorder, Retention};
pub use summary::{Node, Summary, tree};
pub use verify::{Finding, Head, Report, verify};

/// A number of 48 bits that says which version of something it is: the same content has the same.
#[must_use]
pub fn fingerprint(content: &impl serde::Serialize) -> u64 {
    let text = serde_json::to_vec(content).unwrap_or_default();
    let hash = blake3::hash(&text);
    hash.as_bytes()[..6].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Microseconds since the epoch, by the host's clock.
#[must_use]
pub fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
