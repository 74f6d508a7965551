//! Fetches a file as a program in a sandbox would: over a connection to the sandbox's explicit proxy, which the caller
//! makes.
//!
//! So there is no second way out: policy, budgets, secrets and the recorder see these requests as all others. Answers
//! are hostile: the reader bounds their length, this module bounds redirects and heads. A refusal of the gateway is told
//! with its reason, and only where it is the gateway that answers: on the connection to the proxy, and in TLS that ends at
//! the gateway, whose certificate is then one of its own authority. A server behind that may send the same header.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{HOST, LOCATION, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Most redirects that are followed.
const REDIRECTS_MAX_COUNT: u32 = 10;
/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest answer of the gateway that is passed on, bytes.
const REFUSAL_MAX_BYTES: usize = 2 << 10;
/// The `User-Agent`: servers want one.
const CLIENT: &str = concat!("atoll/", env!("CARGO_PKG_VERSION"));

/// A connection to the proxy.
pub trait ProxyStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ProxyStream for T {}

/// Makes a connection to the proxy.
pub type Connect<'a> = dyn Fn() -> BoxFuture<'a, io::Result<Box<dyn ProxyStream>>> + Send + Sync + 'a;

/// Why nothing was fetched. Texts of servers are in none of them, but for the gateway's own refusal.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address is none that can be fetched.
    #[error("'{0}' is no address of a file: write http:// or https://, a host and a path")]
    Address(String),
    /// The gateway refused it.
    #[error("{0}")]
    Refused(String),
    /// The server has no such file, or keeps it.
    #[error("{0} answered with {1}")]
    Status(String, StatusCode),
    /// It leads on and on.
    #[error("too many redirects")]
    Redirects,
    /// No connection, or none that lasted.
    #[error("{0}: {1}")]
    Broken(String, String),
    /// The TLS handshake failed: the server could not be verified, for example.
    #[error("{0}: the TLS handshake failed: {1}")]
    Tls(String, io::Error),
    /// It takes too long.
    #[error("{0} said nothing for too long")]
    Silent(String),
}

/// A file that is coming.
#[derive(Debug)]
pub struct Fetched {
    host: String,
    body: Incoming,
    /// The connections; they end with this.
    _tasks: JoinSet<()>,
}

impl Fetched {
    /// The next piece.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_elapsed| FetchError::Silent(self.host.clone()))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(FetchError::Broken(self.host.clone(), error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// Authorities that servers are verified against, besides those of the host. Each PEM, and may be empty.
#[derive(Debug, Clone, Copy)]
pub struct FetchRoots<'a> {
    /// The gateway's own, for hosts that its rules open TLS of.
    pub gateway: &'a str,
    /// Others.
    pub upstream: &'a str,
}

/// Fetches a file, following redirects.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    connect: &Connect<'_>,
    address: &str,
    roots: FetchRoots<'_>,
) -> Result<Fetched, FetchError> {
    let mut at = parse(address)?;
    let tls = Tls::new(roots).map_err(|error| FetchError::Tls(host(&at), io::Error::other(error)))?;
    for _ in 0..=REDIRECTS_MAX_COUNT {
        let mut tasks = JoinSet::new();
        let name = host(&at);
        let asked = tokio::time::timeout(SILENCE, ask(connect, &at, &tls, &mut tasks)).await;
        let answer = asked.map_err(|_elapsed| FetchError::Silent(name.clone()))??;
        let status = answer.status();
        if status.is_success() {
            return Ok(Fetched { host: name, body: answer.into_body(), _tasks: tasks });
        }
        if !status.is_redirection() {
            return Err(FetchError::Status(name, status));
        }
        let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        at = follow(&at, location.ok_or(FetchError::Status(name, status))?)?;
    }
    Err(FetchError::Redirects)
}

fn host(at: &Uri) -> String {
    at.authority().map(Authority::to_string).unwrap_or_default()
}

/// An address without user, password and fragment.
fn parse(address: &str) -> Result<Uri, FetchError> {
    let wrong = || FetchError::Address(atoll_core::error::shorten(address));
    let plain = address.split('#').next().unwrap_or_default();
    let uri: Uri = plain.parse().map_err(|_invalid| wrong())?;
    let known = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    let named = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if known && named { Ok(uri) } else { Err(wrong()) }
}

/// Where a redirect leads: never from TLS to clear text.
fn follow(from: &Uri, location: &str) -> Result<Uri, FetchError> {
    let scheme = from.scheme_str().unwrap_or_default();
    let whole = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.contains("://") {
        location.to_owned()
    } else if location.starts_with('/') {
        format!("{scheme}://{}{location}", host(from))
    } else {
        let directory = from.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{}{directory}/{location}", host(from))
    };
    let to = parse(&whole)?;
    if from.scheme() == Some(&Scheme::HTTPS) && to.scheme() != Some(&Scheme::HTTPS) {
        return Err(FetchError::Refused("it leads from https to http".to_owned()));
    }
    Ok(to)
}

/// How TLS is spoken, and whose certificates say that the other side is the gateway.
struct Tls {
    client: Arc<ClientConfig>,
    /// Knows the gateway's own authority, and no other. `None` when it has none: it opens no TLS then.
    gateway: Option<Arc<WebPkiServerVerifier>>,
}

impl Tls {
    fn new(roots: FetchRoots<'_>) -> Result<Self, rustls::Error> {
        let mut store = RootCertStore::empty();
        for certificate in rustls_native_certs::load_native_certs().certs {
            // Some certificates of a host are too old for the TLS library; those are left out.
            drop(store.add(certificate));
        }
        let mut own = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(roots.gateway.as_bytes()).flatten() {
            store.add(certificate.clone())?;
            own.add(certificate)?;
        }
        for certificate in CertificateDer::pem_slice_iter(roots.upstream.as_bytes()).flatten() {
            store.add(certificate)?;
        }
        let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let gateway = (!own.is_empty())
            .then(|| {
                WebPkiServerVerifier::builder_with_provider(Arc::new(own), Arc::clone(&provider)).build()
            })
            .transpose()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let client = Arc::new(config.with_root_certificates(store).with_no_client_auth());
        Ok(Self { client, gateway })
    }

    /// Whether a connection that was verified as one to `name` ends at the gateway.
    fn is_gateway(&self, connection: &ClientConnection, name: &ServerName<'_>) -> bool {
        let shown = connection.peer_certificates().and_then(<[_]>::split_first);
        let (Some(gateway), Some((own, others))) = (&self.gateway, shown) else { return false };
        gateway.verify_server_cert(own, others, name, &[], UnixTime::now()).is_ok()
    }
}

/// One request, and the head of its answer.
async fn ask(
    connect: &Connect<'_>,
    at: &Uri,
    tls: &Tls,
    tasks: &mut JoinSet<()>,
) -> Result<http::Response<Incoming>, FetchError> {
    let name = host(at);
    let broken = |error: &dyn std::fmt::Display| FetchError::Broken(name.clone(), error.to_string());
    let proxy = connect().await.map_err(|error| broken(&error))?;
    let mut proxy = speak(proxy, tasks).await.map_err(|error| broken(&error))?;
    // The gateway answers, or passes an answer on from which it has taken its mark.
    let (mut server, target, is_gateway) = if at.scheme() == Some(&Scheme::HTTPS) {
        let server = at.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let through = format!("{}:{}", at.host().unwrap_or_default(), at.port_u16().unwrap_or(443));
        let request = request(Method::CONNECT, &through, &through).map_err(|error| broken(&error))?;
        let answer = passed(proxy.send_request(request).await.map_err(|error| broken(&error))?).await?;
        let tunnel = hyper::upgrade::on(answer).await.map_err(|error| broken(&error))?;
        let server = ServerName::try_from(server).map_err(|error| broken(&error))?;
        let connector = TlsConnector::from(Arc::clone(&tls.client));
        let stream = connector.connect(server.clone(), TokioIo::new(tunnel)).await;
        let stream = stream.map_err(|error| FetchError::Tls(name.clone(), error))?;
        let is_gateway = tls.is_gateway(stream.get_ref().1, &server);
        let path = at.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        (speak(stream, tasks).await.map_err(|error| broken(&error))?, path, is_gateway)
    } else {
        (proxy, at.to_string(), true)
    };
    let request = request(Method::GET, &target, &name).map_err(|error| broken(&error))?;
    let answer = server.send_request(request).await.map_err(|error| broken(&error))?;
    if is_gateway { passed(answer).await } else { Ok(answer) }
}

fn request(method: Method, target: &str, host: &str) -> http::Result<http::Request<Empty<Bytes>>> {
    http::Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, host)
        .header(USER_AGENT, CLIENT)
        .body(Empty::new())
}

async fn speak(
    stream: impl ProxyStream,
    tasks: &mut JoinSet<()>,
) -> hyper::Result<SendRequest<Empty<Bytes>>> {
    let (send, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection is told to the task that waits for the answer.
    tasks.spawn(async move { drop(connection.with_upgrades().await) });
    Ok(send)
}

/// An answer by way of the gateway, unless it is the gateway's own.
async fn passed(answer: http::Response<Incoming>) -> Result<http::Response<Incoming>, FetchError> {
    if !answer.headers().contains_key(crate::refusal::HEADER) {
        return Ok(answer);
    }
    let status = answer.status();
    let text = http_body_util::Limited::new(answer.into_body(), REFUSAL_MAX_BYTES).collect().await;
    let text = text.map(|text| String::from_utf8_lossy(&text.to_bytes()).into_owned()).unwrap_or_default();
    let said =
        text.lines().filter(|line| ["what:", "why:", "ask:"].iter().any(|word| line.starts_with(word)));
    let said = said.collect::<Vec<_>>().join("; ");
    Err(FetchError::Refused(if said.is_empty() {
        format!("the gateway answered with {status}")
    } else {
        said
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["http://a.example/x", "https://a.example", "https://[2001:db8::1]:8443/x?y#z"] {
            parse(good).unwrap();
        }
        for bad in ["", "/x", "ftp://a/x", "https://u:p@a.example/x", "https:///x", "https://a b/"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirects() {
        let from = parse("https://a.example/d/e?q=1").unwrap();
        for (location, want) in [
            ("f", Some("https://a.example/d/f")),
            ("/f?x=y", Some("https://a.example/f?x=y")),
            ("//b.example/f", Some("https://b.example/f")),
            ("https://b.example:8443/f", Some("https://b.example:8443/f")),
            ("http://a.example/f", None),
            ("file:///etc/passwd", None),
        ] {
            let to = follow(&from, location).ok().map(|to| to.to_string());
            assert_eq!(to.as_deref(), want, "{location}");
        }
    }
}
