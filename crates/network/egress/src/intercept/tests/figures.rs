//! The cost of interception. Run by `bench/intercept`.
//!
//! Client, gateway and server are in one process, so each figure is taken twice: without the gateway and with it. The
//! added time is the latency of a request; the added CPU time tells how many requests a core can carry.

use std::time::Instant;

use hyper::client::conn::http1::SendRequest;
use rustix::time::{ClockId, clock_gettime};

use super::*;

const REQUESTS: usize = 2000;
const LARGE: usize = 200;

/// The measurements of the client.
struct Seen {
    /// Each request, sorted.
    took: Vec<Duration>,
    /// Of large answers.
    bytes: u64,
    time: Duration,
    /// CPU time of the process meanwhile.
    cpu: Duration,
}

fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.try_into().unwrap(), spent.tv_nsec.try_into().unwrap())
}

async fn request(sender: &mut SendRequest<OutBody>, path: &str) -> u64 {
    sender.ready().await.unwrap();
    let response = sender.send_request(get(path).body(empty()).unwrap()).await.unwrap();
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().map_or(0, |data| data.len() as u64);
    }
    bytes
}

async fn use_it(stream: tokio_rustls::client::TlsStream<DuplexStream>) -> Seen {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut took = Vec::new();
    for _ in 0..REQUESTS {
        let begin = Instant::now();
        request(&mut sender, "/").await;
        took.push(begin.elapsed());
    }
    took.sort();
    let (begin, spent) = (Instant::now(), cpu());
    let mut bytes = 0;
    for _ in 0..LARGE {
        bytes += request(&mut sender, "/large").await;
    }
    Seen { took, bytes, time: begin.elapsed(), cpu: cpu() - spent }
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn gbit_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8e-9 / time.as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it measures"]
async fn figures() {
    let authority = new_authority("bench");
    let begin = Instant::now();
    for n in 0..1000 {
        authority.server_config(&format!("h{n}.example.com").parse().unwrap(), Protocol::Http1).unwrap();
    }
    eprintln!("certificate minted: {:?}", begin.elapsed() / 1000);

    let world = new_authority("world");
    let origin = Origin::new(&world, "api.example.com", &[Protocol::Http1]);
    let (client, server) = duplex(64 << 10);
    origin.serve(server);
    let direct = use_it(handshake(client, world.certificate_pem(), &[Protocol::Http1]).await).await;
    let house = House::with(bearer(), Some(origin), world.certificate_pem());
    let through = use_it(house.connect(&[Protocol::Http1]).await).await;
    for (place, seen) in [("direct", &direct), ("through the gateway", &through)] {
        let (p50, p99) = (seen.took[REQUESTS / 2], seen.took[REQUESTS * 99 / 100]);
        eprintln!("{place}: request on a kept connection p50 {p50:?}, p99 {p99:?}");
        let rate = gbit_per_s(seen.bytes, seen.time);
        eprintln!("{place}: large answers {rate:.2} Gbit/s, client and server included");
    }
    let added = through.cpu.saturating_sub(direct.cpu);
    eprintln!("the gateway's own share: {:.2} Gbit/s for each core", gbit_per_s(through.bytes, added));
}
