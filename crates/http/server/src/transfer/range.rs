//! `Range`: which part of a file the client wants.

use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue};

/// A range that was asked for, given the file's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No range, or one that counts for another version of the file.
    All,
    /// From the first to the last byte.
    Part(u64, u64),
    /// It begins behind the end.
    Nothing,
}

/// The part that a request wants of a file of `size` bytes. `tag` is its version, where that says that no byte has
/// changed; without one, a client that has an earlier part gets the whole file.
#[must_use]
pub fn wanted(headers: &HeaderMap, size: u64, tag: Option<&HeaderValue>) -> Wanted {
    let stale = headers.get(IF_RANGE).is_some_and(|known| Some(known) != tag);
    match headers.get(RANGE).and_then(|value| value.to_str().ok()).filter(|_| !stale) {
        Some(text) => parse(text, size),
        None => Wanted::All,
    }
}

/// One range. A range that cannot be parsed is ignored, as HTTP wants it.
fn parse(text: &str, size: u64) -> Wanted {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|text| text.split_once('-')) else {
        return Wanted::All;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, last) = match (first.trim(), last.trim()) {
        ("", suffix) => match number(suffix) {
            Some(suffix) => (Some(size.saturating_sub(suffix)), Some(u64::MAX)),
            None => (None, None),
        },
        (first, "") => (number(first), Some(u64::MAX)),
        (first, last) => (number(first), number(last)),
    };
    match (first, last) {
        (Some(first), Some(last)) if last < first => Wanted::All,
        (Some(first), Some(_)) if first >= size => Wanted::Nothing,
        (Some(first), Some(last)) => Wanted::Part(first, last.min(size - 1)),
        _ => Wanted::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse("bytes=0-0", 10), Wanted::Part(0, 0));
        assert_eq!(parse("bytes=2-99", 10), Wanted::Part(2, 9));
        assert_eq!(parse("bytes=9-", 10), Wanted::Part(9, 9));
        assert_eq!(parse("bytes=-3", 10), Wanted::Part(7, 9));
        assert_eq!(parse("bytes=-30", 10), Wanted::Part(0, 9));
        for out in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(parse(out, 10), Wanted::Nothing, "{out}");
        }
        assert_eq!(parse("bytes=0-", 0), Wanted::Nothing);
        for ignored in ["bytes=3-2", "bytes=0-1,4-5", "lines=1-2", "bytes=", "bytes=-", "bytes=a-b"] {
            assert_eq!(parse(ignored, 10), Wanted::All, "{ignored}");
        }
    }

    #[test]
    fn a_stale_range_is_the_whole_file() {
        let tag = HeaderValue::from_static("\"one\"");
        let mut headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=1-2"))]);
        assert_eq!(wanted(&headers, 10, Some(&tag)), Wanted::Part(1, 2));
        headers.insert(IF_RANGE, tag.clone());
        assert_eq!(wanted(&headers, 10, Some(&tag)), Wanted::Part(1, 2));
        assert_eq!(wanted(&headers, 10, None), Wanted::All);
        headers.insert(IF_RANGE, HeaderValue::from_static("\"other\""));
        assert_eq!(wanted(&headers, 10, Some(&tag)), Wanted::All);
    }
}
