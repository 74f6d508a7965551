//! UUIDs for Atoll's ids, and back.
//!
//! An Atoll id is 48 bits of milliseconds and 52 random bits; a version 7 UUID has room for both. So no
//! table is needed: the UUID *is* the id, written in another way.
//!
//! ```text
//! mmmmmmmm-mmmm-7rrr-8000-00rrrrrrrrrr      m milliseconds, r random
//! ```

use atoll_core::id::{SandboxId, SnapshotId};

/// Random bits in the last group.
const LOW_BITS: u32 = 40;

fn write((ms, random): (u64, u64)) -> String {
    let (high, low) = (random >> LOW_BITS, random & ((1 << LOW_BITS) - 1));
    format!("{:08x}-{:04x}-7{high:03x}-8000-{low:012x}", ms >> 16, ms & 0xffff)
}

fn read(text: &str) -> Option<(u64, u64)> {
    let groups: Vec<&str> = text.split('-').collect();
    let [a, b, c, "8000", e] = groups[..] else { return None };
    let hex = |group: &str, len: usize| {
        let ok = group.len() == len && group.bytes().all(|b| b.is_ascii_hexdigit());
        if ok { u64::from_str_radix(group, 16).ok() } else { None }
    };
    let ms = (hex(a, 8)? << 16) | hex(b, 4)?;
    let high = hex(c.strip_prefix('7')?, 3)?;
    let low = hex(e, 12)?;
    if low >> LOW_BITS != 0 {
        return None;
    }
    Some((ms, (high << LOW_BITS) | low))
}

/// The UUID of a sandbox.
pub fn of_sandbox(id: &SandboxId) -> String {
    write(id.parts())
}

/// The id or name under which the engine knows a sandbox, from a UUID or a name.
pub fn sandbox(text: &str) -> String {
    match read(text) {
        Some((ms, random)) => SandboxId::from_parts(ms, random).to_string(),
        None => text.to_owned(),
    }
}

/// The UUID of a snapshot.
pub fn of_snapshot(id: &SnapshotId) -> String {
    write(id.parts())
}

/// The id of a snapshot, from its UUID or as it is.
pub fn snapshot(text: &str) -> Option<SnapshotId> {
    match read(text) {
        Some((ms, random)) => Some(SnapshotId::from_parts(ms, random)),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_uuid_is_the_id(ms in 0_u64..1 << 48, random in any::<u64>()) {
            let id = SandboxId::from_parts(ms, random);
            let uuid = of_sandbox(&id);
            prop_assert_eq!(uuid.len(), 36);
            prop_assert_eq!(sandbox(&uuid), id.to_string());
        }
    }

    #[test]
    fn what_is_no_uuid_of_ours_is_a_name() {
        for name in [
            "box",
            "",
            "0190-1",
            "01900000-0000-4000-8000-000000000000",
            "01900000-0000-7000-8001-000000000000",
        ] {
            assert_eq!(sandbox(name), name);
        }
    }
}
