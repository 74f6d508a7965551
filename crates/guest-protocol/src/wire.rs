//! Records: how messages and bytes lie in a body.
//!
//! ```text
//! ┌──────┬───────────────┬─────────┐
//! │ kind │ length, u32BE │ payload │
//! └──────┴───────────────┴─────────┘
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Largest payload of one record, bytes. A larger length is a protocol violation.
pub const RECORD_MAX_BYTES: usize = 1 << 20;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A protobuf message; which one follows from the operation and the position.
    Message,
    /// Raw bytes; on an exec stream, standard output.
    Data,
    /// Raw bytes of standard error, on an exec stream.
    DataErr,
    /// A [`crate::messages::Failure`]; the last record.
    Failure,
    /// A closing message: [`crate::messages::Exited`], [`crate::messages::Truncated`] or
    /// [`crate::messages::Done`].
    Last,
}

impl Kind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Data => 2,
            Self::DataErr => 3,
            Self::Failure => 4,
            Self::Last => 5,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Message),
            2 => Some(Self::Data),
            3 => Some(Self::DataErr),
            4 => Some(Self::Failure),
            5 => Some(Self::Last),
            _ => None,
        }
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it holds.
    pub kind: Kind,
    /// The bytes.
    pub payload: Bytes,
}

/// The peer sent something that is no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Unknown kind byte.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// The length is over [`RECORD_MAX_BYTES`].
    #[error("record of {0} bytes is too large")]
    TooLarge(u32),
    /// The payload is not the message that belongs here.
    #[error("record does not hold the expected message")]
    Message,
    /// The body ended inside a record.
    #[error("body ended inside a record")]
    Truncated,
}

/// The header of a record with a payload of `len` bytes.
///
/// # Panics
/// When `len` exceeds [`RECORD_MAX_BYTES`]: our own code must cut before.
#[must_use]
pub fn header(kind: Kind, len: usize) -> [u8; HEADER_BYTES] {
    assert!(len <= RECORD_MAX_BYTES, "record of {len} bytes");
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    [kind.to_byte(), len[0], len[1], len[2], len[3]]
}

/// A record that holds a message.
#[must_use]
pub fn encode_message(kind: Kind, message: &impl prost::Message) -> Bytes {
    let len = message.encoded_len();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + len);
    out.put_slice(&header(kind, len));
    out.extend_from_slice(&message.encode_to_vec());
    out.freeze()
}

/// Reads the message that a record must hold here.
///
/// # Errors
/// [`WireError::Message`].
pub fn decode_message<M: prost::Message + Default>(payload: Bytes) -> Result<M, WireError> {
    // The cause is of no use to anybody: the peer is broken or hostile either way.
    M::decode(payload).or(Err(WireError::Message))
}

/// Cuts records out of a stream of chunks, without copying payloads that arrive whole.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// An empty decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk of the body.
    pub fn push(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = chunk.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        } else {
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The next whole record, or `None` until more arrives.
    ///
    /// # Errors
    /// [`WireError`] when what arrived is no record; the stream is useless then.
    pub fn next_record(&mut self) -> Result<Option<Record>, WireError> {
        if self.buffer.len() < HEADER_BYTES {
            return Ok(None);
        }
        let kind = Kind::from_byte(self.buffer[0]).ok_or(WireError::Kind(self.buffer[0]))?;
        let len = (&self.buffer[1..HEADER_BYTES]).get_u32();
        let len_bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if len_bytes > RECORD_MAX_BYTES {
            return Err(WireError::TooLarge(len));
        }
        if self.buffer.len() - HEADER_BYTES < len_bytes {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(Record { kind, payload: self.buffer.split_to(len_bytes).freeze() }))
    }

    /// Whether the body may end here.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when it ended inside a record.
    pub fn finish(&self) -> Result<(), WireError> {
        if self.buffer.is_empty() { Ok(()) } else { Err(WireError::Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Done, Hello};

    #[test]
    fn records_survive_any_cut() {
        let mut all = Vec::new();
        all.extend_from_slice(&encode_message(Kind::Message, &Hello { version: 7, sandbox_id: "x".into() }));
        all.extend_from_slice(&header(Kind::DataErr, 3));
        all.extend_from_slice(b"abc");
        all.extend_from_slice(&encode_message(Kind::Last, &Done { bytes: 0 }));
        for cut in 0..=all.len() {
            let mut decoder = Decoder::new();
            let mut records = Vec::new();
            for part in [&all[..cut], &all[cut..]] {
                decoder.push(Bytes::copy_from_slice(part));
                while let Some(record) = decoder.next_record().unwrap() {
                    records.push(record);
                }
            }
            decoder.finish().unwrap();
            assert_eq!(
                records.iter().map(|r| r.kind).collect::<Vec<_>>(),
                [Kind::Message, Kind::DataErr, Kind::Last]
            );
            assert_eq!(decode_message::<Hello>(records[0].payload.clone()).unwrap().version, 7);
            assert_eq!(&records[1].payload[..], b"abc");
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let mut decoder = Decoder::new();
        decoder.push(Bytes::from_static(&[2, 0xff, 0xff, 0xff, 0xff]));
        assert_eq!(decoder.next_record(), Err(WireError::TooLarge(u32::MAX)));
        let mut decoder = Decoder::new();
        decoder.push(Bytes::from_static(&[9, 0, 0, 0, 0]));
        assert_eq!(decoder.next_record(), Err(WireError::Kind(9)));
        let mut decoder = Decoder::new();
        decoder.push(Bytes::from_static(&[2, 0, 0]));
        assert_eq!(decoder.next_record(), Ok(None));
        assert_eq!(decoder.finish(), Err(WireError::Truncated));
    }
}
