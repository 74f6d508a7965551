//! Envelopes: a byte of flags, four of length, and so much payload.

use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::StreamExt as _;
use http::HeaderMap;

use super::{Codec, Encoding, Fault, Kind, MESSAGE_MAX_BYTES, too_large};
use crate::wire::Message;

/// The payload is compressed.
const COMPRESSED: u8 = 1;
/// The last envelope: its payload says how the stream ended.
pub(super) const END: u8 = 2;
const HEAD_BYTES: usize = 5;
/// How long the first message may take.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// How long a client may pause that streams what a user types.
const PAUSE: Duration = Duration::from_secs(3600);

/// One envelope.
pub(super) fn pack(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + payload.len());
    bytes.put_u8(flags);
    // The server makes no longer ones: output is read in pieces.
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

/// The messages of a request's body.
#[derive(Debug)]
pub(crate) struct Requests<M> {
    body: BodyDataStream,
    begun: bool,
    buffer: BytesMut,
    codec: Codec,
    encoding: Encoding,
    kind: PhantomData<fn() -> M>,
}

impl<M: Message> Requests<M> {
    pub(super) fn new(codec: Codec, headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        let encoding = Encoding::of(headers, "connect-content-encoding")?;
        Ok(Self {
            body: body.into_data_stream(),
            begun: false,
            buffer: BytesMut::new(),
            codec,
            encoding,
            kind: PhantomData,
        })
    }

    /// The next message, or `None` when the client has no more.
    ///
    /// # Errors
    /// When the body breaks off, or is no message of the protocol.
    pub(crate) async fn next(&mut self) -> Result<Option<M>, Fault> {
        if !self.fill(HEAD_BYTES).await? {
            return if self.buffer.is_empty() { Ok(None) } else { Err(broken()) };
        }
        let flags = self.buffer[0];
        let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MESSAGE_MAX_BYTES {
            return Err(too_large());
        }
        if flags & !(COMPRESSED | END) != 0 {
            return Err(Fault::new(Kind::InvalidArgument, "an envelope has unknown flags"));
        }
        if !self.fill(HEAD_BYTES + length).await? {
            return Err(broken());
        }
        self.buffer.advance(HEAD_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        self.begun = true;
        if flags & END != 0 {
            return Ok(None);
        }
        let plain = if flags & COMPRESSED == 0 { payload } else { self.encoding.open(payload)? };
        self.codec.decode(&plain).map(Some)
    }

    /// Reads until so many bytes are there; says whether they are.
    async fn fill(&mut self, bytes: usize) -> Result<bool, Fault> {
        while self.buffer.len() < bytes {
            let wait = if self.begun { PAUSE } else { FIRST_WAIT };
            match tokio::time::timeout(wait, self.body.next()).await {
                Ok(Some(Ok(piece))) => self.buffer.extend_from_slice(&piece),
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a request's body broke off");
                    return Err(broken());
                }
                Ok(None) => return Ok(false),
                Err(_elapsed) => return Err(Fault::deadline()),
            }
        }
        Ok(true)
    }
}

fn broken() -> Fault {
    Fault::new(Kind::InvalidArgument, "the body ended inside an envelope")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::process::SendSignalRequest;
    use crate::wire::process::{ProcessSelector, Selector};
    use futures::stream;
    use proptest::prelude::*;

    fn read(bytes: &[u8], cut: usize) -> Result<Vec<SendSignalRequest>, Fault> {
        let pieces: Vec<_> = bytes
            .chunks(cut.max(1))
            .map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)))
            .collect();
        let body = Body::from_stream(stream::iter(pieces));
        let mut requests = Requests::new(Codec::Json, &HeaderMap::new(), body)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(message) = requests.next().await? {
                all.push(message);
            }
            Ok(all)
        })
    }

    proptest! {
        #[test]
        fn however_the_body_is_cut(pids in proptest::collection::vec(any::<u32>(), 0..4), cut in 1_usize..40) {
            let of = |pid| SendSignalRequest {
                process: Some(ProcessSelector { selector: Some(Selector::Pid(pid)) }),
                signal: 9,
            };
            let messages: Vec<_> = pids.into_iter().map(of).collect();
            let body: Vec<u8> = messages
                .iter()
                .flat_map(|message| pack(0, &serde_json::to_vec(message).unwrap()))
                .collect();
            prop_assert_eq!(read(&body, cut).unwrap(), messages);
        }

        #[test]
        fn anything_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(read(&bytes, 7));
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        assert!(read(&pack(0, b"{}")[..6], 9).is_err());
        assert!(read(&[0, 255, 255, 255, 255], 9).is_err());
        assert!(read(&pack(8, b"{}"), 9).is_err());
        assert!(read(&pack(0, b"}"), 9).is_err());
    }
}
