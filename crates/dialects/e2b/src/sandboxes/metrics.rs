//! The resources that sandboxes use. A point is taken when a client asks: a sampler would keep sandboxes awake.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::Error;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Needs;
use atoll_engine::{Engine, Target};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Id, Query, Read};
use crate::time::of_ms;
use crate::view;

/// Most points that are kept of a sandbox.
const POINTS_MAX: usize = 720;
/// Most points that are kept of all sandboxes.
const TOTAL_MAX: usize = 100_000;
/// Points lie at least so far apart, milliseconds.
const APART_MS: u64 = 1000;
/// Most sandboxes that a client may ask for at once.
const ASKED_MAX: usize = 100;

/// One point, as the clients read it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    timestamp: String,
    timestamp_unix: u64,
    pub(crate) cpu_count: u32,
    pub(crate) cpu_used_pct: f64,
    pub(crate) mem_used: u64,
    pub(crate) mem_total: u64,
    pub(crate) mem_cache: u64,
    pub(crate) disk_used: u64,
    pub(crate) disk_total: u64,
    #[serde(skip)]
    at_ms: u64,
    #[serde(skip)]
    cpu_us: u64,
}

/// The points of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Arc<Mutex<HashMap<SandboxId, VecDeque<Sample>>>>);

impl Samples {
    /// Takes a point and gives all points of the sandbox.
    async fn take(&self, engine: &Engine, id: &SandboxId) -> Result<Vec<Sample>, Error> {
        let mut sample = sample(engine, id).await?;
        // The maps and queues stay usable when a task panics while it holds the lock.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.values().map(VecDeque::len).sum::<usize>() >= TOTAL_MAX {
            all.retain(|id, _| engine.sandbox(id).is_ok());
            thin(&mut all);
        }
        let points = all.entry(id.clone()).or_default();
        if let Some(last) = points.back() {
            let passed_us = sample.at_ms.saturating_sub(last.at_ms) * 1000;
            if passed_us >= APART_MS * 1000 {
                sample.cpu_used_pct = percent(sample.cpu_us.saturating_sub(last.cpu_us), passed_us);
            } else {
                return Ok(points.iter().cloned().collect());
            }
        }
        if points.len() >= POINTS_MAX {
            points.pop_front();
        }
        points.push_back(sample);
        Ok(points.iter().cloned().collect())
    }
}

/// Drops the older half of each sandbox's points, but not the last point, until there is room.
fn thin(all: &mut HashMap<SandboxId, VecDeque<Sample>>) {
    while all.values().map(VecDeque::len).sum::<usize>() >= TOTAL_MAX {
        if all.len() >= TOTAL_MAX {
            return all.clear();
        }
        for points in all.values_mut() {
            points.drain(..points.len() / 2);
        }
    }
}

/// Hundredths of a per cent are enough.
#[expect(clippy::cast_precision_loss, reason = "a rounded share is wanted")]
fn percent(used_us: u64, passed_us: u64) -> f64 {
    if passed_us == 0 { 0.0 } else { (used_us as f64 / passed_us as f64 * 10_000.0).round() / 100.0 }
}

/// The resources that a sandbox uses now; its share of the processors is that since it was made.
///
/// # Errors
/// As [`Engine::metrics`].
pub(crate) async fn sample(engine: &Engine, id: &SandboxId) -> Result<Sample, Error> {
    let record = engine.sandbox(id)?;
    let metrics = engine.metrics(id).await?;
    let at_ms = engine.now_ms();
    let alive_us = at_ms.saturating_sub(record.created_ms).saturating_sub(record.pauses_ms) * 1000;
    let disk_total = match metrics.guest.disk_total_bytes {
        0 => record.spec.resources.disk_bytes,
        bytes => bytes,
    };
    Ok(Sample {
        timestamp: of_ms(at_ms),
        timestamp_unix: at_ms / 1000,
        cpu_count: view::cpu_count(&record),
        cpu_used_pct: percent(metrics.usage.cpu_us, alive_us),
        mem_used: metrics.usage.memory_bytes,
        mem_total: metrics.memory_limit_bytes,
        // The kernel counts the cache with the memory; it is not told apart.
        mem_cache: 0,
        disk_used: metrics.guest.disk_used_bytes.max(metrics.usage.disk_bytes),
        disk_total,
        at_ms,
        cpu_us: metrics.usage.cpu_us,
    })
}

/// From when to when, seconds since the epoch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Range {
    start: Option<i64>,
    end: Option<i64>,
}

impl Range {
    fn contains(&self, sample: &Sample) -> bool {
        let at = i64::try_from(sample.timestamp_unix).unwrap_or(i64::MAX);
        self.start.is_none_or(|start| at >= start) && self.end.is_none_or(|end| at <= end)
    }
}

/// The points of one sandbox.
pub(super) async fn of_one(
    _: Caller<Read>,
    State(app): State<App>,
    Id(id): Id,
    Query(range): Query<Range>,
) -> Result<axum::Json<Vec<Sample>>> {
    if let (Some(start), Some(end)) = (range.start, range.end)
        && start > end
    {
        return Err(Failure::bad("start time cannot be after end time"));
    }
    let samples = app.samples.take(app.host.engine(), &id).await.map_err(|error| Failure::of(&error))?;
    Ok(axum::Json(samples.into_iter().filter(|sample| range.contains(sample)).collect()))
}

/// The sandboxes that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Many {
    sandbox_ids: Vec<String>,
}

/// The last point of several sandboxes. Those that the key does not see, or that do not run, are left out.
pub(super) async fn of_many(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<Many>,
) -> Result<axum::Json<Value>> {
    let engine = app.host.engine();
    let ids: Vec<&str> = query.sandbox_ids.iter().flat_map(|text| text.split(',')).collect();
    if ids.len() > ASKED_MAX {
        return Err(Failure::bad(format!("sandbox_ids: more than {ASKED_MAX}")));
    }
    let mut sandboxes = serde_json::Map::new();
    for text in ids {
        let Ok(id) = text.parse::<SandboxId>() else { continue };
        let seen = engine.authorize(caller.engine(), Needs::READ, Target::Sandbox(id.as_str())).await.is_ok();
        let runs = engine.sandbox(&id).is_ok_and(|record| record.state == SandboxState::Running);
        if !seen || !runs {
            continue;
        }
        if let Ok(samples) = app.samples.take(engine, &id).await
            && let Some(last) = samples.last()
        {
            sandboxes.insert(id.to_string(), serde_json::to_value(last).unwrap_or_default());
        }
    }
    Ok(axum::Json(json!({"sandboxes": sandboxes})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_points_go() {
        let point = |at_ms| Sample {
            timestamp: String::new(),
            timestamp_unix: 0,
            cpu_count: 1,
            cpu_used_pct: 0.0,
            mem_used: 0,
            mem_total: 0,
            mem_cache: 0,
            disk_used: 0,
            disk_total: 0,
            at_ms,
            cpu_us: 0,
        };
        let mut all: HashMap<SandboxId, VecDeque<Sample>> = (0..1000)
            .map(|number| (SandboxId::from_parts(1, number), (0..100).map(point).collect()))
            .collect();
        thin(&mut all);
        for points in all.values() {
            assert_eq!((points.len(), points[0].at_ms, points[49].at_ms), (50, 50, 99));
        }
        let mut many: HashMap<SandboxId, VecDeque<Sample>> = (0..TOTAL_MAX as u64)
            .map(|number| (SandboxId::from_parts(1, number), VecDeque::from([point(0)])))
            .collect();
        thin(&mut many);
        assert!(many.is_empty());
    }

    #[test]
    fn percents() {
        assert!((percent(1, 3) - 33.33).abs() < 1e-9);
        assert!(percent(5, 0).abs() < 1e-9);
    }
}
