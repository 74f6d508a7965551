//! Beginning and end of a long output, in bounded memory.

use std::collections::VecDeque;

use atoll_core::exec::OutputStream;

/// Bytes of an output that are shown: the first `head` and the last `tail`, counted over both streams.
#[derive(Debug)]
pub(crate) struct Excerpt {
    head_left: usize,
    tail_max: usize,
    head: Vec<(OutputStream, Vec<u8>)>,
    tail: VecDeque<(OutputStream, Vec<u8>)>,
    tail_bytes: usize,
    /// First and one past the last byte that is not shown.
    left_out: Option<(u64, u64)>,
    end: u64,
}

/// What an excerpt shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// First and one past the last byte that is not shown, as offsets over both streams.
    pub(crate) left_out: Option<(u64, u64)>,
    /// One past the last byte.
    pub(crate) end: u64,
}

impl Excerpt {
    /// Nothing yet.
    pub(crate) const fn new(head: usize, tail: usize) -> Self {
        Self {
            head_left: head,
            tail_max: tail,
            head: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            left_out: None,
            end: 0,
        }
    }

    /// The bytes from here to `to` are gone.
    pub(crate) fn gap(&mut self, from: u64, to: u64) {
        // The bytes in the tail would stand before the gap: the hole then begins where the tail does.
        let begin =
            self.left_out.map_or_else(|| from.saturating_sub(self.tail_bytes as u64), |(begin, _)| begin);
        self.left_out = Some((begin, to));
        self.tail.clear();
        self.tail_bytes = 0;
        self.head_left = 0;
        self.end = to;
    }

    /// More output.
    pub(crate) fn push(&mut self, stream: OutputStream, data: &[u8]) {
        let (head, rest) = data.split_at(data.len().min(self.head_left));
        self.head_left -= head.len();
        append(&mut self.head, stream, head);
        self.end += data.len() as u64;
        if rest.is_empty() {
            return;
        }
        match self.tail.back_mut() {
            Some((last, bytes)) if *last == stream => bytes.extend_from_slice(rest),
            _ => self.tail.push_back((stream, rest.to_vec())),
        }
        self.tail_bytes += rest.len();
        self.shorten();
    }

    /// Drops the beginning of the tail until it fits.
    fn shorten(&mut self) {
        let mut over = self.tail_bytes.saturating_sub(self.tail_max);
        if over == 0 {
            return;
        }
        let tail_begins = self.end - self.tail_bytes as u64;
        let begin = self.left_out.map_or(tail_begins, |(begin, _)| begin);
        self.left_out = Some((begin, tail_begins + over as u64));
        self.tail_bytes -= over;
        while over > 0 {
            let Some((_, bytes)) = self.tail.front_mut() else { break };
            if bytes.len() <= over {
                over -= bytes.len();
                self.tail.pop_front();
            } else {
                bytes.drain(..over);
                over = 0;
            }
        }
    }

    /// As text. Where something is left out, the streams say so.
    pub(crate) fn show(self) -> Shown {
        let mut streams = [Vec::new(), Vec::new()];
        for (stream, bytes) in self.head {
            streams[index(stream)].extend_from_slice(&bytes);
        }
        if let Some((from, to)) = self.left_out {
            let note = format!("\n[bytes {from} to {to} of the output are not shown: see left_out]\n");
            for (which, shown) in streams.iter_mut().enumerate() {
                if !shown.is_empty() || self.tail.iter().any(|(stream, _)| index(*stream) == which) {
                    shown.extend_from_slice(note.as_bytes());
                }
            }
        }
        for (stream, bytes) in self.tail {
            streams[index(stream)].extend_from_slice(&bytes);
        }
        let [stdout, stderr] = streams.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Shown { stdout, stderr, left_out: self.left_out, end: self.end }
    }
}

fn append(pieces: &mut Vec<(OutputStream, Vec<u8>)>, stream: OutputStream, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some((last, bytes)) if *last == stream => bytes.extend_from_slice(data),
        _ => pieces.push((stream, data.to_vec())),
    }
}

const fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    #[test]
    fn short_output_is_whole() {
        let mut excerpt = Excerpt::new(4, 4);
        excerpt.push(Stdout, b"abc");
        excerpt.push(Stderr, b"de");
        excerpt.push(Stdout, b"fg");
        let shown = excerpt.show();
        assert_eq!((shown.stdout.as_str(), shown.stderr.as_str()), ("abcfg", "de"));
        assert_eq!((shown.left_out, shown.end), (None, 7));
    }

    #[test]
    fn the_middle_goes() {
        let mut excerpt = Excerpt::new(2, 3);
        for _ in 0..1000 {
            excerpt.push(Stdout, b"0123456789");
        }
        assert!(excerpt.tail_bytes <= 3 && excerpt.tail.iter().map(|(_, b)| b.len()).sum::<usize>() == 3);
        let shown = excerpt.show();
        assert!(shown.stdout.starts_with("01\n[bytes 2 to 9997 "), "{}", shown.stdout);
        assert!(shown.stdout.ends_with("]\n789"), "{}", shown.stdout);
        assert_eq!((shown.left_out, shown.end), (Some((2, 9997)), 10_000));
    }

    #[test]
    fn a_gap_is_left_out() {
        let mut excerpt = Excerpt::new(2, 4);
        excerpt.push(Stdout, b"abcd");
        excerpt.gap(4, 100);
        excerpt.push(Stderr, b"z");
        let shown = excerpt.show();
        assert_eq!((shown.left_out, shown.end), (Some((2, 100)), 101));
        assert!(shown.stdout.starts_with("ab\n[") && shown.stderr.ends_with("]\nz"));
    }
}
