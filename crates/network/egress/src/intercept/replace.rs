//! Replaces texts in a stream of bytes, across its chunks: placeholders by secrets on the way out, secrets by asterisks
//! on the way in.
//!
//! Only bytes that may be the beginning of a text are held back, so a stream of events flows on.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use zeroize::Zeroizing;

/// A text that may be a secret.
pub(super) type Text = Zeroizing<Vec<u8>>;

/// A text and its replacement.
#[derive(Clone)]
struct Pair {
    from: Text,
    to: Text,
}

/// Replaces the leftmost and, of those, the longest match.
#[derive(Clone)]
pub struct Replacer {
    pairs: Vec<Pair>,
    /// Whether a byte begins some text.
    begins: [bool; 256],
    held: Vec<u8>,
}

impl std::fmt::Debug for Replacer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacer").field("pairs", &self.pairs.len()).finish_non_exhaustive()
    }
}

impl Replacer {
    /// Replaces each first by its second. Empty texts are left out.
    pub(super) fn new(pairs: impl IntoIterator<Item = (Text, Text)>) -> Self {
        let pairs = pairs.into_iter().filter(|(from, _)| !from.is_empty());
        let mut pairs: Vec<Pair> = pairs.map(|(from, to)| Pair { from, to }).collect();
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.from.len()));
        let mut begins = [false; 256];
        for pair in &pairs {
            begins[usize::from(pair.from[0])] = true;
        }
        Self { pairs, begins, held: Vec::new() }
    }

    /// Replaces each text by as many asterisks.
    #[must_use]
    pub fn masking(texts: impl IntoIterator<Item = Text>) -> Self {
        Self::new(texts.into_iter().map(|text| {
            let mask = Zeroizing::new(vec![b'*'; text.len()]);
            (text, mask)
        }))
    }

    /// Takes bytes; gives those that further bytes cannot change.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(chunk);
        let (out, settled) = self.scan(&input, false);
        input.drain(..settled);
        self.held = input;
        out
    }

    /// The end of the stream: gives the bytes that were held back.
    pub fn finish(&mut self) -> Vec<u8> {
        let input = std::mem::take(&mut self.held);
        self.scan(&input, true).0
    }

    /// All at once.
    pub(super) fn whole(&self, input: &[u8]) -> Vec<u8> {
        self.scan(input, true).0
    }

    /// Bytes held back.
    fn held_len(&self) -> usize {
        self.held.len()
    }

    fn scan(&self, input: &[u8], last: bool) -> (Vec<u8>, usize) {
        let mut out = Vec::with_capacity(input.len());
        let mut at = 0;
        while at < input.len() {
            let plain = input[at..].iter().position(|byte| self.begins[usize::from(*byte)]);
            let next = plain.map_or(input.len(), |offset| at + offset);
            out.extend_from_slice(&input[at..next]);
            at = next;
            let rest = &input[at..];
            if rest.is_empty() {
                break;
            }
            let found = self.pairs.iter().find(|pair| rest.starts_with(pair.from.as_slice()));
            let found_len = found.map_or(0, |pair| pair.from.len());
            // A longer text may still come to its end.
            let more =
                |pair: &Pair| pair.from.len() > rest.len().max(found_len) && pair.from.starts_with(rest);
            if !last && self.pairs.iter().any(more) {
                return (out, at);
            }
            if let Some(pair) = found {
                out.extend_from_slice(&pair.to);
                at += found_len;
            } else {
                out.push(rest[0]);
                at += 1;
            }
        }
        (out, at)
    }
}

/// A body with replaced texts.
#[derive(Debug)]
pub(super) struct Replaced<B> {
    inner: B,
    replacer: Replacer,
    /// Whether each replacement is as long as the text.
    same_length: bool,
    trailers: Option<Frame<Bytes>>,
    ended: bool,
}

impl<B> Replaced<B> {
    pub(super) fn new(inner: B, replacer: Replacer) -> Self {
        let same_length = replacer.pairs.iter().all(|pair| pair.from.len() == pair.to.len());
        Self { inner, replacer, same_length, trailers: None, ended: false }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Replaced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if let Some(trailers) = self.trailers.take() {
                return Poll::Ready(Some(Ok(trailers)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    let rest = self.replacer.finish();
                    let last = (!rest.is_empty()).then(|| Ok(Frame::data(rest.into())));
                    return Poll::Ready(last);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let settled = self.replacer.push(&data);
                    if !settled.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(settled.into()))));
                    }
                }
                Err(trailers) => {
                    let rest = self.replacer.finish();
                    let trailers = self.replaced_trailers(trailers);
                    if rest.is_empty() {
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                    self.trailers = Some(trailers);
                    return Poll::Ready(Some(Ok(Frame::data(rest.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream() && self.replacer.held_len() == 0 && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.size_hint();
        let held = self.replacer.held_len() as u64;
        match inner.exact() {
            Some(exact) if self.same_length => SizeHint::with_exact(exact + held),
            _ => SizeHint::default(),
        }
    }
}

impl<B> Replaced<B> {
    fn replaced_trailers(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_trailers() {
            Ok(mut trailers) => {
                replace_headers(&mut trailers, &self.replacer);
                Frame::trailers(trailers)
            }
            Err(frame) => frame,
        }
    }
}

/// Replaces texts in the values of headers. A value that could not be sent any more is taken out.
pub(super) fn replace_headers(headers: &mut http::HeaderMap, replacer: &Replacer) {
    for value in headers.values_mut() {
        let new = replacer.whole(value.as_bytes());
        if new != value.as_bytes() {
            *value = http::HeaderValue::from_bytes(&new)
                .unwrap_or_else(|_unsendable| http::HeaderValue::from_static(""));
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Text {
        Zeroizing::new(text.as_bytes().to_vec())
    }

    fn pairs(texts: &[(&str, &str)]) -> Replacer {
        Replacer::new(texts.iter().map(|(from, to)| (text(from), text(to))))
    }

    /// By the book: at each place the longest text, else one byte.
    fn naive(texts: &[(String, String)], input: &str) -> String {
        let mut out = String::new();
        let mut rest = input;
        while let Some(first) = rest.chars().next() {
            let found = texts.iter().filter(|(from, _)| !from.is_empty() && rest.starts_with(from));
            if let Some((from, to)) = found.max_by_key(|(from, _)| from.len()) {
                out.push_str(to);
                rest = &rest[from.len()..];
            } else {
                out.push(first);
                rest = &rest[1..];
            }
        }
        out
    }

    proptest! {
        #[test]
        fn chunks_make_no_difference(
            from in proptest::collection::btree_set("[ab]{0,4}", 0..4),
            input in "[abc]{0,60}",
            cuts in proptest::collection::vec(0_usize..8, 0..40),
        ) {
            let texts: Vec<_> = from.into_iter().enumerate().map(|(n, f)| (f, format!("<{n}>"))).collect();
            let mut replacer = Replacer::new(texts.iter().map(|(f, t)| (text(f), text(t))));
            let (mut out, mut rest) = (Vec::new(), input.as_bytes());
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                out.extend(replacer.push(chunk));
                rest = after;
            }
            out.extend(replacer.push(rest));
            out.extend(replacer.finish());
            prop_assert_eq!(String::from_utf8(out).unwrap(), naive(&texts, &input));
        }
    }

    #[test]
    fn holds_back_only_what_may_be_a_beginning() {
        let mut mask = Replacer::masking([text("hunter2")]);
        assert_eq!(mask.push(b"data: 1\n\n"), b"data: 1\n\n");
        assert_eq!(mask.push(b"data: hunt"), b"data: ");
        assert_eq!(mask.push(b"ing\n"), b"hunting\n");
        assert_eq!(mask.push(b"x hunter"), b"x ");
        assert_eq!(mask.push(b"2 y"), b"******* y");
        assert_eq!(mask.push(b"hunter"), b"");
        assert_eq!(mask.finish(), b"hunter");
    }

    #[test]
    fn the_longest_text_wins() {
        let mut both = pairs(&[("ab", "1"), ("abcd", "2")]);
        assert_eq!(both.push(b"ab"), b"");
        assert_eq!(both.push(b"cx"), b"1cx");
        assert_eq!(both.push(b"abcd"), b"2");
        assert!(!format!("{both:?}").contains("ab"));
    }

    #[tokio::test]
    async fn bodies_keep_their_length_and_trailers() {
        let frames = |chunks: &'static [&'static str]| {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x", http::HeaderValue::from_static("a hunter2"));
            let data = chunks
                .iter()
                .map(|chunk| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(chunk.as_bytes()))));
            StreamBody::new(futures::stream::iter(
                data.chain([Ok(Frame::trailers(trailers))]).collect::<Vec<_>>(),
            ))
        };
        let body = Replaced::new(frames(&["a hun", "ter2 b", "hunte"]), Replacer::masking([text("hunter2")]));
        let collected = body.collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x"], "a *******");
        assert_eq!(collected.to_bytes(), "a ******* bhunte");
        let full = http_body_util::Full::new(Bytes::from_static(b"a hunter2"));
        let body = Replaced::new(full.clone(), Replacer::masking([text("hunter2")]));
        assert_eq!(body.size_hint().exact(), Some(9));
        let body = Replaced::new(full, pairs(&[("hunter2", "x")]));
        assert_eq!(body.size_hint().exact(), None);
    }
}
