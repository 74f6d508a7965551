//! Which byte of output is due next. Pure.

/// What to do with a piece of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Pass on all but the first `skip` bytes, which came before. If there is a gap, tell that first.
    Take { skip: usize, gap: Option<(u64, u64)> },
    /// All of it came before, or there is nothing in it.
    Repeated,
    /// Bytes before it are missing, and the server did not say so.
    Hole,
}

/// Follows the offsets of one exec over several connections.
#[derive(Debug)]
pub(super) struct Tracker {
    due: u64,
    /// Where the server said this connection begins.
    begins: u64,
}

impl Tracker {
    pub(super) fn new(due: u64) -> Self {
        Self { due, begins: due }
    }

    /// The offset to attach at.
    pub(super) fn due(&self) -> u64 {
        self.due
    }

    /// A connection was made and begins at `offset`. Beginning later than asked announces a gap.
    pub(super) fn attached(&mut self, offset: u64) {
        self.begins = offset;
    }

    /// The server dropped `from..to`. Gives the part of it that is news.
    pub(super) fn gap(&mut self, from: u64, to: u64) -> Result<Option<(u64, u64)>, &'static str> {
        if from > to {
            return Err("a gap that ends before it begins");
        }
        if from > self.due && self.due != self.begins {
            return Err("a gap that leaves something out before it");
        }
        if to <= self.due {
            return Ok(None);
        }
        let gap = (self.due, to);
        self.due = to;
        Ok(Some(gap))
    }

    /// A piece of output arrived.
    pub(super) fn output(&mut self, offset: u64, len: usize) -> Piece {
        let end = offset.saturating_add(len as u64);
        if len == 0 || end <= self.due {
            return Piece::Repeated;
        }
        if offset > self.due {
            if self.begins != offset {
                return Piece::Hole;
            }
            let gap = Some((self.due, offset));
            self.due = end;
            return Piece::Take { skip: 0, gap };
        }
        // Less than `len`, so it fits.
        let skip = usize::try_from(self.due - offset).unwrap_or(len);
        self.due = end;
        Piece::Take { skip, gap: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repeats_are_cut_and_holes_are_seen() {
        let mut tracker = Tracker::new(10);
        assert_eq!(tracker.output(0, 10), Piece::Repeated);
        assert_eq!(tracker.output(5, 10), Piece::Take { skip: 5, gap: None });
        assert_eq!(tracker.output(16, 1), Piece::Hole);
        assert_eq!(tracker.output(15, 1), Piece::Take { skip: 0, gap: None });
        assert_eq!(tracker.due(), 16);
    }

    #[test]
    fn a_late_beginning_is_a_gap() {
        let mut tracker = Tracker::new(0);
        tracker.attached(100);
        assert_eq!(tracker.output(100, 0), Piece::Repeated, "an event has one byte at least");
        assert_eq!(tracker.output(100, 1), Piece::Take { skip: 0, gap: Some((0, 100)) });
        let mut tracker = Tracker::new(0);
        tracker.attached(100);
        assert_eq!(tracker.gap(0, 100), Ok(Some((0, 100))));
        assert_eq!(tracker.gap(0, 100), Ok(None));
        assert_eq!(tracker.output(100, 1), Piece::Take { skip: 0, gap: None });
        assert!(tracker.gap(9, 3).is_err());
        assert!(tracker.gap(102, 103).is_err());
    }

    /// Whatever a server says, over however many connections: the caller gets each byte once and in order, or is told that
    /// it is missing.
    #[test]
    fn each_byte_is_passed_on_or_announced_as_missing() {
        bolero::check!().with_type::<(u64, Vec<(u8, u64, u16)>)>().for_each(|(start, said)| {
            let (mut tracker, mut next, mut begins) = (Tracker::new(*start), *start, *start);
            for &(what, offset, len) in said {
                // Near to what is due, or anywhere.
                let offset =
                    if what & 4 == 0 { next.saturating_add(offset % 16).saturating_sub(8) } else { offset };
                let end = offset.saturating_add(len.into());
                match what & 3 {
                    0 => {
                        tracker.attached(offset);
                        begins = offset;
                    }
                    1 => match tracker.gap(offset, end) {
                        Ok(Some((from, to))) => {
                            assert!(from == next && to == end && to > from);
                            assert!(offset <= from || begins == from, "a gap before the gap");
                            next = to;
                        }
                        Ok(None) => assert!(end <= next),
                        Err(_) => break,
                    },
                    _ => match tracker.output(offset, len.into()) {
                        Piece::Take { skip, gap } => {
                            if let Some((from, to)) = gap {
                                assert!(from == next && to == offset && to > from && begins == offset);
                                next = to;
                            }
                            assert!(skip < usize::from(len) && offset + skip as u64 == next);
                            next = end;
                        }
                        Piece::Repeated => assert!(len == 0 || end <= next),
                        Piece::Hole => break,
                    },
                }
                assert_eq!(tracker.due(), next);
            }
        });
    }

    proptest! {
        /// No matter which pieces of a log arrive, and in which order: what is passed on is the log.
        #[test]
        fn what_is_passed_on_is_a_prefix(pieces in prop::collection::vec((0_usize..200, 1_usize..50), 0..200)) {
            let log: Vec<u8> = (0..250).map(|i| u8::try_from(i).unwrap()).collect();
            let mut tracker = Tracker::new(0);
            let mut got = Vec::new();
            for (offset, len) in pieces {
                let offset64 = offset as u64;
                if let Piece::Take { skip, gap: None } = tracker.output(offset64, len) {
                    got.extend_from_slice(&log[offset + skip..offset + len]);
                }
            }
            prop_assert_eq!(&got[..], &log[..got.len()]);
            prop_assert_eq!(tracker.due(), got.len() as u64);
        }
    }
}
