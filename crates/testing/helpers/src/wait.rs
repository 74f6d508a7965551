//! Waiting for something to become true.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Longest time anything in a test may take to come up.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Polls until `probe` gives something; panics with `what` after 30 seconds.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Ports that the kernel gives to nobody who asks for any, nor to connections that go out.
const ASKED_FOR_ONLY: std::ops::Range<u16> = 12_000..32_000;

/// A port on the loopback that was free a moment ago. Nobody gets it by chance before it is bound: neither a connection that
/// goes out, nor one to this very port, which would be its own other end.
#[must_use]
pub fn free_port() -> u16 {
    let begin = RandomState::new().build_hasher().finish();
    let count = u64::from(ASKED_FOR_ONLY.end - ASKED_FOR_ONLY.start);
    (0..count)
        .filter_map(|n| u16::try_from(begin.wrapping_add(n) % count).ok())
        .map(|n| ASKED_FOR_ONLY.start + n)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}
