//! Waiting for a devbox to reach a status.

use std::time::Duration;

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;

use super::{list, look};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Path, Read};

/// Longest wait of one request, seconds; the clients ask again.
const WAIT_MAX_S: f64 = 30.0;
/// How often the server looks at the devbox meanwhile. It looks in memory only.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The statuses to wait for, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wait {
    statuses: Vec<String>,
    timeout_seconds: Option<f64>,
}

/// How long a request waits.
pub(crate) fn duration(asked: Option<f64>, most_s: f64) -> Duration {
    // NaN becomes a valid number of seconds, too.
    Duration::from_secs_f64(asked.unwrap_or(most_s).max(0.0).min(most_s))
}

/// `POST /v1/devboxes/{devbox}/wait_for_status`: 408 when none of the statuses is reached in time.
pub(super) async fn wait(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(wait): Json<Wait>,
) -> Result<Json<Value>> {
    if wait.statuses.is_empty() {
        return Err(Failure::bad("statuses: name at least one"));
    }
    wait.statuses.iter().try_for_each(|word| list::known(word))?;
    let time = tokio::time::sleep(duration(wait.timeout_seconds, WAIT_MAX_S));
    tokio::pin!(time);
    loop {
        let view = look(&app, &caller, &id)?;
        if view["status"].as_str().is_some_and(|status| wait.statuses.iter().any(|word| word == status)) {
            return Ok(Json(view));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = &mut time => return Err(Failure::not_yet()),
            () = app.host.draining() => return Err(Failure::not_yet()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded() {
        let of = |asked| duration(asked, 30.0).as_secs_f64();
        assert_eq!((of(None), of(Some(2.5)), of(Some(1e300)), of(Some(-1.0))), (30.0, 2.5, 30.0, 0.0));
        assert!(of(Some(f64::NAN)) <= 30.0);
    }
}
