//! The log on standard error, and with traces to a collector when one is configured.

use std::time::Duration;

use atoll_core::{Code, Error};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use super::otlp::{Collector, OtlpLog, follow_log};
use crate::cli::LogFormat;
use crate::failure::{Failure, Result};

/// How long a collector may take for one batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Filter rules that leave out the libraries that send to a collector.
const SENDING: &str = "hyper=off,hyper_util=off,reqwest=off,h2=off,rustls=off,opentelemetry=off";

/// Flushes traces when it is shut down.
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
    log: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Telemetry {
    /// Sets up logging for the process, with colours or without. `filter` is in the syntax of `tracing`'s `EnvFilter`;
    /// `otlp` is the address of a collector that takes OTLP over HTTP, such as `http://host:4318`. Must be called on a runtime.
    pub(crate) fn start(filter: &str, format: LogFormat, color: bool, otlp: Option<&str>) -> Result<Self> {
        let rules = |filter: &str| {
            EnvFilter::try_new(filter).map_err(|error| {
                Failure::Plain(
                    Error::new(Code::InvalidArgument, format!("--log: {error}"))
                        .hint("write a level such as 'info', or 'warn,atoll_engine=debug'"),
                )
            })
        };
        // Otherwise sending would write to the log, those lines would be sent, and so on.
        let (filter, sent) = (rules(filter)?, rules(&format!("{filter},{SENDING}"))?);
        let provider = otlp.map(provider).transpose()?;
        let (line, log) = match otlp.map(|otlp| Collector::new(otlp, "logs")).transpose()? {
            Some(collector) => {
                let ((line, queue), stop) = (OtlpLog::new(), CancellationToken::new());
                let follow = tokio::spawn(follow_log(collector, queue, stop.clone()));
                (Some(line.with_filter(sent)), Some((stop, follow)))
            }
            None => (None, None),
        };
        // The log's filter does not change which traces are sent; the exporter's own spans would cause further spans.
        let traced = EnvFilter::new(format!("info,{SENDING}"));
        let traces = provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer().with_tracer(provider.tracer("atoll")).with_filter(traced)
        });
        let shown = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(color);
        let registry = tracing_subscriber::registry().with(traces).with(line);
        let set = match format {
            LogFormat::Text => registry.with(shown.with_filter(filter)).try_init(),
            LogFormat::Json => registry.with(shown.json().with_filter(filter)).try_init(),
        };
        set.map_err(|error| Failure::plain(Code::Internal, format!("logging cannot be set up: {error}")))?;
        Ok(Self { provider, log })
    }

    /// Sends the traces and log records that are left.
    pub(crate) async fn shutdown(self) {
        if let Some(provider) = self.provider {
            // That blocks.
            let ended = tokio::task::spawn_blocking(move || provider.shutdown()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::warn!("the last traces were not sent");
            }
        }
        if let Some((stop, follow)) = self.log {
            stop.cancel();
            if follow.await.is_err() {
                tracing::error!("what sends the log panicked");
            }
        }
    }
}

fn provider(endpoint: &str) -> Result<SdkTracerProvider> {
    let exporter = exporter(endpoint)?;
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build())
}

/// Makes the exporter that sends spans to a collector.
pub(super) fn exporter(endpoint: &str) -> Result<SpanExporter> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| Failure::plain(Code::InvalidArgument, format!("--otlp-endpoint: {error}")))?;
    exporter.set_resource(&resource());
    Ok(exporter)
}

fn resource() -> Resource {
    Resource::builder().with_service_name("atoll").build()
}
