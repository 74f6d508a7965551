//! The cookie that holds a session.
//!
//! Under HTTPS its name begins with `__Host-`: browsers then take it only from this very host, so that no sibling (a
//! port of a sandbox below the same domain) can put one of its own there. They take such a name over HTTPS only, also
//! on loopback; there the plain name has to do, and siblings of `console.localhost` cannot set cookies for
//! it, since browsers treat `localhost` as a public suffix.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

const NAME: &str = "atoll_console";
const SECURE_NAME: &str = "__Host-atoll_console";

/// Sessions of one request that are looked at.
const SHOWN_MAX: usize = 8;

/// The cookie of a login that has begun, until the browser is back from the issuer of identities. The issuer is another
/// site, so the browser sends this cookie also when it follows a link from another site ([`of_login`]).
const LOGIN: &str = "atoll_login";
const SECURE_LOGIN: &str = "__Host-atoll_login";

/// The names that they have: no server inside a sandbox may see or set one of them.
pub const COOKIES: [&str; 4] = [NAME, SECURE_NAME, LOGIN, SECURE_LOGIN];

const fn name(secure: bool) -> &'static str {
    if secure { SECURE_NAME } else { NAME }
}

const fn login(secure: bool) -> &'static str {
    if secure { SECURE_LOGIN } else { LOGIN }
}

/// Whether the name of a cookie is ours. Browsers compare prefixes without regard to case.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    COOKIES.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// The tokens that a request shows for its session. There are several when another server has set a cookie of that
/// name, too: a server on another port of this host can.
pub fn sessions_of(headers: &HeaderMap, secure: bool) -> impl Iterator<Item = &str> {
    named(headers, name(secure))
}

/// The same of logins that have begun.
pub fn logins_of(headers: &HeaderMap, secure: bool) -> impl Iterator<Item = &str> {
    named(headers, login(secure))
}

fn named<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(found, _)| *found == name).map(|(_, value)| value).take(SHOWN_MAX)
}

/// The value of `Set-Cookie` that makes a browser keep a session.
#[must_use]
pub fn of_session(token: &str, max_age_s: u64, secure: bool) -> Option<HeaderValue> {
    set(name(secure), token, max_age_s, "Strict", secure)
}

/// The value that makes a browser keep a login that has begun: the cookie is sent when another site leads here, since
/// the issuer does.
#[must_use]
pub fn of_login(sealed: &str, max_age_s: u64, secure: bool) -> Option<HeaderValue> {
    set(login(secure), sealed, max_age_s, "Lax", secure)
}

/// The value that makes a browser forget it.
#[must_use]
pub fn cleared_login(secure: bool) -> Option<HeaderValue> {
    of_login("", 0, secure)
}

fn set(name: &str, value: &str, max_age_s: u64, same_site: &str, secure: bool) -> Option<HeaderValue> {
    let end = if secure { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite={same_site}{end}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The value that makes a browser forget its session.
#[must_use]
pub fn cleared(secure: bool) -> Option<HeaderValue> {
    of_session("", 0, secure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(COOKIE, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn sessions_are_found() {
        let of =
            |values, secure| sessions_of(&headers(values), secure).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(of(&["a=b; atoll_console=t"], false), ["t"]);
        assert_eq!(of(&["a=b", "__Host-atoll_console=t"], true), ["t"]);
        assert!(of(&["atoll_console=t"], true).is_empty(), "that name can be set by siblings");
        assert!(of(&["xatoll_console=t; atoll_consol=t"], false).is_empty());
        assert_eq!(of(&["atoll_console=a; atoll_console=b", "atoll_console=c"], false), ["a", "b", "c"]);
        assert_eq!(of(&["atoll_console=a;"; 20], false).len(), SHOWN_MAX);
    }

    #[test]
    fn flags() {
        let text = |secure| of_session("t", 9, secure).unwrap().to_str().unwrap().to_owned();
        assert_eq!(text(false), "atoll_console=t; Path=/; Max-Age=9; HttpOnly; SameSite=Strict");
        let secure = "__Host-atoll_console=t; Path=/; Max-Age=9; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(text(true), secure);
        assert!(of_session("a\nb", 1, true).is_none());
        assert!(of_session("t", 1, true).unwrap().is_sensitive());
    }

    #[test]
    fn names_are_kept_for_us() {
        assert!(is_ours(b"atoll_console") && is_ours(b"__host-ATOLL_console"));
        assert!(!is_ours(b"atoll_port") && !is_ours(b"console"));
    }
}
