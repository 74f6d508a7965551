//! Sends an admitted request on and its answer back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use atoll_core::policy::HostName;
use atoll_hop::{frame_body, upgrade};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;

use super::request::{boxed, origin_form, strip, unreachable};
use super::{Request, Response};
use crate::budget::Buffered;
use crate::connection::{Admitted, Dialer};
use crate::dial::DialError;
use crate::interceptor::BoxError;
use crate::limits::HTTP_BUFFER_MAX_BYTES;
use crate::refusal::unmark;

/// The connection to the outside that requests of one client go over, one after the other.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// A connection serves one name only.
    key: (Option<HostName>, std::net::SocketAddr),
    send: SendRequest<Buffered<Incoming>>,
}

/// Decides upon a request and sends it where the dialer leads.
pub(super) async fn forward(request: Request, dialer: &Dialer, upstream: &Arc<Mutex<Upstream>>) -> Response {
    let admitted = match dialer.admit("http", request.method().as_str(), request.uri().path()) {
        Ok(admitted) => admitted,
        Err(refusal) => return boxed(refusal.response()),
    };
    dialer.context.connection.show("http", &dialer.target);
    let mut request = request;
    let wants_upgrade = upgrade(request.headers()).is_some();
    let client = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
    let budget = Arc::clone(&dialer.context.net.budget);
    let outgoing = rewrite(request, || dialer.target.label()).map(|body| Buffered::new(body, budget));
    let sent_bytes = outgoing.body().size_hint().exact().unwrap_or_default();
    let mut response = match send(outgoing, dialer, upstream).await {
        Ok(response) => response,
        Err(why) => return unreachable(&dialer.target.label(), &why),
    };
    admitted.answered(response.status().as_u16(), sent_bytes);
    unmark(response.headers_mut());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client.filter(|_| upgrade(response.headers()).is_some()) else {
            return unreachable(&dialer.target.label(), "it switched protocols without being asked");
        };
        carry_upgrade(client, hyper::upgrade::on(&mut response), dialer, admitted);
        strip(response.headers_mut());
        return response
            .map(|_none| http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync());
    }
    strip(response.headers_mut());
    let budget = Arc::clone(&dialer.context.net.budget);
    response.map(|body| Guarded { body: Buffered::new(body, budget), admitted }.boxed_unsync())
}

/// The request as it goes out. One that names no host gets that of `label`.
pub(super) fn rewrite<B: Body>(
    request: http::Request<B>,
    label: impl FnOnce() -> String,
) -> http::Request<B> {
    let (mut parts, body) = request.into_parts();
    if !parts.headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(&label())
    {
        parts.headers.insert(header::HOST, host);
    }
    parts.uri = origin_form(&parts.uri);
    parts.version = Version::HTTP_11;
    strip(&mut parts.headers);
    frame_body(&mut parts.headers, !body.is_end_stream());
    http::Request::from_parts(parts, body)
}

async fn send(
    request: http::Request<Buffered<Incoming>>,
    dialer: &Dialer,
    upstream: &Arc<Mutex<Upstream>>,
) -> Result<http::Response<Incoming>, String> {
    let key = (dialer.name().cloned(), dialer.target.address);
    let mut upstream = upstream.lock().await;
    let usable = match &mut upstream.open {
        Some(open) if open.key == key => open.send.ready().await.is_ok(),
        Some(_) | None => false,
    };
    if !usable {
        upstream.open = Some(Open { key, send: connect(dialer).await.map_err(|error| error.to_string())? });
    }
    let Some(open) = &mut upstream.open else { return Err("the connection was lost".to_owned()) };
    open.send.send_request(request).await.map_err(|error| {
        use std::error::Error as _;
        error.source().map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// Writes the requests that go out.
pub(super) fn writer() -> http1::Builder {
    let mut writer = http1::Builder::new();
    writer.max_buf_size(HTTP_BUFFER_MAX_BYTES).preserve_header_case(true);
    writer
}

async fn connect(dialer: &Dialer) -> Result<SendRequest<Buffered<Incoming>>, DialError> {
    let stream = dialer.connect().await?;
    let handshake = writer().handshake(TokioIo::new(stream)).await;
    let (send, connection) = handshake.map_err(|error| DialError::Refused(std::io::Error::other(error)))?;
    let cancel = dialer.cancelled();
    tokio::spawn(async move {
        tokio::select! {
            ended = connection.with_upgrades() => if let Err(error) = ended {
                tracing::debug!(%error, "a server broke off");
            },
            () = cancel.cancelled() => {}
        }
    });
    Ok(send)
}

/// Carries an upgraded connection (a WebSocket) for as long as the request that began it is allowed.
fn carry_upgrade(
    client: hyper::upgrade::OnUpgrade,
    server: hyper::upgrade::OnUpgrade,
    dialer: &Dialer,
    admitted: Admitted,
) {
    let cancel = dialer.cancelled();
    let context = dialer.context.clone();
    tokio::spawn(async move {
        let carry = async {
            let (client, server) = tokio::try_join!(client, server).map_err(std::io::Error::other)?;
            tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await
        };
        tokio::select! {
            carried = carry => if let Err(error) = carried {
                tracing::debug!(%error, "an upgraded connection broke off");
            },
            () = cancel.cancelled() => {}
        }
        drop((admitted, context));
    });
}

/// A body whose request stays admitted until it has been passed on.
struct Guarded {
    body: Buffered<Incoming>,
    admitted: Admitted,
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(task).map_err(BoxError::from);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.admitted.passed(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
