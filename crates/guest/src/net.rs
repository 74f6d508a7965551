//! Ports inside the sandbox.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Dial, Done, PortList, Reason};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::wire::{Kind, Record};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;

/// Bytes read from a connection at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a socket table that are read.
const TABLE_MAX_BYTES: u64 = 8 << 20;
/// State of a listening socket in the kernel's tables.
const LISTEN: &str = "0A";

/// `dial`.
pub(crate) async fn dial(request: &mut RecordReader, response: &mut RecordWriter) -> Result<Answer, Stop> {
    let wanted: Dial = request.message().await?;
    let port =
        u16::try_from(wanted.port).ok().filter(|port| *port != 0).ok_or_else(|| invalid("no such port"))?;
    let stream = connect(port).await?;
    response.message(&Done { bytes: 0 }).await?;
    let (mut from_port, mut to_port) = stream.into_split();
    let upward = async {
        loop {
            match request.next().await? {
                Some(Record { kind: Kind::Data, payload }) => {
                    to_port.write_all(&payload).await.map_err(|error| io_error("port", &error))?;
                }
                Some(_) => return Err(Stop::Failure(invalid("only data may follow"))),
                None => {
                    // The other side may have closed already.
                    drop(to_port.shutdown().await);
                    return Ok(());
                }
            }
        }
    };
    let downward = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(READ_BYTES);
            let len = from_port.read_buf(&mut buffer).await.map_err(|error| io_error("port", &error))?;
            if len == 0 {
                return Ok::<(), Stop>(());
            }
            response.data(Kind::Data, buffer.split().freeze()).await?;
        }
    };
    let mut upward = std::pin::pin!(upward);
    let mut downward = std::pin::pin!(downward);
    let mut upward_done = false;
    loop {
        tokio::select! {
            up = &mut upward, if !upward_done => {
                up?;
                upward_done = true;
            }
            // What the port sent last is all there will be; the host's direction ends with it.
            down = &mut downward => {
                down?;
                return Ok(Answer::End);
            }
        }
    }
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

fn listening_port(line: &str) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, port) = fields.next()?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    (state == LISTEN).then(|| u32::from_str_radix(port, 16).ok())?
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
        let six =
            "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0";
        assert_eq!(listening_port(six), Some(22));
    }
}
