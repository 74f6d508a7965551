//! Requests to a server of ACME: over TLS, with a bounded time and a bounded length, and they lead nowhere else.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Collected, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

use crate::state::TOLD_MAX_MS;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, bytes.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// When a server last said to come again, milliseconds from then; 0 when it said nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told(Arc<AtomicU64>);

impl Told {
    pub(crate) fn ms(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    told: Told,
}

impl Http {
    /// `extra` is an authority to be trusted besides those of the host, PEM.
    pub(crate) fn new(extra: Option<&str>) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .referer(false);
        if let Some(pem) = extra {
            let all = reqwest::Certificate::from_pem_bundle(pem.as_bytes());
            let all = all.ok().filter(|all| !all.is_empty()).ok_or("it holds no certificate, PEM")?;
            builder = builder.tls_certs_merge(all);
        }
        let client = builder.build().map_err(|error| format!("cannot set up HTTP: {}", chain(&error)))?;
        Ok(Self { client, told: Told::default() })
    }

    pub(crate) fn told(&self) -> Told {
        self.told.clone()
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (parts, body) = request.into_parts();
        let is_directory = parts.method == Method::GET;
        let Ok(body) = body.collect().await.map(Collected::to_bytes);
        let sent = self.client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
        let mut answer = sent.send().await.map_err(|error| other(chain(&error)))?;
        let status = answer.status();
        let headers = self.sane(answer.headers());
        let mut all = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| other(chain(&error)))? {
            if all.len() + piece.len() > ANSWER_MAX_BYTES {
                return Err(other(format!("an answer of {} is larger than 256 KiB", place(&parts.uri))));
            }
            all.extend_from_slice(&piece);
        }
        let is_problem =
            !status.is_success() && serde_json::from_slice::<serde::de::IgnoredAny>(&all).is_err();
        if is_problem || (is_directory && !status.is_success()) || status.is_redirection() {
            return Err(other(format!("{} answers {status}", place(&parts.uri))));
        }
        let mut response = Response::new(Full::new(Bytes::from(all)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(BytesResponse::from(response))
    }

    /// The same headers; what says when to come again is in seconds, and no longer than we would wait: the library adds what
    /// it finds to the time that it is.
    fn sane(&self, headers: &HeaderMap) -> HeaderMap {
        let mut headers = headers.clone();
        let said = headers.remove(RETRY_AFTER);
        let seconds = said.and_then(|said| seconds_of(said.to_str().ok()?, SystemTime::now()));
        let seconds = seconds.map(|seconds| seconds.min(TOLD_MAX_MS / 1000));
        self.told.0.store(seconds.unwrap_or(0) * 1000, Ordering::Relaxed);
        if let Some(seconds) = seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        headers
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

/// RFC 9110, section 10.2.3: seconds, or a date.
fn seconds_of(text: &str, now: SystemTime) -> Option<u64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default().as_secs())
}

fn other(text: String) -> Error {
    Error::Other(text.into())
}

fn place(uri: &http::Uri) -> String {
    format!("{}{}", uri.host().unwrap_or_default(), uri.path())
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_and_need_not_be_numbers() {
        let http = Http::new(None).unwrap();
        let said = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let sane = http.sane(&headers);
            let kept = sane.get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
            (kept, http.told().ms())
        };
        let some = |seconds: u64| (Some(seconds.to_string()), Some(seconds * 1000));
        assert_eq!(said("7"), some(7));
        assert_eq!(said("18446744073709551615"), some(86_400));
        assert_eq!(said("Fri, 31 Dec 9999 23:59:59 GMT"), some(86_400));
        assert_eq!(said("Fri, 31 Dec 1999 23:59:59 GMT"), (Some("0".to_owned()), None));
        for text in ["", "soon", "-1", "1e9", "99999999999999999999999"] {
            assert_eq!(said(text), (None, None), "{text}");
        }
    }

    #[test]
    fn what_is_no_authority_is_refused() {
        assert!(Http::new(Some("none")).is_err());
    }
}
