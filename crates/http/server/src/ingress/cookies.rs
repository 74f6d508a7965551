//! Cookies: our own, and those of servers inside.
//!
//! A server inside must not set a cookie for other sandboxes, which live under sibling names, nor for the
//! Atoll server itself, whose origin the form with a path shares. So `Domain` is dropped (the cookie then
//! belongs to exactly the host that set it), our own names are refused, and in the form with a path the
//! cookie is confined to that path. No proxy sees what a page's script does with `document.cookie`: put the domain of
//! sandboxes on the public suffix list, or use it for nothing but sandboxes.

use http::HeaderValue;

/// The cookie that holds a token. Under HTTPS the prefix keeps other hosts from setting it.
const NAME: &str = "atoll_port";
const SECURE_NAME: &str = "__Host-atoll_port";
/// Longest cookie of a server inside, bytes, as browsers have it.
const COOKIE_MAX_BYTES: usize = 4096;

/// The token, if a pair `name=value` of a request is our cookie: the inner option is `None` when the cookie makes no
/// sense.
#[expect(clippy::option_option, reason = "not ours, ours and unusable, ours")]
pub(super) fn own(pair: &[u8]) -> Option<Option<String>> {
    let at = pair.iter().position(|b| *b == b'=')?;
    let (name, value) = (pair[..at].trim_ascii(), &pair[at + 1..]);
    (name == NAME.as_bytes() || name == SECURE_NAME.as_bytes())
        .then(|| std::str::from_utf8(value).ok().map(str::to_owned))
}

/// Whether a pair `name=value` of a request is the dashboard's: no server inside may see it. Browsers send it to the
/// dashboard's own name alone, where no port is served.
pub(super) fn of_dashboard(pair: &[u8]) -> bool {
    let name = pair.split(|b| *b == b'=').next().unwrap_or_default();
    atoll_dashboard::is_ours(name.trim_ascii())
}

/// The cookie for a token that was in a link.
pub(super) fn for_token(token: &str, max_age_s: Option<u64>, https: bool) -> Option<HeaderValue> {
    let age = max_age_s.map(|s| format!("; Max-Age={s}")).unwrap_or_default();
    let (name, secure) = if https { (SECURE_NAME, "; Secure") } else { (NAME, "") };
    let text = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{age}{secure}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A cookie of a server inside as it may leave; `None` when it may not. `prefix` confines it to a path.
pub(super) fn confined(value: &HeaderValue, prefix: Option<&str>) -> Option<HeaderValue> {
    let bytes = value.as_bytes();
    if bytes.len() > COOKIE_MAX_BYTES {
        return None;
    }
    let mut parts = bytes.split(|b| *b == b';').map(<[u8]>::trim_ascii);
    let pair = parts.next()?;
    let name = pair[..pair.iter().position(|b| *b == b'=')?].trim_ascii();
    let own = [NAME, SECURE_NAME].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()));
    if own || atoll_dashboard::is_ours(name) {
        return None;
    }
    let mut out = pair.to_vec();
    let mut path = None;
    for attribute in parts {
        let (key, text) = match attribute.iter().position(|b| *b == b'=') {
            Some(at) => (attribute[..at].trim_ascii(), attribute[at + 1..].trim_ascii()),
            None => (attribute, &[][..]),
        };
        if key.eq_ignore_ascii_case(b"domain") {
            continue;
        }
        if prefix.is_some() && key.eq_ignore_ascii_case(b"path") {
            path = Some(text.to_vec());
            continue;
        }
        out.extend_from_slice(b"; ");
        out.extend_from_slice(attribute);
    }
    if let Some(prefix) = prefix {
        let inner = path.filter(|path| path.starts_with(b"/")).unwrap_or_else(|| b"/".to_vec());
        out.extend_from_slice(b"; Path=");
        // A server that knows the prefix has it in its paths already.
        if !inner.starts_with(prefix.as_bytes()) {
            out.extend_from_slice(prefix.as_bytes());
        }
        out.extend_from_slice(&inner);
    }
    HeaderValue::from_bytes(&out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confine(text: &str, prefix: Option<&str>) -> Option<String> {
        confined(&HeaderValue::from_str(text).unwrap(), prefix)
            .map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_cookie_belongs_to_its_host() {
        let text = "sid=1; Domain=localhost; Path=/a; HttpOnly";
        assert_eq!(confine(text, None).unwrap(), "sid=1; Path=/a; HttpOnly");
        assert_eq!(confine("sid=1;domain = .example.com ;Secure", None).unwrap(), "sid=1; Secure");
        assert_eq!(confine("sid=1", None).unwrap(), "sid=1");
    }

    #[test]
    fn ours_cannot_be_set_from_inside() {
        for text in [
            "atoll_port=x",
            "__Host-atoll_port=x; Path=/; Secure",
            "ATOLL_PORT =x",
            "atoll_console=x",
            "nothing",
        ] {
            assert_eq!(confine(text, None), None, "{text}");
        }
    }

    #[test]
    fn with_a_path_it_stays_below_it() {
        let prefix = Some("/v1/sandboxes/web/ports/80");
        assert_eq!(confine("a=1", prefix).unwrap(), "a=1; Path=/v1/sandboxes/web/ports/80/");
        assert_eq!(confine("a=1; path=/x", prefix).unwrap(), "a=1; Path=/v1/sandboxes/web/ports/80/x");
        let knows = "a=1; Path=/v1/sandboxes/web/ports/80/x";
        assert_eq!(confine(knows, prefix).unwrap(), knows);
        assert_eq!(confine("a=1; Path=x", prefix).unwrap(), "a=1; Path=/v1/sandboxes/web/ports/80/");
    }

    #[test]
    fn our_cookie_is_found() {
        assert_eq!(own(b"atoll_port=t"), Some(Some("t".to_owned())));
        assert_eq!(own(b"__Host-atoll_port=t"), Some(Some("t".to_owned())));
        assert_eq!(own(b"atoll_port=\xff"), Some(None));
        assert_eq!(own(b"atoll_ports=t"), None);
        assert_eq!(own(b"t"), None);
    }
}
