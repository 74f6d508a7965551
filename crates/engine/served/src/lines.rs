//! Lines and events out of an answer that comes in pieces.

use std::collections::VecDeque;

/// Longest line or event that is looked at, bytes.
pub const LINE_MAX_BYTES: usize = 1 << 20;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A line; of server-sent events, the data of one.
    Line(String),
    /// A line or event that is longer than [`LINE_MAX_BYTES`].
    TooLong,
    /// The answer has ended. It is whole, or its connection broke.
    End {
        /// Whether nothing is missing.
        whole: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Splitter {
    /// They are server-sent events.
    events: bool,
    /// Longest line or event, bytes.
    max_bytes: usize,
    /// The line that has begun.
    line: Vec<u8>,
    /// The data of the event that has begun.
    data: Option<Vec<u8>>,
    /// The rest of the line, or of the event, is not wanted.
    skipping: bool,
    heard: VecDeque<Heard>,
    ended: Option<bool>,
}

impl Splitter {
    pub(crate) const fn new(events: bool) -> Self {
        Self::bounded(events, LINE_MAX_BYTES)
    }

    const fn bounded(events: bool, max_bytes: usize) -> Self {
        Self {
            events,
            max_bytes,
            line: Vec::new(),
            data: None,
            skipping: false,
            heard: VecDeque::new(),
            ended: None,
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Heard> {
        self.heard.pop_front().or_else(|| self.ended.map(|whole| Heard::End { whole }))
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (piece, ends) = match piece.split_last() {
                Some((b'\n', piece)) => (piece, true),
                _ => (piece, false),
            };
            if !self.skipping {
                let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
                if held + piece.len() > self.max_bytes {
                    self.skip();
                } else {
                    self.line.extend_from_slice(piece);
                }
            }
            if self.skipping {
                // An event ends only with an empty line, and the line that was skipped is not empty. Two bytes tell a
                // line with one carriage return, which is empty, from one that begins with it.
                self.line.extend(piece.iter().take(2));
                self.line.truncate(2);
            }
            if ends {
                self.end_line();
            }
        }
    }

    fn skip(&mut self) {
        self.skipping = true;
        self.data = None;
        self.line = b"-".to_vec();
        self.heard.push_back(Heard::TooLong);
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if self.skipping {
            self.skipping = self.events && !line.is_empty();
        } else if !self.events {
            self.heard.push_back(Heard::Line(text(line)));
        } else if line.is_empty() {
            if let Some(data) = self.data.take() {
                self.heard.push_back(Heard::Line(text(data)));
            }
        } else if let Some(said) = line.strip_prefix(b"data:") {
            let said = said.strip_prefix(b" ").unwrap_or(said);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(said);
                }
                None => self.data = Some(said.to_vec()),
            }
        }
    }

    /// Nothing more comes. What is left of a whole answer is a line, too; of an event it is none.
    pub(crate) fn end(&mut self, whole: bool) {
        if self.ended.is_none() && whole && !self.events && !self.line.is_empty() && !self.skipping {
            self.end_line();
        }
        self.line.clear();
        self.ended.get_or_insert(whole);
    }
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(splitter: &mut Splitter) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(heard) = splitter.heard.pop_front() {
            said.push(if let Heard::Line(line) = heard { line } else { format!("{heard:?}") });
        }
        said
    }

    /// Longest line of [`naive`], bytes.
    const SHORT_BYTES: usize = 12;

    /// By the book: all lines at once.
    fn naive(bytes: &[u8], events: bool) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let strip = |line: &[u8]| line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        // The last has no end: it is a line unless it is empty, and never the end of an event.
        let last = lines.pop().unwrap_or_default();
        let long = |bytes: usize| bytes > SHORT_BYTES;
        if !events {
            let ended = lines.into_iter().map(|line| (line, strip(line)));
            let all = ended.chain((!last.is_empty()).then(|| (last, strip(last))));
            return all
                .map(|(line, said)| if long(line.len()) { "TooLong".to_owned() } else { text(&said) })
                .collect();
        }
        let (mut said, mut data, mut skipping) = (Vec::new(), None::<Vec<u8>>, false);
        for (line, whole) in lines.into_iter().map(|line| (line, true)).chain([(last, false)]) {
            if !skipping && long(line.len() + data.as_ref().map_or(0, Vec::len)) {
                (skipping, data) = (true, None);
                said.push("TooLong".to_owned());
                continue;
            }
            let line = strip(line);
            if !whole || skipping {
                skipping &= !line.is_empty() || !whole;
            } else if line.is_empty() {
                said.extend(data.take().map(|data| text(&data)));
            } else if let Some(more) = line.strip_prefix(b"data:") {
                let more = more.strip_prefix(b" ").unwrap_or(more);
                data =
                    Some(data.map_or_else(|| more.to_vec(), |data| [data.as_slice(), b"\n", more].concat()));
            }
        }
        said
    }

    #[test]
    fn any_answer_is_split_by_the_book_however_it_is_cut() {
        bolero::check!().for_each(|input: &[u8]| {
            let Some((&events, input)) = input.split_first() else { return };
            let events = events & 1 == 1;
            let want = naive(input, events);
            for size in [1, 3, input.len().max(1)] {
                let mut splitter = Splitter::bounded(events, SHORT_BYTES);
                for piece in input.chunks(size) {
                    splitter.push(piece);
                    // A line break is put between the lines of an event.
                    assert!(
                        splitter.line.len() + splitter.data.as_ref().map_or(0, Vec::len) <= SHORT_BYTES + 1
                    );
                }
                splitter.end(true);
                assert_eq!(all(&mut splitter), want, "pieces of {size}");
            }
        });
    }

    #[test]
    fn lines_in_any_pieces() {
        let whole = "one\r\n\ntwo\nthrée";
        for size in 1..8 {
            let mut splitter = Splitter::new(false);
            whole.as_bytes().chunks(size).for_each(|piece| splitter.push(piece));
            splitter.end(true);
            assert_eq!(all(&mut splitter), ["one", "", "two", "thrée"]);
            assert_eq!(splitter.pop(), Some(Heard::End { whole: true }));
        }
    }

    #[test]
    fn events_in_any_pieces() {
        let whole = "retry: 5\r\ndata: a\r\ndata:b\r\n\r\n: hello\n\nevent: x\ndata: c\n\ndata: half\n";
        for size in 1..8 {
            let mut splitter = Splitter::new(true);
            whole.as_bytes().chunks(size).for_each(|piece| splitter.push(piece));
            splitter.end(true);
            assert_eq!(all(&mut splitter), ["a\nb", "c"]);
        }
    }

    #[test]
    fn what_is_too_long_is_told_and_takes_no_room() {
        let long = vec![b'x'; LINE_MAX_BYTES / 2 + 1];
        for (events, first, last) in [(false, "", "\nok\n"), (true, "data: ", "\ndata: same\n\ndata: ok\n\n")]
        {
            let mut splitter = Splitter::new(events);
            splitter.push(first.as_bytes());
            for _ in 0..8 {
                splitter.push(&long);
                assert!(splitter.line.len() <= LINE_MAX_BYTES);
            }
            splitter.push(last.as_bytes());
            assert_eq!(all(&mut splitter), ["TooLong", "ok"]);
        }
        // One event of many lines.
        let mut splitter = Splitter::new(true);
        for _ in 0..3 {
            splitter.push(b"data: ");
            splitter.push(&long);
            splitter.push(b"\n");
        }
        // Neither does a line end it that only begins as an empty one.
        splitter.push(b"\rdata: more\ndata: same\n");
        splitter.push(b"\ndata: ok\n\n");
        assert_eq!(all(&mut splitter), ["TooLong", "ok"]);
    }
}
