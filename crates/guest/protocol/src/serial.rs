//! Connections over a serial port, which has none of its own: how a microVM's guest is reached.
//!
//! A virtio-serial port is one byte stream for the life of the machine. The host at its other end comes and goes (its
//! server restarts, a saved machine is restored many times), and bytes that are under way then are cut off at any
//! point. So the stream consists of frames that both sides find again from anywhere:
//!
//! ```text
//! frame = COBS( kind, payload ) 0x00          COBS leaves no zero byte in what it encodes
//! ```
//!
//! A machine has two ports. On [`AGENT_PORT`] the host begins a connection with a zero (which ends a frame that was
//! cut) and [`Kind::Open`]; the guest answers [`Kind::Opened`] with the same nonce, and the host ignores everything
//! that it hears before that. From then on both send [`Kind::Data`], until either sends [`Kind::Close`] or the host
//! opens the next one. There is one connection at a time.
//!
//! On [`CONTROL_PORT`] the driver asks ([`Kind::Ask`]) and the machine answers ([`Kind::Answer`]): see
//! [`crate::control`].

use prost::Message;

use crate::wire::WireError;

/// Name of the port that carries connections to the agent.
pub const AGENT_PORT: &str = "atoll.agent";
/// Name of the port over which the driver rules the machine.
pub const CONTROL_PORT: &str = "atoll.control";
/// Largest payload of a frame, bytes.
pub const PAYLOAD_MAX_BYTES: usize = 32 << 10;
/// Most bytes of a frame on the wire without its zero: one more for every 254, and the kind.
const FRAME_MAX_BYTES: usize = PAYLOAD_MAX_BYTES + PAYLOAD_MAX_BYTES / 254 + 3;
/// Longest run without a zero that one code byte describes.
const RUN_MAX: usize = 254;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Host: begins a connection. An [`Open`].
    Open,
    /// Guest: it has begun. An [`Opened`].
    Opened,
    /// Bytes of the connection.
    Data,
    /// The connection is over.
    Close,
    /// Host: an [`Ask`](crate::control::Ask).
    Ask,
    /// Guest: an [`Answer`](crate::control::Answer).
    Answer,
}

impl Kind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Opened => 2,
            Self::Data => 3,
            Self::Close => 4,
            Self::Ask => 5,
            Self::Answer => 6,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Open),
            2 => Some(Self::Opened),
            3 => Some(Self::Data),
            4 => Some(Self::Close),
            5 => Some(Self::Ask),
            6 => Some(Self::Answer),
            _ => None,
        }
    }
}

/// Begins a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Open {
    /// Comes back in [`Opened`].
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
}

/// The connection has begun, or why it cannot.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Opened {
    /// The nonce of the [`Open`] it answers.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    /// Why the machine cannot be used; empty when it can.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes, at most [`PAYLOAD_MAX_BYTES`].
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads the message that the frame must hold.
    ///
    /// # Errors
    /// [`WireError::Message`].
    pub fn message<M: Message + Default>(&self) -> Result<M, WireError> {
        M::decode(self.payload.as_slice()).or(Err(WireError::Message))
    }
}

/// Appends a frame to `out`.
///
/// # Panics
/// When the payload is larger than [`PAYLOAD_MAX_BYTES`]: our own code must cut before.
pub fn encode(kind: Kind, payload: &[u8], out: &mut Vec<u8>) {
    assert!(payload.len() <= PAYLOAD_MAX_BYTES, "frame of {} bytes", payload.len());
    out.reserve(payload.len() + payload.len() / RUN_MAX + 4);
    // The kind is no zero: it begins the first run.
    let mut run = [kind.to_byte()].to_vec();
    for piece in payload.split_inclusive(|byte| *byte == 0) {
        let (bytes, zero) = match piece.split_last() {
            Some((0, bytes)) => (bytes, true),
            _ => (piece, false),
        };
        let mut bytes = bytes;
        while run.len() + bytes.len() >= RUN_MAX {
            let (now, later) = bytes.split_at(RUN_MAX - run.len());
            put_run(&run, now, 255, out);
            run.clear();
            bytes = later;
        }
        if zero {
            put_run(&run, bytes, run.len() + bytes.len() + 1, out);
            run.clear();
        } else {
            run.extend_from_slice(bytes);
        }
    }
    put_run(&run, &[], run.len() + 1, out);
    out.push(0);
}

/// Appends a frame that holds a message.
pub fn encode_message(kind: Kind, message: &impl Message, out: &mut Vec<u8>) {
    encode(kind, &message.encode_to_vec(), out);
}

fn put_run(start: &[u8], rest: &[u8], code: usize, out: &mut Vec<u8>) {
    // A run has at most 254 bytes, so that its code fits.
    out.push(u8::try_from(code).unwrap_or(u8::MAX));
    out.extend_from_slice(start);
    out.extend_from_slice(rest);
}

fn decode(encoded: &[u8]) -> Option<Frame> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((code, tail)) = rest.split_first() {
        let len = usize::from(*code) - 1;
        let (run, tail) = tail.split_at_checked(len)?;
        bytes.extend_from_slice(run);
        rest = tail;
        // The last run ends with the frame, whose own zero is none of the payload's.
        if *code != u8::MAX && !rest.is_empty() {
            bytes.push(0);
        }
    }
    let kind = Kind::from_byte(*bytes.first()?)?;
    bytes.remove(0);
    (bytes.len() <= PAYLOAD_MAX_BYTES).then_some(Frame { kind, payload: bytes })
}

/// Finds frames in the bytes that arrive. Bytes that are no frame are left out: they were cut, or the
/// peer is broken, and either way the connection's own protocol notices.
#[derive(Debug, Default)]
pub struct Deframer {
    /// Bytes since the last zero, at most one frame's.
    partial: Vec<u8>,
    /// More came than a frame can have: skip to the next zero.
    skipping: bool,
}

impl Deframer {
    /// Nothing has arrived.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes that arrived, and calls `with` for each frame that it completes.
    pub fn push(&mut self, mut bytes: &[u8], mut with: impl FnMut(Frame)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if !self.skipping
                && let Some(frame) = decode(&self.partial)
            {
                with(frame);
            }
            self.partial.clear();
            self.skipping = false;
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.skipping || self.partial.len() + bytes.len() > FRAME_MAX_BYTES {
            self.skipping = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut found = Vec::new();
        Deframer::new().push(bytes, |frame| found.push(frame));
        found
    }

    #[test]
    fn frames_at_their_edges() {
        for len in [0, 1, 252, 253, 254, 255, 507, 508, 509, PAYLOAD_MAX_BYTES] {
            for fill in [0_u8, 1, 255] {
                let payload = vec![fill; len];
                let mut out = Vec::new();
                encode(Kind::Data, &payload, &mut out);
                assert!(out.len() <= FRAME_MAX_BYTES + 1, "{len} {fill}");
                assert_eq!(out.iter().filter(|byte| **byte == 0).count(), 1);
                assert_eq!(frames(&out), [Frame { kind: Kind::Data, payload }], "{len} {fill}");
            }
        }
    }

    #[test]
    fn a_connection_begins_after_anything() {
        let open = Open { nonce: 7 << 32 };
        let mut cut = Vec::new();
        encode(Kind::Data, &[9; 1000], &mut cut);
        cut.truncate(500);
        cut.push(0);
        encode_message(Kind::Open, &open, &mut cut);
        let last = frames(&cut).pop().unwrap();
        assert_eq!((last.kind, last.message::<Open>().unwrap()), (Kind::Open, open));
    }

    #[test]
    fn an_endless_frame_is_skipped() {
        let mut bytes = vec![1; FRAME_MAX_BYTES * 3];
        bytes.push(0);
        encode(Kind::Close, &[], &mut bytes);
        assert_eq!(frames(&bytes), [Frame { kind: Kind::Close, payload: Vec::new() }]);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_however_it_is_cut(
            payloads in prop::collection::vec(prop::collection::vec(0_u8..3, 0..1200), 1..5),
            cut in 1_usize..600,
        ) {
            let mut wire = Vec::new();
            for payload in &payloads {
                encode(Kind::Data, payload, &mut wire);
            }
            let mut deframer = Deframer::new();
            let mut found = Vec::new();
            for piece in wire.chunks(cut) {
                deframer.push(piece, |frame| found.push(frame.payload));
            }
            prop_assert_eq!(found, payloads);
        }

        #[test]
        fn anything_may_arrive(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            for frame in frames(&bytes) {
                prop_assert!(frame.payload.len() <= PAYLOAD_MAX_BYTES);
            }
        }
    }
}
