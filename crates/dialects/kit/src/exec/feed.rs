//! Follows the output of a command from where a client left off.

use atoll_core::Error;
use atoll_core::exec::{Exit, OutputStream};
use atoll_core::id::{ExecId, KeyId, SandboxId};
use atoll_engine::{Engine, ExecView, OutputEvent, OutputReader, Piece};
use bytes::Bytes;

use super::marks::Bookmarks;
use super::track::Position;

/// Bytes read from the log at once.
const READ_BYTES: usize = 128 << 10;

/// Where a client left off, for each stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Bytes it has of standard output.
    pub stdout: u64,
    /// And of standard error.
    pub stderr: u64,
}

impl Offsets {
    fn of(self, stream: OutputStream) -> u64 {
        match stream {
            OutputStream::Stdout => self.stdout,
            OutputStream::Stderr => self.stderr,
        }
    }
}

/// How a client counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Bytes of the text it is sent.
    Text,
    /// Bytes as the command wrote them.
    Raw,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Text of a stream, beginning at this offset.
    Text {
        /// The stream.
        stream: OutputStream,
        /// In bytes of text.
        offset: u64,
        /// Whole characters.
        text: String,
    },
    /// Bytes of a stream, beginning at this offset.
    Raw {
        /// The stream.
        stream: OutputStream,
        /// In bytes as they were written.
        offset: u64,
        /// As they were written.
        bytes: Bytes,
    },
    /// The end.
    End(Exit),
}

/// A reader of one command's output.
#[derive(Debug)]
pub struct Feed {
    engine: Engine,
    sandbox: SandboxId,
    exec: ExecId,
    marks: Bookmarks,
    counting: Counting,
    from: Offsets,
    reader: OutputReader,
    /// For whom the reader reads.
    key: Option<KeyId>,
    position: Position,
    /// The end of a stream's text, or the exit, that waits behind it.
    ending: Vec<Event>,
    ended: bool,
}

impl Feed {
    /// Starts to read. It counts as a client of the command as long as it lives.
    pub async fn open(
        engine: &Engine,
        view: &ExecView,
        marks: &Bookmarks,
        counting: Counting,
        from: Offsets,
    ) -> Result<Self, Error> {
        let (sandbox, exec) = (view.record.sandbox.clone(), view.record.id.clone());
        let reached = |mark: &Position| match counting {
            Counting::Text => mark.stdout.text <= from.stdout && mark.stderr.text <= from.stderr,
            Counting::Raw => mark.stdout.raw <= from.stdout && mark.stderr.raw <= from.stderr,
        };
        let position = marks.last(&exec, reached).unwrap_or_default();
        let reader = engine.output(&sandbox, exec.as_str(), position.at, true).await?;
        Ok(Self {
            engine: engine.clone(),
            sandbox,
            exec,
            marks: marks.clone(),
            counting,
            from,
            reader,
            key: None,
            position,
            ending: Vec::new(),
            ended: false,
        })
    }

    /// For a client with this key: see [`OutputReader::read_by`].
    #[must_use]
    pub fn read_by(self, key: Option<&KeyId>) -> Self {
        Self { reader: self.reader.read_by(key), key: key.cloned(), ..self }
    }

    /// Where the streams are now, in the client's counting.
    pub fn offsets(&self) -> Offsets {
        let (stdout, stderr) = (&self.position.stdout, &self.position.stderr);
        match self.counting {
            Counting::Text => Offsets { stdout: stdout.text, stderr: stderr.text },
            Counting::Raw => Offsets { stdout: stdout.raw, stderr: stderr.raw },
        }
    }

    /// The next event, waiting for it. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// When the log cannot be read or the server stops.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if self.ended {
                return Ok(self.ending.remove(0));
            }
            let event = self.reader.next(READ_BYTES).await?;
            if let Some(event) = self.take(event).await? {
                return Ok(event);
            }
        }
    }

    /// The next event if there is one now.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn next_now(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if self.ended {
                return Ok(Some(self.ending.remove(0)));
            }
            let Some(event) = self.reader.next_now(READ_BYTES).await? else { return Ok(None) };
            if let Some(event) = self.take(event).await? {
                return Ok(Some(event));
            }
        }
    }

    /// Gives `None` for output that the client has already.
    async fn take(&mut self, event: OutputEvent) -> Result<Option<Event>, Error> {
        match event {
            OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
                self.position.at = offset + bytes.len() as u64;
                let event = self.output(stream, bytes);
                self.marks.note(&self.exec, &self.position);
                Ok(event)
            }
            OutputEvent::Piece(Piece::Gap { from, to }) => {
                self.jump(from, to).await?;
                Ok(None)
            }
            OutputEvent::End { exit, .. } => {
                self.end(exit);
                Ok(None)
            }
        }
    }

    fn output(&mut self, stream: OutputStream, bytes: Bytes) -> Option<Event> {
        let from = self.from.of(stream);
        let track = self.position.track(stream);
        let (raw_start, text_start) = (track.raw, track.text);
        let text = track.push(&bytes);
        match self.counting {
            Counting::Text => rest_of_text(stream, text_start, text, from),
            Counting::Raw => {
                let known = from.saturating_sub(raw_start).min(bytes.len() as u64);
                let skip = usize::try_from(known).unwrap_or(bytes.len());
                let bytes = bytes.slice(skip..);
                (!bytes.is_empty()).then_some(Event::Raw { stream, offset: raw_start + known, bytes })
            }
        }
    }

    /// Moves past output that the log dropped. Where the two streams stand behind the gap is known if another reader
    /// passed it before; otherwise all dropped bytes count as standard output.
    async fn jump(&mut self, from: u64, to: u64) -> Result<(), Error> {
        if let Some(mark) = self.marks.first_from(&self.exec, to) {
            let reader = self.engine.output(&self.sandbox, self.exec.as_str(), mark.at, true).await?;
            self.reader = reader.read_by(self.key.as_ref());
            self.position = mark;
        } else {
            self.position.stdout.skip(to - from);
            self.position.at = to;
        }
        Ok(())
    }

    fn end(&mut self, exit: Exit) {
        self.ended = true;
        if self.counting == Counting::Text {
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                let start = self.position.track(stream).text;
                let text = self.position.track(stream).finish();
                self.ending.extend(rest_of_text(stream, start, text, self.from.of(stream)));
            }
        }
        self.ending.push(Event::End(exit));
    }
}

/// The part of `text`, which begins at offset `start`, that lies at or behind offset `from`.
fn rest_of_text(stream: OutputStream, start: u64, mut text: String, from: u64) -> Option<Event> {
    let known = from.saturating_sub(start).min(text.len() as u64);
    let mut skip = usize::try_from(known).unwrap_or(text.len());
    // The client counts what we sent, so this is a boundary; if it lies, it gets a whole character.
    while !text.is_char_boundary(skip) {
        skip -= 1;
    }
    text.drain(..skip);
    (!text.is_empty()).then_some(Event::Text { stream, offset: start + skip as u64, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that comes back, wherever it says that it stopped, gets the rest of the text, in pieces that join, and each
    /// character whole.
    #[test]
    fn a_client_that_comes_back_gets_the_rest() {
        bolero::check!().with_type::<(Vec<u8>, u64, u8)>().for_each(|(bytes, from, piece)| {
            let whole = String::from_utf8_lossy(bytes);
            let from = if from % 2 == 0 { from / 2 % (whole.len() as u64 + 2) } else { *from };
            let mut track = super::super::track::Track::default();
            let (mut pieces, mut got, mut begins) =
                (bytes.chunks(usize::from(*piece) + 1), String::new(), None);
            loop {
                let start = track.text;
                let next = pieces.next();
                let text = match next {
                    Some(piece) => track.push(piece),
                    None => track.finish(),
                };
                if let Some(Event::Text { offset, text, .. }) =
                    rest_of_text(OutputStream::Stdout, start, text, from)
                {
                    let begins = *begins.get_or_insert(offset);
                    assert_eq!(offset, begins + got.len() as u64);
                    got.push_str(&text);
                }
                if next.is_none() {
                    break;
                }
            }
            let Some(begins) = begins else {
                return assert!(from >= whole.len() as u64, "nothing came of what is behind {from}");
            };
            assert!(begins <= from && from - begins < 4, "from {begins}, not {from}");
            assert_eq!(got, whole[usize::try_from(begins).unwrap()..]);
        });
    }

    #[test]
    fn only_what_is_new_is_told() {
        let rest = |start, text: &str, from| match rest_of_text(
            OutputStream::Stdout,
            start,
            text.to_owned(),
            from,
        ) {
            Some(Event::Text { offset, text, .. }) => Some((offset, text)),
            _ => None,
        };
        assert_eq!(rest(10, "abc", 0), Some((10, "abc".to_owned())));
        assert_eq!(rest(10, "abc", 12), Some((12, "c".to_owned())));
        assert_eq!(rest(10, "abc", 13), None);
        assert_eq!(rest(10, "abc", 99), None);
        assert_eq!(rest(0, "a€", 2), Some((1, "€".to_owned())));
    }
}
