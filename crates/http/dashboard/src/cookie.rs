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

/// The names that it has: no server inside a sandbox may see or set one of them.
pub const COOKIES: [&str; 2] = [NAME, SECURE_NAME];

const fn name(secure: bool) -> &'static str {
    if secure { SECURE_NAME } else { NAME }
}

/// Whether the name of a cookie is ours. Browsers compare prefixes without regard to case.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    COOKIES.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// The session of a request. `None` also when there are several: one of them is not from here.
#[must_use]
pub fn session_of(headers: &HeaderMap, secure: bool) -> Option<&str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut own = pairs.filter(|(found, _)| *found == name(secure)).map(|(_, value)| value);
    let first = own.next()?;
    own.next().is_none().then_some(first)
}

/// What makes a browser keep a session.
#[must_use]
pub fn of_session(token: &str, max_age_s: u64, secure: bool) -> Option<HeaderValue> {
    let end = if secure { "; Secure" } else { "" };
    let name = name(secure);
    let text = format!("{name}={token}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{end}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What makes a browser forget its session.
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
    fn one_session_is_found() {
        assert_eq!(session_of(&headers(&["a=b; atoll_console=t"]), false), Some("t"));
        assert_eq!(session_of(&headers(&["a=b", "__Host-atoll_console=t"]), true), Some("t"));
        assert_eq!(
            session_of(&headers(&["atoll_console=t"]), true),
            None,
            "that name can be set by siblings"
        );
        assert_eq!(session_of(&headers(&["xatoll_console=t; atoll_consol=t"]), false), None);
        assert_eq!(session_of(&headers(&["atoll_console=a; atoll_console=b"]), false), None);
        assert_eq!(session_of(&headers(&["atoll_console=a", "atoll_console=a"]), false), None);
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
