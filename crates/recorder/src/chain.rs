//! Records as they lie in a file, and the chain through them.
//!
//! A record is `length u32BE, kind u8, payload, tag [u8; 8]`. The link after a record is the hash of the link before
//! it, the length, the kind and the payload; the tag is its beginning. A tag reveals accidental damage; tampering is
//! revealed only by the whole link, which checkpoints sign.

use crate::limits::RECORD_MAX_BYTES;

/// Begins every segment file.
pub(crate) const MAGIC: &[u8; 8] = b"ATOLLJ1\n";
const START_CONTEXT: &str = "atoll 2026-11-22 journal start v1";
const LINK_CONTEXT: &str = "atoll 2026-11-22 journal link v1";
const HEAD_BYTES: usize = 5;
const TAG_BYTES: usize = 8;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first record of a segment.
    Header,
    /// An event.
    Event,
    /// A signed statement of the chain's end.
    Checkpoint,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Header => 1,
            Self::Event => 2,
            Self::Checkpoint => 3,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Header),
            2 => Some(Self::Event),
            3 => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// The end of the chain so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link(pub(crate) [u8; 32]);

impl Link {
    /// Before the first record of a sandbox's journal.
    pub(crate) fn start(sandbox: &str) -> Self {
        Self(blake3::derive_key(START_CONTEXT, sandbox.as_bytes()))
    }

    /// After one more record.
    pub(crate) fn after(self, kind: Kind, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(LINK_CONTEXT);
        hasher.update(&self.0);
        hasher.update(&length(payload));
        hasher.update(&[kind.byte()]);
        hasher.update(payload);
        Self(*hasher.finalize().as_bytes())
    }

    pub(crate) fn hex(self) -> String {
        hex::encode(self.0)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    fn tag(self) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&self.0[..TAG_BYTES]);
        tag
    }
}

/// Payloads are bounded far below this.
fn length(payload: &[u8]) -> [u8; 4] {
    u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Appends a record to `out`; gives the link after it.
pub(crate) fn encode(out: &mut Vec<u8>, link: Link, kind: Kind, payload: &[u8]) -> Link {
    let next = link.after(kind, payload);
    out.extend_from_slice(&length(payload));
    out.push(kind.byte());
    out.extend_from_slice(payload);
    out.extend_from_slice(&next.tag());
    next
}

/// A record in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
    /// Bytes of the whole record.
    pub(crate) size: usize,
    tag: [u8; TAG_BYTES],
}

impl Frame<'_> {
    /// Whether the tag is that of the link after this record.
    pub(crate) fn fits(&self, after: Link) -> bool {
        self.tag == after.tag()
    }
}

/// What stands at the beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    /// A whole record.
    Frame(Frame<'a>),
    /// Nothing.
    Nothing,
    /// The beginning of a record.
    Part,
    /// No record begins so.
    Garbage,
}

/// Reads one record.
pub(crate) fn decode(bytes: &[u8]) -> Next<'_> {
    if bytes.is_empty() {
        return Next::Nothing;
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Next::Part };
    let [a, b, c, d, kind] = *head;
    let size = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    let Some(kind) = Kind::of(kind) else { return Next::Garbage };
    if size > RECORD_MAX_BYTES {
        return Next::Garbage;
    }
    let Some((payload, rest)) = rest.split_at_checked(size) else { return Next::Part };
    let Some(tag) = rest.first_chunk::<TAG_BYTES>() else { return Next::Part };
    Next::Frame(Frame { kind, payload, size: HEAD_BYTES + size + TAG_BYTES, tag: *tag })
}
