//! Where clients put their key: to build [`super::Dialect::credential`] from.

use atoll_core::secret::Secret;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use zeroize::Zeroizing;

/// The whole value of a header.
#[must_use]
pub fn header(headers: &HeaderMap, name: &str) -> Option<Secret> {
    Some(Secret::new(headers.get(name)?.to_str().ok()?.trim()))
}

/// `Authorization: Bearer …`.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<Secret> {
    of_scheme(headers, "bearer").map(Secret::new)
}

/// As the native API takes it: `Authorization: Bearer …`, or else `X-API-Key`.
#[must_use]
pub fn bearer_or_api_key(headers: &HeaderMap) -> Option<Secret> {
    if headers.contains_key(AUTHORIZATION) {
        return bearer(headers);
    }
    header(headers, "x-api-key")
}

/// User and password of `Authorization: Basic …`.
#[must_use]
pub fn basic(headers: &HeaderMap) -> Option<(String, Secret)> {
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(of_scheme(headers, "basic")?).ok()?);
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), Secret::new(password)))
}

/// An id and a secret in two headers, joined by a colon as keys in two parts are. A secret that is a whole key of this
/// installation counts alone: the id is then ignored.
#[must_use]
pub fn pair(headers: &HeaderMap, id: &str, secret: &str) -> Option<Secret> {
    let (id, secret) = (header(headers, id)?, header(headers, secret)?);
    if secret.reveal().starts_with("atoll_") {
        return Some(secret);
    }
    Some(Secret::new(format!("{}:{}", id.reveal(), secret.reveal())))
}

fn of_scheme<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let (given, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    fn text(secret: Option<Secret>) -> Option<String> {
        secret.map(|secret| secret.reveal().to_owned())
    }

    #[test]
    fn keys_are_found_where_clients_put_them() {
        let sent = headers(&[("authorization", "bEARER  k1 "), ("x-api-key", "k2")]);
        assert_eq!(text(bearer(&sent)).as_deref(), Some("k1"));
        assert_eq!(text(bearer_or_api_key(&sent)).as_deref(), Some("k1"));
        assert_eq!(text(header(&sent, "x-api-key")).as_deref(), Some("k2"));
        assert_eq!(text(bearer_or_api_key(&headers(&[("x-api-key", "k2")]))).as_deref(), Some("k2"));
        // When `Authorization` is there but shows no key, `X-API-Key` is not looked at.
        assert_eq!(text(bearer_or_api_key(&headers(&[("authorization", "x"), ("x-api-key", "k")]))), None);
        assert_eq!(text(bearer(&headers(&[]))), None);
    }

    #[test]
    fn basic_has_a_user_and_a_password() {
        let (user, password) = basic(&headers(&[("authorization", "Basic dTpwOnE=")])).unwrap();
        assert_eq!((user.as_str(), password.reveal()), ("u", "p:q"));
        for bad in ["Basic ", "Basic !", "Basic dQ==", "Bearer dTpw"] {
            assert!(basic(&headers(&[("authorization", bad)])).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_pair_is_one_key() {
        let of = |id: &'static str, secret: &'static str| {
            text(pair(&headers(&[("x-id", id), ("x-secret", secret)]), "x-id", "x-secret"))
        };
        assert_eq!(of("ak-1", "as-2").as_deref(), Some("ak-1:as-2"));
        assert_eq!(of("any", "atoll_k").as_deref(), Some("atoll_k"));
        assert_eq!(text(pair(&headers(&[("x-id", "a")]), "x-id", "x-secret")), None);
    }
}
