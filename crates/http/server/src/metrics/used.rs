//! What sandboxes took: connections and bytes on the network, CPU time, memory, disk. The gateway and the engine tell totals
//! that only grow; counters are given the difference.

use std::sync::atomic::AtomicU64;

use atoll_core::usage::Usage;
use atoll_engine::EgressStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// What sandboxes do on the network.
#[derive(Debug)]
pub(super) struct EgressMetrics {
    connections: Gauge<i64>,
    sent: Counter,
    received: Counter,
    denied: Counter,
}

impl EgressMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
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
    pub(super) fn set(&self, stats: &EgressStats) {
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
pub(super) struct UsedGauges {
    cpu: Counter<f64, AtomicU64>,
    memory: Counter,
    disk: Counter,
    running: Counter<f64, AtomicU64>,
    egress: Counter,
    requests: Counter,
    execs: Counter,
}

impl UsedGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
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
    pub(super) fn set(&self, used: &Usage) {
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
