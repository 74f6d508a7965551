//! Talks to a registry: scheme, authentication, one request at a time. Retrying is the caller's.
//!
//! Why not a ready client: bodies must be bounded while they arrive, a blob must be resumable at an offset,
//! a stall must be seen between two chunks, and no error may carry an address with a token in it.
//!
//! Credentials go to the registry itself and, when it asks for a token, to the token server that it names;
//! over plain HTTP only when the registry itself is spoken to that way. They never follow a redirect to
//! another host, and a redirect from HTTPS to HTTP is refused. Which addresses requests may reach: [`crate::reach`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use crate::challenge::{Challenge, strongest};
use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::flow::Flow;
use crate::limits::{
    BACKOFF_MAX, CONNECT_TIMEOUT, FLOW_MIN_BYTES, FLOW_WINDOW, MANIFEST_MAX_BYTES, REDIRECTS_MAX_COUNT,
    TOKEN_MAX_BYTES,
};
use crate::manifest::ACCEPT_MANIFESTS;
use crate::pull::{Credentials, PullOptions};
use crate::reach::{Closed, Lookups, Reach, was_closed};
use crate::reference::Reference;

/// A request that failed: for good, or so that it may be tried again.
#[derive(Debug)]
pub(crate) enum Failure {
    Fatal(ImageError),
    Transient { why: String, wait: Option<Duration> },
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Fatal(error)
    }
}

pub(crate) fn transient(why: impl Into<String>) -> Failure {
    Failure::Transient { why: why.into(), wait: None }
}

pub(crate) struct Registry {
    client: Client,
    /// Scheme and host, such as `https://ghcr.io`.
    base: String,
    host: String,
    repository: String,
    credentials: Option<Credentials>,
    /// The header that answered the last challenge.
    authorization: tokio::sync::RwLock<Option<HeaderValue>>,
    reach: Reach,
    stall: Duration,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Finds out how to speak to the registry of `reference`.
    ///
    /// HTTPS, except for plain HTTP when the caller asks for it, or when a registry on the loopback does not
    /// speak TLS. A certificate that is not trusted is never answered with plain HTTP.
    pub(crate) async fn connect(
        reference: &Reference,
        options: &PullOptions,
        reach: &Reach,
    ) -> Result<Self, Failure> {
        let host = reference.host().to_owned();
        let mut registry = Self {
            client: client(options, reach)?,
            base: format!("https://{host}"),
            host,
            repository: reference.repository().to_owned(),
            credentials: options.credentials.clone(),
            authorization: tokio::sync::RwLock::new(None),
            reach: reach.clone(),
            stall: options.stall,
        };
        let plain = format!("http://{}", registry.host);
        if options.insecure_http {
            registry.base = plain;
        } else if is_loopback(&registry.host) && options.extra_ca_pem.is_none() {
            let probe = registry.request(registry.url("")?)?;
            match tokio::time::timeout(registry.stall, probe.send()).await {
                Ok(Err(error)) if speaks_no_tls(&error) => {
                    registry.base = plain;
                }
                Ok(Err(error)) => return Err(registry.failed(&error)),
                Ok(Ok(_)) => {}
                Err(_) => return Err(transient("no answer")),
            }
        }
        Ok(registry)
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// An answer that makes no sense.
    pub(crate) fn invalid(&self, why: impl Into<String>) -> ImageError {
        ImageError::RegistryInvalid { registry: self.host.clone(), why: why.into() }
    }

    /// Fetches a manifest by tag or digest, and computes its digest.
    pub(crate) async fn manifest(&self, wanted: &str) -> Result<(Vec<u8>, Digest), Failure> {
        let url = self.url(&format!("manifests/{wanted}"))?;
        let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPT_MANIFESTS))]);
        let response = self.get(url, accept, wanted).await?;
        let announced = response.headers().get("docker-content-digest").cloned();
        let body = self.body(response, MANIFEST_MAX_BYTES).await?;
        let digest = Digest::of(&body);
        // A digest that pins wins over what the registry says it sent.
        let expected = if wanted.contains(':') {
            Some(wanted)
        } else {
            announced.as_ref().and_then(|v| v.to_str().ok())
        };
        match expected {
            Some(expected) if expected.starts_with("sha256:") && expected != digest.as_str() => {
                let why = format!("the manifest is {digest}");
                Err(ImageError::DigestMismatch { expected: atoll_core::error::shorten(expected), why }.into())
            }
            Some(_) | None => Ok((body, digest)),
        }
    }

    /// Fetches a small blob whole and checks it.
    pub(crate) async fn small_blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, Failure> {
        let response = self.blob(digest, 0).await?;
        let body = self.body(response, size).await?;
        let got = Digest::of(&body);
        if got != *digest || body.len() as u64 != size {
            let why = format!("it is {got} with {} bytes instead of {size}", body.len());
            return Err(ImageError::DigestMismatch { expected: digest.to_string(), why }.into());
        }
        Ok(body)
    }

    /// Starts to fetch a blob at an offset. Whether the registry kept to the offset: see [`starts_at`].
    pub(crate) async fn blob(&self, digest: &Digest, from: u64) -> Result<Response, Failure> {
        let mut headers = HeaderMap::new();
        if from > 0 {
            let range = HeaderValue::try_from(format!("bytes={from}-"))
                .map_err(|_cause| self.invalid("an offset is no header"))?;
            headers.insert(RANGE, range);
        }
        let url = self.url(&format!("blobs/{digest}"))?;
        self.get(url, headers, digest.as_str()).await
    }

    /// The next bytes of a body, `None` at its end. `flow` is the body's.
    pub(crate) async fn chunk(
        &self,
        response: &mut Response,
        flow: &mut Flow,
    ) -> Result<Option<bytes::Bytes>, Failure> {
        let begun = Instant::now();
        let chunk = match tokio::time::timeout(self.stall, response.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => return Err(self.failed(&error)),
            Err(_) => return Err(transient("it stopped sending")),
        };
        match chunk {
            // Another attempt would be as slow, and what came is kept for one that somebody asks for.
            Some(chunk) if !flow.came(chunk.len(), begun.elapsed()) => {
                let (least, seconds) = (FLOW_MIN_BYTES >> 20, FLOW_WINDOW.as_secs());
                let why = format!("it sends less than {least} MiB in {seconds} seconds");
                Err(ImageError::RegistryUnavailable { registry: self.host.clone(), why }.into())
            }
            chunk => Ok(chunk),
        }
    }

    async fn body(&self, mut response: Response, limit: u64) -> Result<Vec<u8>, Failure> {
        let (mut body, mut flow) = (Vec::new(), Flow::default());
        while let Some(chunk) = self.chunk(&mut response, &mut flow).await? {
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(self
                    .invalid(format!("more than {limit} bytes where fewer were announced"))
                    .into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn url(&self, rest: &str) -> Result<Url> {
        let path = if rest.is_empty() { String::new() } else { format!("{}/{rest}", self.repository) };
        Url::parse(&format!("{}/v2/{path}", self.base))
            .map_err(|_cause| self.invalid("its name makes no address"))
    }

    /// Makes every request of this module: refuses URLs that the server must not reach.
    fn request(&self, url: Url) -> Result<reqwest::RequestBuilder> {
        self.reach.check(&url).map_err(|Closed| self.closed())?;
        Ok(self.client.get(url))
    }

    fn closed(&self) -> ImageError {
        ImageError::RegistryClosed { registry: self.host.clone() }
    }

    /// One request, with a second try after a challenge.
    async fn get(&self, url: Url, headers: HeaderMap, wanted: &str) -> Result<Response, Failure> {
        let first = self.send(url.clone(), headers.clone()).await?;
        if first.status() != StatusCode::UNAUTHORIZED {
            return self.judge(first, wanted);
        }
        let challenges = first.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenge = strongest(challenges.filter_map(|value| value.to_str().ok()));
        let challenge = challenge.ok_or_else(|| self.denied())?;
        drop(first);
        let authorization = self.answer(challenge).await?;
        *self.authorization.write().await = Some(authorization);
        let second = self.send(url, headers).await?;
        self.judge(second, wanted)
    }

    async fn send(&self, url: Url, mut headers: HeaderMap) -> Result<Response, Failure> {
        if let Some(value) = self.authorization.read().await.clone() {
            headers.insert(AUTHORIZATION, value);
        }
        self.transmit(self.request(url)?.headers(headers)).await
    }

    async fn transmit(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        match tokio::time::timeout(self.stall, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => Err(transient("no answer")),
        }
    }

    fn judge(&self, response: Response, wanted: &str) -> Result<Response, Failure> {
        let status = response.status();
        match status.as_u16() {
            200 | 206 | 416 => Ok(response),
            401 | 403 => Err(self.denied().into()),
            404 => Err(ImageError::RegistryNotFound {
                registry: self.host.clone(),
                reference: format!("{}:{wanted}", self.repository),
            }
            .into()),
            408 | 425 | 429 | 500..=599 => {
                let wait =
                    response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                let wait = wait.map(|seconds| Duration::from_secs(seconds).min(BACKOFF_MAX));
                Err(Failure::Transient { why: format!("it answers {status}"), wait })
            }
            _ => Err(self.invalid(format!("status {status}")).into()),
        }
    }

    fn denied(&self) -> ImageError {
        ImageError::RegistryDenied {
            registry: self.host.clone(),
            repository: self.repository.clone(),
            with_credentials: self.credentials.is_some(),
        }
    }

    /// What to send after a challenge.
    async fn answer(&self, challenge: Challenge) -> Result<HeaderValue, Failure> {
        match (challenge, &self.credentials) {
            (Challenge::Bearer { .. }, Some(Credentials::Bearer(token))) => {
                Ok(secret_header(format!("Bearer {}", token.reveal())).ok_or_else(|| self.denied())?)
            }
            (Challenge::Bearer { realm, service }, _) => self.token(&realm, service.as_deref()).await,
            (Challenge::Basic, Some(Credentials::Basic { username, password })) => {
                // Built by the HTTP library, which knows the encoding and marks it as sensitive.
                let request = self.client.get(&self.base).basic_auth(username, Some(password.reveal()));
                let request = request.build().map_err(|_cause| self.denied())?;
                Ok(request.headers().get(AUTHORIZATION).cloned().ok_or_else(|| self.denied())?)
            }
            (Challenge::Basic, _) => Err(self.denied().into()),
        }
    }

    async fn token(&self, realm: &str, service: Option<&str>) -> Result<HeaderValue, Failure> {
        let mut url =
            Url::parse(realm).map_err(|_cause| self.invalid("its token server has no valid address"))?;
        let plain = self.base.starts_with("http:");
        if !(url.scheme() == "https" || (plain && url.scheme() == "http")) {
            return Err(self.invalid("its token server is not reached over HTTPS").into());
        }
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.repository));
        let mut request = self.request(url)?;
        if let Some(Credentials::Basic { username, password }) = &self.credentials {
            request = request.basic_auth(username, Some(password.reveal()));
        }
        let response = self.judge(self.transmit(request).await?, "token")?;
        let body = self.body(response, TOKEN_MAX_BYTES).await?;
        let token: Token =
            serde_json::from_slice(&body).map_err(|_cause| self.invalid("its token server gave no token"))?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| self.invalid("its token server gave no token"))?;
        Ok(secret_header(format!("Bearer {token}")).ok_or_else(|| self.invalid("its token is malformed"))?)
    }

    fn failed(&self, error: &reqwest::Error) -> Failure {
        if was_closed(error) {
            return self.closed().into();
        }
        if let Some(why) = certificate_error(error) {
            return ImageError::RegistryUntrusted { registry: self.host.clone(), why }.into();
        }
        if error.is_redirect() {
            return self.invalid("it redirects too often, or from HTTPS to HTTP").into();
        }
        // The innermost cause says most, and, unlike the outer ones, never holds an address.
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        let kind = if error.is_connect() { "cannot connect" } else { "the connection broke off" };
        if cause.is::<reqwest::Error>() {
            return transient(kind);
        }
        transient(format!("{kind}: {}", atoll_core::error::shorten(&cause.to_string())))
    }
}

/// Whether a partial answer starts where it was asked to: `Content-Range: bytes <from>-…`.
pub(crate) fn starts_at(response: &Response, from: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|text| text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    response.status() == StatusCode::PARTIAL_CONTENT && start == Some(from)
}

fn secret_header(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn client(options: &PullOptions, reach: &Reach) -> Result<Client> {
    let everywhere = reach.clone();
    let redirects = reqwest::redirect::Policy::custom(move |attempt| {
        if let Err(closed) = everywhere.check(attempt.url()) {
            return attempt.error(closed);
        }
        let downgrade =
            attempt.url().scheme() != "https" && attempt.previous().iter().any(|url| url.scheme() == "https");
        if downgrade || attempt.previous().len() > REDIRECTS_MAX_COUNT {
            return attempt.error("refused");
        }
        attempt.follow()
    });
    let bad_ca = |why: &str| ImageError::BadOption { field: "extra_ca_pem", why: why.to_owned() };
    let mut builder = Client::builder()
        .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirects)
        .dns_resolver(Arc::new(Lookups(reach.clone())))
        .no_proxy();
    if let Some(pem) = &options.extra_ca_pem {
        let certificates = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
            .map_err(|_cause| bad_ca("not a PEM certificate"))?;
        if certificates.is_empty() {
            return Err(bad_ca("no certificate in it"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|error| ImageError::Io {
        what: "set up TLS".into(),
        source: std::io::Error::other(error.without_url()),
    })
}

fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What is wrong with the certificate, if that is why a connection failed.
fn certificate_error(error: &reqwest::Error) -> Option<String> {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => Some(atoll_core::error::shorten(&why.to_string())),
        Some(_) | None => None,
    }
}

/// Whether the other side answered, but not in TLS.
fn speaks_no_tls(error: &reqwest::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_)))
}

/// I/O errors hide what they wrap from `source`, so they are looked into.
fn tls_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(tls);
    }
    let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match inside {
        Some(inside) => tls_error(inside),
        None => tls_error(error.source()?),
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn loopback_hosts() {
        for yes in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9"] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in ["localhost.evil.org", "127.0.0.1.evil.org:80", "128.0.0.1", "ghcr.io"] {
            assert!(!is_loopback(no), "{no}");
        }
    }
}
