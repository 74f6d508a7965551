//! What a browser must show before a session counts.
//!
//! The browser sends a cookie with every request, whichever page caused it, so the cookie alone opens nothing that
//! changes something: `Origin` must be the dashboard's own, and the token that only its page can read must be there. A
//! request that only reads is refused when the browser says that another site or origin asks (`Sec-Fetch-Site`), since
//! reading may wake a sandbox.

use atoll_core::secret::Secret;
use http::header::{ORIGIN, UPGRADE};
use http::{HeaderMap, HeaderName, Method};

use crate::sessions::matches;
use crate::site::Site;

/// Carries the CSRF token of a session.
pub const CSRF: HeaderName = HeaderName::from_static("x-atoll-csrf");
/// Says which site caused a request, in relation to where it goes: Fetch Metadata Request Headers.
const FETCH_SITE: &str = "sec-fetch-site";
/// Set on what a browser fetches before its user asked for it.
const PURPOSES: [&str; 2] = ["sec-purpose", "purpose"];

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another web site, or another origin of this one, caused it.
    Foreign,
    /// It changes something and does not say which site caused it.
    Anonymous,
    /// The token is missing or wrong.
    Csrf,
}

impl Refusal {
    /// In words.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Foreign => "the request comes from another web site",
            Self::Anonymous => "a request with a session must say where it comes from, in 'Origin'",
            Self::Csrf => "the CSRF token is missing or wrong",
        }
    }
}

/// Whether a request may change something.
fn may_change(method: &Method, headers: &HeaderMap) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) || headers.contains_key(UPGRADE)
}

/// Refuses a request that another origin caused.
///
/// # Errors
/// [`Refusal::Foreign`], [`Refusal::Anonymous`].
pub fn check_origin(method: &Method, headers: &HeaderMap, site: &Site) -> Result<(), Refusal> {
    let mut origins = headers.get_all(ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (Some(origin), None) if origin.as_bytes() == site.origin.as_bytes() => {}
        (None, _) if may_change(method, headers) => return Err(Refusal::Anonymous),
        (None, _) => {}
        (Some(_), _) => return Err(Refusal::Foreign),
    }
    let asked_by = headers.get(FETCH_SITE).map(http::HeaderValue::as_bytes);
    let own = asked_by.is_none_or(|site| matches!(site, b"same-origin" | b"none"));
    if own { Ok(()) } else { Err(Refusal::Foreign) }
}

/// Refuses a request that changes something without the token. WebSockets cannot carry it: their origin has to do.
///
/// # Errors
/// [`Refusal::Csrf`].
pub fn check_csrf(method: &Method, headers: &HeaderMap, csrf: &Secret) -> Result<(), Refusal> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let shown = headers.get(CSRF).and_then(|value| value.to_str().ok());
    if shown.is_some_and(|shown| matches(shown, csrf)) { Ok(()) } else { Err(Refusal::Csrf) }
}

/// Whether the user followed a link from outside the browser or typed it: no page of another origin led there. Browsers
/// that say nothing are believed.
#[must_use]
pub fn is_typed(headers: &HeaderMap) -> bool {
    let asked_by = headers.get(FETCH_SITE).map(http::HeaderValue::as_bytes);
    asked_by.is_none_or(|site| matches!(site, b"same-origin" | b"none"))
}

/// Whether a browser only fetches in advance.
#[must_use]
pub fn is_prefetched(headers: &HeaderMap) -> bool {
    PURPOSES.iter().any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn origin(method: &Method, pairs: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let site = Site { origin: "http://console.localhost:4600".to_owned(), secure: false, local: true };
        check_origin(method, &headers, &site)
    }

    const OWN: (&str, &str) = ("origin", "http://console.localhost:4600");

    #[test]
    fn its_own_page_may() {
        assert_eq!(origin(&Method::POST, &[OWN]), Ok(()));
        assert_eq!(origin(&Method::POST, &[OWN, ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(origin(&Method::GET, &[("upgrade", "websocket"), OWN]), Ok(()));
        assert_eq!(origin(&Method::GET, &[]), Ok(()));
        assert_eq!(origin(&Method::GET, &[("sec-fetch-site", "none")]), Ok(()));
    }

    #[test]
    fn others_may_not() {
        for foreign in [
            "null",
            "http://console.localhost",
            "https://console.localhost:4600",
            "http://console.localhost:46000",
            "http://3000-web.localhost:4600",
            "http://localhost:4600",
            "http://evil.example",
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                assert_eq!(origin(&method, &[("origin", foreign)]), Err(Refusal::Foreign), "{foreign}");
            }
        }
        assert_eq!(origin(&Method::POST, &[OWN, OWN]), Err(Refusal::Foreign));
        for site in ["same-site", "cross-site", "x"] {
            assert_eq!(origin(&Method::GET, &[("sec-fetch-site", site)]), Err(Refusal::Foreign), "{site}");
        }
        for method in [Method::POST, Method::OPTIONS, Method::CONNECT] {
            assert_eq!(origin(&method, &[]), Err(Refusal::Anonymous), "{method}");
        }
        assert_eq!(origin(&Method::GET, &[("upgrade", "websocket")]), Err(Refusal::Anonymous));
    }

    #[test]
    fn what_changes_something_has_the_token() {
        let csrf = Secret::new("token");
        let with = |text| HeaderMap::from_iter([(CSRF, HeaderValue::from_static(text))]);
        assert_eq!(check_csrf(&Method::GET, &HeaderMap::new(), &csrf), Ok(()));
        assert_eq!(check_csrf(&Method::POST, &with("token"), &csrf), Ok(()));
        for wrong in ["", "toke", "token2", "TOKEN"] {
            assert_eq!(check_csrf(&Method::POST, &with(wrong), &csrf), Err(Refusal::Csrf), "{wrong}");
        }
        assert_eq!(check_csrf(&Method::OPTIONS, &HeaderMap::new(), &csrf), Err(Refusal::Csrf));
    }
}
