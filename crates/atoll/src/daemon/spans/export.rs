//! The thread that sends spans: OTLP over HTTP, in batches.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_server::SpanCounts;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio_util::sync::CancellationToken;

use crate::daemon::telemetry::exporter;
use crate::failure::{Failure, Result};

/// Spans that wait for the collector.
const QUEUE_MAX_COUNT: usize = 8192;
/// Spans of one request.
const BATCH_MAX_COUNT: usize = 512;
/// How long a batch waits for more.
const GATHER: Duration = Duration::from_millis(500);

/// Starts it. It ends when the sender is dropped.
pub(super) fn start(
    endpoint: &str,
    stop: CancellationToken,
    counts: Arc<SpanCounts>,
) -> Result<(SyncSender<SpanData>, JoinHandle<()>)> {
    let (sender, receiver) = sync_channel(QUEUE_MAX_COUNT);
    let exporter = exporter(endpoint)?;
    let thread = std::thread::Builder::new()
        .name("spans-export".to_owned())
        .spawn(move || run(&receiver, &exporter, &stop, &counts))
        .map_err(|error| Failure::io("no thread for spans", error))?;
    Ok((sender, thread))
}

fn run(spans: &Receiver<SpanData>, exporter: &SpanExporter, stop: &CancellationToken, counts: &SpanCounts) {
    let mut reached = true;
    while let Some(batch) = gather(spans) {
        let count = batch.len() as u64;
        // A server that stops does not wait for a collector that did not answer.
        if stop.is_cancelled() && !reached {
            counts.dropped(count);
            continue;
        }
        match futures::executor::block_on(exporter.export(batch)) {
            Ok(()) => counts.sent(count),
            Err(error) => {
                counts.dropped(count);
                if reached {
                    tracing::warn!(%error, "spans cannot be sent; further ones are dropped and counted");
                }
                reached = false;
                continue;
            }
        }
        reached = true;
    }
}

/// The next batch; `None` at the end.
fn gather(spans: &Receiver<SpanData>) -> Option<Vec<SpanData>> {
    let mut batch = vec![spans.recv().ok()?];
    let until = Instant::now() + GATHER;
    while batch.len() < BATCH_MAX_COUNT {
        match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(span) => batch.push(span),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}
