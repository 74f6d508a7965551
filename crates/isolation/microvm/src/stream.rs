//! A connection to a guest over its serial port, as a byte stream: the host's side of
//! [`atoll_guest_protocol::serial`].

use std::io;
use std::time::Duration;

use atoll_guest_protocol::serial::{
    Deframer, Frame, Kind, Open, Opened, PAYLOAD_MAX_BYTES, encode, encode_message,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::AbortHandle;

/// Bytes on the way between the connection's user and its port.
const BUFFER_BYTES: usize = 256 << 10;
/// How long a guest may take to answer that it is there.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a connection over a port that has no other connection; gives also the handle that ends it.
pub(crate) async fn open(port: UnixStream) -> io::Result<(DuplexStream, AbortHandle)> {
    let (mut reader, mut writer) = port.into_split();
    let mut deframer = Deframer::new();
    let early = tokio::time::timeout(OPEN_TIMEOUT, handshake(&mut reader, &mut writer, &mut deframer))
        .await
        .map_err(|_late| io::Error::new(io::ErrorKind::TimedOut, "the guest does not answer"))??;
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let carrying = tokio::spawn(carry(reader, writer, deframer, early, far));
    Ok((near, carrying.abort_handle()))
}

/// Begins the connection; gives the frames that came right behind the answer.
async fn handshake(
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    deframer: &mut Deframer,
) -> io::Result<Vec<Frame>> {
    let nonce = random()?;
    let open = Open { nonce };
    // A zero first: it ends a frame that an earlier connection left unfinished.
    let mut hello = vec![0];
    encode_message(Kind::Open, &open, &mut hello);
    writer.write_all(&hello).await?;
    let mut buffer = vec![0; PAYLOAD_MAX_BYTES];
    loop {
        let read = reader.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut frames = Vec::new();
        deframer.push(&buffer[..read], |frame| frames.push(frame));
        let answer = |frame: &Frame| {
            let opened = frame.message::<Opened>().ok().filter(|_| frame.kind == Kind::Opened)?;
            (opened.nonce == nonce).then_some(opened)
        };
        if let Some((at, opened)) =
            frames.iter().enumerate().find_map(|(at, frame)| Some((at, answer(frame)?)))
        {
            if opened.error.is_empty() {
                return Ok(frames.split_off(at + 1));
            }
            let said: String = opened.error.chars().filter(|c| !c.is_control()).take(300).collect();
            return Err(io::Error::other(format!("the machine refuses: {said}")));
        }
    }
}

/// Carries bytes both ways until either side closes. Dropping the port's halves hangs up.
async fn carry(
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    deframer: Deframer,
    early: Vec<Frame>,
    user: DuplexStream,
) {
    let (from_user, to_user) = tokio::io::split(user);
    tokio::select! {
        _ = to_guest(from_user, writer) => {}
        _ = from_guest(reader, deframer, early, to_user) => {}
    }
}

async fn to_guest(mut user: impl AsyncReadExt + Unpin, mut port: OwnedWriteHalf) -> io::Result<()> {
    let mut buffer = vec![0; PAYLOAD_MAX_BYTES];
    let mut frame = Vec::new();
    loop {
        let read = user.read(&mut buffer).await?;
        frame.clear();
        if read == 0 {
            encode(Kind::Close, &[], &mut frame);
            return port.write_all(&frame).await;
        }
        encode(Kind::Data, &buffer[..read], &mut frame);
        port.write_all(&frame).await?;
    }
}

async fn from_guest(
    mut port: OwnedReadHalf,
    mut deframer: Deframer,
    early: Vec<Frame>,
    mut user: impl AsyncWriteExt + Unpin,
) -> io::Result<()> {
    let mut frames = early;
    let mut buffer = vec![0; 2 * PAYLOAD_MAX_BYTES];
    loop {
        for frame in frames.drain(..) {
            match frame.kind {
                Kind::Data => user.write_all(&frame.payload).await?,
                Kind::Close => return user.shutdown().await,
                Kind::Open | Kind::Opened | Kind::Ask | Kind::Answer => {}
            }
        }
        let read = port.read(&mut buffer).await?;
        if read == 0 {
            return user.shutdown().await;
        }
        deframer.push(&buffer[..read], |frame| frames.push(frame));
    }
}

/// A number that tells one question from all others.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_none| io::Error::other("the host has no random bytes"))?;
    Ok(u64::from_le_bytes(bytes))
}
