//! The content of the one file in a `multipart/form-data` body, as a stream.
//!
//! ```text
//! --BOUNDARY CRLF headers CRLF CRLF content CRLF --BOUNDARY …
//! ```
//!
//! The clients send exactly one part. What may be the beginning of the closing delimiter is held back until
//! more is there; everything before it goes on at once, so that the memory needed does not depend on the
//! file.

use atoll_core::Error;
use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// Longest boundary (RFC 2046).
const BOUNDARY_MAX_BYTES: usize = 70;
/// What stands before the content at most: a preamble and the headers of the part.
const HEAD_MAX_BYTES: usize = 16 << 10;

/// Cuts the content out.
#[derive(Debug)]
pub(crate) struct Part {
    /// `CRLF--BOUNDARY`.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Head,
    Content,
    /// Behind the content: what still comes is of no interest.
    Done,
}

impl Part {
    /// For a body with this `Content-Type`.
    ///
    /// # Errors
    /// When it is no multipart type with a boundary.
    pub(crate) fn new(content_type: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid("content-type", "must be multipart/form-data with a boundary");
        let (kind, parameters) = content_type.split_once(';').ok_or_else(wrong)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(wrong());
        }
        let boundary = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        });
        let boundary =
            boundary.filter(|text| (1..=BOUNDARY_MAX_BYTES).contains(&text.len())).ok_or_else(wrong)?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter may stand at the very beginning, where no line ends before it.
        Ok(Self { delimiter, buffer: BytesMut::from(&b"\r\n"[..]), state: State::Head })
    }

    /// Takes a piece of the body; gives what of it is content, if any.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Option<Bytes>, Error> {
        if self.state == State::Done {
            return Ok(None);
        }
        self.buffer.extend_from_slice(piece);
        if self.state == State::Head && !self.skip_head()? {
            return Ok(None);
        }
        let content = match memmem::find(&self.buffer, &self.delimiter) {
            Some(end) => {
                self.state = State::Done;
                self.buffer.split_to(end)
            }
            None => {
                let keep = self.delimiter.len() - 1;
                let len = self.buffer.len().saturating_sub(keep);
                self.buffer.split_to(len)
            }
        };
        Ok((!content.is_empty()).then(|| content.freeze()))
    }

    /// Says whether the content has begun.
    fn skip_head(&mut self) -> Result<bool, Error> {
        let begin = memmem::find(&self.buffer, &self.delimiter).map(|at| at + self.delimiter.len());
        let end = begin.and_then(|at| memmem::find(&self.buffer[at..], b"\r\n\r\n").map(|len| at + len + 4));
        match end {
            Some(end) => {
                drop(self.buffer.split_to(end));
                self.state = State::Content;
                Ok(true)
            }
            None if self.buffer.len() > HEAD_MAX_BYTES => Err(Error::invalid("body", "has no file in it")),
            None => Ok(false),
        }
    }

    /// Says that the body ended.
    ///
    /// # Errors
    /// When it ended before the content did.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.state == State::Done {
            return Ok(());
        }
        Err(Error::invalid("body", "it ended before the file did"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "multipart/form-data; boundary=\"xYz\"";

    fn body(content: &[u8]) -> Vec<u8> {
        let head = b"--xYz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
            Content-Type: application/octet-stream\r\n\r\n";
        [head.as_slice(), content, b"\r\n--xYz--\r\n"].concat()
    }

    fn cut(body: &[u8], sizes: &[usize]) -> Result<Vec<u8>, Error> {
        let mut part = Part::new(TYPE)?;
        let mut content = Vec::new();
        let mut rest = body;
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
            rest = later;
            if let Some(bytes) = part.push(piece)? {
                content.extend_from_slice(&bytes);
            }
        }
        part.finish().map(|()| content)
    }

    proptest! {
        #[test]
        fn content_comes_through_however_it_is_cut(
            content in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'-')], 0..300),
            sizes in prop::collection::vec(1_usize..40, 1..8),
        ) {
            prop_assume!(!content.windows(7).any(|window| window == b"\r\n--xYz"));
            prop_assert_eq!(cut(&body(&content), &sizes).unwrap(), content);
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        assert!(Part::new("application/json").is_err());
        assert!(Part::new("multipart/form-data").is_err());
        assert!(Part::new(&format!("multipart/form-data; boundary={}", "x".repeat(71))).is_err());
        assert!(cut(b"--xYz\r\nname: file\r\n\r\ncontent", &[5]).is_err());
        assert!(cut(&vec![b'x'; HEAD_MAX_BYTES + 1], &[4096]).is_err());
        assert!(cut(b"", &[1]).is_err());
    }
}
