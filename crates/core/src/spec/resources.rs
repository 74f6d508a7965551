//! Limits: [`ResourcesDraft`] as asked, [`Resources`] as they will be enforced.

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Result};
use crate::limits::{
    CPU_MAX_MILLIS, CPU_MIN_MILLIS, DISK_MAX_BYTES, DISK_MIN_BYTES, IO_BYTES_MAX, IO_BYTES_MIN,
    IO_OPERATIONS_MAX, IO_OPERATIONS_MIN, MEMORY_MAX_BYTES, MEMORY_MIN_BYTES, OUTPUT_DISK_PART,
    OUTPUT_SANDBOX_MIN_BYTES, PIDS_MAX, PIDS_MIN,
};

/// Limits of a sandbox, all enforced by the kernel or by the machine that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Resources {
    /// CPU time per wall time, thousandths of a core.
    pub cpu_millis: u32,
    /// Memory with page cache and tmpfs, bytes. Beyond it the kernel kills inside the sandbox.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Writable disk, bytes. Beyond it writes get `ENOSPC`.
    pub disk_bytes: u64,
    /// What is read from its disks and written to them together, bytes per second; beyond it they are slower. Absent: as
    /// fast as the host can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_bytes_per_second: Option<u64>,
    /// Reads and writes of its disks together, per second, however large each is. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_operations_per_second: Option<u32>,
}

impl Default for Resources {
    /// Two cores, 2 GiB of memory, 4096 processes, 10 GiB of disk, which is as fast as the host's. All are limits, none
    /// is reserved.
    fn default() -> Self {
        Self {
            cpu_millis: 2000,
            memory_bytes: 2 << 30,
            pids: 4096,
            disk_bytes: 10 << 30,
            io_bytes_per_second: None,
            io_operations_per_second: None,
        }
    }
}

/// Limits as asked: what is absent comes from the template or the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResourcesDraft {
    /// See [`Resources::cpu_millis`].
    pub cpu_millis: Option<u32>,
    /// See [`Resources::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// See [`Resources::pids`].
    pub pids: Option<u32>,
    /// See [`Resources::disk_bytes`].
    pub disk_bytes: Option<u64>,
    /// See [`Resources::io_bytes_per_second`]. `null` is no limit, whatever was there before.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub io_bytes_per_second: Option<Option<u64>>,
    /// See [`Resources::io_operations_per_second`]. `null` is no limit, whatever was there before.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u32>))]
    pub io_operations_per_second: Option<Option<u32>>,
}

/// Tells `null` from nothing, for `#[serde(deserialize_with)]` of a field with a default.
///
/// # Errors
/// The deserializer's.
pub fn present<'de, D, T>(deserializer: D) -> std::result::Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

impl ResourcesDraft {
    /// Takes what is set here, the rest from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.or(other.cpu_millis),
            memory_bytes: self.memory_bytes.or(other.memory_bytes),
            pids: self.pids.or(other.pids),
            disk_bytes: self.disk_bytes.or(other.disk_bytes),
            io_bytes_per_second: self.io_bytes_per_second.or(other.io_bytes_per_second),
            io_operations_per_second: self.io_operations_per_second.or(other.io_operations_per_second),
        }
    }

    /// Takes what is set here, the rest from `base`.
    #[must_use]
    pub fn over(self, base: Resources) -> Resources {
        Resources {
            cpu_millis: self.cpu_millis.unwrap_or(base.cpu_millis),
            memory_bytes: self.memory_bytes.unwrap_or(base.memory_bytes),
            pids: self.pids.unwrap_or(base.pids),
            disk_bytes: self.disk_bytes.unwrap_or(base.disk_bytes),
            io_bytes_per_second: self.io_bytes_per_second.unwrap_or(base.io_bytes_per_second),
            io_operations_per_second: self.io_operations_per_second.unwrap_or(base.io_operations_per_second),
        }
    }
}

/// The operator's upper bounds for one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// The most that one sandbox may ask for.
    pub resources: Resources,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            resources: Resources {
                cpu_millis: CPU_MAX_MILLIS,
                memory_bytes: MEMORY_MAX_BYTES,
                pids: PIDS_MAX,
                disk_bytes: DISK_MAX_BYTES,
                io_bytes_per_second: Some(IO_BYTES_MAX),
                io_operations_per_second: Some(IO_OPERATIONS_MAX),
            },
        }
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<()> {
    if value < min || value > max {
        return Err(Error::invalid(field, format_args!("{value} is not between {min} and {max}")));
    }
    Ok(())
}

impl Resources {
    /// What the output of all execs of the sandbox may take together, bytes: a part of what its disk may.
    #[must_use]
    pub fn output_max_bytes(&self) -> u64 {
        (self.disk_bytes / OUTPUT_DISK_PART).max(OUTPUT_SANDBOX_MIN_BYTES)
    }

    pub(crate) fn validate(&self, caps: &Caps) -> Result<()> {
        let cap = caps.resources;
        in_range("resources.cpu_millis", self.cpu_millis, CPU_MIN_MILLIS, cap.cpu_millis)?;
        in_range("resources.memory_bytes", self.memory_bytes, MEMORY_MIN_BYTES, cap.memory_bytes)?;
        in_range("resources.pids", self.pids, PIDS_MIN, cap.pids)?;
        in_range("resources.disk_bytes", self.disk_bytes, DISK_MIN_BYTES, cap.disk_bytes)?;
        let cap_bytes = cap.io_bytes_per_second.unwrap_or(IO_BYTES_MAX);
        if let Some(bytes) = self.io_bytes_per_second {
            in_range("resources.io_bytes_per_second", bytes, IO_BYTES_MIN, cap_bytes)?;
        }
        let cap_operations = cap.io_operations_per_second.unwrap_or(IO_OPERATIONS_MAX);
        if let Some(operations) = self.io_operations_per_second {
            let field = "resources.io_operations_per_second";
            in_range(field, operations, IO_OPERATIONS_MIN, cap_operations)?;
        }
        Ok(())
    }

    /// Whether how fast its disks are is limited.
    #[must_use]
    pub const fn limits_io(&self) -> bool {
        self.io_bytes_per_second.is_some() || self.io_operations_per_second.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn io(bytes: Option<u64>, operations: Option<u32>) -> Resources {
        Resources { io_bytes_per_second: bytes, io_operations_per_second: operations, ..Resources::default() }
    }

    #[test]
    fn disk_io_at_its_edges() {
        let check = |resources: Resources| resources.validate(&Caps::default());
        assert!(check(io(None, None)).is_ok());
        assert!(check(io(Some(IO_BYTES_MIN), Some(IO_OPERATIONS_MIN))).is_ok());
        assert!(check(io(Some(IO_BYTES_MAX), Some(IO_OPERATIONS_MAX))).is_ok());
        for (wrong, field) in [
            (io(Some(0), None), "resources.io_bytes_per_second: "),
            (io(Some(IO_BYTES_MIN - 1), None), "resources.io_bytes_per_second: "),
            (io(Some(IO_BYTES_MAX + 1), None), "resources.io_bytes_per_second: "),
            (io(None, Some(0)), "resources.io_operations_per_second: "),
            (io(None, Some(IO_OPERATIONS_MIN - 1)), "resources.io_operations_per_second: "),
            (io(None, Some(IO_OPERATIONS_MAX + 1)), "resources.io_operations_per_second: "),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.message.starts_with(field), "{}", error.message);
        }
    }

    #[test]
    fn an_operators_cap_bounds_disk_io() {
        let caps = Caps { resources: io(Some(IO_BYTES_MIN), None) };
        let caps = Caps { resources: Resources { cpu_millis: CPU_MAX_MILLIS, ..caps.resources } };
        assert!(io(Some(IO_BYTES_MIN), None).validate(&caps).is_ok());
        assert!(io(Some(IO_BYTES_MIN + 1), None).validate(&caps).is_err());
    }

    #[test]
    fn null_takes_a_limit_away_and_nothing_leaves_it() {
        let draft = |text: &str| serde_json::from_str::<ResourcesDraft>(text).unwrap();
        let base = io(Some(5 << 20), Some(100));
        assert_eq!(draft("{}").over(base), base);
        assert_eq!(draft(r#"{"io_bytes_per_second":null}"#).over(base), io(None, Some(100)));
        assert_eq!(draft(r#"{"io_operations_per_second":70}"#).over(base), io(Some(5 << 20), Some(70)));
        // A record that was written before there were such limits.
        let old = r#"{"cpu_millis":2000,"memory_bytes":2147483648,"pids":4096,"disk_bytes":10737418240}"#;
        assert_eq!(serde_json::from_str::<Resources>(old).unwrap(), Resources::default());
        assert_eq!(serde_json::to_string(&Resources::default()).unwrap(), old);
    }

    proptest! {
        /// What is kept in a template is what comes back, with `null` and nothing told apart.
        #[test]
        fn drafts_come_back_as_they_were(
            bytes: Option<Option<u64>>, operations: Option<Option<u32>>, base: Option<u64>,
        ) {
            let draft = ResourcesDraft {
                io_bytes_per_second: bytes, io_operations_per_second: operations, ..ResourcesDraft::default()
            };
            let text = serde_json::to_string(&draft).unwrap();
            prop_assert_eq!(serde_json::from_str::<ResourcesDraft>(&text).unwrap(), draft);
            let over = draft.over(io(base, None));
            prop_assert_eq!(over.io_bytes_per_second, bytes.unwrap_or(base));
            prop_assert_eq!(over.limits_io(), bytes.unwrap_or(base).is_some() || operations.flatten().is_some());
        }
    }
}
