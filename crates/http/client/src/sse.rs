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
    /// Why nothing after those that are ready can be read.
    failed: Option<String>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.read(bytes).err();
        }
    }

    /// The next event that is there. An error comes after the events before it, and again each time.
    fn pop(&mut self) -> Result<Option<Event>> {
        match (self.ready.pop_front(), &self.failed) {
            (None, Some(why)) => Err(ClientError::Protocol(why.clone())),
            (ready, _) => Ok(ready),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.buffer.extend_from_slice(bytes);
        while let Some(at) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            let line = self.buffer.split_to(self.searched + at);
            self.buffer.advance(1);
            self.searched = 0;
            let line = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(&line))
                .map_err(|error| format!("an event: {error}"))?;
            self.line(line)?;
        }
        self.searched = self.buffer.len();
        let held = self.buffer.len() + self.data.as_ref().map_or(0, String::len);
        if held > EVENT_MAX_BYTES {
            return Err(too_long());
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
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
                    return Err(too_long());
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

fn too_long() -> String {
    format!("an event is longer than {EVENT_MAX_BYTES} bytes")
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
            if let Some(event) = self.parser.pop()? {
                return Ok(Some(event));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.parser.push(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.client.no_connection(error.without_url())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of bytes that come in pieces, and why there are no more.
    fn events(bytes: &[u8], piece: usize) -> (Vec<Event>, Option<String>) {
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            parser.push(piece);
            loop {
                match parser.pop() {
                    Ok(Some(event)) => found.push(event),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error.to_string())),
                }
            }
        }
        (found, None)
    }

    /// The same events in other words.
    fn written(events: &[Event]) -> String {
        let lines = |data: &str| data.split('\n').map(|line| format!("data: {line}\r\n")).collect::<String>();
        let one =
            |event: &Event| format!(": an event\r\nevent: {}\r\n{}\r\n", event.name, lines(&event.data));
        events.iter().map(one).collect()
    }

    #[test]
    fn events_of_any_bytes_do_not_depend_on_how_they_are_cut() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let (whole, why) = events(bytes, bytes.len().max(1));
            for piece in [1, 5] {
                let (found, same) = events(bytes, piece);
                assert_eq!((&found, &same), (&whole, &why), "pieces of {piece}");
            }
            assert_eq!(why.is_some(), whole_lines(bytes).any(|line| std::str::from_utf8(line).is_err()));
            let written = written(&whole);
            assert_eq!(events(written.as_bytes(), 64), (whole, None));
        });
    }

    /// The lines that have come to their end.
    fn whole_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"))
    }

    #[test]
    fn an_error_comes_after_the_events_before_it() {
        for piece in [1, 100] {
            let (found, why) = events(b"data: one\n\ndata: two\n\ndata: \xff\n\ndata: three\n\n", piece);
            let data: Vec<_> = found.into_iter().map(|event| event.data).collect();
            assert_eq!(data, ["one", "two"], "pieces of {piece}");
            assert!(why.unwrap().contains("utf-8"));
        }
    }

    #[test]
    fn events_in_any_pieces() {
        let text = ": hello\r\nevent: output\ndata: {\"a\":\ndata: 1}\nid: 7\n\n\nevent:exit\ndata:x\n\n";
        for size in 1..text.len() {
            let want = [("output", "{\"a\":\n1}"), ("exit", "x")];
            let want = want.map(|(name, data)| Event { name: name.to_owned(), data: data.to_owned() });
            assert_eq!(events(text.as_bytes(), size), (Vec::from(want), None), "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let line = format!("data: {}\n", "x".repeat(1 << 20));
        for piece in [line.as_bytes(), &[b'x'; 1 << 20]] {
            let (found, refused) = events(&piece.repeat(20), 1 << 20);
            assert!(found.is_empty() && refused.unwrap().contains("longer"));
        }
    }
}
