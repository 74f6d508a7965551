//! The bytes of an exec that the guest keeps until the host has them: a numbered, bounded window.
//!
//! ```text
//!        base                            end
//!         │ retained, to be acknowledged  │ to be read from the pipes
//! ────────┴───────────────────────────────┴──────────▶ offset
//! ```
//!
//! Chunks of few bytes cost more than they hold, so each is counted with [`CHUNK_COST_BYTES`] on top,
//! and output that the host has not taken yet is joined: a program that writes single bytes while the
//! host is away cannot make the agent big.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::OUTPUT_WINDOW_BYTES;

/// The cost of a chunk beyond its bytes.
const CHUNK_COST_BYTES: usize = 64;
/// Output is joined up to this size.
const JOIN_BYTES: usize = 16 << 10;

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Standard error rather than standard output.
    pub stderr: bool,
    /// The bytes.
    pub bytes: Bytes,
}

/// An offset that lies outside of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset} is not within {base} to {end}")]
pub struct OutOfWindow {
    /// The offset that was asked for.
    pub offset: u64,
    /// First byte that is retained.
    pub base: u64,
    /// One past the last byte so far.
    pub end: u64,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct OutputWindow {
    /// Each with the offset it begins at.
    chunks: VecDeque<(u64, Chunk)>,
    tail: BytesMut,
    tail_stderr: bool,
    base: u64,
    end: u64,
}

impl OutputWindow {
    /// An empty window at offset 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Offset of the first retained byte.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Offset one past the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that may be added now.
    #[must_use]
    pub fn room(&self) -> usize {
        let retained = usize::try_from(self.end - self.base).unwrap_or(usize::MAX);
        let chunks = self.chunks.len() + usize::from(!self.tail.is_empty()) + 1;
        OUTPUT_WINDOW_BYTES.saturating_sub(retained.saturating_add(chunks * CHUNK_COST_BYTES))
    }

    /// Appends output that was read.
    pub fn push(&mut self, stderr: bool, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if !self.tail.is_empty() && (self.tail_stderr != stderr || self.tail.len() + bytes.len() > JOIN_BYTES)
        {
            self.seal();
        }
        if bytes.len() > JOIN_BYTES {
            self.seal();
            let start = self.end;
            self.end += bytes.len() as u64;
            self.chunks.push_back((start, Chunk { stderr, bytes }));
        } else {
            self.tail_stderr = stderr;
            self.end += bytes.len() as u64;
            self.tail.extend_from_slice(&bytes);
        }
    }

    /// The retained piece that starts at `offset`, or `None` when that is the end.
    ///
    /// # Errors
    /// [`OutOfWindow`].
    pub fn piece(&mut self, offset: u64) -> Result<Option<Chunk>, OutOfWindow> {
        if offset < self.base || offset > self.end {
            return Err(OutOfWindow { offset, base: self.base, end: self.end });
        }
        self.seal();
        let index = self.chunks.partition_point(|(start, chunk)| start + chunk.bytes.len() as u64 <= offset);
        Ok(self.chunks.get(index).map(|(start, chunk)| {
            // The difference is below the chunk's length.
            let skip = usize::try_from(offset.saturating_sub(*start)).unwrap_or_default();
            Chunk { stderr: chunk.stderr, bytes: chunk.bytes.slice(skip..) }
        }))
    }

    /// Forgets everything below `offset`.
    ///
    /// # Errors
    /// [`OutOfWindow`] beyond the end. An offset that was acknowledged before changes nothing.
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), OutOfWindow> {
        if offset > self.end {
            return Err(OutOfWindow { offset, base: self.base, end: self.end });
        }
        if offset > self.base {
            self.seal();
        }
        while self.base < offset {
            let Some((start, chunk)) = self.chunks.front_mut() else { break };
            let len = chunk.bytes.len() as u64;
            if self.base + len <= offset {
                self.base += len;
                self.chunks.pop_front();
            } else {
                let skip = usize::try_from(offset - self.base).unwrap_or_default();
                chunk.bytes = chunk.bytes.slice(skip..);
                *start = offset;
                self.base = offset;
            }
        }
        Ok(())
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let bytes = self.tail.split().freeze();
            let start = self.end - bytes.len() as u64;
            self.chunks.push_back((start, Chunk { stderr: self.tail_stderr, bytes }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// With any acknowledgement and any place to read from, the retained bytes are those that were written.
        #[test]
        fn keeps_exactly_what_was_not_acknowledged(
            parts in proptest::collection::vec((any::<bool>(), 0_usize..40_000), 1..12),
            ack_percent in 0_u64..=100, from_percent in 0_u64..=100, before in any::<bool>(),
        ) {
            let mut window = OutputWindow::new();
            let mut all: Vec<(bool, u8)> = Vec::new();
            // A period that no chunk has, so that a byte in the wrong place is seen.
            let mut bytes = (0..=250_u8).cycle();
            for (stderr, len) in &parts {
                let bytes: Vec<u8> = bytes.by_ref().take(*len).collect();
                all.extend(bytes.iter().map(|byte| (*stderr, *byte)));
                window.push(*stderr, Bytes::from(bytes));
                if before { window.piece(window.base()).unwrap(); }
            }
            let acked = all.len() as u64 * ack_percent / 100;
            window.acknowledge(acked).unwrap();
            prop_assert_eq!(window.base(), acked);
            prop_assert_eq!(window.end(), all.len() as u64);
            let mut offset = acked + (all.len() as u64 - acked) * from_percent / 100;
            let first = usize::try_from(offset).unwrap();
            let mut seen = Vec::new();
            while let Some(chunk) = window.piece(offset).unwrap() {
                prop_assert!(!chunk.bytes.is_empty());
                offset += chunk.bytes.len() as u64;
                seen.extend(chunk.bytes.iter().map(|byte| (chunk.stderr, *byte)));
            }
            prop_assert_eq!(&seen[..], &all[first..]);
        }
    }

    #[test]
    fn refuses_what_is_gone_or_not_there_yet() {
        let mut window = OutputWindow::new();
        window.push(false, Bytes::from_static(b"hello"));
        assert!(window.acknowledge(6).is_err());
        window.acknowledge(3).unwrap();
        assert!(window.piece(2).is_err());
        assert!(window.piece(6).is_err());
        assert_eq!(window.piece(3).unwrap().unwrap().bytes, "lo");
        window.acknowledge(1).unwrap();
        assert_eq!(window.base(), 3);
    }

    #[test]
    fn single_bytes_use_up_the_window_by_what_they_cost() {
        let mut window = OutputWindow::new();
        let mut stderr = false;
        while window.room() > 0 {
            window.push(stderr, Bytes::from_static(b"x"));
            stderr = !stderr;
        }
        assert!(window.end() < OUTPUT_WINDOW_BYTES as u64 / 32, "{}", window.end());
        let mut window = OutputWindow::new();
        while window.room() > 0 {
            window.push(false, Bytes::from_static(b"x"));
        }
        assert!(window.end() > OUTPUT_WINDOW_BYTES as u64 * 9 / 10, "{}", window.end());
    }
}
