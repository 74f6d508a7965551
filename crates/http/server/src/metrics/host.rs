//! What the machine has left: room on its disks, rows that cannot be read, and how many sandboxes still fit, for an operator
//! or autoscaler that starts and ends machines.

use atoll_engine::{Capacity, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

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
pub(super) struct DiskMetrics {
    free: Family<PlaceLabels, Gauge>,
    total: Family<PlaceLabels, Gauge>,
    full: Gauge,
    logs: Gauge,
    unreadable: Family<TableLabels, Gauge>,
}

impl DiskMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
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

    pub(super) fn set(&self, stats: &Stats) {
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
pub(super) struct CapacityMetrics {
    sandboxes_max: Gauge,
    creations: Gauge,
    creations_max: Gauge,
    memory_available: Gauge,
    memory_total: Gauge,
    draining: Gauge,
}

impl CapacityMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
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

    pub(super) fn set(&self, capacity: &Capacity) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.sandboxes_max.set(number(capacity.sandboxes_max));
        self.creations.set(number(capacity.creations));
        self.creations_max.set(number(capacity.creations_max));
        self.memory_available.set(number(capacity.memory_available_bytes));
        self.memory_total.set(number(capacity.memory_total_bytes));
        self.draining.set(capacity.is_draining.into());
    }
}
