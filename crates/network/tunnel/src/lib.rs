//! Many connections over one byte stream, and the bytes that each of them begins with.
//!
//! The byte stream is yamux, as HashiCorp specified it: implementations exist in most languages. The side that opens a
//! stream sends three bytes, the version ([`VERSION`]) and the port, big-endian; the other side answers with one byte,
//! a [`Status`]. After [`Status::Connected`] the stream is the connection, each direction with an end of its own; after
//! anything else it is closed.
//!
//! Client and server use this crate alike: a tunnel into a sandbox has its streams opened by the client, a
//! tunnel out of it by the server.

mod mux;
mod stream;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

pub use mux::{Accepted, Closed, Mux, Opener, Side};
pub use stream::Stream;

/// Version of the bytes that a stream begins with.
pub const VERSION: u8 = 1;
/// Streams of one tunnel at once.
pub const STREAMS_MAX_COUNT: usize = 1024;

/// The outcome of the connection that a stream asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It is there; bytes follow.
    Connected,
    /// This port is not for this tunnel.
    NotAllowed,
    /// Nothing listens there, or it cannot be reached.
    Refused,
    /// The beginning of the stream was of another version.
    Version,
}

impl Status {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Connected => 0,
            Self::NotAllowed => 1,
            Self::Refused => 2,
            Self::Version => 3,
        }
    }

    /// A byte that is no status counts as a refusal.
    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Connected,
            1 => Self::NotAllowed,
            3 => Self::Version,
            _ => Self::Refused,
        }
    }
}

/// Asks for a connection to `port` and waits for the answer.
///
/// # Errors
/// When the stream broke.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, port: u16) -> io::Result<Status> {
    let [high, low] = port.to_be_bytes();
    stream.write_all(&[VERSION, high, low]).await?;
    stream.flush().await?;
    Ok(Status::from_byte(stream.read_u8().await?))
}

/// Reads which port a stream asks for. `None` when it begins with another version: it was answered.
///
/// # Errors
/// When the stream broke.
pub async fn asked<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<Option<u16>> {
    if stream.read_u8().await? != VERSION {
        answer(stream, Status::Version).await?;
        return Ok(None);
    }
    stream.read_u16().await.map(Some)
}

/// Answers a stream; anything but [`Status::Connected`] ends it.
///
/// # Errors
/// When the stream broke.
pub async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, status: Status) -> io::Result<()> {
    stream.write_all(&[status.to_byte()]).await?;
    stream.flush().await?;
    if status != Status::Connected {
        stream.shutdown().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn pair() -> (Opener, Accepted) {
        let (client, server) = tokio::io::duplex(64 << 10);
        let client = Mux::new(client, Side::Client);
        let server = Mux::new(server, Side::Server);
        let (opener, _none, driver) = client.split();
        tokio::spawn(driver);
        let (_none, accepted, driver) = server.split();
        tokio::spawn(driver);
        (opener, accepted)
    }

    /// The ports that streams ask for, in bytes of a client that come in pieces; and whether the connection lasts.
    fn ports(bytes: &[u8], piece: usize) -> (Vec<u16>, bool) {
        // The clock stands still, and goes on only when nothing else does.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (client, server) = tokio::io::duplex(1 << 20);
            let (_opener, mut accepted, driver) = Mux::new(server, Side::Server).split();
            tokio::spawn(driver);
            let (mut answers, mut client) = tokio::io::split(client);
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut tokio::io::sink()).await });
            let pieces: Vec<Vec<u8>> = bytes.chunks(piece).map(<[u8]>::to_vec).collect();
            tokio::spawn(async move {
                for piece in pieces {
                    if client.write_all(&piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                std::future::pending::<()>().await;
            });
            // Streams are kept: whether the number of one that is closed may be used again is a matter of time.
            let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
            let serve = async move {
                while let Some(mut stream) = accepted.next().await {
                    let say = say.clone();
                    tokio::spawn(async move {
                        let port = asked(&mut stream).await.ok().flatten();
                        drop(say.send((port, stream)));
                    });
                }
            };
            let lasts = tokio::time::timeout(Duration::from_secs(1), serve).await.is_err();
            let mut ports = Vec::new();
            while let Ok((port, _stream)) = said.try_recv() {
                ports.extend(port);
            }
            ports.sort_unstable();
            (ports, lasts)
        })
    }

    /// Whether no stream has data or another end after its end: only news of its window may follow. Where it has, it is a
    /// matter of time what its reader finds first.
    fn ends_are_ends(mut bytes: &[u8]) -> bool {
        const DATA: u8 = 0;
        const ENDS: u8 = 4 | 8;
        let mut ended = std::collections::BTreeSet::new();
        while let Some((&[_, kind, _, flags, ref numbers @ ..], rest)) = bytes.split_first_chunk::<12>() {
            let (stream, length) = numbers.split_at(4);
            if ended.contains(stream) && (kind == DATA || flags & ENDS != 0) {
                return false;
            }
            if flags & ENDS != 0 {
                ended.insert(stream.to_vec());
            }
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            bytes = if kind == DATA { rest.get(length..).unwrap_or_default() } else { rest };
        }
        true
    }

    #[test]
    fn what_a_client_asks_for_does_not_depend_on_how_it_is_cut() {
        // A frame has twelve bytes at least, and asks with three; streams that nothing has taken yet are not more than these.
        const FRAME_BYTES: usize = 12;
        bolero::check!().for_each(|bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(64 * FRAME_BYTES)];
            let (whole, lasts) = ports(bytes, bytes.len().max(1));
            assert!(whole.len() * (FRAME_BYTES + 3) <= bytes.len());
            for port in &whole {
                let [high, low] = port.to_be_bytes();
                assert!(
                    [VERSION, high, low].iter().all(|byte| bytes.contains(byte)),
                    "nothing asks for {port}"
                );
            }
            let (cut, still_lasts) = ports(bytes, 1 + bytes.len() % 7);
            assert_eq!(still_lasts, lasts);
            // What breaks a connection breaks its streams: whether one has been read before is a matter of time.
            if lasts && ends_are_ends(bytes) {
                assert_eq!(cut, whole);
            }
        });
    }

    #[tokio::test]
    async fn streams_carry_bytes_both_ways_and_end_each_way() {
        let (opener, mut accepted) = pair().await;
        let serve = tokio::spawn(async move {
            let mut stream = accepted.next().await.unwrap();
            let port = asked(&mut stream).await.unwrap();
            answer(&mut stream, Status::Connected).await.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            stream.write_all(&got).await.unwrap();
            stream.shutdown().await.unwrap();
            port
        });
        let mut stream = opener.open().await.unwrap();
        assert_eq!(ask(&mut stream, 3000).await.unwrap(), Status::Connected);
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        assert!(back == bytes);
        assert_eq!(serve.await.unwrap(), Some(3000));
    }

    #[tokio::test]
    async fn another_version_is_answered() {
        let (opener, mut accepted) = pair().await;
        let serve = tokio::spawn(async move {
            let mut stream = accepted.next().await.unwrap();
            asked(&mut stream).await.unwrap()
        });
        let mut stream = opener.open().await.unwrap();
        stream.write_all(&[9, 0, 80]).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(Status::from_byte(stream.read_u8().await.unwrap()), Status::Version);
        assert_eq!(serve.await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_end_of_one_side_ends_the_other() {
        let (client, server) = tokio::io::duplex(1024);
        let (opener, _accepted, driver) = Mux::new(client, Side::Client).split();
        let driving = tokio::spawn(driver);
        let mut stream = opener.open().await.unwrap();
        drop(server);
        tokio::time::timeout(Duration::from_secs(10), driving).await.unwrap().unwrap();
        assert!(stream.read_u8().await.is_err());
        assert!(opener.open().await.is_err());
    }

    #[tokio::test]
    async fn garbage_ends_the_connection() {
        let (mut client, server) = tokio::io::duplex(1024);
        let (_opener, mut accepted, driver) = Mux::new(server, Side::Server).split();
        tokio::spawn(driver);
        client.write_all(&[0xff; 64]).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(10), accepted.next()).await.unwrap().is_none());
    }
}
