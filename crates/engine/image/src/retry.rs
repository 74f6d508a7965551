//! Trying again: pauses that grow, and an end when nothing moves.

use std::time::Duration;

use crate::error::{ImageError, Result};
use crate::limits::{ATTEMPTS_MAX_COUNT, ATTEMPTS_TOTAL_MAX_COUNT, BACKOFF_MAX, BACKOFF_MIN};
use crate::registry::Failure;

/// Counts attempts. Those that brought much do not use up patience.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    fruitless: u32,
    total: u32,
}

impl Patience {
    /// After a failed attempt: waits, or gives up.
    ///
    /// # Errors
    /// The failure itself when it is fatal, or [`ImageError::RegistryUnavailable`] when it has happened too
    /// often.
    pub(crate) async fn wait(&mut self, host: &str, failure: Failure, progress: bool) -> Result<()> {
        let (why, wait) = match failure {
            Failure::Fatal(error) => return Err(error),
            Failure::Transient { why, wait } => (why, wait),
        };
        self.fruitless = if progress { 1 } else { self.fruitless + 1 };
        self.total += 1;
        if self.fruitless >= ATTEMPTS_MAX_COUNT || self.total >= ATTEMPTS_TOTAL_MAX_COUNT {
            return Err(ImageError::RegistryUnavailable { registry: host.to_owned(), why });
        }
        tracing::debug!(registry = host, why, attempt = self.total, "the registry failed; trying again");
        tokio::time::sleep(wait.unwrap_or_else(|| backoff(self.fruitless))).await;
        Ok(())
    }
}

fn backoff(attempt: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(BACKOFF_MAX)
}

/// Runs `work` until it succeeds, fails for good, or has failed too often.
pub(crate) async fn retry<T>(host: &str, mut work: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T> {
    let mut patience = Patience::default();
    loop {
        match work().await {
            Ok(value) => return Ok(value),
            Err(failure) => patience.wait(host, failure, false).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stop_growing() {
        assert_eq!(backoff(1), BACKOFF_MIN);
        assert_eq!(backoff(2), BACKOFF_MIN * 2);
        assert_eq!(backoff(1000), BACKOFF_MAX);
    }
}
