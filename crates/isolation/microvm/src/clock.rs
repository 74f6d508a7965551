//! The frequency of the host's time stamp counter. An emulated guest reads the host's counter and has nothing to
//! measure it with, so it is told.
#![expect(unsafe_code, reason = "reads the time stamp counter")]

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long it is measured.
const WHILE: Duration = Duration::from_millis(30);
/// Measurements that differ by less than this part are of the same clock.
const SAME_PART: u64 = 200;

/// The frequency in kHz: what was written down in `path`, unless that is of another clock. A machine that was saved
/// keeps what it was told, so the same number is told to all.
pub(crate) fn tsc_khz(path: &Path) -> io::Result<u64> {
    let now = measure();
    let known = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(known) = known.filter(|known| known.abs_diff(now) <= now / SAME_PART) {
        return Ok(known);
    }
    std::fs::write(path, now.to_string())?;
    Ok(now)
}

fn measure() -> u64 {
    let (start, from) = (Instant::now(), counter());
    std::thread::sleep(WHILE);
    let (ticks, elapsed) = (counter().wrapping_sub(from), start.elapsed());
    let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1);
    // Ticks in a millionth of a second, times a thousand, without overflow for any clock below 100 GHz.
    ticks.saturating_mul(1_000_000) / nanos
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Not called: the driver does not open on other processors.
#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_down_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("khz");
        let first = tsc_khz(&path).unwrap();
        assert!(first > 100_000, "{first} kHz");
        assert_eq!(tsc_khz(&path).unwrap(), first);
        std::fs::write(&path, "1").unwrap();
        assert!(tsc_khz(&path).unwrap() > 100_000);
    }
}
