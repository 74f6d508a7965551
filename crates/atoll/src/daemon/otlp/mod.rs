//! Metrics and the log, for a collector of OpenTelemetry. Spans are sent by the SDK ([`super::telemetry`], [`super::spans`]).
//!
//! ```text
//! GET /metrics's text ─ metrics ─┐
//! the log's events ─── logs ─────┴─ send ─ POST /v1/metrics, /v1/logs
//! ```
//!
//! Nobody waits for a collector. Log records go into a bounded queue, and are dropped and counted when it is full.
//! Metrics are read when it is time for them, and those that could not be sent are not sent later: the next ones say
//! more.

mod logs;
mod metrics;
mod send;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

pub(crate) use logs::{OtlpLog, follow as follow_log};
pub(crate) use metrics::follow as follow_metrics;
pub(crate) use send::Collector;

/// The server itself.
fn resource() -> Option<Resource> {
    let attributes = vec![text("service.name", "atoll"), text("service.version", env!("CARGO_PKG_VERSION"))];
    Some(Resource { attributes, ..Resource::default() })
}

/// The program's part that says it.
fn scope() -> Option<InstrumentationScope> {
    Some(InstrumentationScope { name: "atoll".to_owned(), ..InstrumentationScope::default() })
}

fn value(value: Value) -> Option<AnyValue> {
    Some(AnyValue { value: Some(value) })
}

fn text(key: &str, said: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value(Value::StringValue(said.to_owned())), ..KeyValue::default() }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a server that stops waits for a collector.
const LAST_WORD: Duration = Duration::from_secs(2);
