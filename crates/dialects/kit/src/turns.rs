//! Work that happens one after the other: commands of a session, changes of one place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Entries after which those that no task waits for or holds are forgotten.
const SWEEP_COUNT: usize = 1024;

/// The tasks' turns, by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashMap<String, Weak<Turn<()>>>>>);

impl Turns {
    /// Waits for the turn of this name; the turn lasts until the returned guard is dropped.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            // The map stays usable when a task panics while it holds the lock.
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= SWEEP_COUNT {
                all.retain(|_, turn| turn.strong_count() > 0);
            }
            match all.get(name).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::new(Turn::new(()));
                    all.insert(name.to_owned(), Arc::downgrade(&turn));
                    turn
                }
            }
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_after_the_other() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let other = turns.take("b").await;
        let mut second = Box::pin(turns.take("a"));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        drop((second.await, other));
        for n in 0..2 * SWEEP_COUNT {
            drop(turns.take(&n.to_string()).await);
        }
        assert!(turns.0.lock().unwrap().len() <= SWEEP_COUNT);
    }
}
