//! The state of a certificate, as all servers that share the database see it. No I/O, no clock.

use serde::{Deserialize, Serialize};

/// Orders that are begun within an hour, also by servers that were started anew.
pub(crate) const TRIES_PER_HOUR: usize = 4;
/// Waits after failures in a row, milliseconds; the last one from then on.
const PATIENCE_MS: [u64; 5] = [10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000];
/// Longest wait that is taken from a server of ACME, milliseconds.
pub(crate) const TOLD_MAX_MS: u64 = 24 * HOUR_MS;
/// How long the server that orders may be silent, milliseconds.
pub(crate) const SILENCE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
/// Longest life of a certificate that is believed, seconds: a hundred years.
const LIFE_MAX_S: u64 = 100 * 366 * 86_400;

/// Where a challenge is answered, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// A token, which is asked for over HTTP, or the name of a record.
    pub(crate) at: String,
    pub(crate) value: String,
}

/// The state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The server that orders.
    holder: Option<String>,
    /// Until when the other servers wait for it.
    held_until_ms: u64,
    /// When orders were begun within the last hour.
    tries_ms: Vec<u64>,
    /// How many failed in a row.
    failures: u32,
    /// Not before, by our own patience.
    next_ms: u64,
    /// Not before, as the server of ACME said.
    told_ms: u64,
    /// Why the last one failed.
    pub(crate) failure: Option<String>,
    /// The answers to challenges that are published.
    pub(crate) answers: Vec<Answer>,
}

impl State {
    /// Takes the right to order: the state then, or until when to wait. A server that has just been `started` does not
    /// wait as after a failure: the operator may have mended something.
    pub(crate) fn claim(&self, who: &str, now_ms: u64, started: bool) -> Result<Self, u64> {
        if self.holder.as_deref().is_some_and(|holder| holder != who) && self.held_until_ms > now_ms {
            return Err(self.held_until_ms);
        }
        let not_before = if started { self.told_ms } else { self.told_ms.max(self.next_ms) };
        // A clock that was set back does not wait for its own past.
        let not_before = not_before.min(now_ms.saturating_add(TOLD_MAX_MS));
        if not_before > now_ms {
            return Err(not_before);
        }
        let recent = |at: &&u64| **at <= now_ms && now_ms - **at < HOUR_MS;
        let mut tries_ms: Vec<u64> = self.tries_ms.iter().filter(recent).copied().collect();
        if tries_ms.len() >= TRIES_PER_HOUR {
            return Err(tries_ms[0] + HOUR_MS);
        }
        tries_ms.push(now_ms);
        Ok(Self {
            holder: Some(who.to_owned()),
            held_until_ms: now_ms + SILENCE_MS,
            tries_ms,
            ..self.clone()
        })
    }

    /// Notes that the server that orders is still there.
    pub(crate) fn hold(&mut self, now_ms: u64) {
        self.held_until_ms = now_ms + SILENCE_MS;
    }

    /// An order failed. `told_ms` is how long the server of ACME wants to be left alone; `jitter` lies in 0..=255.
    pub(crate) fn fail(&mut self, why: String, told_ms: Option<u64>, jitter: u8, now_ms: u64) {
        let step = usize::try_from(self.failures).unwrap_or(usize::MAX).min(PATIENCE_MS.len() - 1);
        let patience = PATIENCE_MS[step];
        self.next_ms = now_ms + patience + patience / 4 * u64::from(jitter) / 255;
        self.told_ms = told_ms.map_or(0, |told| now_ms + told.min(TOLD_MAX_MS));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(why);
    }

    /// An order was fulfilled.
    pub(crate) fn fulfil(&mut self) {
        let old = std::mem::take(self);
        *self = Self {
            holder: old.holder,
            held_until_ms: old.held_until_ms,
            tries_ms: old.tries_ms,
            answers: old.answers,
            ..Self::default()
        };
    }

    /// Gives the right to order back.
    pub(crate) fn release(&mut self) {
        self.holder = None;
    }

    /// Takes the right to remove the answers that another server published and left when it ended, or that this server
    /// published before it was started anew; none when there are no such answers.
    pub(crate) fn claim_left(&self, who: &str, now_ms: u64) -> Option<Self> {
        let is_others = self.holder.as_deref().is_some_and(|holder| holder != who);
        if self.answers.is_empty() || (is_others && self.held_until_ms > now_ms) {
            return None;
        }
        let (holder, held_until_ms) = (Some(who.to_owned()), now_ms + SILENCE_MS);
        Some(Self { holder, held_until_ms, ..self.clone() })
    }

    /// The answer to a challenge over HTTP.
    pub(crate) fn answer(&self, token: &str) -> Option<&str> {
        self.answers.iter().find(|answer| answer.at == token).map(|answer| answer.value.as_str())
    }
}

/// When to order the next one: after two thirds of a certificate's life, a little later for some so that not all come at once.
/// `jitter` lies in 0..=255.
pub(crate) fn renew_at_ms(from_s: u64, until_s: u64, jitter: u8) -> u64 {
    let life_ms = until_s.saturating_sub(from_s).min(LIFE_MAX_S) * 1000;
    let after = life_ms / 3 * 2 + life_ms / 30 * u64::from(jitter) / 255;
    from_s.saturating_mul(1000).saturating_add(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn one_orders_and_the_others_wait_for_its_silence() {
        let held = State::default().claim("a", NOW_MS, false).unwrap();
        assert_eq!(held.claim("b", NOW_MS + 1, true), Err(NOW_MS + SILENCE_MS));
        assert!(held.claim("a", NOW_MS + 1, true).is_ok(), "it was started anew");
        assert!(held.claim("b", NOW_MS + SILENCE_MS, false).is_ok(), "it is gone");
        let mut alive = held;
        alive.hold(NOW_MS + SILENCE_MS - 1);
        assert!(alive.claim("b", NOW_MS + SILENCE_MS, false).is_err());
        alive.release();
        assert!(alive.claim("b", NOW_MS + SILENCE_MS, false).is_ok());
    }

    #[test]
    fn what_was_published_is_removed_by_whoever_comes_next() {
        let mut state = State::default().claim("a", NOW_MS, false).unwrap();
        assert_eq!(state.claim_left("a", NOW_MS), None, "there is nothing");
        state.answers.push(Answer { at: "token".to_owned(), value: "value".to_owned() });
        state.fulfil();
        assert_eq!(state.claim_left("b", NOW_MS), None, "a does it");
        assert!(state.claim_left("a", NOW_MS).is_some(), "a was started anew");
        let taken = state.claim_left("b", NOW_MS + SILENCE_MS).unwrap();
        assert_eq!(taken.claim_left("a", NOW_MS + SILENCE_MS), None, "b does it");
        assert_eq!(taken.answers, state.answers);
    }

    #[test]
    fn nobody_tries_more_often_than_may_be() {
        let (mut state, mut now) = (State::default(), NOW_MS);
        for _ in 0..TRIES_PER_HOUR {
            state = state.claim("a", now, true).unwrap();
            state.fail("no".to_owned(), None, 0, now);
            now += 1;
        }
        assert_eq!(
            state.claim("a", now, true),
            Err(NOW_MS + HOUR_MS),
            "also when it is started again and again"
        );
        assert!(state.claim("a", NOW_MS + HOUR_MS, true).is_ok());
        let mut fulfilled = state.claim("a", NOW_MS + HOUR_MS, true).unwrap();
        fulfilled.fulfil();
        assert_eq!(fulfilled.tries_ms.len(), TRIES_PER_HOUR, "those that went well count, too");
        assert_eq!(fulfilled.failure, None);
    }

    #[test]
    fn patience_grows_and_the_servers_word_counts() {
        let mut state = State::default();
        for (count, wait) in [10_000, 60_000, 600_000, 3_600_000, 21_600_000, 21_600_000].iter().enumerate() {
            let now = NOW_MS + count as u64 * 100 * HOUR_MS;
            state.fail(String::new(), None, 0, now);
            assert_eq!(state.claim("a", now, false), Err(now + wait));
            assert!(state.claim("a", now, true).is_ok(), "it was started anew");
        }
        state.fail(String::new(), Some(7_000), 255, NOW_MS);
        assert_eq!(state.claim("a", NOW_MS, true), Err(NOW_MS + 7_000), "who is started waits as well");
        state.fail(String::new(), Some(u64::MAX), 255, NOW_MS);
        assert_eq!(state.claim("a", NOW_MS, true), Err(NOW_MS + TOLD_MAX_MS));
    }

    #[test]
    fn what_is_kept_is_read_again_and_what_is_unknown_left_out() {
        let mut state = State::default().claim("a", NOW_MS, false).unwrap();
        state.answers.push(Answer { at: "token".to_owned(), value: "token.thumb".to_owned() });
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        assert_eq!(serde_json::from_str::<State>(r#"{"later": 1}"#).unwrap(), State::default());
        assert_eq!((state.answer("token"), state.answer("toke")), (Some("token.thumb"), None));
    }

    #[test]
    fn certificates_are_renewed_in_the_last_third_of_their_life() {
        let day = 86_400;
        assert_eq!(renew_at_ms(0, 90 * day, 0), 60 * day * 1000);
        assert_eq!(renew_at_ms(0, 90 * day, 255), 63 * day * 1000);
        assert_eq!(renew_at_ms(90, 0, 255), 90_000, "one whose end is before its beginning");
        assert!(renew_at_ms(0, u64::MAX, 255) > 0);
    }
}
