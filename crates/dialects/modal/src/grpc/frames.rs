//! Messages in a byte stream: one byte that says whether it is compressed, four for its length, the message.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;

use super::{Fault, Result};

/// Longest message that is read, bytes. The clients cut files at 16 MiB.
const MESSAGE_MAX_BYTES: usize = 24 << 20;
/// Bytes before each message.
pub(super) const HEAD_BYTES: usize = 5;

/// A message with its prefix.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let size = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + size);
    frame.put_u8(0);
    // No message that the server sends comes near four gibibytes.
    frame.put_u32(u32::try_from(size).unwrap_or(u32::MAX));
    if let Err(error) = message.encode(&mut frame) {
        // It has room for the message, and grows besides.
        tracing::error!(%error, "an answer cannot be written");
    }
    frame.freeze()
}

/// Bytes of a stream that were received and not taken yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub(super) fn push(&mut self, piece: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = piece.into();
        } else {
            self.buffer.extend_from_slice(&piece);
        }
    }

    /// The next whole message.
    ///
    /// # Errors
    /// For a message that is compressed or too long.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>> {
        let Some((head, rest)) = self.buffer.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        if head[0] != 0 {
            return Err(Fault::invalid("compressed messages are not taken"));
        }
        let size = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let size = usize::try_from(size).ok().filter(|size| *size <= MESSAGE_MAX_BYTES);
        let size = size.ok_or_else(|| {
            Fault::invalid(format!("a message may have {} MiB at most", MESSAGE_MAX_BYTES >> 20))
        })?;
        if rest.len() < size {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        Ok(Some(self.buffer.split_to(size).freeze()))
    }

    /// Checks that the stream ended after a whole message.
    ///
    /// # Errors
    /// When a message was begun.
    pub(super) fn end(&self) -> Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { Err(Fault::invalid("the last message broke off")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_the_same_however_they_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            cut in 1_usize..20,
        ) {
            let sent: Vec<u8> = messages.iter().flat_map(encode).collect();
            let mut frames = Frames::default();
            let mut read = Vec::new();
            for piece in sent.chunks(cut) {
                frames.push(Bytes::copy_from_slice(piece));
                while let Some(frame) = frames.next().unwrap() {
                    read.push(Vec::<u8>::decode(frame).unwrap());
                }
            }
            prop_assert!(frames.end().is_ok());
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn nothing_that_is_sent_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut frames = Frames::default();
            frames.push(Bytes::from(bytes));
            while let Ok(Some(_)) = frames.next() {}
        }
    }

    #[test]
    fn long_and_packed_ones_are_refused() {
        for head in [[1, 0, 0, 0, 0], [0, 0xff, 0xff, 0xff, 0xff]] {
            let mut frames = Frames::default();
            frames.push(Bytes::copy_from_slice(&head));
            assert!(frames.next().is_err());
        }
        let mut frames = Frames::default();
        frames.push(Bytes::from_static(&[0, 0]));
        assert!(frames.next().unwrap().is_none() && frames.end().is_err());
    }
}
