//! Waiting for something to become true.

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

/// A port on the loopback that was free a moment ago.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind a port");
    listener.local_addr().expect("the port that was bound").port()
}
