//! Measures the way out of a sandbox without a sandbox: slots, latency, throughput, many connections.
//!
//! `bench/egress` runs it in a network namespace of its own, where 203.0.113.1 is an address of `lo`: the
//! server at the other end listens there.

#![expect(clippy::print_stdout, reason = "a program that prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to say")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_core::policy::EgressPolicy;
use atoll_egress::{Gateway, GatewayConfig};
use atoll_isolation::{Gate, Original};
use atoll_network::{PROXY_ADDRESS, PROXY_PORT, RESOLVER_ADDRESS, Slot, SlotPool};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const OUTSIDE: &str = "203.0.113.1";
const ECHO_PORT: u16 = 7;
const SINK_PORT: u16 = 9;
const HTTP_PORT: u16 = 80;
const ROUNDS: usize = 2000;
const BULK_BYTES: usize = 2 << 30;
const MANY: usize = 1000;
const CYCLES: usize = 10_000;

fn median(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    (times[times.len() / 2].as_micros(), times[times.len() * 99 / 100].as_micros())
}

fn serve(port: u16, work: impl Fn(TcpStream) + Send + Sync + Clone + 'static) {
    let listener = TcpListener::bind((OUTSIDE, port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let work = work.clone();
            std::thread::Builder::new().stack_size(64 << 10).spawn(move || work(stream)).unwrap();
        }
    });
}

fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn sink(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(1..) = stream.read(&mut buffer) {}
    drop(stream.write_all(b"."));
}

fn http(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer) {
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// Round trips of one byte, or of one request.
fn rounds(port: u16, message: &[u8]) -> Vec<Duration> {
    let mut stream = TcpStream::connect((OUTSIDE, port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    let round = |_| {
        let begin = Instant::now();
        stream.write_all(message).unwrap();
        assert!(stream.read(&mut buffer).unwrap() > 0);
        begin.elapsed()
    };
    (0..ROUNDS).map(round).collect()
}

fn connects() -> Vec<Duration> {
    let one = |_| {
        let begin = Instant::now();
        let mut stream = TcpStream::connect((OUTSIDE, ECHO_PORT)).unwrap();
        stream.write_all(b"x\n").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        begin.elapsed()
    };
    (0..ROUNDS / 4).map(one).collect()
}

fn bulk() -> f64 {
    let mut stream = TcpStream::connect((OUTSIDE, SINK_PORT)).unwrap();
    let chunk = vec![7; 1 << 20];
    let begin = Instant::now();
    for _ in 0..BULK_BYTES / chunk.len() {
        stream.write_all(&chunk).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    BULK_BYTES as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9
}

fn many() -> Duration {
    let begin = Instant::now();
    let mut open: Vec<_> = (0..MANY).map(|_| TcpStream::connect((OUTSIDE, ECHO_PORT)).unwrap()).collect();
    for stream in &mut open {
        stream.write_all(b"x\n").unwrap();
    }
    for stream in &mut open {
        stream.read_exact(&mut [0; 2]).unwrap();
    }
    begin.elapsed()
}

fn report(place: &str) {
    let (echo, echo_99) = median(rounds(ECHO_PORT, b"x\n"));
    let (http, http_99) = median(rounds(HTTP_PORT, b"GET / HTTP/1.1\r\nHost: 203.0.113.1\r\n\r\n"));
    let (connect, connect_99) = median(connects());
    println!("{place}: round trip {echo} µs (p99 {echo_99}), HTTP request {http} µs (p99 {http_99})");
    println!("{place}: connect and first byte {connect} µs (p99 {connect_99})");
    println!("{place}: {:.1} Gbit/s on one connection", bulk());
    println!("{place}: {MANY} connections, opened and used, in {} ms", many().as_millis());
}

/// The counts in which leaks would show: descriptors of this process, and network namespaces of the kernel (where its
/// counters can be read).
fn held() -> (usize, Option<u64>) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let slabs = std::fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let namespaces = slabs.lines().find_map(|line| line.strip_prefix("net_namespace "));
    (descriptors, namespaces.and_then(|counts| counts.split_whitespace().next()?.parse().ok()))
}

/// Makes and drops slots, and says which descriptors and namespaces are left of them.
fn cycles() {
    let pool = SlotPool::start(0).unwrap();
    let (descriptors, namespaces) = held();
    let begin = Instant::now();
    for _ in 0..CYCLES {
        drop(pool.claim().unwrap());
    }
    let each = begin.elapsed().as_micros() / CYCLES as u128;
    println!("slot: {each} µs to make one with its gate and to drop it, {CYCLES} times");
    // The kernel takes namespaces apart in the background.
    let deadline = Instant::now() + Duration::from_secs(60);
    while held().1 > namespaces && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (after, left) = held();
    println!("slot: descriptors {descriptors} → {after}, network namespaces {namespaces:?} → {left:?}");
}

fn slots() -> Slot {
    cycles();
    let pool = SlotPool::start(32).unwrap();
    while pool.ready() < 32 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    let claimed: Vec<_> = (0..16).map(|_| pool.claim().unwrap()).collect();
    println!("slot: {:.1} µs to claim a ready one", begin.elapsed().as_micros() as f64 / 16.0);
    claimed.into_iter().next().unwrap()
}

#[tokio::main]
async fn main() {
    serve(ECHO_PORT, echo);
    serve(SINK_PORT, sink);
    serve(HTTP_PORT, http);
    let Slot { netns, gate } = slots();
    tokio::task::spawn_blocking(|| report("direct")).await.unwrap();
    let gateway = Gateway::new(GatewayConfig::default());
    let id = SandboxId::from_parts(1, 1);
    let policy = serde_json::json!({"internet": "rules", "limits": {"connections": 4096},
        "rules": [{"action": "allow", "cidr": OUTSIDE}]});
    let policy: EgressPolicy = serde_json::from_value(policy).unwrap();
    let gate = Gate {
        tcp: gate.tcp,
        dns: gate.dns,
        proxy: SocketAddr::from((PROXY_ADDRESS, PROXY_PORT)),
        resolver: SocketAddr::from((RESOLVER_ADDRESS, 53)),
        original: Original::LocalAddress,
        steering: Box::new(gate.steering),
        attribution: None,
        keeper: None,
    };
    gateway.attach(&id, policy, gate).unwrap();
    let inside = std::thread::spawn(move || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        report("through the gateway");
    });
    tokio::task::spawn_blocking(move || inside.join().unwrap()).await.unwrap();
}
