//! Numbers for Prometheus. Counted here: requests. Asked at each scrape: what the engine has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::build::{BuildState, StepState};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::Accelerator;
use atoll_core::usage::Usage;
use atoll_engine::{BuildStats, Capacity, EgressStats, PoolName, PoolsView, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

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
        let gauges = [&self.ready, &self.making, &self.target, &self.oldest, &self.memory];
        gauges.iter().for_each(|family| family.clear());
        self.claims.clear();
        for pool in &view.pools {
            // Pools by demand come and go: those with the same name are counted together.
            let name = match &pool.name {
                PoolName::Demand(wanted) => format!("demand:{}", wanted.of()),
                name => name.to_string(),
            };
            let oldest = pool.ages_ms.first().copied().unwrap_or_default() / 1000;
            let memory = u64::from(pool.ready).saturating_mul(pool.member_bytes);
            let values = [pool.ready.into(), pool.making.into(), pool.target.into(), oldest, memory];
            for (family, value) in gauges.iter().zip(values) {
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
struct PlaceLabels {
    place: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableLabels {
    table: &'static str,
}

/// The host's disk and what is kept there, at the last scrape.
#[derive(Debug, Default)]
struct DiskMetrics {
    free: Family<PlaceLabels, Gauge>,
    total: Family<PlaceLabels, Gauge>,
    full: Gauge,
    logs: Gauge,
    unreadable: Family<TableLabels, Gauge>,
}

impl DiskMetrics {
    fn register(registry: &mut Registry) -> Self {
        let disk = Self::default();
        let (free, total) = (disk.free.clone(), disk.total.clone());
        registry.register_with_unit(
            "disk_free",
            "Free where the data directory and disks lie",
            Unit::Bytes,
            free,
        );
        registry.register_with_unit("disk_size", "Size of the same", Unit::Bytes, total);
        registry.register("disk_full", "1 while sandboxes stand still for want of room", disk.full.clone());
        registry.register_with_unit("logs", "Output of execs that is kept", Unit::Bytes, disk.logs.clone());
        registry.register(
            "unreadable_rows",
            "Rows of the database that cannot be read and are left out",
            disk.unreadable.clone(),
        );
        disk
    }

    fn set(&self, stats: &Stats) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for space in &stats.disk {
            let labels = PlaceLabels { place: space.place };
            self.free.get_or_create(&labels).set(number(space.free_bytes));
            self.total.get_or_create(&labels).set(number(space.total_bytes));
        }
        self.full.set(stats.disk_full.into());
        self.logs.set(number(stats.logs_bytes));
        // A row that was mended is gone from the numbers.
        self.unreadable.clear();
        for (table, count) in &stats.unreadable_rows {
            self.unreadable.get_or_create(&TableLabels { table }).set(number(*count));
        }
    }
}

/// What is free, for an operator or autoscaler that starts and ends machines.
#[derive(Debug, Default)]
struct CapacityMetrics {
    sandboxes_max: Gauge,
    creations: Gauge,
    creations_max: Gauge,
    memory_available: Gauge,
    memory_total: Gauge,
    draining: Gauge,
}

impl CapacityMetrics {
    fn register(registry: &mut Registry) -> Self {
        let made = Self::default();
        registry.register("sandboxes_max", "Most sandboxes at once", made.sandboxes_max.clone());
        registry.register(
            "creations",
            "Creations under way, those that wait for their turn included",
            made.creations.clone(),
        );
        registry.register("creations_max", "Creations that go on at once", made.creations_max.clone());
        let (available, total) = (made.memory_available.clone(), made.memory_total.clone());
        registry.register_with_unit(
            "node_memory_available",
            "Memory that a node of a cluster can still give",
            Unit::Bytes,
            available,
        );
        registry.register_with_unit("node_memory", "Memory that a node of a cluster has", Unit::Bytes, total);
        registry.register("node_draining", "1 while a node takes no new sandboxes", made.draining.clone());
        made
    }

    fn set(&self, capacity: &Capacity) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.sandboxes_max.set(number(capacity.sandboxes_max));
        self.creations.set(number(capacity.creations));
        self.creations_max.set(number(capacity.creations_max));
        self.memory_available.set(number(capacity.memory_available_bytes));
        self.memory_total.set(number(capacity.memory_total_bytes));
        self.draining.set(capacity.is_draining.into());
    }
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

/// What sandboxes do on the network.
#[derive(Debug)]
struct EgressMetrics {
    connections: Gauge<i64>,
    sent: Counter,
    received: Counter,
    denied: Counter,
}

impl EgressMetrics {
    fn new(registry: &mut Registry) -> Self {
        let made = Self {
            connections: Gauge::default(),
            sent: Counter::default(),
            received: Counter::default(),
            denied: Counter::default(),
        };
        let connections = made.connections.clone();
        registry.register("egress_connections", "Connections of sandboxes to the outside", connections);
        let (sent, received) = (made.sent.clone(), made.received.clone());
        registry.register_with_unit("egress_sent", "Bytes that left sandboxes", Unit::Bytes, sent);
        registry.register_with_unit(
            "egress_received",
            "Bytes that came into sandboxes",
            Unit::Bytes,
            received,
        );
        registry.register("egress_denied", "What egress policies refused", made.denied.clone());
        made
    }

    /// The gateway's counts only grow; so the difference is added.
    fn set(&self, stats: &EgressStats) {
        self.connections.set(i64::try_from(stats.connections).unwrap_or(i64::MAX));
        for (counter, now) in [
            (&self.sent, stats.sent_bytes),
            (&self.received, stats.received_bytes),
            (&self.denied, stats.denied),
        ] {
            counter.inc_by(now.saturating_sub(counter.get()));
        }
    }
}

/// What sandboxes used since the start of the server, as far as it was recorded.
#[derive(Debug, Default)]
struct UsedGauges {
    cpu: Counter<f64, AtomicU64>,
    memory: Counter,
    disk: Counter,
    running: Counter<f64, AtomicU64>,
    egress: Counter,
    requests: Counter,
    execs: Counter,
}

impl UsedGauges {
    fn register(registry: &mut Registry) -> Self {
        let used = Self::default();
        let cpu = used.cpu.clone();
        registry.register_with_unit("used_cpu", "CPU time of sandboxes", Unit::Seconds, cpu);
        let running = used.running.clone();
        registry.register_with_unit("used_running", "Time in which sandboxes ran", Unit::Seconds, running);
        registry.register("used_memory_byte_seconds", "Memory of sandboxes by time", used.memory.clone());
        registry.register("used_disk_byte_seconds", "Disks of sandboxes by time", used.disk.clone());
        let egress = used.egress.clone();
        registry.register_with_unit("used_egress", "Sent by sandboxes to the outside", Unit::Bytes, egress);
        registry.register("used_requests", "Uses of sandboxes", used.requests.clone());
        registry.register("used_execs", "Execs started", used.execs.clone());
        used
    }

    /// Totals only grow, so that the difference is what came since.
    #[expect(clippy::cast_precision_loss, reason = "seconds with a fraction")]
    fn set(&self, used: &Usage) {
        let grow = |counter: &Counter, now: u64| counter.inc_by(now.saturating_sub(counter.get()));
        let grow_s = |counter: &Counter<f64, AtomicU64>, now: f64| {
            counter.inc_by((now - counter.get()).max(0.0));
        };
        grow_s(&self.cpu, used.cpu_us as f64 / 1e6);
        grow_s(&self.running, used.running_ms as f64 / 1e3);
        grow(&self.memory, used.memory_byte_seconds);
        grow(&self.disk, used.disk_byte_seconds);
        grow(&self.egress, used.egress_bytes);
        grow(&self.requests, used.requests);
        grow(&self.execs, used.execs);
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
