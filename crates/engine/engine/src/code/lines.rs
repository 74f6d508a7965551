//! Lines of a cell's output, each with where it ends.

use atoll_core::code::Line;
use atoll_core::exec::OutputStream;
use atoll_core::limits::CELL_EVENT_MAX_BYTES;

use crate::log::Piece;

/// Puts lines together.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    /// What is said of the line instead of its text.
    skipped: Option<(&'static str, &'static str)>,
}

impl Lines {
    /// The lines that a piece completes, with one past the last byte of each.
    pub(super) fn push(&mut self, piece: Piece) -> Vec<(u64, Line)> {
        let mut lines = Vec::new();
        match piece {
            Piece::Gap { .. } => self.skip("dropped", "the cell said more than is kept"),
            Piece::Output { offset, stream: OutputStream::Stdout, bytes } => {
                let mut at = 0;
                while let Some(len) = bytes[at..].iter().position(|byte| *byte == b'\n') {
                    self.extend(&bytes[at..at + len]);
                    at += len + 1;
                    lines.push((offset + at as u64, self.take()));
                }
                self.extend(&bytes[at..]);
            }
            // What goes wrong in the client: in the log of its exec.
            Piece::Output { .. } => {}
        }
        lines
    }

    /// What is left at the end is a line, too.
    pub(super) fn finish(&mut self) -> Option<Line> {
        (!self.partial.is_empty() || self.skipped.is_some()).then(|| self.take())
    }

    fn take(&mut self) -> Line {
        let line = std::mem::take(&mut self.partial);
        match self.skipped.take() {
            Some((code, text)) => Line::problem(code, text),
            None => atoll_core::code::line(&line),
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipped.is_some() {
            return;
        }
        if self.partial.len() + bytes.len() > CELL_EVENT_MAX_BYTES {
            self.skip("too_large", "a result of more than 8 MiB is left out");
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn skip(&mut self, code: &'static str, text: &'static str) {
        self.partial = Vec::new();
        self.skipped = Some((code, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::code::CellEventKind;

    fn out(offset: u64, text: &str) -> Piece {
        Piece::Output { offset, stream: OutputStream::Stdout, bytes: text.to_owned().into() }
    }

    fn codes(lines: Vec<(u64, Line)>) -> Vec<(u64, String)> {
        let code = |line: Line| match line {
            Line::Event(CellEventKind::Problem, data) => data["code"].as_str().unwrap().to_owned(),
            Line::Event(kind, data) => {
                format!("{}:{}", kind.as_str(), data["text"].as_str().unwrap_or_default())
            }
            Line::End { .. } => "end".to_owned(),
        };
        lines.into_iter().map(|(end, line)| (end, code(line))).collect()
    }

    #[test]
    fn lines_end_where_they_do_however_they_come() {
        let text = "{\"type\":\"stdout\",\"text\":\"a\"}\nx\n{\"type\":\"end\"}\n";
        let expected = [(29, "stdout:a".to_owned()), (31, "malformed".to_owned()), (46, "end".to_owned())];
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for (index, piece) in text.as_bytes().chunks(size).enumerate() {
                let piece = std::str::from_utf8(piece).unwrap();
                found.extend(codes(lines.push(out((index * size) as u64, piece))));
            }
            assert_eq!(found, expected, "in pieces of {size}");
            assert_eq!(lines.finish(), None);
        }
    }

    #[test]
    fn what_is_too_large_or_lost_is_told_where_it_ends() {
        let mut lines = Lines::default();
        let half = "x".repeat(CELL_EVENT_MAX_BYTES / 2 + 1);
        assert_eq!(codes(lines.push(out(0, &half))), []);
        assert_eq!(codes(lines.push(out(half.len() as u64, &half))), []);
        let end = 2 * half.len() as u64;
        assert_eq!(
            codes(lines.push(out(end, "\n{\"type\":\"reset\"}\n"))),
            [(end + 1, "too_large".to_owned()), (end + 18, "reset:".to_owned()),]
        );
        assert_eq!(codes(lines.push(Piece::Gap { from: end + 18, to: end + 100 })), []);
        assert_eq!(codes(lines.push(out(end + 100, "half a line\n"))), [(end + 112, "dropped".to_owned())]);
        assert_eq!(codes(lines.push(out(end + 112, "rest"))), []);
        assert_eq!(
            codes(lines.finish().map(|line| (0, line)).into_iter().collect()),
            [(0, "malformed".to_owned())]
        );
    }
}
