//! Answers to sandboxes.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;

/// Largest answer over UDP when the client does not say that it takes more, bytes.
const UDP_PLAIN_MAX_BYTES: usize = 512;
/// Largest answer over UDP at all, bytes.
const UDP_MAX_BYTES: usize = 1232;
/// Extended DNS errors (RFC 8914): the option, and "blocked".
const EDE: u16 = 15;
const EDE_BLOCKED: u16 = 15;

/// Reads a question; `None` for bytes that are no question.
pub(super) fn question(bytes: &[u8]) -> Option<Message> {
    let message = Message::from_vec(bytes).ok()?;
    (message.metadata.message_type == MessageType::Query).then_some(message)
}

/// Makes an answer. `why` says in words why there is none, to clients that understand that.
pub(super) fn answer(
    question: &Message,
    code: ResponseCode,
    records: Vec<Record>,
    why: Option<&str>,
) -> Message {
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = code;
    answer.add_queries(question.queries.iter().take(1).cloned());
    answer.insert_answers(records);
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        if let Some(why) = why {
            let data = [&EDE_BLOCKED.to_be_bytes(), why.as_bytes()].concat();
            edns.options_mut().insert(EdnsOption::Unknown(EDE, data));
        }
        answer.set_edns(edns);
    }
    answer
}

/// Writes an answer for UDP; one that does not fit says "ask over TCP".
pub(super) fn for_udp(question: &Message, answer: &Message) -> Option<Vec<u8>> {
    let most = question.edns.as_ref().map_or(UDP_PLAIN_MAX_BYTES, |edns| usize::from(edns.max_payload()));
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= most.clamp(UDP_PLAIN_MAX_BYTES, UDP_MAX_BYTES) {
        return Some(bytes);
    }
    answer.truncate().to_vec().ok()
}
