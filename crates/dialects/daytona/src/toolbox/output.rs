//! The output of a command, all at once.

use atoll_core::exec::{Exit, OutputStream};
use atoll_core::id::SandboxId;
use atoll_core::{Code, Error};
use atoll_dialect_kit::memory::Held;
use atoll_engine::{Engine, OutputEvent, OutputReader, Piece};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde::Serialize;

/// Most bytes of an output in one answer. The newest are kept.
const KEEP_BYTES: usize = 16 << 20;
/// How often a buffer is in memory: itself, and its text in the answer.
const COPIES: usize = 2;
/// Bytes read from the log at once.
const READ_BYTES: usize = 256 << 10;

/// Output of a command: of both streams in the order in which it was written, and of each.
#[derive(Debug)]
pub(crate) struct Output {
    both: BytesMut,
    stdout: BytesMut,
    stderr: BytesMut,
    dropped: bool,
    held: Held,
}

impl Output {
    fn new(held: Held) -> Self {
        let (both, stdout, stderr) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
        Self { both, stdout, stderr, dropped: false, held }
    }

    fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let wanted = bytes.len().saturating_mul(2 * COPIES);
        if self.held.grow(wanted).is_err() {
            // Others need the memory: what was kept goes, and the newest is kept from here on.
            (self.both, self.stdout, self.stderr) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
            self.dropped = true;
            self.held.give_back(usize::MAX);
            if self.held.grow(wanted).is_err() {
                return;
            }
        }
        let own = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        for buffer in [own, &mut self.both] {
            buffer.extend_from_slice(bytes);
            // Lets the buffer grow to twice the size, so that not each piece moves all bytes.
            if buffer.len() > 2 * KEEP_BYTES {
                let over = buffer.len() - KEEP_BYTES;
                drop(buffer.split_to(over));
                self.held.give_back(over * COPIES);
                self.dropped = true;
            }
        }
    }

    fn text(&self, bytes: &BytesMut) -> String {
        let start = bytes.len().saturating_sub(KEEP_BYTES);
        let text = String::from_utf8_lossy(&bytes[start..]);
        if self.dropped || start > 0 {
            return format!("[the beginning of the output is left out]\n{text}");
        }
        text.into_owned()
    }

    /// Both streams together.
    pub(crate) fn both(&self) -> String {
        self.text(&self.both)
    }

    pub(crate) fn stdout(&self) -> String {
        self.text(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        self.text(&self.stderr)
    }

    /// An answer that says the output. Until its client has it, it has of the memory what it needs: as much as the output
    /// had, at most.
    pub(crate) fn answer(self, said: &impl Serialize) -> Response {
        let text = serde_json::to_string(said).unwrap_or_else(|error| {
            // What says an output has string keys and no failing serialisers.
            tracing::error!(%error, "an answer cannot be written as JSON");
            "null".to_owned()
        });
        let mut held = self.held;
        held.keep(text.len());
        let json = HeaderValue::from_static("application/json");
        ([(CONTENT_TYPE, json)], held.body(Bytes::from(text))).into_response()
    }
}

/// Reads until the end of a command.
///
/// # Errors
/// When the log cannot be read, or the server stops.
pub(crate) async fn whole(mut reader: OutputReader, held: Held) -> Result<(Output, Exit), Error> {
    let mut output = Output::new(held);
    loop {
        match reader.next(READ_BYTES).await? {
            OutputEvent::Piece(Piece::Output { stream, bytes, .. }) => output.push(stream, &bytes),
            OutputEvent::Piece(Piece::Gap { .. }) => output.dropped = true,
            OutputEvent::End { exit, .. } => return Ok((output, exit)),
        }
    }
}

/// The output until now.
///
/// # Errors
/// When the log cannot be read.
pub(crate) async fn so_far(
    engine: &Engine,
    sandbox: &SandboxId,
    exec: &str,
    held: Held,
) -> Result<Output, Error> {
    let mut reader = engine.output(sandbox, exec, 0, false).await?;
    let mut output = Output::new(held);
    loop {
        match reader.next_now(READ_BYTES).await? {
            Some(OutputEvent::Piece(Piece::Output { stream, bytes, .. })) => output.push(stream, &bytes),
            Some(OutputEvent::Piece(Piece::Gap { .. })) => output.dropped = true,
            Some(OutputEvent::End { .. }) | None => return Ok(output),
        }
    }
}

/// The exit code as a shell would tell it; -1 when there is none.
pub(crate) fn exit_code(exit: &Exit) -> i32 {
    match (exit.signal, exit.code) {
        (Some(signal), _) => 128 + signal,
        (None, Some(code)) => code,
        (None, None) => match exit.error {
            Some(Code::CommandNotFound) => 127,
            Some(Code::CommandNotExecutable) => 126,
            _ => -1,
        },
    }
}

#[cfg(test)]
mod tests {
    use atoll_dialect_kit::memory::Memory;
    use atoll_engine::Caller;

    use super::*;

    #[test]
    fn outputs_leave_memory_to_each_other_and_keep_what_is_newest() {
        let memory = Memory::new(8 * 1000 * COPIES);
        let mut output = Output::new(memory.hold(&Caller::system()));
        output.push(OutputStream::Stdout, &[b'a'; 1500]);
        assert_eq!(output.both().len(), 1500);
        output.push(OutputStream::Stdout, &[b'b'; 1000]);
        assert!(output.both().ends_with(&"b".repeat(1000)) && !output.both().contains("aa"));
        assert!(output.both().starts_with("[the beginning"));
        output.push(OutputStream::Stdout, &[b'c'; 5000]);
        assert!(!output.both().contains("cc"), "no memory for it");
        drop(output);
        let mut output = Output::new(memory.hold(&Caller::system()));
        output.push(OutputStream::Stderr, &[b'a'; 2000]);
        assert_eq!((output.stderr().len(), output.dropped), (2000, false));
    }

    #[tokio::test]
    async fn an_answer_has_memory_until_its_client_has_it() {
        let memory = Memory::new(8 * 1000 * COPIES);
        let mut output = Output::new(memory.hold(&Caller::system()));
        output.push(OutputStream::Stdout, &[b'a'; 1900]);
        let text = output.stdout();
        let answer = output.answer(&text);
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        let mut other = memory.hold(&Caller::system());
        other.grow(4000 * COPIES - text.len() - 2).unwrap();
        assert!(other.grow(1).is_err(), "the answer was not taken");
        let read = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        assert_eq!(read, format!("\"{text}\""));
        other.grow(1).unwrap();
    }

    #[test]
    fn the_newest_is_kept() {
        let mut output = Output::new(Memory::new(1 << 30).hold(&Caller::system()));
        output.push(OutputStream::Stdout, b"first");
        assert_eq!(
            (output.both(), output.stdout(), output.stderr()),
            ("first".into(), "first".into(), String::new())
        );
        for _ in 0..5 {
            output.push(OutputStream::Stderr, &vec![b'x'; KEEP_BYTES / 2]);
        }
        output.push(OutputStream::Stderr, b"last");
        assert!(output.both().ends_with("last") && output.both().starts_with("[the beginning"));
        assert!(output.both.len() <= 2 * KEEP_BYTES && output.both().len() < KEEP_BYTES + 100);
    }
}
