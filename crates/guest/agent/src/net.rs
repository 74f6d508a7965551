//! Ports inside the sandbox.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use atoll_guest_protocol::body::{BodyError, RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{
    Accept, Ack, Dial, Done, Incoming, Listen, Listening, PortList, Reason,
};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::wire::{self, Kind, Record};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;

/// The explicit proxy of every sandbox's network.
const PROXY: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 2, 2), 3128);
/// Bytes read from a connection at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a socket table that are read.
const TABLE_MAX_BYTES: u64 = 8 << 20;
/// Connections that may wait at once to be taken by the host; more are closed.
const WAITING_MAX: usize = 128;
/// How long each may wait.
const WAITING_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// State of a listening socket in the kernel's tables.
const LISTEN: &str = "0A";

/// `dial`.
pub(crate) async fn dial(request: &mut RecordReader, response: &mut RecordWriter) -> Result<Answer, Stop> {
    let wanted: Dial = request.message().await?;
    let stream = if wanted.proxy {
        let failed = |error| failure(Reason::PortClosed, format!("the proxy is not there: {error}"));
        TcpStream::connect(PROXY).await.map_err(failed)?
    } else {
        let port = u16::try_from(wanted.port).ok().filter(|port| *port != 0);
        connect(port.ok_or_else(|| invalid("no such port"))?).await?
    };
    let (from, to) = stream.into_split();
    relay(from, to, wanted.window_bytes, request, response).await
}

/// How many bytes were sent to the host, and how many of them the host has passed on.
struct Credit {
    window: u64,
    sent: Cell<u64>,
    acked: Cell<u64>,
    more: Notify,
}

impl Credit {
    /// How many bytes may be sent; waits until at least one may.
    async fn room(&self) -> usize {
        loop {
            let under_way = self.sent.get().saturating_sub(self.acked.get());
            match self.window.checked_sub(under_way) {
                Some(room) if room > 0 => return usize::try_from(room).unwrap_or(usize::MAX),
                _ => self.more.notified().await,
            }
        }
    }

    fn acknowledge(&self, offset: u64) {
        self.acked.set(self.acked.get().max(offset));
        self.more.notify_one();
    }
}

/// Bytes that were read from the host and wait for the port: at most the stream's window, because their credit is
/// kept.
#[derive(Default)]
struct Unwritten {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.bytes += part.len();
            self.parts.push_back(part);
        }
    }

    /// Writes some of it. Waits when there is nothing.
    async fn write_to(&mut self, port: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        let Some(first) = self.parts.front_mut() else { return std::future::pending().await };
        let len = port.write(first).await?;
        first.advance(len);
        self.bytes -= len;
        if first.is_empty() {
            self.parts.pop_front();
        }
        if len == 0 { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }
}

/// Passes bytes on both ways until both directions ended. The end of the direction from the port (or session) is told
/// with a closing message: the host may still send bytes to a program that only reads now.
pub(crate) async fn relay(
    mut from_port: impl AsyncRead + Unpin,
    mut to_port: impl AsyncWrite + Unpin,
    window_bytes: u32,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    response.message(&Done { bytes: 0 }).await?;
    let window = if window_bytes == 0 { u64::MAX } else { window_bytes.into() };
    let credit = Credit { window, sent: Cell::new(0), acked: Cell::new(0), more: Notify::new() };
    let upward = async {
        let (mut waiting, mut ended) = (Unwritten::default(), false);
        while !ended || !waiting.is_empty() {
            // Reading never waits for the port: acknowledgements come after the data, and without them a program
            // that waits for its own output to be taken would never read again.
            tokio::select! {
                record = request.next(), if !ended => match record? {
                    Some(Record { kind: Kind::Data, payload }) => waiting.push(payload),
                    Some(Record { kind: Kind::Message, payload }) => {
                        let ack: Ack = wire::decode_message(payload).map_err(BodyError::from)?;
                        credit.acknowledge(ack.offset);
                    }
                    Some(_) => return Err(Stop::Failure(invalid("only data may follow"))),
                    None => {
                        ended = true;
                        // No acknowledgement will come any more.
                        credit.acknowledge(u64::MAX);
                    }
                },
                written = waiting.write_to(&mut to_port) => {
                    written.map_err(|error| io_error("port", &error))?;
                }
            }
            request.hold(waiting.bytes);
        }
        // The program at the port may have closed already.
        drop(to_port.shutdown().await);
        Ok(())
    };
    let downward = async {
        let mut buffer = BytesMut::new();
        loop {
            let room = credit.room().await.min(READ_BYTES);
            buffer.reserve(room);
            let mut limited = (&mut from_port).take(room as u64);
            let len = limited.read_buf(&mut buffer).await.map_err(|error| io_error("port", &error))?;
            if len == 0 {
                response.encoded(wire::encode_message(Kind::Last, &Done { bytes: 0 })).await?;
                return Ok::<(), Stop>(());
            }
            credit.sent.set(credit.sent.get() + len as u64);
            response.data(Kind::Data, buffer.split().freeze()).await?;
        }
    };
    tokio::try_join!(upward, downward)?;
    Ok(Answer::End)
}

/// Connections that wait to be taken by the host.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    connections: RefCell<BTreeMap<u64, TcpStream>>,
    last: Cell<u64>,
}

impl Waiting {
    /// Keeps a connection for a while; `None` when too many wait, and then it is closed.
    fn keep(self: &Rc<Self>, stream: TcpStream) -> Option<u64> {
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= WAITING_MAX {
            return None;
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        connections.insert(number, stream);
        let waiting = Rc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(WAITING_TIMEOUT).await;
            drop(waiting.connections.borrow_mut().remove(&number));
        });
        Some(number)
    }
}

/// `listen`.
pub(crate) async fn listen(
    waiting: &Rc<Waiting>,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let wanted: Listen = request.message().await?;
    let port = u16::try_from(wanted.port).map_err(|_large| invalid("no such port"))?;
    let four = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let port = four.local_addr().map_err(|error| io_error("port", &error))?.port();
    // A sandbox without IPv6 has no such address.
    let six = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await.ok();
    response.message(&Listening { port: port.into() }).await?;
    loop {
        let accepted = tokio::select! {
            accepted = four.accept() => accepted,
            accepted = accept_if(six.as_ref()) => accepted,
            // The host has nothing more to say: it ends the operation.
            _ = request.next() => return Ok(Answer::End),
        };
        match accepted {
            Ok((stream, _peer)) => {
                drop(stream.set_nodelay(true));
                if let Some(connection) = waiting.keep(stream) {
                    response.message(&Incoming { connection }).await?;
                }
            }
            // Out of descriptors, mostly.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Stop> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            failure(Reason::PortTaken, format!("something listens on port {} already", address.port())).into()
        }
        _ => io_error("port", &error).into(),
    })
}

async fn accept_if(listener: Option<&TcpListener>) -> std::io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// `accept`.
pub(crate) async fn accept(
    waiting: &Waiting,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let wanted: Accept = request.message().await?;
    let stream = waiting.connections.borrow_mut().remove(&wanted.connection);
    let stream =
        stream.ok_or_else(|| failure(Reason::PortClosed, "the connection does not wait any more"))?;
    let (from, to) = stream.into_split();
    relay(from, to, wanted.window_bytes, request, response).await
}

async fn connect(port: u16) -> Result<TcpStream, Stop> {
    let mut last = None;
    for address in
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))]
    {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Small messages both ways; the bytes arrive in good pieces already.
                drop(stream.set_nodelay(true));
                return Ok(stream);
            }
            Err(error) => last = last.or(Some(error)),
        }
    }
    let cause = last.map_or_else(String::new, |error| format!(": {error}"));
    Err(failure(Reason::PortClosed, format!("nothing listens on port {port}{cause}")).into())
}

/// `ports`.
pub(crate) fn ports() -> PortList {
    let mut ports = BTreeSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let mut text = String::new();
        if let Ok(file) = std::fs::File::open(table) {
            // Without the table of a family, the family has no ports.
            drop(file.take(TABLE_MAX_BYTES).read_to_string(&mut text));
        }
        ports.extend(text.lines().skip(1).filter_map(listening_port));
    }
    PortList { ports: ports.into_iter().collect() }
}

/// The port of a socket that listens where [`connect`] goes. The gateway has sockets of its own in here, at
/// addresses that are none of the sandbox's.
fn listening_port(line: &str) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    (state == LISTEN && is_everywhere_or_here(address)).then(|| u32::from_str_radix(port, 16).ok())?
}

/// Whether an address, as the kernel's tables have it, is any address or a loopback one.
fn is_everywhere_or_here(address: &str) -> bool {
    const V6_LOOPBACK: &str = "00000000000000000000000001000000";
    // Four bytes in the machine's order: the first of the address comes last.
    let is_v4 =
        |text: &str| text.bytes().all(|byte| byte == b'0') || (text.len() == 8 && text.ends_with("7F"));
    let mapped = address.strip_prefix("0000000000000000FFFF0000");
    is_v4(address) || address == V6_LOOPBACK || mapped.is_some_and(is_v4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_tables() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1";
        assert_eq!(listening_port(line), Some(8080));
        assert_eq!(listening_port(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_port("nonsense"), None);
        assert_eq!(listening_port(&line.replace("0100007F", "00000000")), Some(8080));
        assert_eq!(listening_port(&line.replace("0100007F", "0202000A")), None, "the gateway's");
        assert_eq!(listening_port(&line.replace("0100007F", "0000000000000000FFFF00000100007F")), Some(8080));
        let six =
            "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0";
        assert_eq!(listening_port(six), Some(22));
    }
}
