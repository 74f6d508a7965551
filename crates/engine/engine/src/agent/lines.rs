//! Lines out of an output that comes in pieces.

use atoll_core::exec::OutputStream;

use crate::log::Piece;

/// Longest line that is looked at, bytes.
const LINE_MAX_BYTES: usize = 1 << 20;

/// A line of standard output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// What it says.
    Text(String),
    /// It was longer than what is looked at.
    TooLong,
    /// Output was dropped before it could be read.
    Lost,
}

/// What of the output was read and gives no line yet.
#[derive(Debug)]
pub(super) struct Lines {
    partial: Vec<u8>,
    /// Where that begins; with nothing read, where reading goes on.
    start: u64,
    /// The rest of the line is not wanted.
    skipping: bool,
}

impl Lines {
    /// Begins at an offset at which a line begins.
    pub(super) const fn at(offset: u64) -> Self {
        Self { partial: Vec::new(), start: offset, skipping: false }
    }

    /// From where the output must be read again to get the same lines.
    pub(super) const fn offset(&self) -> u64 {
        self.start
    }

    /// The lines that a piece completes.
    pub(super) fn push(&mut self, piece: Piece) -> Vec<Line> {
        let mut lines = Vec::new();
        match piece {
            Piece::Gap { to, .. } => {
                self.partial.clear();
                self.skipping = true;
                self.start = to;
                lines.push(Line::Lost);
            }
            Piece::Output { offset, stream: OutputStream::Stdout, bytes } => {
                let mut at = 0;
                while let Some(len) = bytes[at..].iter().position(|byte| *byte == b'\n') {
                    self.extend(offset + at as u64, &bytes[at..at + len], &mut lines);
                    at += len + 1;
                    if std::mem::take(&mut self.skipping) {
                        self.partial.clear();
                    } else {
                        lines.push(Line::Text(text(&std::mem::take(&mut self.partial))));
                    }
                    self.start = offset + at as u64;
                }
                self.extend(offset + at as u64, &bytes[at..], &mut lines);
                self.pass(offset + bytes.len() as u64);
            }
            // What it tells people: in the log of its exec.
            Piece::Output { offset, bytes, .. } => self.pass(offset + bytes.len() as u64),
        }
        lines
    }

    /// What is left at the end is a line, too.
    pub(super) fn finish(&mut self) -> Option<Line> {
        let rest = std::mem::take(&mut self.partial);
        (!rest.is_empty() && !self.skipping).then(|| Line::Text(text(&rest)))
    }

    /// Up to here there is nothing that must be read again, unless a line has begun.
    fn pass(&mut self, end: u64) {
        // What is skipped is not seen as such from its middle: it is read again from where it began.
        if self.partial.is_empty() && !self.skipping {
            self.start = end;
        }
    }

    fn extend(&mut self, offset: u64, bytes: &[u8], lines: &mut Vec<Line>) {
        if bytes.is_empty() || self.skipping {
            return;
        }
        if self.partial.is_empty() {
            self.start = offset;
        }
        if self.partial.len() + bytes.len() > LINE_MAX_BYTES {
            self.partial.clear();
            self.skipping = true;
            lines.push(Line::TooLong);
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(offset: u64, text: &str) -> Piece {
        Piece::Output { offset, stream: OutputStream::Stdout, bytes: text.to_owned().into() }
    }

    fn err(offset: u64, text: &str) -> Piece {
        Piece::Output { offset, stream: OutputStream::Stderr, bytes: text.to_owned().into() }
    }

    fn texts(lines: Vec<Line>) -> Vec<String> {
        let text = |line| if let Line::Text(text) = line { text } else { format!("{line:?}") };
        lines.into_iter().map(text).collect()
    }

    #[test]
    fn lines_and_where_to_read_them_again() {
        let mut lines = Lines::at(0);
        assert_eq!(texts(lines.push(out(0, "a\r\nb"))), ["a"]);
        assert_eq!(lines.offset(), 3);
        assert_eq!(texts(lines.push(err(4, "oops\n"))), [""; 0]);
        assert_eq!(lines.offset(), 3, "the line has begun before");
        assert_eq!(texts(lines.push(out(9, "c\n\nd\n"))), ["bc", "", "d"]);
        assert_eq!(lines.offset(), 14);
        lines.push(err(14, "x"));
        assert_eq!(lines.offset(), 15);
        lines.push(out(15, "end"));
        assert_eq!((lines.finish(), lines.finish()), (Some(Line::Text("end".into())), None));
    }

    #[test]
    fn what_is_too_long_or_lost_is_told() {
        let mut lines = Lines::at(0);
        let long = "x".repeat(LINE_MAX_BYTES);
        assert_eq!(lines.push(out(0, &long)), []);
        assert_eq!(lines.push(out(LINE_MAX_BYTES as u64, "y")), [Line::TooLong]);
        assert_eq!(texts(lines.push(out(LINE_MAX_BYTES as u64 + 1, "z\nok\n"))), ["ok"]);
        assert_eq!(lines.push(Piece::Gap { from: 9, to: 20 }), [Line::Lost]);
        assert_eq!(texts(lines.push(out(20, "half\nwhole\n"))), ["whole"]);
    }
}
