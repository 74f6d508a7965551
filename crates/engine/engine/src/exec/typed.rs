//! Who typed into a terminal, and how many bytes: told while they type, and without the text.

use std::time::Duration;

use tokio::time::Instant;

/// What one person types is told in pieces that take this long, so that a key that is held down is no flood.
const PIECE: Duration = Duration::from_secs(1);

/// What was typed and is not told yet.
#[derive(Debug, Default)]
pub(super) struct Typed {
    by: Option<String>,
    bytes: u64,
    /// When something was told last.
    told: Option<Instant>,
    /// The command has ended: input that is counted from now on is told at once, since nothing later would tell it.
    ended: bool,
}

/// Who typed how many bytes.
pub(super) type Piece = (Option<String>, u64);

impl Typed {
    /// Takes more in; gives what is to be told now: what another author typed before, and what is due.
    pub(super) fn add(&mut self, by: Option<&str>, bytes: u64, now: Instant) -> Vec<Piece> {
        let mut told = Vec::new();
        if self.by.as_deref() != by {
            told.extend(self.rest());
            self.by = by.map(str::to_owned);
            self.told = None;
        }
        self.bytes += bytes;
        // The input that ended the command may be counted only after its end.
        if self.ended || self.told.is_none_or(|told| now.duration_since(told) >= PIECE) {
            self.told = Some(now);
            told.extend(self.rest());
        }
        told
    }

    /// The rest that is not told when the command ends. Input that is added after this is told at once.
    pub(super) fn end(&mut self) -> Option<Piece> {
        self.ended = true;
        self.rest()
    }

    fn rest(&mut self) -> Option<Piece> {
        let bytes = std::mem::take(&mut self.bytes);
        (bytes > 0).then(|| (self.by.clone(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_told_once_and_of_who_typed_it() {
        let (mut typed, start) = (Typed::default(), Instant::now());
        let piece = |by: &str, bytes| (Some(by.to_owned()), bytes);
        assert_eq!(typed.add(Some("a"), 1, start), [piece("a", 1)]);
        assert_eq!(typed.add(Some("a"), 2, start), []);
        assert_eq!(typed.add(Some("a"), 3, start + PIECE), [piece("a", 5)]);
        assert_eq!(typed.add(Some("a"), 4, start + PIECE), []);
        assert_eq!(typed.add(Some("b"), 5, start + PIECE), [piece("a", 4), piece("b", 5)]);
        assert_eq!(typed.add(Some("b"), 6, start + PIECE), []);
        assert_eq!(typed.add(None, 0, start + PIECE), [piece("b", 6)]);
        assert_eq!(typed.end(), None);
        assert_eq!(typed.add(Some("b"), 7, start + PIECE), [piece("b", 7)]);
        assert_eq!(typed.add(Some("b"), 8, start + PIECE), [piece("b", 8)], "after the end");
    }
}
