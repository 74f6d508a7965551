//! The port for plain HTTP: it answers challenges, and sends everything else where TLS is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::order::is_token;
use crate::row::Rows;

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX_COUNT: usize = 256;
/// Looks into the database at once.
const LOOKS_MAX_COUNT: usize = 4;
/// Longest life of a connection, busy or idle.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the head of a request, and its largest size.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_MAX_BYTES: usize = 16 << 10;
/// Pause when the kernel refuses a connection, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Where servers of ACME ask (RFC 8555, section 8.3).
const CHALLENGES: &str = "/.well-known/acme-challenge/";
/// The answer to a request other than `GET` and `HEAD`: it may have held a key.
const TLS_REQUIRED: &str = "use https:// instead of http://\n";

/// The port.
#[derive(Debug)]
pub(crate) struct Door {
    rows: Rows,
    /// The server's names: this one, and those below it.
    domain: String,
    /// Others that its certificate is for.
    names: Vec<String>,
    /// What follows the host in its addresses: nothing, or `:` and a port.
    port: String,
    looks: Semaphore,
}

impl Door {
    pub(crate) fn new(rows: Rows, domain: &str, names: &[String], https_port: u16) -> Self {
        let port = if https_port == 443 { String::new() } else { format!(":{https_port}") };
        let (domain, names) = (domain.to_owned(), names.to_vec());
        Self { rows, domain, names, port, looks: Semaphore::new(LOOKS_MAX_COUNT) }
    }

    /// Serves until the server stops.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let (door, places) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS_MAX_COUNT)));
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                next = next => next,
                () = stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, _peer)) => {
                    let (door, stop) = (Arc::clone(&door), stop.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            _done = tokio::time::timeout(CONNECTION_TIMEOUT, door.connection(stream)) => {}
                            () = stop.cancelled() => {}
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the port for challenges was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(&self, stream: TcpStream) {
        let answer =
            service_fn(async |request: Request<Incoming>| Ok::<_, Infallible>(self.answer(&request).await));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_MAX_BYTES);
        let served = http.keep_alive(false).serve_connection(TokioIo::new(stream), answer).await;
        if let Err(error) = served {
            tracing::debug!(%error, "a connection to the port for challenges broke");
        }
    }

    async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut told = plain(StatusCode::UPGRADE_REQUIRED, TLS_REQUIRED.to_owned());
            told.headers_mut().insert(UPGRADE, HeaderValue::from_static("TLS/1.3"));
            return told;
        }
        match request.uri().path().strip_prefix(CHALLENGES) {
            Some(token) => match self.challenge(token).await {
                Some(value) => plain(StatusCode::OK, value),
                None => plain(StatusCode::NOT_FOUND, "no such challenge\n".to_owned()),
            },
            None => self.redirect(request.uri(), request.headers()),
        }
    }

    async fn challenge(&self, token: &str) -> Option<String> {
        if !is_token(token) {
            return None;
        }
        let _look = self.looks.acquire().await.ok()?;
        let (state, _version) = self.rows.read().await.ok()?;
        state.answer(token).map(str::to_owned)
    }

    /// Redirects only to this server's own names: a redirect to any name that a client writes would be one to anywhere.
    fn redirect(&self, uri: &Uri, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let said = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = said.split(':').next().unwrap_or_default().to_ascii_lowercase();
        // As a name can be written: with anything else in it, it could lead elsewhere.
        let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
        let rest = host.strip_suffix(&self.domain).filter(|_| is_name);
        let is_ours =
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) || self.names.contains(&host);
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let to = HeaderValue::from_str(&format!("https://{host}{}{path}", self.port));
        match to {
            Ok(to) if is_ours && path.starts_with('/') => {
                let mut moved = plain(StatusCode::MOVED_PERMANENTLY, String::new());
                moved.headers_mut().insert(LOCATION, to);
                moved
            }
            _ => plain(StatusCode::NOT_FOUND, "no such server\n".to_owned()),
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
