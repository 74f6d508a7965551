//! One request to the collector: protobuf over HTTP, bounded in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;

use atoll_core::Code;

use crate::failure::{Failure, Result};

/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where metrics and logs go.
#[derive(Debug)]
pub(crate) struct Collector {
    http: reqwest::Client,
    address: Url,
    reached: AtomicBool,
}

impl Collector {
    /// `endpoint` is its address, such as `http://host:4318`; `path` names the data that is sent there, such as `logs`.
    ///
    /// # Errors
    /// For an address that is none.
    pub(crate) fn new(endpoint: &str, path: &str) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::plain(Code::InvalidArgument, format!("--otlp-endpoint: {why}"))
        };
        let address = Url::parse(&format!("{}/v1/{path}", endpoint.trim_end_matches('/')));
        let address = address.map_err(|error| wrong(&error))?;
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        let http = http.build().map_err(|error| wrong(&error))?;
        Ok(Self { http, address, reached: AtomicBool::new(true) })
    }

    /// Whether the last request was answered.
    pub(super) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Sends a message once; if the collector does not take it, it is dropped. Of several failures in a row only the
    /// first is logged.
    pub(super) async fn send(&self, message: &impl Message) -> bool {
        let request = self.http.post(self.address.clone()).header(CONTENT_TYPE, "application/x-protobuf");
        let answer = request.body(message.encode_to_vec()).send().await;
        let error = match answer.map(|answer| answer.error_for_status()) {
            Ok(Ok(_)) => {
                self.reached.store(true, Ordering::Relaxed);
                return true;
            }
            Ok(Err(error)) | Err(error) => error,
        };
        if self.reached.swap(false, Ordering::Relaxed) {
            let path = self.address.path();
            tracing::warn!(path, %error, "the collector takes nothing; what it does not take is dropped");
        }
        false
    }
}
