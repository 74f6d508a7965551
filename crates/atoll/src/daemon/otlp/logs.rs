//! The server's log, as it is on standard error: the same events by the same rules, with the fields of the spans that they are in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::send::Collector;
use super::{LAST_WORD, now_ns, resource, scope, text, value};

/// Lines that wait for the collector.
const QUEUE_MAX_COUNT: usize = 4096;
/// Lines of one request.
const BATCH_MAX_COUNT: usize = 512;
/// How long a batch waits for more.
const GATHER: Duration = Duration::from_millis(500);
/// Longest text of one field, bytes; a longer text is cut.
const TEXT_MAX_BYTES: usize = 4096;
/// Fields of one line.
const FIELDS_MAX_COUNT: usize = 64;

/// The layer that sees each event of the log.
#[derive(Debug)]
pub(crate) struct OtlpLog {
    queue: mpsc::Sender<LogRecord>,
    dropped: Arc<AtomicU64>,
}

/// Log records on their way to the collector.
#[derive(Debug)]
pub(crate) struct LogQueue {
    lines: mpsc::Receiver<LogRecord>,
    dropped: Arc<AtomicU64>,
}

impl OtlpLog {
    pub(crate) fn new() -> (Self, LogQueue) {
        let (queue, lines) = mpsc::channel(QUEUE_MAX_COUNT);
        let dropped = Arc::<AtomicU64>::default();
        (Self { queue, dropped: Arc::clone(&dropped) }, LogQueue { lines, dropped })
    }
}

/// Fields by their names, the message among them.
#[derive(Debug, Default, Clone)]
struct Fields(BTreeMap<&'static str, String>);

impl Fields {
    fn put(&mut self, field: &Field, mut said: String) {
        if self.0.len() < FIELDS_MAX_COUNT {
            said.truncate(said.floor_char_boundary(TEXT_MAX_BYTES));
            self.0.insert(field.name(), said);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, said: &dyn fmt::Debug) {
        self.put(field, format!("{said:?}"));
    }

    fn record_str(&mut self, field: &Field, said: &str) {
        self.put(field, said.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for OtlpLog {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().into_iter().rev() {
            if let Some(known) = span.extensions().get::<Fields>() {
                fields.0.extend(known.0.clone());
            }
        }
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let mut attributes: Vec<KeyValue> = fields.0.iter().map(|(name, said)| text(name, said)).collect();
        attributes.push(text("code.namespace", event.metadata().target()));
        let (severity, name) = severity(*event.metadata().level());
        let now = now_ns();
        let line = LogRecord {
            time_unix_nano: now,
            observed_time_unix_nano: now,
            severity_number: severity.into(),
            severity_text: name.to_owned(),
            body: value(Value::StringValue(message)),
            attributes,
            ..LogRecord::default()
        };
        // The task that logs never waits for the queue.
        if self.queue.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const fn severity(level: Level) -> (SeverityNumber, &'static str) {
    match level {
        Level::ERROR => (SeverityNumber::Error, "ERROR"),
        Level::WARN => (SeverityNumber::Warn, "WARN"),
        Level::INFO => (SeverityNumber::Info, "INFO"),
        Level::DEBUG => (SeverityNumber::Debug, "DEBUG"),
        Level::TRACE => (SeverityNumber::Trace, "TRACE"),
    }
}

/// Sends log records until `stop` fires, and then the records that are left, if the collector takes them.
pub(crate) async fn follow(collector: Collector, mut queue: LogQueue, stop: CancellationToken) {
    let mut batch = Vec::new();
    while let Some(read) = stop.run_until_cancelled(queue.lines.recv_many(&mut batch, BATCH_MAX_COUNT)).await
    {
        if read == 0 {
            return;
        }
        let gathered = async {
            tokio::time::sleep(GATHER).await;
            while batch.len() < BATCH_MAX_COUNT
                && let Ok(line) = queue.lines.try_recv()
            {
                batch.push(line);
            }
        };
        let stopped = stop.run_until_cancelled(gathered).await.is_none();
        if stopped {
            break;
        }
        send(&collector, &queue.dropped, std::mem::take(&mut batch)).await;
    }
    while let Ok(line) = queue.lines.try_recv() {
        batch.push(line);
    }
    if !batch.is_empty() && collector.is_reached() {
        let _late = tokio::time::timeout(LAST_WORD, send(&collector, &queue.dropped, batch)).await;
    }
}

async fn send(collector: &Collector, dropped: &AtomicU64, lines: Vec<LogRecord>) {
    let count = lines.len() as u64;
    let lost = dropped.swap(0, Ordering::Relaxed);
    if !collector.send(&request(lines, lost)).await {
        dropped.fetch_add(count + lost, Ordering::Relaxed);
    }
}

fn request(mut lines: Vec<LogRecord>, lost: u64) -> ExportLogsServiceRequest {
    if lost > 0 {
        let now = now_ns();
        let said =
            format!("{lost} lines of the log did not come here: they are on the server's standard error");
        lines.push(LogRecord {
            time_unix_nano: now,
            observed_time_unix_nano: now,
            severity_number: SeverityNumber::Warn.into(),
            severity_text: "WARN".to_owned(),
            body: value(Value::StringValue(said)),
            ..LogRecord::default()
        });
    }
    let scope_logs = vec![ScopeLogs { scope: scope(), log_records: lines, schema_url: String::new() }];
    let resource_logs = vec![ResourceLogs { resource: resource(), scope_logs, schema_url: String::new() }];
    ExportLogsServiceRequest { resource_logs }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn lines_have_their_fields_and_those_around_them() {
        let (layer, mut queue) = OtlpLog::new();
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", id = "r1", route = tracing::field::Empty);
            let _in = span.enter();
            span.record("route", "/v1/a");
            tracing::warn!(answer = 42, id = "inner", long = "ä".repeat(5000), "it {} so", "is");
        });
        let line = queue.lines.try_recv().unwrap();
        assert_eq!(line.body, value(Value::StringValue("it is so".to_owned())));
        assert_eq!((line.severity_number, line.severity_text.as_str()), (13, "WARN"));
        for wanted in [text("id", "inner"), text("route", "/v1/a"), text("answer", "42")] {
            assert!(line.attributes.contains(&wanted), "{wanted:?}: {line:?}");
        }
        let long = line.attributes.iter().find(|one| one.key == "long").unwrap();
        let Some(Value::StringValue(long)) = long.value.clone().and_then(|one| one.value) else {
            panic!("{long:?}")
        };
        assert_eq!(long.len(), TEXT_MAX_BYTES);
    }

    #[test]
    fn nobody_waits_for_a_collector() {
        let (layer, queue) = OtlpLog::new();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for _ in 0..QUEUE_MAX_COUNT + 7 {
                tracing::info!("a line");
            }
        });
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 7);
        let request = request(Vec::new(), 7);
        let lines = &request.resource_logs[0].scope_logs[0].log_records;
        assert!(format!("{lines:?}").contains("7 lines of the log"));
    }
}
