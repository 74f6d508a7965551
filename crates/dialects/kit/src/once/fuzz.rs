//! Requests of many keys in any order, against a table that says what should be known of them.

use std::collections::{HashMap, VecDeque};

use atoll_core::id::KeyId;
use bolero::check;

use super::{Begun, First, Limits, Of, Once, Print, Table, lock};

/// So few that every bound is met soon. Nothing becomes too old.
const LIMITS: Limits = Limits { kept_ms: u64::MAX, of_key: 4, all: 8, bytes_of_key: 100, bytes_all: 150 };

/// The table as it should be.
#[derive(Default)]
struct Model {
    /// Print, number of the first request, and its answer.
    entries: HashMap<Of, (Print, usize, Option<u32>)>,
    /// Requests under way, the oldest first.
    held: VecDeque<(Of, usize, First<u32>)>,
    begun: usize,
}

impl Model {
    fn begin(&mut self, once: &Once<u32>, of: Of, print: Print) {
        match (once.begin(&of, print), self.entries.get(&of).copied()) {
            (Begun::First(first), None) => {
                for gone in &first.gone {
                    assert!(self.entries.remove(gone).is_some(), "{gone:?} went twice");
                }
                self.begun += 1;
                self.entries.insert(of.clone(), (print, self.begun, None));
                self.held.push_back((of, self.begun, first));
            }
            (Begun::Again(again), Some((known, _, answer))) => {
                assert_eq!((known, again.now()), (print, answer), "{of:?}");
            }
            (Begun::Other, Some((known, ..))) => assert_ne!(known, print, "{of:?}"),
            (begun, known) => panic!("{of:?} is {begun:?}, known is {known:?}"),
        }
    }

    /// Ends the oldest request under way: with an answer that is kept or not, or without one.
    fn end(&mut self, answer: u32, keeps: Option<bool>) {
        let Some((of, number, first)) = self.held.pop_front() else { return };
        let is_there = self.entries.get(&of).is_some_and(|(_, known, _)| *known == number);
        match keeps {
            Some(keeps) => {
                for gone in first.answer(answer, keeps) {
                    let (_, _, answer) = self.entries.remove(&gone).expect("it was there");
                    assert!(answer.is_some(), "{gone:?} was under way");
                }
            }
            None => drop(first),
        }
        if !is_there {
            return;
        }
        if keeps == Some(true) {
            self.entries.get_mut(&of).expect("it does not go for itself").2 = Some(answer);
        } else {
            self.entries.remove(&of);
        }
    }

    fn check(&self, table: &Table<u32>) {
        let (mut count, mut bytes) = (0, 0);
        for (key, share) in &table.keys {
            assert!((1..=LIMITS.of_key).contains(&share.by_id.len()) && share.bytes <= LIMITS.bytes_of_key);
            assert_eq!(share.by_id.len(), share.by_age.len());
            for (number, id) in &share.by_age {
                assert_eq!(share.by_id.get(id).map(|entry| entry.number), Some(*number));
                assert!(self.entries.contains_key(&(key.clone(), id.clone())), "{id} has not gone");
            }
            assert_eq!(share.by_id.values().map(|entry| entry.bytes).sum::<usize>(), share.bytes);
            count += share.by_id.len();
            bytes += share.bytes;
        }
        assert_eq!((count, bytes), (table.count, table.bytes));
        assert_eq!(count, self.entries.len(), "something is gone that was not said to go");
        assert!(count <= LIMITS.all && bytes <= LIMITS.bytes_all);
    }
}

/// A request is done once as long as its key is known, whatever others come; each that goes is told once, no bound is
/// passed, and the counts are right.
#[test]
fn any_requests_are_done_once_and_stay_within_the_bounds() {
    check!().for_each(|bytes: &[u8]| {
        let once: Once<u32> = Once::new(LIMITS, |answer: &u32| usize::try_from(*answer).unwrap());
        let mut model = Model::default();
        for step in bytes.chunks_exact(3) {
            let (what, which, value) = (step[0], step[1], step[2]);
            // No answer is larger than what a key may have.
            let answer = u32::from(value) % 101;
            match what % 8 {
                0..=3 => {
                    let of = (KeyId::from_parts(1, u64::from(which % 3)), (which / 3 % 6).to_string());
                    model.begin(&once, of, Print::of(&[if value.is_multiple_of(8) { b"b" } else { b"a" }]));
                }
                4 | 5 => model.end(answer, Some(true)),
                6 => model.end(answer, Some(false)),
                _ => model.end(answer, None),
            }
            model.check(&lock(&once.table));
        }
    });
}
