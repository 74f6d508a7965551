//! One intercepted connection: a server towards the sandbox, a client towards the server outside.
//!
//! Each request goes through the same steps: the gateway checks that it is for this host ([`check`]) and may pass
//! (policy), applies the rules ([`apply`]), records the use of each secret, and only then sends a byte of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::policy::{InjectRule, RequestFacts};
use atoll_hop::{SendFirst, frame_body, set_upgrade, strip_hop_by_hop, upgrade};
use bytes::Bytes;
use http::header::{ALT_SVC, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio_rustls::LazyConfigAcceptor;

use crate::budget::{Budget, Buffered, paid};
use crate::refusal::unmark;

use super::apply::{Applied, Asking, apply, mask_only};
use super::authority::Protocol;
use super::check::{Expected, check};
use super::kept::{Kept, traced};
use super::meter::{self, Counted};
use super::refusal::Refusal;
use super::replace::{Replaced, Replacer, replace_headers};
use super::tasks::{EndTasks, Tasks};
use super::upstream::{Io, Sender, UpstreamError};
use super::{
    Admitted, BODY_WHOLE_MAX_BYTES, BoxError, CONNECTION_WINDOW_BYTES, HEAD_TIMEOUT, HEADERS_MAX_BYTES,
    HEADERS_MAX_COUNT, OutBody, SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES, STREAMS_MAX_COUNT, Shared, Tally,
    Way,
};

/// How long a client may take for its part of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Ends a request without an answer: the connection is closed, or the stream reset, as the server's was.
#[derive(Debug, thiserror::Error)]
#[error("the server closed the connection")]
struct Aborted(#[source] hyper::Error);

enum Failure {
    Refused(Refusal),
    /// The policy forbids it, and has its own words for that.
    Forbidden(Box<Response<OutBody>>),
    Aborted(Aborted),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The result of the rules for the head of a request.
struct Changed {
    applied: Applied,
    /// Is told how many tokens the answer takes.
    tally: Option<Tally>,
}

struct Session {
    shared: Arc<Shared>,
    way: Arc<dyn Way>,
    tasks: Tasks,
    /// The protocols that the client offered, for connections that are made again.
    offered: Vec<Protocol>,
    /// The connection outside, while there is one.
    sender: Mutex<Option<Sender>>,
}

/// Serves a client that speaks TLS.
pub(super) async fn serve_tls<S>(shared: Arc<Shared>, way: Arc<dyn Way>, client: S) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let hello = tokio::time::timeout(HANDSHAKE_TIMEOUT, LazyConfigAcceptor::new(Acceptor::default(), client));
    let hello = hello.await??;
    let offered = offered(hello.client_hello().alpn());
    let session = Session::new(shared, way, offered);
    // The connection outside first: the client is offered the protocol that the server chose.
    let protocol = match session.connect().await {
        Ok(sender) => {
            let protocol = sender.protocol();
            *session.sender.lock().await = Some(sender);
            protocol
        }
        // The first request is told why.
        Err(error) => {
            tracing::debug!(%error, host = %session.way.host(), "a server cannot be reached");
            Protocol::Http1
        }
    };
    let protocol = if session.offered.contains(&protocol) { protocol } else { session.offered[0] };
    let config = session.shared.authority.server_config(session.way.host(), protocol);
    let config = config.map_err(std::io::Error::other)?;
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, hello.into_stream(config)).await??;
    session.serve(stream, protocol).await
}

/// Serves a client that speaks HTTP/1 in clear.
pub(super) async fn serve_plain<S>(shared: Arc<Shared>, way: Arc<dyn Way>, client: S) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Session::new(shared, way, vec![Protocol::Http1]).serve(client, Protocol::Http1).await
}

/// Answers one request in clear that the gateway has read already. The returned tasks carry the answer.
pub(super) async fn answer_one(
    shared: Arc<Shared>,
    way: Arc<dyn Way>,
    request: Request<Incoming>,
) -> (Response<OutBody>, EndTasks) {
    let session = Session::new(shared, way, vec![Protocol::Http1]);
    let tasks = EndTasks(session.tasks.clone());
    let answered = session.handle(request).await;
    let response = answered.unwrap_or_else(|aborted| Refusal::upstream(aborted.to_string()).into_response());
    (response, tasks)
}

/// The protocols that a client offers and that are spoken here; never empty.
fn offered<'a>(alpn: Option<impl Iterator<Item = &'a [u8]>>) -> Vec<Protocol> {
    let known = alpn.into_iter().flatten().filter_map(|name| {
        [Protocol::Http2, Protocol::Http1].into_iter().find(|protocol| protocol.alpn() == name)
    });
    let known: Vec<Protocol> = known.collect();
    if known.is_empty() { vec![Protocol::Http1] } else { known }
}

impl Session {
    fn new(shared: Arc<Shared>, way: Arc<dyn Way>, offered: Vec<Protocol>) -> Arc<Self> {
        Arc::new(Self { shared, way, tasks: Tasks::default(), offered, sender: Mutex::new(None) })
    }

    async fn serve<S>(self: Arc<Self>, stream: S, protocol: Protocol) -> std::io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tasks = self.tasks.clone();
        let _end = EndTasks(tasks.clone());
        let stream = TokioIo::new(stream);
        let session = Arc::clone(&self);
        let service = service_fn(move |request| {
            let answered = Arc::clone(&session).handle(request);
            async move { Ok::<_, Aborted>(answered.await?.map(SendFirst::new)) }
        });
        let served = match protocol {
            Protocol::Http1 => parser().serve_connection(stream, service).with_upgrades().await,
            Protocol::Http2 => {
                hyper::server::conn::http2::Builder::new(tasks.clone())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(STREAMS_MAX_COUNT)
                    .max_header_list_size(HEADERS_MAX_BYTES)
                    .initial_stream_window_size(STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                    .max_send_buf_size(SEND_BUFFER_BYTES)
                    .serve_connection(stream, service)
                    .await
            }
        };
        // Connections outside end with their sender; upgraded ones go on until both sides are done.
        self.sender.lock().await.take();
        drop(self);
        tasks.join().await;
        served.map_err(std::io::Error::other)
    }

    async fn connect(&self) -> Result<Sender, UpstreamError> {
        let stream = self.way.dial().await.map_err(UpstreamError::Dial)?;
        let (stream, protocol) = if self.way.encrypted() {
            self.shared.upstream.connect(self.way.host(), &self.offered, stream).await?
        } else {
            (stream, Protocol::Http1)
        };
        Sender::start(stream, protocol, &self.tasks, self.way.budget()).await
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<OutBody>, Aborted> {
        match self.forward(request).await {
            Ok(response) => Ok(response),
            Err(Failure::Refused(refusal)) => {
                tracing::debug!(sandbox = %self.way.sandbox(), host = %self.way.host(), %refusal, "refused");
                Ok(refusal.into_response())
            }
            Err(Failure::Forbidden(response)) => Ok(*response),
            Err(Failure::Aborted(aborted)) => Err(aborted),
        }
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<OutBody>, Failure> {
        let way = &self.way;
        check(&request, self.expected())?;
        let head = way.budget().try_hold_head(&request).ok_or_else(|| {
            Refusal::unavailable("this sandbox has too many requests without an answer: wait for some")
        })?;
        let admitted = way.admit(request.method().as_str(), request.uri().path());
        let admitted = admitted.map_err(Failure::Forbidden)?;
        let upgrade = wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        tidy_request(&mut parts.headers, upgrade.is_some());

        let has_body = !body.is_end_stream();
        let Changed { applied, tally } = self.apply(&mut parts, has_body, &admitted).await?;
        let body = outgoing(&mut parts.headers, body, &applied, way.budget()).await?;
        let sent_bytes = body.size_hint().exact().unwrap_or_default();
        let request = Request::from_parts(parts, body);
        let mut counted = tally.map(|tally| Counted::new(tally, sent_bytes));
        let response = self.exchange(request).await?;
        if let Some(counted) = &mut counted {
            counted.answered(response.status(), response.headers());
        }
        traced(&admitted, |admitted| admitted.answered(response.status().as_u16(), sent_bytes));
        let answer = self.answer(response, upgrade, &applied, &admitted)?;
        Ok(answer.map(|body| Kept { body, admitted, counted, _head: head }.boxed()))
    }

    async fn apply(
        &self,
        parts: &mut http::request::Parts,
        has_body: bool,
        admitted: &Admitted,
    ) -> Result<Changed, Failure> {
        // As it is now: a changed rule is felt by the next request.
        let policy = self.way.policy();
        let method = parts.method.clone();
        let path = parts.uri.path().to_owned();
        let facts = RequestFacts {
            host: self.way.host(),
            port: self.way.port(),
            encrypted: self.way.encrypted(),
            method: method.as_str(),
            path: &path,
            sender: self.way.sender(),
        };
        let rules: Vec<&InjectRule> = policy.inject.iter().filter(|rule| rule.matches(&facts)).collect();
        let secrets = self.shared.secrets.as_ref();
        let asking = Asking { sandbox: self.way.sandbox(), host: self.way.host(), secrets };
        let session = meter::unmark(&mut parts.headers, &rules);
        // No secret goes where rules let nothing pass, also when the policy only observes that.
        let mut applied = if self.way.allowed_by_rules(&policy, method.as_str(), &path) {
            apply(parts, has_body, &rules, asking)?
        } else {
            mask_only(&mut parts.headers, &rules, asking)
        };
        let tally = match &self.shared.meter {
            Some(meter) if meter::is_model(&method, &path) => meter.ask(self.way.sandbox(), session.as_ref()),
            Some(_) | None => Ok(None),
        };
        let tally = tally.map_err(|why| Failure::Forbidden(Box::new(meter::refused(&why))))?;
        if tally.is_some() {
            meter::prepare(&mut parts.headers);
        }
        for used in std::mem::take(&mut applied.uses) {
            traced(admitted, |admitted| admitted.used(&used.secret.name));
            secrets.used(used).await.map_err(|error| Refusal::secret(&error))?;
        }
        Ok(Changed { applied, tally })
    }

    /// Sends the request on the connection that is there, or on a new one.
    async fn exchange(&self, mut request: Request<OutBody>) -> Result<Response<Incoming>, Failure> {
        let mut slot = self.sender.lock().await;
        let alive = match slot.as_mut() {
            Some(sender) => sender.ready().await,
            None => false,
        };
        if !alive {
            *slot = None;
            let fresh = self.connect().await.map_err(|error| {
                let (host, port) = (self.way.host(), self.way.port());
                Refusal::upstream(format!("{host}:{port} cannot be used: {error}"))
            })?;
            *slot = Some(fresh);
        }
        let Some(sender) = slot.as_mut() else {
            return Err(Refusal::upstream("the connection is gone").into());
        };
        address(&mut request, self.expected(), sender.protocol());
        let answer = match sender {
            Sender::One(sender) => sender.send_request(request).await,
            Sender::Two(sender) => {
                let mut sender = sender.clone();
                // Other requests may be sent on it meanwhile.
                drop(slot);
                sender.send_request(request).await
            }
        };
        // Whether the server has seen it is not known: the client sees the same end of the connection as it would have
        // from the server.
        answer.map_err(|error| {
            tracing::debug!(%error, host = %self.way.host(), "a request failed");
            Failure::Aborted(Aborted(error))
        })
    }

    fn expected(&self) -> Expected<'_> {
        Expected { host: self.way.host(), port: self.way.port(), encrypted: self.way.encrypted() }
    }

    fn answer(
        &self,
        mut response: Response<Incoming>,
        upgrade: Option<hyper::upgrade::OnUpgrade>,
        applied: &Applied,
        admitted: &Admitted,
    ) -> Result<Response<OutBody>, Failure> {
        let masks = (!applied.masks.is_empty()).then(|| Replacer::masking(applied.masks.iter().cloned()));
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = upgrade else {
                return Err(Refusal::upstream("the server changed the protocol unasked").into());
            };
            let server = hyper::upgrade::on(&mut response);
            self.tasks.spawn(join_upgraded(client, server, masks.clone(), Arc::clone(admitted)));
        }
        let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let (mut parts, body) = response.into_parts();
        tidy_answer(&mut parts, switching);
        if !applied.header_masks.is_empty() {
            let masks = Replacer::masking(applied.header_masks.iter().cloned());
            replace_headers(&mut parts.headers, &masks);
        }
        let Some(masks) = masks else {
            return Ok(Response::from_parts(parts, self.buffered(body)));
        };
        let encoded = parts.headers.get(CONTENT_ENCODING).is_some_and(|kind| kind != "identity");
        if encoded {
            return Err(Refusal::upstream(
                "the server answered compressed though it was asked not to, and the rule wants its answers masked",
            )
            .into());
        }
        replace_headers(&mut parts.headers, &masks);
        Ok(Response::from_parts(parts, self.buffered(Replaced::new(body, masks))))
    }

    fn buffered<B>(&self, body: B) -> OutBody
    where
        B: http_body::Body<Data = Bytes, Error = hyper::Error> + Send + Sync + Unpin + 'static,
    {
        Buffered::new(body, Arc::clone(self.way.budget())).map_err(BoxError::from).boxed()
    }
}

/// Takes the HTTP/1 requests of a client apart.
pub(super) fn parser() -> http1::Builder {
    let mut parser = http1::Builder::new();
    parser
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX_COUNT)
        .preserve_header_case(true);
    parser
}

/// Writes the address of a request, whichever the client wrote, in the form of the protocol.
pub(super) fn address(request: &mut Request<OutBody>, to: Expected<'_>, protocol: Protocol) {
    let standard = if to.encrypted { 443 } else { 80 };
    let authority = match to.port {
        port if port == standard => to.host.to_string(),
        port => format!("{}:{port}", to.host),
    };
    let path = request.uri().path_and_query().cloned();
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = path;
    match protocol {
        Protocol::Http1 => {
            *request.version_mut() = Version::HTTP_11;
            if let Ok(value) = HeaderValue::from_str(&authority) {
                request.headers_mut().insert(HOST, value);
            }
            let has_body = !request.body().is_end_stream();
            frame_body(request.headers_mut(), has_body);
        }
        Protocol::Http2 => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            parts.scheme = Some(http::uri::Scheme::HTTPS);
            parts.authority = authority.parse().ok();
        }
    }
    if let Ok(uri) = http::Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

pub(super) fn wants_upgrade<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11 && upgrade(request.headers()).is_some()
}

pub(super) fn tidy_request(headers: &mut HeaderMap, upgrade: bool) {
    let protocol = strip_hop_by_hop(headers);
    if let Some(protocol) = protocol.filter(|_| upgrade) {
        set_upgrade(headers, protocol);
    }
    // The body is asked for when the server takes it: the client hears "100" from here.
    headers.remove(EXPECT);
}

fn tidy_answer(parts: &mut http::response::Parts, switching: bool) {
    let protocol = strip_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = protocol.filter(|_| switching) {
        set_upgrade(&mut parts.headers, protocol);
    }
    // Only the gateway itself says that it refused something.
    unmark(&mut parts.headers);
    // It would lead the client to another port, or to QUIC, which goes nowhere from here.
    parts.headers.remove(ALT_SVC);
    // A text of the server's own that no client needs, and that could hold a secret.
    parts.extensions.remove::<ReasonPhrase>();
    parts.version = Version::HTTP_11;
}

/// The body as it goes out, with placeholders replaced where a rule wants it.
pub(super) async fn outgoing(
    headers: &mut HeaderMap,
    body: Incoming,
    applied: &Applied,
    budget: &Arc<Budget>,
) -> Result<OutBody, Refusal> {
    if applied.body.is_empty() {
        return Ok(Buffered::new(body, Arc::clone(budget)).map_err(BoxError::from).boxed());
    }
    let replacer = Replacer::new(applied.body.iter().cloned());
    let small = body.size_hint().upper().and_then(|upper| u32::try_from(upper).ok());
    let place = small.filter(|upper| *upper <= BODY_WHOLE_MAX_BYTES).and_then(|upper| budget.try_hold(upper));
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRANSFER_ENCODING);
    let Some(place) = place else {
        let body = Replaced::new(body, replacer);
        return Ok(Buffered::new(body, Arc::clone(budget)).map_err(BoxError::from).boxed());
    };
    // Many servers want to know the length, and of a small body it can be known.
    let whole = Limited::new(body, BODY_WHOLE_MAX_BYTES as usize).collect().await;
    let whole = whole
        .map_err(|_error| Refusal::too_large("the request's body broke off or is longer than it said"))?;
    let bytes = Bytes::from(replacer.whole(&whole.to_bytes()));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    let never = |never: Infallible| -> BoxError { match never {} };
    Ok(Full::new(paid(bytes, place)).map_err(never).boxed())
}

/// Carries bytes between both sides of a connection that changed its protocol.
async fn join_upgraded(
    client: hyper::upgrade::OnUpgrade,
    server: hyper::upgrade::OnUpgrade,
    masks: Option<Replacer>,
    _admitted: Admitted,
) {
    let (client, server) = match tokio::try_join!(client, server) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a change of protocol failed");
            return;
        }
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    let done = match masks {
        None => tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop),
        Some(masks) => copy_masked(client, server, masks).await,
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection with a changed protocol broke off");
    }
}

async fn copy_masked(client: impl Io, server: impl Io, mut masks: Replacer) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let out = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let back = async {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let count = from_server.read(&mut buffer).await?;
            let settled = if count == 0 { masks.finish() } else { masks.push(&buffer[..count]) };
            to_client.write_all(&settled).await?;
            if count == 0 {
                return to_client.shutdown().await;
            }
        }
    };
    tokio::try_join!(out, back).map(drop)
}
