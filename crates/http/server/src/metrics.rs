//! Numbers for Prometheus. Counted here: requests. Asked at each scrape: what the engine has.
//!
//! Each group of numbers registers itself at the start and is set at a scrape. [`host`] has what the machine has left,
//! [`used`] what sandboxes took.

mod host;
mod used;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::build::{BuildState, StepState};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::Accelerator;
use atoll_engine::{BuildStats, EgressStats, PoolName, PoolsView, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use host::{CapacityMetrics, DiskMetrics};
use used::{EgressMetrics, UsedGauges};

/// Upper bounds of the latency buckets, seconds. The last is the longest long-poll.
const LATENCY_BUCKETS_S: [f64; 14] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClaimLabels {
    pool: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AcceleratorLabels {
    accelerator: &'static str,
}

/// Pools, as they were at the last scrape.
#[derive(Debug, Default)]
struct PoolMetrics {
    ready: Family<PoolLabels, Gauge>,
    making: Family<PoolLabels, Gauge>,
    target: Family<PoolLabels, Gauge>,
    oldest: Family<PoolLabels, Gauge>,
    memory: Family<PoolLabels, Gauge>,
    claims: Family<ClaimLabels, Counter>,
}

impl PoolMetrics {
    fn register(registry: &mut Registry) -> Self {
        let pools = Self::default();
        registry.register("pool_ready", "Members that wait", pools.ready.clone());
        registry.register("pool_making", "Members being made", pools.making.clone());
        registry.register("pool_target", "Members that should wait", pools.target.clone());
        registry.register_with_unit(
            "pool_oldest_age",
            "Age of the oldest member",
            Unit::Seconds,
            pools.oldest.clone(),
        );
        registry.register_with_unit(
            "pool_memory",
            "Memory that members take",
            Unit::Bytes,
            pools.memory.clone(),
        );
        registry.register("pool_claims", "Requests a pool could serve, by outcome", pools.claims.clone());
        pools
    }

    /// A pool that is gone is gone from the numbers, too.
    fn set(&self, view: &PoolsView) {
        let sums = [&self.ready, &self.making, &self.target, &self.memory];
        sums.iter().for_each(|family| family.clear());
        self.oldest.clear();
        self.claims.clear();
        for pool in &view.pools {
            // Pools by demand are counted together: every key may read this, and their names tell what others ask for.
            let name = match &pool.name {
                PoolName::Demand(_) => "demand".to_owned(),
                name => name.to_string(),
            };
            let oldest = pool.ages_ms.first().copied().unwrap_or_default() / 1000;
            let memory = u64::from(pool.ready).saturating_mul(pool.member_bytes);
            {
                // Ages do not add up.
                let gauge = self.oldest.get_or_create(&PoolLabels { pool: name.clone() });
                gauge.set(gauge.get().max(i64::try_from(oldest).unwrap_or(i64::MAX)));
            }
            let values = [pool.ready.into(), pool.making.into(), pool.target.into(), memory];
            for (family, value) in sums.iter().zip(values) {
                let gauge = family.get_or_create(&PoolLabels { pool: name.clone() });
                gauge.inc_by(i64::try_from(value).unwrap_or(i64::MAX));
            }
            for (outcome, count) in [("hit", pool.hits), ("miss", pool.misses)] {
                self.claims.get_or_create(&ClaimLabels { pool: name.clone(), outcome }).inc_by(count);
            }
        }
    }
}

/// Builds of templates.
#[derive(Debug, Default)]
struct BuildMetrics {
    open: Family<StateLabels, Gauge>,
    ended: Family<StateLabels, Counter>,
    steps: Family<OutcomeLabels, Counter>,
}

impl BuildMetrics {
    fn register(registry: &mut Registry) -> Self {
        let builds = Self::default();
        registry.register("builds", "Builds that have not ended, by state", builds.open.clone());
        registry.register("builds_ended", "Builds that have ended, by state", builds.ended.clone());
        registry.register("build_steps", "Steps of builds, by what became of them", builds.steps.clone());
        builds
    }

    /// Counts of builds that have ended only grow; so the difference is added.
    fn set(&self, stats: &BuildStats) {
        for state in BuildState::ALL {
            let labels = StateLabels { state: state.as_str() };
            if state.is_final() {
                let now = stats.ended.get(&state).copied().unwrap_or_default();
                let counter = self.ended.get_or_create(&labels);
                counter.inc_by(now.saturating_sub(counter.get()));
            } else {
                let now = stats.open.get(&state).copied().unwrap_or_default();
                self.open.get_or_create(&labels).set(i64::try_from(now).unwrap_or(i64::MAX));
            }
        }
        for state in [StepState::Cached, StepState::Done, StepState::Failed] {
            let now = stats.steps.get(&state).copied().unwrap_or_default();
            let counter = self.steps.get_or_create(&OutcomeLabels { outcome: state.as_str() });
            counter.inc_by(now.saturating_sub(counter.get()));
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

type Latencies = Family<RouteLabels, Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    latency: Latencies,
    received: Counter,
    sent: Counter,
    sandboxes: Family<StateLabels, Gauge>,
    execs_running: Gauge<i64>,
    used: UsedGauges,
    pools: PoolMetrics,
    builds: BuildMetrics,
    connections: Gauge<i64>,
    machines: Family<AcceleratorLabels, Gauge>,
    egress: EgressMetrics,
    spans: SpanMetrics,
    pub(crate) certificate: crate::certificate::CertificateMetrics,
    disk: DiskMetrics,
    capacity: CapacityMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("atoll");
        let requests = Family::default();
        let latency: Latencies = Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS_S));
        let (received, sent): (Counter, Counter) = (Counter::default(), Counter::default());
        let sandboxes = Family::default();
        let (execs_running, connections) = (Gauge::default(), Gauge::default());
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time until the head of the answer",
            Unit::Seconds,
            latency.clone(),
        );
        registry.register_with_unit(
            "http_received",
            "Bytes of bodies and messages received",
            Unit::Bytes,
            received.clone(),
        );
        registry.register_with_unit(
            "http_sent",
            "Bytes of bodies and messages sent",
            Unit::Bytes,
            sent.clone(),
        );
        registry.register("http_connections", "Connections open now", connections.clone());
        registry.register("sandboxes", "Sandboxes by state", sandboxes.clone());
        registry.register("execs_running", "Execs that run now", execs_running.clone());
        let machines = Family::default();
        registry.register("machines_accelerator", "1 for what new virtual machines run on", machines.clone());
        let egress = EgressMetrics::new(&mut registry);
        let spans = SpanMetrics::register(&mut registry);
        let certificate = crate::certificate::CertificateMetrics::register(&mut registry);
        let used = UsedGauges::register(&mut registry);
        let pools = PoolMetrics::register(&mut registry);
        let builds = BuildMetrics::register(&mut registry);
        let disk = DiskMetrics::register(&mut registry);
        let capacity = CapacityMetrics::register(&mut registry);
        Self {
            registry,
            requests,
            latency,
            received,
            sent,
            sandboxes,
            execs_running,
            pools,
            builds,
            connections,
            machines,
            egress,
            used,
            disk,
            capacity,
            spans,
            certificate,
        }
    }

    pub(crate) fn request(&self, method: &http::Method, route: &str, status: u16, took: Duration) {
        let (method, route) = (method_label(method), route.to_owned());
        self.latency.get_or_create(&RouteLabels { method, route: route.clone() }).observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { method, route, status }).inc();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    /// Counts a connection as long as the guard lives.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// The exposition text.
    pub(crate) fn text(
        &self,
        stats: &Stats,
        egress: &EgressStats,
        pools: &PoolsView,
        accelerator: Option<Accelerator>,
        spans: Option<&SpanCounts>,
    ) -> String {
        self.egress.set(egress);
        if let Some(spans) = spans {
            self.spans.set(spans);
        }
        if let Some(accelerator) = accelerator {
            self.machines.get_or_create(&AcceleratorLabels { accelerator: accelerator.as_str() }).set(1);
        }
        self.pools.set(pools);
        for state in SandboxState::ALL {
            let count = stats.sandboxes.get(&state).copied().unwrap_or_default();
            let gauge = self.sandboxes.get_or_create(&StateLabels { state: state.as_str() }).clone();
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.execs_running.set(i64::try_from(stats.execs_running).unwrap_or(i64::MAX));
        self.used.set(&stats.used);
        self.builds.set(&stats.builds);
        self.disk.set(stats);
        self.capacity.set(&stats.capacity);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            // Writing to a string does not fail.
            tracing::error!(%error, "metrics cannot be written");
        }
        text
    }
}

/// Spans of execs, for a collector of OpenTelemetry.
#[derive(Debug, Default)]
pub struct SpanCounts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Counts spans that the collector took.
    pub fn sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts spans that were lost: there was no room, or the collector did not take them.
    pub fn dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct SpanMetrics {
    sent: Counter,
    dropped: Counter,
}

impl SpanMetrics {
    fn register(registry: &mut Registry) -> Self {
        let made = Self::default();
        registry.register("spans_sent", "Spans that the collector took", made.sent.clone());
        let dropped = made.dropped.clone();
        registry.register("spans_dropped", "Spans that the collector did not take", dropped);
        made
    }

    fn set(&self, counts: &SpanCounts) {
        for (counter, now) in [(&self.sent, &counts.sent), (&self.dropped, &counts.dropped)] {
            counter.inc_by(now.load(Ordering::Relaxed).saturating_sub(counter.get()));
        }
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct OpenConnection(Gauge<i64>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Methods that the server does not serve share one label: a client must not be able to make new labels.
fn method_label(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}
