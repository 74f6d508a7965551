//! Answers that a program in a sandbox gives on its standard output, a line of JSON each. They are hostile: other
//! programs in the sandbox can write them, too. So what they say is passed on as it was written: a line is never read
//! into values, which can take thirty times its bytes.

use std::borrow::Cow;

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_dialect_kit::memory::Held;
use atoll_engine::{OutputEvent, OutputReader, Piece};
use bytes::BytesMut;
use serde::Deserialize;
use tokio_util::codec::{Decoder as _, LinesCodec, LinesCodecError};

/// Most that is read at once, bytes.
const READ_BYTES: usize = 64 << 10;
/// How often a line may be in memory: as it came, as a text, and as what is made of it.
const COPIES: usize = 3;

/// Why there is no further answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The program has ended.
    Ended,
    /// A line is too long to be an answer.
    TooLong,
    /// This server ends.
    ShuttingDown,
    /// The program's output cannot be read, or the caller has no memory left for it.
    Failed(Error),
}

/// An answer, as it was written.
#[derive(Debug)]
pub(super) struct Answer(String);

impl Answer {
    /// What it says, if it has this form: one that takes no more than a few times the bytes that it is read from.
    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(&self.0).ok()
    }
}

/// The part of an answer that says to which question it belongs.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// The answers to one question.
pub(super) struct Answers {
    reader: OutputReader,
    lines: Lines,
}

/// The answers in bytes that come in pieces.
struct Lines {
    id: String,
    read: BytesMut,
    /// Looks at each byte once, however many pieces a line comes in.
    codec: LinesCodec,
    /// For the bytes that were read, and for the last answer.
    held: Held,
}

impl Lines {
    fn new(id: String, max_bytes: usize, held: Held) -> Self {
        Self { id, read: BytesMut::new(), codec: LinesCodec::new_with_max_length(max_bytes), held }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.held.grow(bytes.len().saturating_mul(COPIES))?;
        self.read.extend_from_slice(bytes);
        Ok(())
    }

    /// The next answer that has come whole. The caller is done with the one before.
    fn next(&mut self) -> Result<Option<Answer>, NoAnswer> {
        loop {
            self.held.keep(self.read.len().saturating_mul(COPIES));
            match self.codec.decode(&mut self.read) {
                Ok(Some(line)) => {
                    let answer = Answer(line);
                    if answer.read::<Named<'_>>().is_some_and(|named| named.id == self.id) {
                        return Ok(Some(answer));
                    }
                }
                Ok(None) => return Ok(None),
                Err(LinesCodecError::MaxLineLengthExceeded) => return Err(NoAnswer::TooLong),
                // The line is no text, and so no answer.
                Err(LinesCodecError::Io(_)) => {}
            }
        }
    }
}

impl Answers {
    /// The answers with this id. Answers with other ids belong to earlier questions, whose clients have gone. No answer
    /// has more than `max_bytes`. Memory for what was read is taken of `held`.
    pub(super) fn new(reader: OutputReader, id: String, max_bytes: usize, held: Held) -> Self {
        Self { reader, lines: Lines::new(id, max_bytes, held) }
    }

    /// The next answer.
    pub(super) async fn next(&mut self) -> Result<Answer, NoAnswer> {
        loop {
            if let Some(answer) = self.lines.next()? {
                return Ok(answer);
            }
            match self.reader.next(READ_BYTES).await {
                Ok(OutputEvent::Piece(Piece::Output { stream: OutputStream::Stdout, bytes, .. })) => {
                    self.lines.push(&bytes).map_err(NoAnswer::Failed)?;
                }
                Ok(OutputEvent::Piece(_)) => {}
                Ok(OutputEvent::End { .. }) => return Err(NoAnswer::Ended),
                Err(Error { code: Code::ShuttingDown, .. }) => return Err(NoAnswer::ShuttingDown),
                Err(error) => return Err(NoAnswer::Failed(error)),
            }
        }
    }

    /// The memory of the last answer, for whoever goes on with it.
    pub(super) fn into_held(self) -> Held {
        self.lines.held
    }
}

#[cfg(test)]
mod tests {
    use atoll_dialect_kit::memory::Memory;
    use atoll_engine::Caller;
    use serde_json::value::RawValue;

    use super::*;

    fn lines(memory: &Memory) -> Lines {
        Lines::new("7".to_owned(), 1 << 20, memory.hold(&Caller::system()))
    }

    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }

    #[test]
    fn only_the_answers_to_the_question_are_given_in_any_pieces() {
        let said = b"no JSON\n{\"id\": \"6\"}\n[1]\n{\"id\": 7}\n\xff\n{\"id\": \"7\", \"result\": 1}\n{\"id\": \"\\u0037\"}\n";
        for size in 1..said.len() {
            let (mut lines, mut found) = (lines(&Memory::new(1 << 20)), Vec::new());
            for piece in said.chunks(size) {
                lines.push(piece).unwrap();
                while let Some(answer) = lines.next().unwrap() {
                    let said: Said<'_> = answer.read().unwrap();
                    found.push(said.result.map(|result| result.get().to_owned()));
                }
            }
            assert_eq!(found, [Some("1".to_owned()), None], "{size}");
        }
    }

    #[test]
    fn values_are_passed_on_as_they_were_written() {
        let mut lines = lines(&Memory::new(8 << 20));
        let nested = format!("{}0{}", "[".repeat(100_000), "]".repeat(100_000));
        for value in [nested.as_str(), "[{}, [], 1e999]"] {
            lines.push(format!("{{\"id\":\"7\",\"result\":{value}}}\n").as_bytes()).unwrap();
            let answer = lines.next().unwrap().unwrap();
            assert_eq!(answer.read::<Said<'_>>().unwrap().result.unwrap().get(), value);
        }
    }

    #[test]
    fn what_is_read_has_memory_until_the_next_answer() {
        let memory = Memory::new(2 * COPIES * 1000);
        let (mut one, mut other) = (lines(&memory), lines(&memory));
        let long = format!("{{\"id\":\"7\",\"result\":\"{}\"}}\n", "x".repeat(900));
        for _ in 0..5 {
            one.push(long.as_bytes()).unwrap();
            assert!(one.next().unwrap().is_some());
            assert!(one.next().unwrap().is_none());
        }
        one.push(long.as_bytes()).unwrap();
        assert!(one.next().unwrap().is_some());
        assert_eq!(other.push(&[b'x'; 500]).unwrap_err().code, Code::LimitExceeded);
        assert!(one.next().unwrap().is_none());
        other.push(&[b'x'; 500]).unwrap();
        let foreign = long.replace('7', "8");
        one.push(&foreign.as_bytes()[..400]).unwrap();
        assert!(one.next().unwrap().is_none());
        assert!(one.push(&foreign.as_bytes()[400..]).is_err(), "the other one has some");
        drop(other);
        one.push(&foreign.as_bytes()[400..]).unwrap();
        assert!(one.next().unwrap().is_none());
        one.push(&[b'x'; 1000]).unwrap();
    }

    #[test]
    fn a_line_has_an_end() {
        let mut lines = lines(&Memory::new(1 << 30));
        lines.push(&vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(matches!(lines.next(), Err(NoAnswer::TooLong)));
    }
}
