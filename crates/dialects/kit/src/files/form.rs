//! Files in a `multipart/form-data` body, as streams.
//!
//! ```text
//! --BOUNDARY CRLF headers CRLF CRLF content CRLF --BOUNDARY … CRLF --BOUNDARY--
//! ```
//!
//! Bytes that may be the beginning of a delimiter are held back until more bytes are there; all bytes before them go on
//! at once, so that the memory needed depends neither on the files nor on how fast they come. Libraries for this buffer
//! all that the connection delivers.

use atoll_core::{Code, Error};
use atoll_server::dialect::Pieces;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;

/// Longest boundary (RFC 2046).
const BOUNDARY_MAX_BYTES: usize = 70;
/// Most bytes before a part's content: a preamble, headers.
const HEAD_MAX_BYTES: usize = 16 << 10;

/// A form that is read part by part, in the order in which they come.
#[derive(Debug)]
pub struct Form {
    pieces: Pieces,
    /// `CRLF--BOUNDARY`.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// Behind a delimiter.
    Head,
    Content,
    Done,
}

/// The headers of a part. The client wrote them: nothing in them is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Name of the field.
    pub name: Option<String>,
    /// Name of the file, which may be a whole path.
    pub file_name: Option<String>,
}

impl Form {
    /// A form with these headers.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when it is no multipart type with a boundary.
    pub fn new(headers: &HeaderMap, body: Body) -> Result<Self, Error> {
        let wrong = || Error::invalid("content-type", "must be multipart/form-data with a boundary");
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).ok_or_else(wrong)?;
        let (kind, parameters) = kind.split_once(';').ok_or_else(wrong)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(wrong());
        }
        let boundary = Parameters(parameters).find(|(name, _)| name.eq_ignore_ascii_case("boundary"));
        let boundary = boundary
            .map(|(_, value)| value)
            .filter(|text| (1..=BOUNDARY_MAX_BYTES).contains(&text.len()))
            .ok_or_else(wrong)?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter may stand at the very beginning, where no line ends before it.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Ok(Self { pieces: Pieces::new(body), delimiter, buffer, state: State::Preamble })
    }

    /// The next part, or `None` at the end. Skips the rest of the part before.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when the body is malformed or breaks off, [`Code::Timeout`] when it stops coming.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.chunk().await?.is_some() {}
        while self.state == State::Preamble {
            match memmem::find(&self.buffer, &self.delimiter) {
                Some(at) => self.behind_delimiter(at),
                None => self.more_of_head().await?,
            }
        }
        while self.state == State::Head {
            if self.buffer.starts_with(b"--") {
                self.state = State::Done;
            } else if let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.split_to(end + 4);
                self.state = State::Content;
                return Ok(Some(Part::parse(&head)));
            } else {
                self.more_of_head().await?;
            }
        }
        Ok(None)
    }

    /// More of the part's content, or `None` at its end.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        while self.state == State::Content {
            match memmem::find(&self.buffer, &self.delimiter) {
                Some(0) => self.behind_delimiter(0),
                Some(end) => return Ok(Some(self.buffer.split_to(end).freeze())),
                None => {
                    let certain = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                    if certain > 0 {
                        return Ok(Some(self.buffer.split_to(certain).freeze()));
                    }
                    self.fill().await?;
                }
            }
        }
        Ok(None)
    }

    /// The rest of the part's content as a text of at most `max` bytes, for fields beside files.
    ///
    /// # Errors
    /// [`Code::TooLarge`], [`Code::InvalidArgument`] when it is no UTF-8, and as [`Self::next`].
    pub async fn text(&mut self, max: usize) -> Result<String, Error> {
        let mut all = Vec::new();
        while let Some(bytes) = self.chunk().await? {
            if all.len() + bytes.len() > max {
                return Err(Error::new(Code::TooLarge, format!("a field is larger than {max} bytes")));
            }
            all.extend_from_slice(&bytes);
        }
        String::from_utf8(all).map_err(|_malformed| Error::invalid("body", "a field is not UTF-8"))
    }

    fn behind_delimiter(&mut self, at: usize) {
        drop(self.buffer.split_to(at + self.delimiter.len()));
        self.state = State::Head;
    }

    async fn more_of_head(&mut self) -> Result<(), Error> {
        if self.buffer.len() > HEAD_MAX_BYTES {
            return Err(Error::invalid("body", "it has no part, or one with headers beyond 16 KiB"));
        }
        self.fill().await
    }

    async fn fill(&mut self) -> Result<(), Error> {
        let piece = self.pieces.next().await?;
        let piece = piece.ok_or_else(|| Error::invalid("body", "it ended before the form did"))?;
        self.buffer.extend_from_slice(&piece);
        Ok(())
    }
}

impl Part {
    fn parse(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let disposition = head.split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
        });
        let mut part = Self::default();
        let parameters = disposition.and_then(|value| value.split_once(';')).map_or("", |(_, rest)| rest);
        for (name, value) in Parameters(parameters) {
            match name.to_ascii_lowercase().as_str() {
                "name" => part.name = Some(value),
                "filename" if part.file_name.is_none() => part.file_name = Some(value),
                // RFC 5987: it counts more than the plain `filename`.
                "filename*" => part.file_name = extended(&value).or(part.file_name),
                _ => {}
            }
        }
        part
    }
}

/// `UTF-8''%e2%82%ac%20rates`
fn extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_, encoded) = rest.split_once('\'')?;
    let decoded = percent_encoding::percent_decode_str(encoded).decode_utf8().ok()?;
    charset.eq_ignore_ascii_case("utf-8").then(|| decoded.into_owned())
}

/// Parameters of a header: `name=value; name="quoted \" value"`.
struct Parameters<'a>(&'a str);

impl Iterator for Parameters<'_> {
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.trim_start_matches([';', ' ', '\t']).split_once('=')?;
        let name = name.trim().to_owned();
        let Some(quoted) = rest.strip_prefix('"') else {
            let end = rest.find(';').unwrap_or(rest.len());
            self.0 = &rest[end..];
            return Some((name, rest[..end].trim().to_owned()));
        };
        let mut value = String::new();
        let mut escaped = false;
        for (at, c) in quoted.char_indices() {
            match c {
                // Browsers write backslashes of file names as they are: only quotes are escaped.
                '\\' if !escaped && quoted[at + 1..].starts_with('"') => escaped = true,
                '"' if !escaped => {
                    self.0 = &quoted[at + 1..];
                    return Some((name, value));
                }
                c => {
                    escaped = false;
                    value.push(c);
                }
            }
        }
        self.0 = "";
        Some((name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http::HeaderValue;
    use proptest::prelude::*;

    const TYPE: &str = "multipart/form-data; boundary=\"xYz\"";

    fn form(kind: &str, body: Vec<u8>, sizes: &[usize]) -> Result<Form, Error> {
        let mut pieces = Vec::new();
        let mut rest = Bytes::from(body);
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(Ok::<_, std::io::Error>(rest.split_to((*size).clamp(1, rest.len()))));
        }
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap())]);
        Form::new(&headers, Body::from_stream(stream::iter(pieces)))
    }

    fn body(contents: &[Vec<u8>]) -> Vec<u8> {
        let part = |(at, content): (usize, &Vec<u8>)| {
            let head =
                format!("--xYz\r\nContent-Disposition: form-data; name=\"f{at}\"; filename=\"a\"\r\n\r\n");
            [head.as_bytes(), content, b"\r\n"].concat()
        };
        let parts: Vec<u8> = contents.iter().enumerate().flat_map(part).collect();
        [&parts[..], b"--xYz--\r\n"].concat()
    }

    async fn all(mut form: Form) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let mut parts = Vec::new();
        while let Some(part) = form.next().await? {
            let mut content = Vec::new();
            while let Some(bytes) = form.chunk().await? {
                content.extend_from_slice(&bytes);
            }
            parts.push((part, content));
        }
        Ok(parts)
    }

    fn read(kind: &str, body: Vec<u8>, sizes: &[usize]) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { all(form(kind, body, sizes)?).await })
    }

    proptest! {
        #[test]
        fn content_comes_through_however_it_is_cut(
            contents in prop::collection::vec(prop::collection::vec(
                prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'-')], 0..200), 0..4),
            sizes in prop::collection::vec(1_usize..40, 1..8),
        ) {
            prop_assume!(!contents.iter().any(|content| content.windows(7).any(|at| at == b"\r\n--xYz")));
            let parts = read(TYPE, body(&contents), &sizes).unwrap();
            let read: Vec<Vec<u8>> = parts.iter().map(|(_, content)| content.clone()).collect();
            prop_assert_eq!(read, contents);
            for (at, (part, _)) in parts.into_iter().enumerate() {
                prop_assert_eq!(part.name, Some(format!("f{at}")));
            }
        }

        #[test]
        fn any_bytes_are_survived(body in prop::collection::vec(any::<u8>(), 0..300)) {
            drop(read(TYPE, [b"--xYz\r\n", &body[..]].concat(), &[7]));
        }
    }

    #[test]
    fn parts_that_nobody_reads_are_skipped() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut form = form(TYPE, body(&[vec![b'x'; 5000], b"text".to_vec()]), &[100]).unwrap();
            assert_eq!(form.chunk().await.unwrap(), None);
            form.next().await.unwrap().unwrap();
            form.next().await.unwrap().unwrap();
            assert_eq!(form.text(4).await.unwrap(), "text");
            assert_eq!(form.next().await.unwrap(), None);
        });
    }

    #[test]
    fn names_are_read_as_clients_write_them() {
        let of = |text: &str| {
            Part::parse(format!("\r\nContent-Disposition: form-data; {text}\r\n\r\n").as_bytes())
        };
        let part = |name: &str, file: Option<&str>| Part {
            name: Some(name.to_owned()),
            file_name: file.map(str::to_owned),
        };
        assert_eq!(of("name=\"file\"; filename=\"/a;b.txt\""), part("file", Some("/a;b.txt")));
        assert_eq!(of("name=file; filename=\"a\\\"b\""), part("file", Some("a\"b")));
        assert_eq!(of("name=\"f\"; filename=\"C:\\dir\\x\""), part("f", Some("C:\\dir\\x")));
        assert_eq!(of("name=f; filename=\"_\"; filename*=utf-8''%e2%82%ac"), part("f", Some("€")));
        assert_eq!(of("name=f; filename*=x"), part("f", None));
        assert_eq!(Part::parse(b"\r\n\r\n"), Part::default());
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let fails = |kind: &str, body: &[u8]| read(kind, body.to_vec(), &[5]).is_err();
        assert!(fails("application/json", b"") && fails("multipart/form-data", b""));
        assert!(fails(&format!("multipart/form-data; boundary={}", "x".repeat(71)), b""));
        assert!(fails(TYPE, b"--xYz\r\nname: file\r\n\r\ncontent"));
        assert!(fails(TYPE, &vec![b'x'; HEAD_MAX_BYTES + 6]));
        assert!(fails(TYPE, b""));
    }
}
