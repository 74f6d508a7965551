//! Decides which clients may reach a port: those with an API key or a token, or all when the port is public.
//!
//! A credential is looked for in `X-Atoll-Token`, in the query (`atoll_token`), in `Authorization: Bearer` and
//! `X-API-Key` if the text there is one of ours, and in a cookie. Every credential of ours is taken out before the
//! request goes on: the server inside must not see it. Everything else in these places belongs to that server.
//!
//! The cookie is the only credential that a browser sends by itself, so with it alone requests that another
//! site caused are refused.

use atoll_core::access::{Target as AccessTarget, parse_host_name};
use atoll_core::id::SandboxId;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error, Result};
use atoll_engine::{Caller, Engine, Grant, Target, VerifiedAccess};
use http::header::{AUTHORIZATION, COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::cookies;
use crate::auth::HOLDER;

/// Carries a token or an API key.
pub(crate) const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-atoll-token");
/// Carries a token in a link.
pub(super) const TOKEN_PARAMETER: &str = "atoll_token";
const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
/// What tokens begin with.
const TOKEN_PREFIX: &str = "atollp_";
/// What all our secrets begin with.
const OURS: [&str; 2] = ["atoll_", TOKEN_PREFIX];
/// Longest text that can be a key or token, bytes.
const TEXT_MAX_BYTES: usize = 256;

/// The credentials that a request showed, taken out of it.
#[derive(Debug, Default)]
pub(super) struct Shown {
    header: Option<String>,
    query: Option<String>,
    bearer: Option<String>,
    api_key: Option<String>,
    cookie: Option<String>,
    /// The name that a client gives itself when several clients share one API key.
    holder: Option<String>,
}

/// Why a request may go on.
#[derive(Debug, Clone)]
pub(super) enum Admitted {
    /// By an API key.
    Key(Box<Grant>),
    /// By a token, which came in a link.
    Link(VerifiedAccess, String),
    /// By a token, or because the port is public.
    Access(VerifiedAccess),
}

impl Admitted {
    /// The right by which it goes on.
    pub(super) fn grant(&self) -> Grant {
        match self {
            Self::Key(grant) => Grant::clone(grant),
            Self::Link(access, _) | Self::Access(access) => Grant::of_link(access.clone()),
        }
    }

    /// The sandbox that it may reach.
    pub(super) fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Key(grant) => grant.sandbox(),
            Self::Link(access, _) | Self::Access(access) => Some(access.sandbox()),
        }
    }
}

fn is_ours(text: &str) -> bool {
    OURS.iter().any(|prefix| text.starts_with(prefix))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, text) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| text.trim())
}

impl Shown {
    /// Takes every credential of ours out of a request. `opens` says whether a text is one of our keys: those that
    /// look like another vendor's cannot be told from the app's own by their beginning.
    pub(super) fn take(parts: &mut Parts, opens: impl Fn(&str) -> bool) -> Self {
        let is_ours = |text: &&str| is_ours(text) || (text.len() <= TEXT_MAX_BYTES && opens(text));
        let headers = &mut parts.headers;
        let text = |value: HeaderValue| value.to_str().ok().map(str::to_owned);
        let mut shown = Self {
            header: headers.remove(TOKEN_HEADER).and_then(text),
            holder: headers.remove(HOLDER).and_then(text),
            ..Self::default()
        };
        if let Some(token) = headers.get(AUTHORIZATION).and_then(bearer).filter(is_ours).map(str::to_owned) {
            headers.remove(AUTHORIZATION);
            shown.bearer = Some(token);
        }
        let key = headers.get(API_KEY_HEADER).and_then(|value| value.to_str().ok()).filter(is_ours);
        if let Some(key) = key.map(str::to_owned) {
            headers.remove(API_KEY_HEADER);
            shown.api_key = Some(key);
        }
        shown.cookie = take_cookie(headers);
        if let Some((uri, token)) = without_token(&parts.uri) {
            parts.uri = uri;
            shown.query = Some(token);
        }
        shown
    }

    fn is_empty(&self) -> bool {
        [&self.header, &self.query, &self.bearer, &self.api_key, &self.cookie]
            .iter()
            .all(|text| text.is_none())
    }

    /// The token of a cookie or link, for pages that pass it on. Never the text of a header: that may be an API key,
    /// and a client that can send headers needs no links.
    pub(super) fn token(&self) -> Option<&str> {
        let token = self.query.as_deref().or(self.cookie.as_deref());
        token.filter(|text| text.starts_with(TOKEN_PREFIX))
    }

    /// Whether the request may reach `port` of the sandbox; without a port, all of them. `sandbox` is the one that was
    /// found under the name, if any: only a client that may know of it learns whether there is one.
    ///
    /// # Errors
    /// [`Code::Unauthorized`], [`Code::Forbidden`], [`Code::SandboxLeased`]; [`Code::SandboxNotFound`] for a key
    /// that may not know of the sandbox, or where there is none.
    pub(super) async fn admit(
        &self,
        engine: &Engine,
        named: &str,
        sandbox: Option<&SandboxId>,
        port: Option<u16>,
        foreign: impl FnOnce() -> bool,
    ) -> Result<Admitted> {
        let covers = |access: &VerifiedAccess| {
            Some(access.sandbox()) == sandbox
                && match port {
                    Some(port) => access.target().covers_port(port),
                    None => *access.target() == AccessTarget::Ports,
                }
        };
        let token = |text: &str| {
            let access = if text.len() > TEXT_MAX_BYTES { None } else { engine.verify_access(text).ok() };
            access.filter(covers)
        };
        for text in [&self.header, &self.bearer, &self.api_key].into_iter().flatten() {
            if let Some(access) = token(text) {
                return Ok(Admitted::Access(access));
            }
            if let Ok(key) = engine.verify_key(text) {
                // Roles and leases of this sandbox, as for a command in it.
                let caller = Caller::of(&key).working_as(self.holder.clone());
                return engine
                    .authorize(&caller, Needs::EXEC, Target::Sandbox(named))
                    .await
                    .map(|grant| Admitted::Key(Box::new(grant)));
            }
        }
        if let Some(text) = &self.query
            && let Some(access) = token(text)
        {
            return Ok(Admitted::Link(access, text.clone()));
        }
        let public = port.zip(sandbox).and_then(|(port, id)| engine.public_access(id, port));
        if let Some(access) = public {
            return Ok(Admitted::Access(access));
        }
        match self.cookie.as_deref().and_then(token) {
            Some(_) if foreign() => {
                Err(Error::new(Code::Forbidden, "the request comes from another web site"))
            }
            Some(access) => Ok(Admitted::Access(access)),
            None => Err(self.refusal()),
        }
    }

    fn refusal(&self) -> Error {
        if self.is_empty() {
            return Error::new(Code::Unauthorized, "this port is private").hint(
                "open the link that 'atoll port url' makes, or send a token or API key as X-Atoll-Token",
            );
        }
        Error::new(Code::Unauthorized, "the token is not valid for this port, or no longer")
            .hint("ask for a new link; 'atoll port url' makes one")
    }
}

/// Whether a request shows a credential in a place that only this protocol has: its header, its parameter, or its
/// cookie.
pub(crate) fn shows_credential(headers: &HeaderMap, uri: &Uri) -> bool {
    let cookie = |value: &HeaderValue| {
        value.as_bytes().split(|b| *b == b';').any(|pair| cookies::own(pair.trim_ascii()).is_some())
    };
    headers.contains_key(TOKEN_HEADER)
        || headers.get_all(COOKIE).iter().any(cookie)
        || without_token(uri).is_some()
}

/// Takes our cookies out; gives the token of the last.
fn take_cookie(headers: &mut HeaderMap) -> Option<String> {
    if !headers.contains_key(COOKIE) {
        return None;
    }
    let (mut rest, mut token) = (Vec::new(), None);
    for value in headers.get_all(COOKIE) {
        for pair in
            value.as_bytes().split(|b| *b == b';').map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
        {
            match cookies::own(pair) {
                Some(own) => token = own.or(token),
                None if cookies::of_dashboard(pair) => {}
                None => {
                    if !rest.is_empty() {
                        rest.extend_from_slice(b"; ");
                    }
                    rest.extend_from_slice(pair);
                }
            }
        }
    }
    headers.remove(COOKIE);
    if !rest.is_empty()
        && let Ok(value) = HeaderValue::from_bytes(&rest)
    {
        headers.insert(COOKIE, value);
    }
    token
}

/// The address without our parameter, and the parameter's value.
fn without_token(uri: &Uri) -> Option<(Uri, String)> {
    let query = uri.query()?;
    let of_token = |pair: &&str| pair.split_once('=').is_some_and(|(name, _)| name == TOKEN_PARAMETER);
    let token = query.split('&').find(of_token)?.split_once('=')?.1.to_owned();
    let rest: Vec<&str> = query.split('&').filter(|pair| !of_token(pair)).collect();
    let path = uri.path();
    let text = if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(text.parse().ok()?);
    Some((Uri::from_parts(parts).ok()?, token))
}

/// Whether another site caused the request, as far as the browser says.
pub(super) fn is_foreign(headers: &HeaderMap, engine: &Engine, sandbox: &SandboxId, domain: &str) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(origin) = headers.get(ORIGIN) {
        // Other ports of the same sandbox do not count as another site.
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        let named = host.and_then(|host| parse_host_name(host, domain));
        let id = named.and_then(|(_, named)| engine.resolve_sandbox(&named));
        return id.as_ref() != Some(sandbox);
    }
    let site = text("sec-fetch-site").unwrap_or("none");
    !matches!(site, "none" | "same-origin") && text("sec-fetch-mode") != Some("navigate")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(uri: &str, pairs: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn ours_is_taken_out_and_nothing_else() {
        let mut request = parts(
            "/a?b=1&atoll_token=atollp_x&c=2",
            &[
                ("authorization", "Bearer atoll_key"),
                ("x-api-key", "sk-of-the-app"),
                ("x-atoll-token", "atollp_y"),
                ("cookie", "a=1; atoll_port=atollp_z; atoll_console=x; __Host-atoll_console=y;b=2"),
                ("cookie", "__Host-atoll_port=atollp_w"),
            ],
        );
        let shown = Shown::take(&mut request, |_| false);
        assert_eq!(request.uri, "/a?b=1&c=2");
        assert_eq!(request.headers.get(COOKIE).unwrap(), "a=1; b=2");
        assert_eq!(request.headers.get("x-api-key").unwrap(), "sk-of-the-app");
        assert!(!request.headers.contains_key(AUTHORIZATION) && !request.headers.contains_key(TOKEN_HEADER));
        assert_eq!(shown.query.as_deref(), Some("atollp_x"));
        assert_eq!(shown.bearer.as_deref(), Some("atoll_key"));
        assert_eq!((shown.cookie.as_deref(), shown.api_key), (Some("atollp_w"), None));
    }

    #[test]
    fn links_on_a_page_carry_no_api_key() {
        let mut request =
            parts("/", &[("x-atoll-token", "atoll_key"), ("authorization", "Bearer atoll_key")]);
        assert_eq!(Shown::take(&mut request, |_| false).token(), None);
        let mut request = parts("/?atoll_token=atoll_key", &[("cookie", "atoll_port=atoll_key")]);
        assert_eq!(Shown::take(&mut request, |_| false).token(), None);
        let mut request = parts("/", &[("x-atoll-token", "atoll_key"), ("cookie", "atoll_port=atollp_z")]);
        assert_eq!(Shown::take(&mut request, |_| false).token(), Some("atollp_z"));
    }

    #[test]
    fn what_the_app_sends_passes() {
        let pairs = [("authorization", "Bearer sk-1"), ("cookie", "atoll_portal=1")];
        let mut request = parts("http://h:1/?x=%20&y", &pairs);
        let shown = Shown::take(&mut request, |_| false);
        assert!(shown.is_empty());
        assert_eq!(request.uri, "http://h:1/?x=%20&y");
        assert_eq!(request.headers.get(AUTHORIZATION).unwrap(), "Bearer sk-1");
        assert_eq!(request.headers.get(COOKIE).unwrap(), "atoll_portal=1");
        let mut request = parts("/", &[("x-api-key", "e2b_ours"), ("authorization", "Bearer e2b_theirs")]);
        let shown = Shown::take(&mut request, |text| text == "e2b_ours");
        assert_eq!((shown.api_key.as_deref(), shown.bearer), (Some("e2b_ours"), None));
        assert_eq!(request.headers.get(AUTHORIZATION).unwrap(), "Bearer e2b_theirs");
        assert!(!request.headers.contains_key("x-api-key"));
        let mut request = parts("http://h:1/?atoll_token=t", &[]);
        assert_eq!(Shown::take(&mut request, |_| false).query.as_deref(), Some("t"));
        assert_eq!(request.uri, "http://h:1/");
    }
}
