//! Ports by host name: `3000-<uuid of a sandbox>.<domain>`, or `3000-<token>.<domain>` for a signed address.
//!
//! | shown, in this order | |
//! |---|---|
//! | nothing | for a port that is public, and for a signed address, whose name says it all |
//! | `Authorization: Bearer` with an API key | what the app itself expects there passes through |
//! | `X-Daytona-Preview-Token`, `DAYTONA_SANDBOX_AUTH_KEY` in the query | a preview token |
//! | the cookie that the first page sets that was asked for with a token | only for requests that no other site caused |
//!
//! The credential is taken out of the request: the server inside must not see it.

use atoll_core::access::parse_port;
use atoll_core::id::{AccessId, SandboxId};
use atoll_dialect_kit::uuid;
use atoll_engine::{Asked, Grant};
use atoll_server::Forward;
use atoll_server::dialect::{ClientGone, Named};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::App;
use crate::error::{Failure, Result, Source};
use crate::who::{self, TOKEN_HEADER, TOKEN_PARAMETER};

/// A signed address begins with it, behind the port.
const SIGNED: &str = "s";
/// Characters of an id behind its prefix.
const ID_CHARS: usize = 20;
/// Characters of the code that makes a signed address: hexadecimal digits, 64 bits. With a port of five digits the whole
/// is 63 characters, the longest name there is.
pub(crate) const CODE_CHARS: usize = 16;
/// Life of the cookie, seconds.
const COOKIE_S: u32 = 3600;
/// A header for Daytona's proxy, which the server inside must not see.
const SKIP_ACTIVITY: HeaderName = HeaderName::from_static("x-daytona-skip-last-activity-update");

/// The sandbox and port that a host name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Destination {
    port: u16,
    to: To,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum To {
    /// A sandbox, by its id.
    Sandbox(String),
    /// The port for which this address was made.
    Signed(Signed),
}

/// A signed address: an access, and a code that only this installation can make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signed {
    pub(crate) sandbox: SandboxId,
    pub(crate) access: AccessId,
    pub(crate) code: String,
}

impl Signed {
    /// The form in a host name: the ids without their prefixes, which are the same in all.
    pub(crate) fn label(&self) -> String {
        let sandbox = self.sandbox.as_str().trim_start_matches(SandboxId::PREFIX);
        let access = self.access.as_str().trim_start_matches(AccessId::PREFIX);
        format!("{SIGNED}{sandbox}{access}{}", self.code)
    }

    /// Reads the form in a host name.
    pub(crate) fn parse(label: &str) -> Option<Self> {
        let rest = label.strip_prefix(SIGNED)?;
        if rest.len() != 2 * ID_CHARS + CODE_CHARS || !rest.is_ascii() {
            return None;
        }
        let (sandbox, rest) = rest.split_at(ID_CHARS);
        let (access, code) = rest.split_at(ID_CHARS);
        Some(Self {
            sandbox: format!("{}{sandbox}", SandboxId::PREFIX).parse().ok()?,
            access: format!("{}{access}", AccessId::PREFIX).parse().ok()?,
            code: code.to_owned(),
        })
    }
}

/// Whether a host name is one of this dialect's. Host names with an id or a name of Atoll's own are not.
pub(crate) fn is_ours(named: &Named<'_>) -> bool {
    parse(named.label).is_some()
}

fn parse(label: &str) -> Option<Destination> {
    let (port, rest) = label.split_once('-')?;
    let port = parse_port(port)?;
    let id = uuid::sandbox(rest);
    if id != rest {
        return Some(Destination { port, to: To::Sandbox(id) });
    }
    Signed::parse(rest).map(|signed| Destination { port, to: To::Signed(signed) })
}

/// The address of a host name: with the scheme and port under which the client reached this server.
pub(crate) fn address(
    app: &App,
    label: &str,
    sandbox: &SandboxId,
    port: u16,
    host: Option<&str>,
) -> Result<String> {
    let own = app.host.ingress().port_url(sandbox, port, host)?;
    let (scheme, rest) = own.split_once("://").unwrap_or(("http", own.as_str()));
    let port =
        rest.trim_end_matches('/').rsplit_once(':').map(|(_, port)| format!(":{port}")).unwrap_or_default();
    Ok(format!("{scheme}://{label}.{}{port}", app.host.ports_domain()))
}

/// Answers a request for a port.
pub(crate) async fn serve(app: &App, label: &str, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match forward(app, label, request).await {
        Ok(response) => response,
        Err(failure) => failure.from(Source::Proxy).response(&method, &path),
    }
}

async fn forward(app: &App, label: &str, mut request: Request) -> Result<Response> {
    Asked::of_anybody();
    let no_port = || Failure::not_found("no sandbox has this address");
    let Destination { port, to } = parse(label).ok_or_else(no_port)?;
    let engine = app.host.engine();
    request.headers_mut().remove(SKIP_ACTIVITY);
    let (sandbox, grant) = match to {
        To::Signed(signed) => {
            let grant = who::by_signed(engine, &signed, port).await?;
            (signed.sandbox, grant)
        }
        To::Sandbox(text) => {
            let id: SandboxId = text.parse().map_err(|_malformed| no_token())?;
            match admit(app, &id, port, &mut request).await? {
                Admitted::Grant(grant) => (id, grant),
                Admitted::Page(response) => return Ok(response),
            }
        }
    };
    let to = Forward { sandbox, port, prefix: None, keep_host: true, tls: false, grant };
    let (ingress, headers) = (app.host.ingress(), request.headers().clone());
    // When the client goes, the forwarded request ends.
    let client = ClientGone::of(request.extensions());
    let forwarding = Box::pin(ingress.forward(request, to));
    let forwarded = client.unless_gone(forwarding).await?;
    Ok(forwarded.unwrap_or_else(|error| ingress.page(error, &headers)))
}

/// The answer is the same whether the sandbox is there or not.
fn no_token() -> Failure {
    who::refused("a preview token is needed: X-Daytona-Preview-Token, or an API key as bearer")
}

enum Admitted {
    Grant(Grant),
    /// The same page again, now that the token is in a cookie.
    Page(Response),
}

fn cookie_name(sandbox: &SandboxId) -> String {
    format!("daytona-sandbox-auth-{}", uuid::of_sandbox(sandbox))
}

/// Finds the right to use the port, and takes the credential out of the request.
async fn admit(app: &App, sandbox: &SandboxId, port: u16, request: &mut Request) -> Result<Admitted> {
    let engine = app.host.engine();
    let token = who::preview_token(request.headers(), request.uri().query());
    let cookie = take_cookie(request.headers_mut(), &cookie_name(sandbox));
    let by_link = request.headers().get(&TOKEN_HEADER).is_none();
    request.headers_mut().remove(&TOKEN_HEADER);
    if let Some(uri) = without_token(request.uri()) {
        *request.uri_mut() = uri;
    }
    let ours = app.host.verify(request.headers()).is_ok();
    let by_token = who::of_port(app, request.headers(), token.as_deref(), sandbox).await;
    if ours {
        request.headers_mut().remove(AUTHORIZATION);
    }
    match (by_token, token) {
        (Ok(Some(_)), Some(token)) if by_link && !ours && is_page(request) => {
            return Ok(Admitted::Page(keep(request.uri(), sandbox, &token)));
        }
        (Ok(Some(grant)), _) => return Ok(Admitted::Grant(grant)),
        _ => {}
    }
    if let Some(access) = engine.public_access(sandbox, port) {
        return Ok(Admitted::Grant(Grant::of_link(access)));
    }
    let kept = cookie.filter(|_| !is_foreign(request.headers(), app.host.ports_domain(), sandbox));
    match kept {
        Some(token) => {
            let grant = who::of_port(app, &HeaderMap::new(), Some(&token), sandbox).await?;
            grant.map(Admitted::Grant).ok_or_else(no_token)
        }
        None => Err(no_token()),
    }
}

/// Whether a browser asks for a page, and not a program for an answer.
fn is_page(request: &Request) -> bool {
    let html = request
        .headers()
        .get(ACCEPT)
        .is_some_and(|accept| accept.as_bytes().windows(9).any(|part| part == b"text/html"));
    request.method() == Method::GET && html
}

/// Puts the token of a link into a cookie and goes on to the same page without it.
fn keep(uri: &Uri, sandbox: &SandboxId, token: &str) -> Response {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // A path that begins with two slashes would name another host.
    let path = format!("/{}", path.trim_start_matches('/'));
    let cookie =
        format!("{}={token}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Lax", cookie_name(sandbox));
    let mut response = StatusCode::FOUND.into_response();
    for (name, text) in [(LOCATION, path), (SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())] {
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The address without the token in its query; `None` when there is none.
fn without_token(uri: &Uri) -> Option<Uri> {
    let is_token = |pair: &&str| pair.split('=').next() == Some(TOKEN_PARAMETER);
    let query = uri.query()?;
    query.split('&').find(is_token)?;
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    let text =
        if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

/// Takes this dialect's cookie out of those that a browser sent.
fn take_cookie(headers: &mut HeaderMap, name: &str) -> Option<String> {
    let mut found = None;
    let mut others: Vec<String> = Vec::new();
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else { continue };
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((own, token)) if own == name => found = Some(token.to_owned()),
                _ => others.push(pair.to_owned()),
            }
        }
    }
    if found.is_some() {
        headers.remove(COOKIE);
        if let Ok(value) = HeaderValue::try_from(others.join("; "))
            && !value.is_empty()
        {
            headers.insert(COOKIE, value);
        }
    }
    found
}

/// Whether another site caused the request, as far as the browser says: the browser adds a cookie by itself.
fn is_foreign(headers: &HeaderMap, domain: &str, sandbox: &SandboxId) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(origin) = text(ORIGIN) {
        // Other ports of the same sandbox may use the cookie.
        let host = origin.split_once("://").map_or(origin, |(_, host)| host);
        let label = atoll_core::access::below_domain(host, domain).map(str::to_ascii_lowercase);
        let to = label.as_deref().and_then(parse).map(|found| found.to);
        return to != Some(To::Sandbox(sandbox.to_string())) && Some(host) != text(HOST);
    }
    let site = text(HeaderName::from_static("sec-fetch-site")).unwrap_or("none");
    !matches!(site, "none" | "same-origin")
        && text(HeaderName::from_static("sec-fetch-mode")) != Some("navigate")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "019aabcd-1234-7abc-8000-00123456789a";

    #[test]
    fn only_our_host_names_are_taken() {
        let id = uuid::sandbox(UUID);
        assert_eq!(parse(&format!("3000-{UUID}")), Some(Destination { port: 3000, to: To::Sandbox(id) }));
        let signed = Signed {
            sandbox: SandboxId::from_parts(1, 2),
            access: AccessId::from_parts(3, 4),
            code: "0123456789abcdef".to_owned(),
        };
        let label = format!("65535-{}", signed.label());
        assert_eq!(label.len(), 63);
        assert_eq!(parse(&label), Some(Destination { port: 65535, to: To::Signed(signed) }));
        assert!(parse(&label[..62]).is_none() && parse(&format!("{label}0")).is_none());
        for other in ["3000-web", "3000-sb0123456789abcdefghjk", "api", "0-x", &format!("x-{UUID}"), UUID] {
            assert!(parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn what_opens_the_door_is_taken_out() {
        let of = |text: &str| without_token(&text.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(of("/a?b=1&DAYTONA_SANDBOX_AUTH_KEY=x&c=2").as_deref(), Some("/a?b=1&c=2"));
        assert_eq!(of("/a?DAYTONA_SANDBOX_AUTH_KEY=x").as_deref(), Some("/a"));
        assert_eq!(of("/a?b=1"), None);
        let mut headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("a=1; ours=t; b=2"))]);
        assert_eq!(take_cookie(&mut headers, "ours").as_deref(), Some("t"));
        assert_eq!(headers[COOKIE], "a=1; b=2");
        assert_eq!(take_cookie(&mut headers, "ours"), None);
    }

    #[test]
    fn cookies_are_for_nobody_else() {
        let sandbox: SandboxId = uuid::sandbox(UUID).parse().unwrap();
        let of = |pairs: &[(HeaderName, &str)]| {
            let pair =
                |(name, text): &(HeaderName, &str)| (name.clone(), HeaderValue::from_str(text).unwrap());
            is_foreign(&pairs.iter().map(pair).collect(), "d.example", &sandbox)
        };
        let own = format!("http://80-{UUID}.d.example:4600");
        let site = HeaderName::from_static("sec-fetch-site");
        assert!(!of(&[]) && !of(&[(ORIGIN, &own)]) && !of(&[(site.clone(), "same-origin")]));
        assert!(of(&[(ORIGIN, "https://evil.example")]) && of(&[(site, "cross-site")]));
    }
}
