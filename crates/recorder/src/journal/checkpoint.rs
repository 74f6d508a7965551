//! The records of a journal besides events: the beginning of a segment, and signed statements of the chain's end.

use serde::{Deserialize, Serialize};

use crate::chain::Link;
use crate::key::{PublicKey, SigningKey};

/// Separates signatures of checkpoints from every other use of the key.
const CONTEXT: &[u8] = b"atoll journal checkpoint v1\0";

/// The beginning of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) sandbox: String,
    /// The key that made the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Number of the first event.
    pub(crate) first: u64,
    /// The chain's end before this record, in hexadecimal.
    pub(crate) before: String,
}

/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;

/// A signed statement: the events of this sandbox up to this number end with this link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Number of the last event.
    pub(crate) last: u64,
    pub(crate) at_us: u64,
    /// The chain's end before this record, in hexadecimal.
    pub(crate) link: String,
    /// Whether the segment ends here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) closes: bool,
    /// Whether the journal ends here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ends: bool,
    /// Which key signed.
    pub(crate) key: String,
    pub(crate) signature: String,
}

impl Checkpoint {
    pub(crate) fn sign(key: &SigningKey, sandbox: &str, last: u64, at_us: u64, link: Link, end: End) -> Self {
        let mut checkpoint = Self {
            last,
            at_us,
            link: link.hex(),
            closes: end != End::Open,
            ends: end == End::Journal,
            key: key.public().id(),
            signature: String::new(),
        };
        checkpoint.signature = key.sign(&checkpoint.message(sandbox));
        checkpoint
    }

    /// Whether it was signed with this key, for this sandbox.
    pub(crate) fn is_genuine(&self, key: &PublicKey, sandbox: &str) -> bool {
        key.verifies(&self.message(sandbox), &self.signature)
    }

    /// The bytes that are signed: every field, each of fixed length but the sandbox, whose length stands before it.
    fn message(&self, sandbox: &str) -> Vec<u8> {
        let mut message = CONTEXT.to_vec();
        message.extend_from_slice(&(sandbox.len() as u64).to_be_bytes());
        message.extend_from_slice(sandbox.as_bytes());
        message.extend_from_slice(&self.last.to_be_bytes());
        message.extend_from_slice(&self.at_us.to_be_bytes());
        message.extend_from_slice(&[u8::from(self.closes), u8::from(self.ends)]);
        message.extend_from_slice(self.link.as_bytes());
        message
    }
}

/// The thing that ends with a checkpoint: nothing, the segment, or the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Segment,
    Journal,
}
