//! Answers that a program in a sandbox gives on its standard output, a line of JSON each. They are hostile: other
//! programs in the sandbox can write them, too.

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_engine::{OutputEvent, OutputReader, Piece};
use bytes::BytesMut;
use serde_json::Value;
use tokio_util::codec::{Decoder as _, LinesCodec, LinesCodecError};

/// Most that is read at once, bytes.
const READ_BYTES: usize = 64 << 10;

/// Why there is no further answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The program has ended.
    Ended,
    /// A line is too long to be an answer.
    TooLong,
    /// This server ends.
    ShuttingDown,
    /// The program's output cannot be read.
    Failed(Error),
}

/// The answers to one question.
pub(super) struct Answers {
    reader: OutputReader,
    id: String,
    read: BytesMut,
    /// Looks at each byte once, however many pieces a line comes in.
    lines: LinesCodec,
}

impl Answers {
    /// The answers with this id. Answers with other ids belong to earlier questions, whose clients have gone. No answer
    /// has more than `max_bytes`.
    pub(super) fn new(reader: OutputReader, id: String, max_bytes: usize) -> Self {
        let lines = LinesCodec::new_with_max_length(max_bytes);
        Self { reader, id, read: BytesMut::new(), lines }
    }

    /// The next answer.
    pub(super) async fn next(&mut self) -> Result<Value, NoAnswer> {
        loop {
            match self.lines.decode(&mut self.read) {
                Ok(Some(line)) => match serde_json::from_str::<Value>(&line) {
                    Ok(answer) if answer["id"] == self.id.as_str() => return Ok(answer),
                    _ => continue,
                },
                Ok(None) => {}
                Err(LinesCodecError::MaxLineLengthExceeded) => return Err(NoAnswer::TooLong),
                // The line is no text, and so no answer.
                Err(LinesCodecError::Io(_)) => continue,
            }
            match self.reader.next(READ_BYTES).await {
                Ok(OutputEvent::Piece(Piece::Output { stream: OutputStream::Stdout, bytes, .. })) => {
                    self.read.extend_from_slice(&bytes);
                }
                Ok(OutputEvent::Piece(_)) => {}
                Ok(OutputEvent::End { .. }) => return Err(NoAnswer::Ended),
                Err(Error { code: Code::ShuttingDown, .. }) => return Err(NoAnswer::ShuttingDown),
                Err(error) => return Err(NoAnswer::Failed(error)),
            }
        }
    }
}
