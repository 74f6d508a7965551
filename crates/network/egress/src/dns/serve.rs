//! Serves a sandbox's questions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::policy::HostName;
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::NoAnswer;
use super::message::{answer, for_udp, question};
use crate::client::ClientStream;
use crate::connection::Context;
use crate::gateway::Shared;
use crate::sandbox::SandboxNet;

/// Longest question, bytes: a name, a type, and room for options.
const QUESTION_MAX_BYTES: usize = 1024;
/// How long a connection may rest between questions.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Questions over one connection.
const TCP_QUESTIONS_MAX_COUNT: usize = 1000;

/// Answers questions over UDP for ever.
pub(crate) async fn serve_udp(shared: &Arc<Shared>, net: &Arc<SandboxNet>, socket: &Arc<UdpSocket>) {
    let mut buffer = [0; QUESTION_MAX_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // The last answer could not be delivered; the socket is fine.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(sandbox = %net.id, %error, "a sandbox's questions cannot be received");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        rest(net).await;
        let Some(question) = question(&buffer[..length]) else { continue };
        let (shared, net, socket) = (Arc::clone(shared), Arc::clone(net), Arc::clone(socket));
        tokio::spawn(async move {
            // Too many at once: a client that gets no answer asks again.
            let Ok(_turn) = net.dns_waiting.try_acquire() else { return };
            let response = respond(&shared, &net, &question).await;
            if let Some(bytes) = for_udp(&question, &response)
                && let Err(error) = socket.send_to(&bytes, from).await
            {
                tracing::debug!(sandbox = %net.id, %error, "an answer could not be sent");
            }
        });
    }
}

/// Waits when too many questions came. To refuse one costs nearly as much as to answer it: further questions are left
/// in the socket, and the kernel throws them away once that is full.
async fn rest(net: &SandboxNet) {
    net.received.wait(net.received.charge(1)).await;
}

/// Answers questions over one TCP connection.
pub(crate) async fn serve_tcp(context: Context, mut client: ClientStream) -> io::Result<()> {
    let cancel = context.connection.cancel.clone();
    let serve = async {
        for _ in 0..TCP_QUESTIONS_MAX_COUNT {
            let length = match timeout(TCP_IDLE, client.read_u16()).await {
                Ok(Ok(length)) if usize::from(length) <= QUESTION_MAX_BYTES => usize::from(length),
                Ok(_) | Err(_) => return Ok(()),
            };
            let mut bytes = vec![0; length];
            let read = timeout(TCP_IDLE, client.read_exact(&mut bytes)).await;
            read.map_err(|_late| io::Error::from(io::ErrorKind::TimedOut))??;
            rest(&context.net).await;
            let Some(question) = question(&bytes) else { return Ok(()) };
            let response = respond(&context.shared, &context.net, &question).await;
            let bytes = response.to_vec().map_err(io::Error::other)?;
            let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
            client.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
        }
        Ok(())
    };
    tokio::select! {
        served = serve => served,
        () = cancel.cancelled() => Ok(()),
    }
}

async fn respond(shared: &Shared, net: &SandboxNet, asked: &Message) -> Message {
    let answer = find_answer(shared, net, asked).await;
    let name = asked.queries.first().and_then(|query| query.name.to_ascii().parse::<HostName>().ok());
    let observed = name.is_some_and(|name| super::only_observed(net, &name));
    net.record_dns(asked, &answer, observed);
    answer
}

async fn find_answer(shared: &Shared, net: &SandboxNet, asked: &Message) -> Message {
    let refuse = |code| answer(asked, code, Vec::new(), None);
    if asked.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    let [query] = asked.queries.as_slice() else { return refuse(ResponseCode::FormErr) };
    if query.query_class != DNSClass::IN || !net.questions.take() {
        return refuse(ResponseCode::Refused);
    }
    let Ok(name) = query.name.to_ascii().parse::<HostName>() else { return refuse(ResponseCode::NXDomain) };
    // Reverse lookups would only carry data out.
    if name.as_str().ends_with(".arpa") {
        return refuse(ResponseCode::NXDomain);
    }
    let passed_on = match query.query_type {
        RecordType::A | RecordType::CNAME | RecordType::MX | RecordType::SRV => Some(query.query_type),
        _ => None,
    };
    let Some(kind) = passed_on else {
        // Whether the name may be asked for is answered all the same: resolvers of clients take "no
        // such name" for one type as that for all.
        return match super::may_ask(net, &name) {
            Ok(()) => answer(asked, ResponseCode::NoError, Vec::new(), None),
            Err(refusal) => answer(asked, ResponseCode::NXDomain, Vec::new(), Some(&refusal.to_string())),
        };
    };
    match shared.resolver.ask(net, &name, kind).await {
        Ok(found) => {
            let code = if found.exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
            answer(asked, code, found.records, None)
        }
        Err(NoAnswer::Refused(refusal)) => {
            answer(asked, ResponseCode::NXDomain, Vec::new(), Some(&refusal.to_string()))
        }
        Err(NoAnswer::Failed(why)) => answer(asked, ResponseCode::ServFail, Vec::new(), Some(why)),
    }
}
