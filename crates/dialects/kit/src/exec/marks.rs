//! Known places in the logs of execs, so that the server need not read the whole log again for a client that comes
//! back. They only save time: without them, reading starts at the beginning and finds the same.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::ExecId;

use super::track::Position;

/// Distance of two marks at first, bytes of log.
const STEP_BYTES: u64 = 512 << 10;
/// Marks of one exec; with more, every second mark is dropped and the distance doubles.
const MARKS_MAX_COUNT: usize = 128;
/// Execs with marks; the oldest goes first.
const EXECS_MAX_COUNT: usize = 512;

/// Marks of one exec.
#[derive(Debug)]
struct Marks {
    step: u64,
    /// By offset, ascending.
    list: Vec<Position>,
}

/// Marks of all execs that were read lately.
#[derive(Debug, Default)]
struct Shelf {
    by_exec: BTreeMap<ExecId, Marks>,
    order: VecDeque<ExecId>,
}

/// The shelf, shared by all readers.
#[derive(Debug, Clone, Default)]
pub struct Bookmarks {
    shelf: Arc<Mutex<Shelf>>,
}

impl Bookmarks {
    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last mark for which `is_before` is true.
    pub(crate) fn last(&self, exec: &ExecId, is_before: impl Fn(&Position) -> bool) -> Option<Position> {
        let shelf = self.shelf();
        let marks = shelf.by_exec.get(exec)?;
        let after = marks.list.partition_point(is_before);
        marks.list.get(after.checked_sub(1)?).cloned()
    }

    /// The first mark at or beyond this offset of the log.
    pub(crate) fn first_from(&self, exec: &ExecId, at: u64) -> Option<Position> {
        let shelf = self.shelf();
        let marks = shelf.by_exec.get(exec)?;
        marks.list.get(marks.list.partition_point(|mark| mark.at < at)).cloned()
    }

    /// Notes a place that a reader reached, if it is far enough from the last mark.
    pub(crate) fn note(&self, exec: &ExecId, position: &Position) {
        if position.at < STEP_BYTES {
            return;
        }
        let mut shelf = self.shelf();
        if !shelf.by_exec.contains_key(exec) {
            shelf.order.push_back(exec.clone());
            shelf.by_exec.insert(exec.clone(), Marks { step: STEP_BYTES, list: Vec::new() });
            if shelf.order.len() > EXECS_MAX_COUNT
                && let Some(oldest) = shelf.order.pop_front()
            {
                shelf.by_exec.remove(&oldest);
            }
        }
        if let Some(marks) = shelf.by_exec.get_mut(exec) {
            marks.note(position);
        }
    }
}

impl Marks {
    fn note(&mut self, position: &Position) {
        if self.list.last().is_some_and(|last| position.at < last.at + self.step) {
            return;
        }
        self.list.push(position.clone());
        if self.list.len() > MARKS_MAX_COUNT {
            let mut keep = false;
            self.list.retain(|_| {
                keep = !keep;
                keep
            });
            self.step *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(at: u64) -> Position {
        let mut position = Position { at, ..Position::default() };
        position.stdout.skip(at);
        position
    }

    #[test]
    fn marks_are_found_and_bounded() {
        let (marks, exec) = (Bookmarks::default(), ExecId::from_parts(1, 1));
        let mib = 1 << 20;
        for n in 0..4000 {
            marks.note(&exec, &position(n * mib));
        }
        assert!(marks.shelf().by_exec[&exec].list.len() <= MARKS_MAX_COUNT);
        let found = marks.last(&exec, |mark| mark.stdout.text <= 1000 * mib).unwrap();
        assert!(found.at <= 1000 * mib && found.at > 900 * mib, "{}", found.at);
        assert!(marks.first_from(&exec, 1000 * mib).unwrap().at >= 1000 * mib);
        assert_eq!(marks.last(&exec, |_| false), None);
        for n in 0..2 * EXECS_MAX_COUNT as u64 {
            marks.note(&ExecId::from_parts(2, n), &position(mib));
        }
        assert_eq!(marks.shelf().by_exec.len(), EXECS_MAX_COUNT);
        assert_eq!(marks.last(&exec, |_| true), None);
    }
}
