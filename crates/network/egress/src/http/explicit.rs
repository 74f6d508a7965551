//! The explicit proxy: requests that name their destination, and `CONNECT`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use atoll_core::policy::{HostName, Http};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;

use super::forward::{Upstream, forward};
use super::request::{bad, boxed, host, port, unreachable, without_port};
use super::{Request, Response};
use crate::client::ClientStream;
use crate::connection::{Context, Target};
use crate::dns::Resolution;
use crate::interceptor::{Ask, Protocol};
use crate::refusal::text;
use crate::route::route;
use atoll_core::network::Stage;

/// Port of a URI that does not name one.
const HTTP_PORT: u16 = 80;

/// The answer when the gateway itself is asked, as a web server at `address`: the list of its refusals. There they can
/// be read also by users of clients that show nothing of a refusal, because the client saw only a name that does not
/// exist or a connection that ended.
pub(super) fn own(request: &Request, context: &Context, address: IpAddr) -> Option<Response> {
    let host = request.headers().get(http::header::HOST)?.to_str().ok()?;
    let asked = request.method() == Method::GET
        && request.uri().scheme().is_none()
        && request.uri().path() == "/"
        && without_port(host).parse() == Ok(address);
    asked.then(|| boxed(text(StatusCode::OK, context.net.denied_text())))
}

pub(super) async fn answer(request: Request, context: Context, upstream: &Arc<Mutex<Upstream>>) -> Response {
    if request.method() == Method::CONNECT {
        return connect(request, context).await;
    }
    if request.uri().scheme_str() != Some("http") {
        return bad("this is a proxy: write http://HOST/PATH, or CONNECT HOST:PORT for anything else");
    }
    let named = match host(&request) {
        Ok(Some(named)) => named,
        Ok(None) => return bad("it names no host"),
        Err(why) => return bad(why),
    };
    let at = port(&named).unwrap_or(HTTP_PORT);
    let what = format!("{} {}", request.method(), request.uri());
    let targets = match targets(&context, without_port(&named), at, &what).await {
        Ok(targets) => targets,
        Err(response) => return *response,
    };
    let (method, path) = (request.method().as_str(), request.uri().path());
    let policy = context.net.policy();
    let http = Http::Request { method, path };
    // The first that rules allow, or that is only observed; when none is, the first says why.
    let chosen = targets.iter().find(|t| t.decide(&policy, http).by_rules);
    let chosen = chosen.or_else(|| targets.iter().find(|t| t.decide(&policy, http).observed));
    let chosen = chosen.or(targets.first()).cloned();
    let Some(target) = chosen else { return unreachable(&named, "the name has no address") };
    if let (Some(interceptor), [name]) = (&context.shared.config.interceptor, &*target.names) {
        let (sandbox, address, protocol) = (&context.net.id, target.address, Protocol::Http);
        let sender = target.sender.as_deref();
        if interceptor.wants(&Ask { sandbox, policy: &policy, name, address, protocol, sender }) {
            context.connection.show("http", &target);
            return interceptor.answer(request, name.clone(), context.dialer(target.clone())).await;
        }
    }
    forward(request, &context.dialer(target), upstream).await
}

async fn connect(mut request: Request, context: Context) -> Response {
    let Some(named) = request.uri().authority().map(|authority| authority.as_str().to_owned()) else {
        return bad("CONNECT wants HOST:PORT");
    };
    let Some(at) = port(&named).filter(|_| !named.contains('@')) else {
        return bad("CONNECT wants HOST:PORT");
    };
    let what = format!("CONNECT {named}");
    let targets = match targets(&context, without_port(&named), at, &what).await {
        Ok(targets) => targets,
        Err(response) => return *response,
    };
    // Traffic inside the tunnel is decided upon when it is sent. A tunnel in which nothing could be
    // allowed is refused now, where the client can read the refusal.
    let policy = context.net.policy();
    let passes =
        |t: &&Target| t.decide(&policy, Http::Unknown).by_rules || policy.needs_http(&t.destination());
    let observed = |t: &&Target| t.decide(&policy, Http::Unknown).observed;
    let target = targets.iter().find(passes).or_else(|| targets.iter().find(observed));
    let Some(target) = target.cloned() else {
        let Some(target) = targets.first() else { return unreachable(&named, "the name has no address") };
        let ruling = target.decide(&policy, Http::Unknown);
        let refusal = target.refusal(&policy, ruling.basis, Stage::Connect, what);
        context.net.deny(&refusal);
        return boxed(refusal.response());
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        // It was this type that was given to the parser.
        let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream>>() else { return };
        let mut client = parts.io.into_inner();
        client.put_back(&parts.read_buf);
        let name = target.names.first().cloned();
        if let Err(error) = route(context, client, target.address, name).await {
            tracing::debug!(%error, "a tunnel of the explicit proxy broke off");
        }
    });
    let mut response = http::Response::new(
        http_body_util::Empty::new().map_err(|never: std::convert::Infallible| match never {}).boxed_unsync(),
    );
    *response.status_mut() = StatusCode::OK;
    response
}

/// The addresses that a host has, as our resolver says. The sandbox counts as having been told.
async fn targets(context: &Context, host: &str, port: u16, what: &str) -> Result<Vec<Target>, Box<Response>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![Target::new(context, Vec::new(), SocketAddr::new(address, port))]);
    }
    let Ok(name) = host.parse::<HostName>() else { return Err(Box::new(bad("it names no host"))) };
    match context.shared.resolver.addresses(&context.net, &name, what).await {
        Resolution::Addresses(addresses) => {
            let target = |ip: &IpAddr| Target::new(context, vec![name.clone()], SocketAddr::new(*ip, port));
            Ok(addresses.iter().map(target).collect())
        }
        Resolution::Refused(refusal) => Err(Box::new(boxed(refusal.response()))),
        Resolution::Failed(why) => Err(Box::new(unreachable(host, why))),
    }
}
