//! Samples and their figures.

use std::time::Duration;

/// Durations of one operation, repeated.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The smallest value that `share` (0 to 100) percent do not exceed; zero when there is none.
    pub(crate) fn percentile(&self, share: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * share).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or_default()
    }

    pub(crate) fn min(&self) -> Duration {
        self.percentile(0)
    }
}

/// Milliseconds, with as many digits as are meaningful.
pub(crate) fn millis(took: Duration) -> String {
    let value = took.as_secs_f64() * 1e3;
    if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50), Duration::ZERO);
        (1..=100).rev().for_each(|ms| samples.push(Duration::from_millis(ms)));
        let at = |share| samples.percentile(share).as_millis();
        assert_eq!((at(0), at(50), at(90), at(99), at(100)), (1, 50, 90, 99, 100));
    }
}
