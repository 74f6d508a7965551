//! HTTP/1 in clear: every request is read, decided upon, and written anew.
//!
//! Nothing of a request reaches the outside as the client wrote it: the parser takes it apart, and the gateway sends
//! only the parts that the parser understood. So a request cannot hide in another one (two lengths, a length and
//! chunks): either both sides see the same or the parser refuses.
//!
//! Two ways lead here. *Transparent*: the client believes that it talks to the server; the address is given,
//! the name comes from `Host` and must be certain. *Explicit*: the client knows that it talks to a proxy and
//! names the destination in the request; the gateway looks the name up itself.

mod explicit;
mod forward;
#[cfg(test)]
mod fuzz;
mod request;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use atoll_core::policy::HostName;
use atoll_hop::SendFirst;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Mutex;

use crate::client::ClientStream;
use crate::connection::{Context, Dialer, Target};
use crate::interceptor::{Ask, BoxError, Flow, Protocol};
use crate::limits::{HTTP_BUFFER_MAX_BYTES, HTTP_HEAD_TIMEOUT, HTTP_HEADERS_MAX_COUNT};

use forward::Upstream;

/// Body of any answer.
type Body = UnsyncBoxBody<Bytes, BoxError>;
type Request = http::Request<Incoming>;
type Response = http::Response<Body>;

/// Serves a connection whose address is given.
pub(crate) async fn serve_transparent(
    context: Context,
    mut client: ClientStream,
    target: Target,
) -> io::Result<()> {
    if let Some((interceptor, name)) = wanted(&context, &mut client, &target).await? {
        let target = target.meant(&context.shared.borders, vec![name.clone()]);
        let flow = Flow {
            sandbox: context.net.id.clone(),
            original: target.address,
            name,
            protocol: Protocol::Http,
            client,
        };
        context.connection.begin_requests();
        let cancel = context.connection.cancel.clone();
        return tokio::select! {
            served = interceptor.serve(flow, context.dialer(target)) => served,
            () = cancel.cancelled() => Ok(()),
        };
    }
    let dialer = context.dialer(target);
    let upstream = Arc::new(Mutex::new(Upstream::default()));
    serve(&context, client, move |request| {
        let (dialer, upstream) = (dialer.clone(), Arc::clone(&upstream));
        async move { transparent(request, &dialer, &upstream).await }
    })
    .await
}

/// Serves a connection to the explicit proxy, which is at `address`.
pub(crate) async fn serve_explicit(
    context: Context,
    client: ClientStream,
    address: IpAddr,
) -> io::Result<()> {
    let upstream = Arc::new(Mutex::new(Upstream::default()));
    let own = context.clone();
    serve(&context, client, move |request| {
        let (context, upstream) = (own.clone(), Arc::clone(&upstream));
        async move {
            match explicit::own(&request, &context, address) {
                Some(response) => response,
                None => explicit::answer(request, context, &upstream).await,
            }
        }
    })
    .await
}

async fn serve<F>(
    context: &Context,
    client: ClientStream,
    answer: impl Fn(Request) -> F + Send + Sync + 'static,
) -> io::Result<()>
where
    F: Future<Output = Response> + Send + 'static,
{
    context.connection.begin_requests();
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await.map(SendFirst::new)) }
    });
    let connection = parser().serve_connection(TokioIo::new(client), service).with_upgrades();
    let cancel = context.connection.cancel.clone();
    tokio::select! {
        served = connection => served.map_err(io::Error::other),
        () = cancel.cancelled() => Ok(()),
    }
}

/// Takes the requests of a sandbox apart.
fn parser() -> http1::Builder {
    let mut parser = http1::Builder::new();
    parser
        .timer(TokioTimer::new())
        .header_read_timeout(HTTP_HEAD_TIMEOUT)
        .max_headers(HTTP_HEADERS_MAX_COUNT)
        .max_buf_size(HTTP_BUFFER_MAX_BYTES)
        .preserve_header_case(true);
    parser
}

async fn transparent(request: Request, dialer: &Dialer, upstream: &Arc<Mutex<Upstream>>) -> Response {
    let host = match request::meant(&request) {
        Ok(host) => host,
        Err(why) => return request::bad(why),
    };
    if let Ok(name) = host.parse::<HostName>() {
        // Learns the name, if it is one of this address.
        dialer.context.confirm(&name, dialer.target.address.ip()).await;
    }
    let dialer = dialer.named(&host);
    forward::forward(request, &dialer, upstream).await
}

/// Whether the interceptor wants to look into this connection: reads ahead to the first `Host`.
async fn wanted(
    context: &Context,
    client: &mut ClientStream,
    target: &Target,
) -> io::Result<Option<(Arc<dyn crate::interceptor::Interceptor>, HostName)>> {
    let Some(interceptor) = &context.shared.config.interceptor else { return Ok(None) };
    let (socket, ahead) = client.split();
    let Ok(Some(host)) = tokio::time::timeout(HTTP_HEAD_TIMEOUT, request::first_host(socket, ahead)).await
    else {
        return Ok(None);
    };
    let Ok(name) = host.parse::<HostName>() else { return Ok(None) };
    if !context.confirm(&name, target.address.ip()).await {
        return Ok(None);
    }
    let policy = context.net.policy();
    let (sandbox, address, protocol) = (&context.net.id, target.address, Protocol::Http);
    let sender = target.sender.as_deref();
    let wants = interceptor.wants(&Ask { sandbox, policy: &policy, name: &name, address, protocol, sender });
    Ok(wants.then(|| (Arc::clone(interceptor), name)))
}
