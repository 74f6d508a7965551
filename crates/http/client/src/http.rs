//! Requests and answers: addresses, the key, limits, and errors.

use std::time::Duration;

use atoll_api::ErrorBody;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, header};
use reqwest::{RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{ClientError, Result};

/// Longest wait for a TCP and TLS connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a whole JSON answer, besides what the call itself waits for. Making a sandbox
/// from an image that must be prepared first is the slowest.
const CALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Longest wait for the head of an answer that is then streamed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A silent connection is probed this often, so that streams notice a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Largest JSON answer, bytes.
const ANSWER_MAX_BYTES: usize = 64 << 20;
/// Largest error answer, bytes.
const ERROR_MAX_BYTES: usize = 256 << 10;

/// A connection pool to one server, with a key. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: HeaderValue,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// Path and query of a request, under the server's base.
pub(crate) struct Target {
    url: Url,
}

impl Target {
    /// Adds a query parameter.
    pub(crate) fn query(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// Adds a query parameter if there is a value.
    pub(crate) fn maybe(self, name: &str, value: Option<impl std::fmt::Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Adds `name=true` if it is.
    pub(crate) fn flag(self, name: &str, value: bool) -> Self {
        if value { self.query(name, true) } else { self }
    }
}

impl Client {
    /// A client of the server at `url` (`http://…` or `https://…`). Nothing is sent yet.
    ///
    /// # Errors
    /// [`ClientError::Config`] when the address or the key cannot be used.
    pub fn new(url: &str, key: &Secret) -> Result<Self> {
        // Before it is parsed: `host:4600` is a URL of the scheme `host`.
        if !url.contains("://") {
            return Err(ClientError::Config(format!(
                "'{url}' is not an address: it begins with http:// or https://"
            )));
        }
        let base = Url::parse(url)
            .map_err(|error| ClientError::Config(format!("'{url}' is not an address: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(ClientError::Config(format!("'{url}' is not an http or https address")));
        }
        if !base.username().is_empty() || base.password().is_some() || base.query().is_some() {
            return Err(ClientError::Config("the address must hold neither user, password nor query".into()));
        }
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", key.reveal()))
            .map_err(|_error| ClientError::Config("the API key has characters that cannot be sent".into()))?;
        authorization.set_sensitive(true);
        let http = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(3)
            .http1_only()
            .build()
            .map_err(|error| ClientError::Config(format!("cannot set up HTTP: {error}")))?;
        Ok(Self { http, base, authorization })
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// A number that tells this server and key from others, to name files by. The key cannot be had from it.
    #[must_use]
    pub fn identity(&self) -> u64 {
        use std::hash::{Hash as _, Hasher as _};
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        (self.url(), self.authorization.as_bytes()).hash(&mut hasher);
        hasher.finish()
    }

    /// A target below the base: each segment is escaped.
    pub(crate) fn target<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Target {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        Target { url }
    }

    /// A target below `/v1/sandboxes/{sandbox}`.
    pub(crate) fn in_sandbox<'a>(&self, sandbox: &'a str, rest: &[&'a str]) -> Target {
        self.target(["v1", "sandboxes", sandbox].into_iter().chain(rest.iter().copied()))
    }

    pub(crate) fn request(&self, method: Method, target: Target) -> RequestBuilder {
        self.http.request(method, target.url).header(header::AUTHORIZATION, self.authorization.clone())
    }

    /// A call with a JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        self.call_waiting(request, 0).await
    }

    /// A call with a JSON answer, that the server may take `wait_ms` longer for.
    pub(crate) async fn call_waiting<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        wait_ms: u64,
    ) -> Result<T> {
        let limit = CALL_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        let response = self.send(request.timeout(limit)).await?;
        let body = self.body(response, ANSWER_MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// A call whose answer has no content.
    pub(crate) async fn call_empty(&self, request: RequestBuilder) -> Result<()> {
        let response = self.send(request.timeout(CALL_TIMEOUT)).await?;
        self.body(response, ERROR_MAX_BYTES).await.map(drop)
    }

    /// `POST` or `PATCH` of a JSON body, with a JSON answer.
    pub(crate) async fn submit<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        target: Target,
        body: &B,
    ) -> Result<T> {
        self.call(self.request(method, target).json(body)).await
    }

    /// Sends a request whose answer is a stream: only the head has a deadline.
    pub(crate) async fn open(&self, request: RequestBuilder) -> Result<Response> {
        match tokio::time::timeout(HEAD_TIMEOUT, self.send(request)).await {
            Ok(result) => result,
            Err(late) => Err(self.no_connection(late)),
        }
    }

    /// Sends a request and turns refusals into errors. Has no deadline of its own: an upload takes as
    /// long as its source.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.no_connection(error.without_url()))?;
        if response.status().is_success() || response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    pub(crate) fn no_connection(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        ClientError::Connect { url: self.url().to_owned(), source: source.into() }
    }

    /// A whole body, at most `max` bytes.
    pub(crate) async fn body(&self, mut response: Response, max: usize) -> Result<Bytes> {
        let mut body = BytesMut::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.no_connection(error.without_url()))?
        {
            if body.len() + chunk.len() > max {
                return Err(ClientError::Protocol(format!("it is longer than {max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    async fn refusal(&self, response: Response) -> ClientError {
        let status = response.status();
        let header_id = response
            .headers()
            .get("x-request-id")
            .and_then(|v| v.to_str().ok())
            .map(atoll_core::error::shorten);
        let body = match tokio::time::timeout(HEAD_TIMEOUT, self.body(response, ERROR_MAX_BYTES)).await {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return error,
            Err(late) => return self.no_connection(late),
        };
        match read_error(&body) {
            Some(mut refused) => {
                let request_id = refused.request_id.take().or(header_id);
                ClientError::Api { error: refused.into(), request_id }
            }
            None => ClientError::Protocol(format!("HTTP {status} without an error body")),
        }
    }
}

/// Reads an error body. A code this version does not know becomes `internal`, with the message kept.
pub(crate) fn read_error(body: &[u8]) -> Option<ErrorBody> {
    let mut value: serde_json::Value = serde_json::from_slice(body).ok()?;
    if let Ok(body) = serde_json::from_value::<ErrorBody>(value.clone()) {
        return Some(body);
    }
    let code = value.get("code")?.as_str()?.to_owned();
    let message = value.get_mut("message")?.as_str()?.to_owned();
    let hint = value.get("hint").and_then(|hint| hint.as_str()).map(str::to_owned);
    let code = atoll_core::error::shorten(&code);
    Some(ErrorBody::from(Error { code: Code::Internal, message: format!("{message} ({code})"), hint }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client> {
        Client::new(url, &Secret::new("k"))
    }

    #[test]
    fn segments_and_queries_are_escaped() {
        let client = client("http://localhost:1/base/").unwrap();
        let target = client.in_sandbox("a/../b", &["files"]).query("path", "/x y&z=ü");
        assert_eq!(
            target.url.as_str(),
            "http://localhost:1/base/v1/sandboxes/a%2F..%2Fb/files?path=%2Fx+y%26z%3D%C3%BC"
        );
    }

    #[test]
    fn only_plain_addresses() {
        for bad in ["", "localhost:80", "ftp://x/", "http://", "http://u:p@h/", "http://h/?q=1"] {
            assert!(matches!(client(bad), Err(ClientError::Config(_))), "{bad}");
        }
        assert!(matches!(
            Client::new("http://h/", &Secret::new("a\nb")),
            Err(ClientError::Config(text)) if !text.contains("a\nb")
        ));
    }

    #[test]
    fn an_unknown_code_keeps_its_message() {
        let body = read_error(br#"{"code":"from_the_future","message":"no","retryable":false}"#).unwrap();
        assert_eq!((body.code, body.message.as_str()), (Code::Internal, "no (from_the_future)"));
        assert!(read_error(b"<html>").is_none());
    }
}
