//! Sending a request to a server inside.
//!
//! A connection that waits is used again. If it turns out to be closed, the request goes out over another
//! one, but only when it cannot have been seen: it was not sent at all, or it has no body and its method
//! changes nothing.

use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_engine::{Engine, GuestLease, PortConnection};
use axum::body::{Body, HttpBody as _};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::pool::{Key, Pool, Sender, SharedSender};
use super::tls;

/// Largest head of an answer, bytes.
const HEAD_MAX_BYTES: usize = 64 << 10;
/// Most headers of an answer.
const HEADERS_MAX_COUNT: usize = 256;
/// How long a server inside may take until the head of its answer: agents think for long.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Bytes both ways, plain or secured.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// An answer that has begun.
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    /// Goes back to the pool when the answer is over.
    pub(super) sender: Option<Sender>,
    /// Keeps the sandbox awake until then.
    pub(super) lease: GuestLease,
}

/// Sends a request and waits for the head of the answer.
///
/// # Errors
/// [`Code::PortClosed`], [`Code::PortBroken`], [`Code::Timeout`], or what a lease gives.
pub(super) async fn send(
    engine: &Engine,
    pool: &Pool,
    key: &Key,
    request: Request<Body>,
) -> Result<Answered> {
    let (lease, fresh) = match pool.take(key) {
        Some(sender) => (engine.guest(&key.sandbox).await?, Err(sender)),
        None => {
            let (lease, connection) = engine.connect_port(&key.sandbox, key.port).await?;
            (lease, Ok(connection))
        }
    };
    let dead = lease.dead();
    let sent = async {
        let mut waiting = match fresh {
            Ok(connection) => return send_over(handshake(connection, key).await?, request, key.port).await,
            Err(sender) => Some(sender),
        };
        let mut request = request;
        while let Some(mut sender) = waiting.take().or_else(|| pool.take(key)) {
            let again = Again::of(&request);
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut failed) => match (failed.take_message(), again) {
                    // It never went out.
                    (Some(unsent), _) => request = unsent,
                    (None, Some(again)) if is_cut(failed.error()) => request = again.request(),
                    (None, _) => return Err(broken(key.port, failed.error())),
                },
            }
        }
        send_over(handshake(lease.connect_port(key.port).await?, key).await?, request, key.port).await
    };
    let (response, sender) = within(sent, dead).await?;
    Ok(Answered { response, sender: Some(sender), lease })
}

/// As [`send`], over the HTTP/2 connection that all such requests to the port share.
pub(super) async fn send_http2(
    engine: &Engine,
    pool: &Pool,
    key: &Key,
    request: Request<Body>,
) -> Result<Answered> {
    let lease;
    let mut sender = match pool.shared(key) {
        Some(sender) => {
            lease = engine.guest(&key.sandbox).await?;
            sender
        }
        None => {
            let connection;
            (lease, connection) = engine.connect_port(&key.sandbox, key.port).await?;
            let sender = handshake_http2(connection, key).await?;
            pool.share(key, sender.clone());
            sender
        }
    };
    let dead = lease.dead();
    let sent = async { sender.send_request(request).await.map_err(|error| broken(key.port, &error)) };
    let response = within(sent, dead).await?;
    Ok(Answered { response, sender: None, lease })
}

async fn within<T>(sent: impl Future<Output = Result<T>>, dead: impl Future<Output = ()>) -> Result<T> {
    tokio::select! {
        answered = tokio::time::timeout(HEAD_TIMEOUT, sent) => answered.unwrap_or_else(|_elapsed| {
            Err(Error::new(Code::Timeout, "the server in the sandbox did not answer in time"))
        }),
        () = dead => Err(Error::new(Code::SandboxFailed, "the sandbox died")),
    }
}

async fn send_over(
    mut sender: Sender,
    request: Request<Body>,
    port: u16,
) -> Result<(Response<Incoming>, Sender)> {
    let response = sender.send_request(request).await.map_err(|error| broken(port, &error))?;
    Ok((response, sender))
}

/// Speaks HTTP/1.1 over a connection.
async fn handshake(connection: PortConnection, key: &Key) -> Result<Sender> {
    if key.tls {
        let secured = tls::connect(connection, key.port, tls::Protocol::Http1).await?;
        return http1_over(secured, key.port).await;
    }
    http1_over(connection, key.port).await
}

async fn http1_over(stream: impl Stream, port: u16) -> Result<Sender> {
    let (sender, driver) = http1::Builder::new()
        .max_header_size(HEAD_MAX_BYTES)
        // As most clients write them: not every server inside knows that case does not matter.
        .title_case_headers(true)
        .max_headers(HEADERS_MAX_COUNT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(port, &error))?;
    tokio::spawn(async move { log_end(driver.with_upgrades().await) });
    Ok(sender)
}

/// Speaks HTTP/2 over a connection.
async fn handshake_http2(connection: PortConnection, key: &Key) -> Result<SharedSender> {
    if key.tls {
        let secured = tls::connect(connection, key.port, tls::Protocol::Http2).await?;
        return http2_over(secured, key.port).await;
    }
    http2_over(connection, key.port).await
}

async fn http2_over(stream: impl Stream, port: u16) -> Result<SharedSender> {
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_MAX_BYTES).unwrap_or(u32::MAX))
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(port, &error))?;
    tokio::spawn(async move { log_end(driver.await) });
    Ok(sender)
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to a port ended badly");
    }
}

/// A request that may be sent twice.
struct Again {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Again {
    fn of(request: &Request<Body>) -> Option<Self> {
        let harmless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        (harmless && request.body().is_end_stream()).then(|| Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    fn request(self) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        *request.version_mut() = Version::HTTP_11;
        request
    }
}

fn is_cut(error: &hyper::Error) -> bool {
    let by_the_socket =
        || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>());
    error.is_incomplete_message() || error.is_closed() || error.is_canceled() || by_the_socket()
}

fn broken(port: u16, error: &hyper::Error) -> Error {
    tracing::debug!(%error, port, "a server in a sandbox did not answer");
    if error.is_parse() {
        return Error::new(
            Code::PortBroken,
            format!("what listens on port {port} does not answer with HTTP"),
        )
        .hint("reach it with 'atoll tunnel', which passes bytes of any kind");
    }
    Error::new(
        Code::PortBroken,
        format!("the server on port {port} closed the connection before it answered"),
    )
    .hint("look at its output; it may have crashed")
}
