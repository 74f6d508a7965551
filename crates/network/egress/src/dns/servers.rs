//! Asks the resolvers of the host: over UDP, over TCP when the answer does not fit.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_core::policy::HostName;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::Answer;
use crate::limits::{DNS_TIMEOUT, DNS_TTL_MAX};

/// Where the host says which resolvers it uses.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How long that is believed.
const RESOLV_CONF_KEPT: Duration = Duration::from_secs(10);
/// Resolvers that are asked, one after the other, as libc does.
const SERVERS_MAX_COUNT: usize = 3;
const DNS_PORT: u16 = 53;
/// Longest answer over UDP that is taken, bytes.
const UDP_MAX_BYTES: usize = 4096;
/// Records of one answer that are passed on.
const RECORDS_MAX_COUNT: usize = 64;
/// How long "there is nothing" counts.
const NEGATIVE_TTL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Servers {
    /// As configured.
    fixed: Vec<SocketAddr>,
    /// As the host says, and since when.
    of_host: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Servers {
    pub(crate) fn new(fixed: Vec<SocketAddr>) -> Self {
        Self { fixed, of_host: Mutex::new(None) }
    }

    fn list(&self) -> Vec<SocketAddr> {
        if !self.fixed.is_empty() {
            return self.fixed.clone();
        }
        let mut known = self.of_host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, servers)) = &*known
            && read_at.elapsed() < RESOLV_CONF_KEPT
        {
            return servers.clone();
        }
        // A small file, now and then: not worth another thread.
        let servers = parse(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default());
        *known = Some((Instant::now(), servers.clone()));
        servers
    }

    /// Asks the resolvers one after the other.
    pub(crate) async fn ask(&self, name: &HostName, kind: RecordType) -> Result<Answer, &'static str> {
        let servers = self.list();
        if servers.is_empty() {
            return Err("the host has no resolver");
        }
        let name = Name::from_ascii(format!("{name}.")).or(Err("the name cannot be asked for"))?;
        for server in servers {
            match timeout(DNS_TIMEOUT, ask_one(server, &name, kind)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a resolver gave no answer"),
                Err(_late) => tracing::debug!(%server, "a resolver did not answer in time"),
            }
        }
        Err("no resolver of the host gave an answer")
    }
}

/// `nameserver` lines.
fn parse(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let keyword = words.next()?;
        let address = words.next()?.parse::<IpAddr>().ok()?;
        (keyword == "nameserver").then(|| SocketAddr::new(address, DNS_PORT))
    };
    text.lines().filter_map(address).take(SERVERS_MAX_COUNT).collect()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

async fn ask_one(server: SocketAddr, name: &Name, kind: RecordType) -> io::Result<Answer> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = u16::from_be_bytes(id);
    let mut question = Message::new(id, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name.clone(), kind));
    let question = question.to_vec().map_err(io::Error::other)?;
    let asked = Asked { id, name, kind };
    let response = over_udp(server, &question, asked).await?;
    let response =
        if response.metadata.truncation { over_tcp(server, &question, asked).await? } else { response };
    read(response, kind)
}

/// A fresh socket for each question: the port is one more thing that a forger has to guess.
async fn over_udp(server: SocketAddr, question: &[u8], asked: Asked<'_>) -> io::Result<Message> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; UDP_MAX_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything else may be forged, by a sender who guessed. The real answer may still come.
        if let Some(response) = response_to(asked, &buffer[..length]) {
            return Ok(response);
        }
    }
}

async fn over_tcp(server: SocketAddr, question: &[u8], asked: Asked<'_>) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    response_to(asked, &answer).ok_or_else(|| invalid("another answer"))
}

/// A question that a resolver was asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) id: u16,
    pub(super) name: &'a Name,
    pub(super) kind: RecordType,
}

/// The response to a question in the bytes that a resolver sent; `None` when they hold none, or one to another question.
pub(super) fn response_to(asked: Asked<'_>, bytes: &[u8]) -> Option<Message> {
    let response = Message::from_vec(bytes).ok()?;
    let same = |query: &Query| {
        query.name == *asked.name && query.query_type == asked.kind && query.query_class == DNSClass::IN
    };
    let answers = response.metadata.id == asked.id
        && response.metadata.message_type == MessageType::Response
        && matches!(response.queries.as_slice(), [query] if same(query));
    answers.then_some(response)
}

/// What a response says, as far as it counts.
pub(super) fn read(response: Message, kind: RecordType) -> io::Result<Answer> {
    let exists = match response.metadata.response_code {
        ResponseCode::NoError => true,
        ResponseCode::NXDomain => false,
        _ => return Err(invalid("the resolver could not answer")),
    };
    let wanted = |kind_of: RecordType| kind_of == kind || kind_of == RecordType::CNAME;
    let mut records: Vec<_> = response
        .answers
        .into_iter()
        .filter(|record| record.dns_class == DNSClass::IN && wanted(record.record_type()))
        .take(RECORDS_MAX_COUNT)
        .collect();
    let shortest = records.iter().map(|record| Duration::from_secs(u64::from(record.ttl))).min();
    let ttl = shortest.unwrap_or(NEGATIVE_TTL).min(DNS_TTL_MAX);
    // A program that keeps an address for as long as it is told must not keep it for longer than the name counts.
    let seconds = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
    for record in &mut records {
        record.ttl = record.ttl.min(seconds);
    }
    Ok(Answer { exists, records, ttl })
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{RData, Record};

    use super::*;

    #[test]
    fn no_record_says_that_it_counts_for_longer_than_the_answer() {
        for (said, counts) in [([86_400, u32::MAX], 3600), ([300, 86_400], 300), ([0, 60], 0)] {
            let mut response = Message::response(1, OpCode::Query);
            for (ttl, last) in said.into_iter().zip(1..) {
                let name = Name::from_ascii("a.example.").unwrap();
                response.add_answer(Record::from_rdata(name, ttl, RData::A(A::new(192, 0, 2, last))));
            }
            let answer = read(response, RecordType::A).unwrap();
            assert_eq!(answer.ttl, Duration::from_secs(counts));
            assert!(answer.records.iter().all(|record| u64::from(record.ttl) == counts), "{answer:?}");
        }
    }

    #[test]
    fn the_hosts_resolvers_are_read() {
        let text = "# comment\nsearch x\nnameserver 127.0.0.53\nnameserver nonsense\n nameserver ::1\n";
        assert_eq!(parse(text), ["127.0.0.53:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
    }
}
