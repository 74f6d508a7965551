//! Server-sent events: event name and data, one at a time, bounded.

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};
use reqwest::Response;

use crate::{Client, ClientError, Result};

/// Longest line and longest data of one event, bytes.
const EVENT_MAX_BYTES: usize = 16 << 20;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Splits bytes into events.
#[derive(Debug, Default)]
struct Parser {
    buffer: BytesMut,
    /// Bytes of `buffer` that were searched already.
    searched: usize,
    name: String,
    data: Option<String>,
    ready: VecDeque<Event>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        while let Some(at) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            let line = self.buffer.split_to(self.searched + at);
            self.buffer.advance(1);
            self.searched = 0;
            let line = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(&line))
                .map_err(|error| ClientError::Protocol(format!("an event: {error}")))?;
            self.line(line)?;
        }
        self.searched = self.buffer.len();
        let held = self.buffer.len() + self.data.as_ref().map_or(0, String::len);
        if held > EVENT_MAX_BYTES {
            return Err(ClientError::Protocol(format!("an event is longer than {EVENT_MAX_BYTES} bytes")));
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<()> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            if let Some(data) = self.data.take() {
                self.ready.push_back(Event { name, data });
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => match &mut self.data {
                Some(data) if data.len() + value.len() > EVENT_MAX_BYTES => {
                    return Err(ClientError::Protocol(format!(
                        "an event is longer than {EVENT_MAX_BYTES} bytes"
                    )));
                }
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // `id` and `retry` say nothing that the data does not; the rest are comments.
            _ => {}
        }
        Ok(())
    }
}

/// Events of a response.
#[derive(Debug)]
pub(crate) struct Events {
    client: Client,
    response: Response,
    parser: Parser,
}

impl Events {
    pub(crate) fn new(client: Client, response: Response) -> Self {
        Self { client, response, parser: Parser::default() }
    }

    /// The next event; `None` at the end of the response.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.parser.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.parser.push(&chunk)?,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.client.no_connection(error.without_url())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_any_pieces() {
        let text = ": hello\r\nevent: output\ndata: {\"a\":\ndata: 1}\nid: 7\n\n\nevent:exit\ndata:x\n\n";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(size) {
                parser.push(piece).unwrap();
            }
            let events: Vec<_> = parser.ready.into_iter().map(|event| (event.name, event.data)).collect();
            let want = [("output", "{\"a\":\n1}"), ("exit", "x")].map(|(a, b)| (a.to_owned(), b.to_owned()));
            assert_eq!(events, want, "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1 << 20));
        let refused = (0..20).find_map(|_| parser.push(line.as_bytes()).err());
        assert!(refused.unwrap().to_string().contains("longer"));
        let mut parser = Parser::default();
        let refused = (0..20).find_map(|_| parser.push(&[b'x'; 1 << 20]).err());
        assert!(refused.unwrap().to_string().contains("longer"));
    }
}
