//! Offsets of output, as the clients count them.
//!
//! The engine's log counts bytes of both streams together. The clients count each stream by itself: over the WebSocket
//! in bytes of the *text* that the server sent them, in which `U+FFFD` stands for bytes that are no UTF-8; over events
//! in bytes as the command wrote them. A [`Position`] is one place in the log, in all these countings. Reading the log
//! on from a position gives the next position, which is the same however the bytes are cut into pieces.

use atoll_core::exec::OutputStream;

/// How far one stream was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Track {
    /// Bytes so far.
    pub(crate) raw: u64,
    /// Bytes of text so far.
    pub(crate) text: u64,
    /// The first bytes of a character whose last bytes have not come yet: at most three bytes.
    tail: Vec<u8>,
}

impl Track {
    /// Takes the next bytes; gives the text that is complete with them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.raw += bytes.len() as u64;
        let joined;
        let mut rest = bytes;
        if !self.tail.is_empty() {
            joined = [&std::mem::take(&mut self.tail), bytes].concat();
            rest = &joined;
        }
        let mut text = String::with_capacity(rest.len());
        loop {
            match std::str::from_utf8(rest) {
                Ok(good) => {
                    text.push_str(good);
                    break;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(good).unwrap_or_default());
                    let Some(len) = error.error_len() else {
                        self.tail = bad.to_vec();
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[len..];
                }
            }
        }
        self.text += text.len() as u64;
        text
    }

    /// The stream ended: a character that was begun becomes `U+FFFD`.
    pub(crate) fn finish(&mut self) -> String {
        if self.tail.is_empty() {
            return String::new();
        }
        self.tail.clear();
        let text = String::from(char::REPLACEMENT_CHARACTER);
        self.text += text.len() as u64;
        text
    }

    /// Bytes that the log dropped: they are counted, and no character continues across them.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.raw += bytes;
        self.text += bytes;
        self.tail.clear();
    }
}

/// A place in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Offset in the engine's log.
    pub(crate) at: u64,
    pub(crate) stdout: Track,
    pub(crate) stderr: Track,
}

impl Position {
    pub(crate) fn track(&mut self, stream: OutputStream) -> &mut Track {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> String {
        let mut track = Track::default();
        let mut text = track.push(bytes);
        text.push_str(&track.finish());
        assert_eq!(track.text, text.len() as u64);
        text
    }

    proptest! {
        #[test]
        fn text_is_the_same_however_bytes_are_cut(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80)], 0..200),
            cuts in prop::collection::vec(0_usize..200, 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut track = Track::default();
            let mut text = String::new();
            for pair in cuts.windows(2) {
                text.push_str(&track.push(&bytes[pair[0]..pair[1]]));
            }
            text.push_str(&track.finish());
            prop_assert_eq!(&text, &whole(&bytes));
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(track.raw, bytes.len() as u64);
        }
    }

    #[test]
    fn a_character_waits_for_its_end() {
        let mut track = Track::default();
        assert_eq!(track.push(&[b'a', 0xe2, 0x82]), "a");
        assert_eq!((track.raw, track.text), (3, 1));
        assert_eq!(track.push(&[0xac]), "€");
        assert_eq!(track.push(&[0xe2]), "");
        assert_eq!(track.finish(), "\u{fffd}");
    }
}
