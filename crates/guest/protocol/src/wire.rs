//! Records: how messages and bytes lie in a body.
//!
//! ```text
//! ┌──────┬───────────────┬─────────┐
//! │ kind │ length, u32BE │ payload │
//! └──────┴───────────────┴─────────┘
//! ```

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

/// Largest payload of one record, bytes. A larger length is a protocol violation.
pub const RECORD_MAX_BYTES: usize = 1 << 20;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;

/// The content of a record.
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
    /// The kind of its content.
    pub kind: Kind,
    /// The bytes.
    pub payload: Bytes,
}

/// The peer sent bytes that are no record.
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
    // The cause is of no use: the peer is broken or hostile either way.
    M::decode(payload).or(Err(WireError::Message))
}

/// Cuts records out of a stream of chunks, without copying bulk data.
///
/// A record of raw bytes is handed on as it arrives, so one on the wire may come out as several of
/// the same kind; their bytes are slices of the chunks. All other records come out whole.
#[derive(Debug, Default)]
pub struct Decoder {
    chunks: VecDeque<Bytes>,
    buffered: usize,
    /// Rest of a record of raw bytes whose header was read.
    open: Option<(Kind, usize)>,
}

impl Decoder {
    /// An empty decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk of the body.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.buffered += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// The next record (or piece of a record of raw bytes), or `None` until more arrives.
    ///
    /// # Errors
    /// [`WireError`] when the bytes that arrived are no record; the stream is useless then.
    pub fn next_record(&mut self) -> Result<Option<Record>, WireError> {
        if let Some((kind, left)) = self.open {
            return Ok(self.piece(kind, left));
        }
        let Some(header) = self.peek_header() else { return Ok(None) };
        let kind = Kind::from_byte(header[0]).ok_or(WireError::Kind(header[0]))?;
        let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let len_bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if len_bytes > RECORD_MAX_BYTES {
            return Err(WireError::TooLarge(len));
        }
        if matches!(kind, Kind::Data | Kind::DataErr) && len_bytes > 0 {
            drop(self.take(HEADER_BYTES));
            self.open = Some((kind, len_bytes));
            return Ok(self.piece(kind, len_bytes));
        }
        if self.buffered - HEADER_BYTES < len_bytes {
            return Ok(None);
        }
        drop(self.take(HEADER_BYTES));
        Ok(Some(Record { kind, payload: self.take(len_bytes) }))
    }

    /// Whether the body may end here.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when it ended inside a record.
    pub fn finish(&self) -> Result<(), WireError> {
        if self.buffered == 0 && self.open.is_none() { Ok(()) } else { Err(WireError::Truncated) }
    }

    fn piece(&mut self, kind: Kind, left: usize) -> Option<Record> {
        let len = self.chunks.front()?.len().min(left);
        self.open = (len < left).then_some((kind, left - len));
        Some(Record { kind, payload: self.take(len) })
    }

    fn peek_header(&self) -> Option<[u8; HEADER_BYTES]> {
        if self.buffered < HEADER_BYTES {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        let bytes = self.chunks.iter().flat_map(|chunk| chunk.iter());
        for (slot, byte) in header.iter_mut().zip(bytes) {
            *slot = *byte;
        }
        Some(header)
    }

    /// The first `len` bytes; the caller has checked that they are there.
    fn take(&mut self, len: usize) -> Bytes {
        self.buffered -= len;
        if let Some(front) = self.chunks.front_mut()
            && front.len() >= len
        {
            let taken = front.split_to(len);
            if front.is_empty() {
                self.chunks.pop_front();
            }
            return taken;
        }
        let mut joined = BytesMut::with_capacity(len);
        while joined.len() < len {
            let Some(front) = self.chunks.front_mut() else { break };
            let part = front.split_to(front.len().min(len - joined.len()));
            joined.put_slice(&part);
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Done, Hello};
    use proptest::prelude::*;

    /// Decodes a body that arrives in pieces of the given sizes; joins pieces of one kind.
    fn decode(body: &[u8], sizes: &[usize]) -> Result<Vec<(Kind, Vec<u8>)>, WireError> {
        let mut decoder = Decoder::new();
        let mut records: Vec<(Kind, Vec<u8>)> = Vec::new();
        let mut rest = body;
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(sizes.next().copied().unwrap_or(1).clamp(1, rest.len()));
            rest = tail;
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(record) = decoder.next_record()? {
                match records.last_mut() {
                    Some((kind, bytes))
                        if *kind == record.kind && matches!(kind, Kind::Data | Kind::DataErr) =>
                    {
                        bytes.extend_from_slice(&record.payload);
                    }
                    _ => records.push((record.kind, record.payload.to_vec())),
                }
            }
        }
        decoder.finish()?;
        Ok(records)
    }

    fn sample() -> Vec<u8> {
        let mut all = Vec::new();
        all.extend_from_slice(&encode_message(Kind::Message, &Hello { version: 7, sandbox_id: "x".into() }));
        all.extend_from_slice(&header(Kind::DataErr, 3));
        all.extend_from_slice(b"abc");
        all.extend_from_slice(&header(Kind::Data, 0));
        all.extend_from_slice(&encode_message(Kind::Last, &Done { bytes: 0 }));
        all
    }

    #[test]
    fn records_survive_any_cut() {
        let all = sample();
        for cut in 1..all.len() {
            let records = decode(&all, &[cut, all.len()]).unwrap();
            assert_eq!(
                records.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
                [Kind::Message, Kind::DataErr, Kind::Data, Kind::Last],
                "cut at {cut}"
            );
            assert_eq!(decode_message::<Hello>(records[0].1.clone().into()).unwrap().version, 7);
            assert_eq!(records[1].1, b"abc");
        }
    }

    #[test]
    fn a_body_that_stops_early_is_truncated() {
        let all = sample();
        let whole_records = [0, 10, 18, 23, 28];
        for end in 1..all.len() {
            let ended = decode(&all[..end], &[end]);
            if whole_records.contains(&end) {
                assert!(ended.is_ok(), "{end}");
            } else {
                assert_eq!(ended, Err(WireError::Truncated), "{end}");
            }
        }
    }

    #[test]
    fn bulk_data_is_not_copied() {
        let mut body = header(Kind::Data, 6).to_vec();
        body.extend_from_slice(b"abcdef");
        let chunk = Bytes::from(body);
        let place = chunk[HEADER_BYTES..].as_ptr();
        let mut decoder = Decoder::new();
        decoder.push(chunk);
        assert_eq!(decoder.next_record().unwrap().unwrap().payload.as_ptr(), place);
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

    proptest! {
        #[test]
        fn chunking_never_changes_what_is_read(
            parts in proptest::collection::vec((1_u8..=5, proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
            sizes in proptest::collection::vec(1_usize..50, 1..10),
        ) {
            let mut body = Vec::new();
            for (kind, payload) in &parts {
                body.extend_from_slice(&header(Kind::from_byte(*kind).unwrap(), payload.len()));
                body.extend_from_slice(payload);
            }
            prop_assert_eq!(decode(&body, &sizes), decode(&body, &[body.len().max(1)]));
        }

        #[test]
        fn garbage_never_panics(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            sizes in proptest::collection::vec(1_usize..50, 1..10),
        ) {
            // The result does not depend on how the bytes were cut.
            prop_assert_eq!(decode(&body, &sizes), decode(&body, &[1]));
        }
    }
}
