//! How fast a registry has to send. Who pulls chooses the registry, and what is pulled holds a place among the transfers and
//! a lock on its blob: so one that sends a byte now and then is given up, as one that stalls is. One that breaks off after a
//! few bytes has so many attempts as one that sends nothing ([`crate::retry`]).

use std::time::Duration;

use crate::limits::{FLOW_MIN_BYTES, FLOW_WINDOW};

/// What came of one answer, in windows of waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    bytes: u64,
    waited: Duration,
}

impl Flow {
    /// Notes that so many bytes came after so much waiting; says whether that is enough so far.
    pub(crate) fn came(&mut self, bytes: usize, after: Duration) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.waited = self.waited.saturating_add(after);
        if self.waited < FLOW_WINDOW {
            return true;
        }
        let enough = self.bytes >= FLOW_MIN_BYTES;
        *self = Self::default();
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_trickle_is_not_enough_and_pauses_between_much_are_none() {
        let mut trickle = Flow::default();
        let windows = FLOW_WINDOW.as_secs();
        let seconds = (0..10 * windows).find(|_| !trickle.came(1, SECOND));
        assert_eq!(seconds, Some(windows - 1), "given up at the end of the first window");
        let mut slow = Flow::default();
        let each = usize::try_from(FLOW_MIN_BYTES / windows).unwrap() + 1;
        assert!((0..10 * windows).all(|_| slow.came(each, SECOND)));
        let mut bursts = Flow::default();
        assert!((0..10).all(|_| bursts.came(usize::try_from(FLOW_MIN_BYTES).unwrap(), FLOW_WINDOW)));
        assert!(!bursts.came(0, FLOW_WINDOW), "what came before is not counted again");
    }
}
