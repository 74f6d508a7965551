//! Logs on standard error, and traces to a collector when one is configured.

use std::time::Duration;

use atoll_core::{Code, Error};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter as _};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::cli::LogFormat;
use crate::failure::{Failure, Result};

/// How long a collector may take for one batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Flushes traces when it is shut down.
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sets up logging for the process, with colours or without. `filter` is in the syntax of `tracing`'s `EnvFilter`;
    /// `otlp` is the address of a collector that takes OTLP over HTTP, such as `http://host:4318`.
    pub(crate) fn start(filter: &str, format: LogFormat, color: bool, otlp: Option<&str>) -> Result<Self> {
        let filter = EnvFilter::try_new(filter).map_err(|error| {
            Failure::Plain(
                Error::new(Code::InvalidArgument, format!("--log: {error}"))
                    .hint("write a level such as 'info', or 'warn,atoll_engine=debug'"),
            )
        })?;
        let provider = otlp.map(provider).transpose()?;
        // What is traced does not depend on what is logged; the exporter's own spans would feed themselves.
        let traced = EnvFilter::new("info,hyper=off,reqwest=off,h2=off,opentelemetry=off");
        let traces = provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer().with_tracer(provider.tracer("atoll")).with_filter(traced)
        });
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(color);
        let registry = tracing_subscriber::registry().with(traces);
        let set = match format {
            LogFormat::Text => registry.with(log.with_filter(filter)).try_init(),
            LogFormat::Json => registry.with(log.json().with_filter(filter)).try_init(),
        };
        set.map_err(|error| Failure::plain(Code::Internal, format!("logging cannot be set up: {error}")))?;
        Ok(Self { provider })
    }

    /// Sends what is still to be sent. Blocks.
    pub(crate) fn shutdown(self) {
        if let Some(provider) = self.provider
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

fn provider(endpoint: &str) -> Result<SdkTracerProvider> {
    let exporter = exporter(endpoint)?;
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build())
}

/// What sends spans to a collector.
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
