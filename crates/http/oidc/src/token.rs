//! One ID token: OpenID Connect Core 1.0, section 3.1.3.7.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::Result;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::key::Key;
use crate::{IssuerConfig, invalid};

/// Longest token, bytes.
const TOKEN_MAX_BYTES: usize = 64 << 10;
/// How far the issuer's clock may be from ours.
const SKEW: Duration = Duration::from_secs(60);

/// The claims that the issuer signed.
pub(crate) type Claims = Map<String, Value>;

/// The part of a token that is about its signature.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader of the token must understand. We understand none.
    crit: Option<Value>,
}

/// A token that was read, and not verified yet.
pub(crate) struct Token<'a> {
    header: Header,
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    pub(crate) fn read(token: &'a str) -> Result<Self> {
        if token.len() > TOKEN_MAX_BYTES {
            return Err(invalid("its token is larger than 64 KiB"));
        }
        let none = || invalid("its token is none");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(none)?;
        let (header, claims) = signed.split_once('.').ok_or_else(none)?;
        let header: Header = decoded(header).ok_or_else(none)?;
        if header.crit.is_some() {
            return Err(invalid("its token wants to be understood in a way of its own"));
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_malformed| none())?;
        Ok(Self { header, signed, claims, signature })
    }

    /// The name of the key that it says it is signed with.
    pub(crate) fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Verifies it for this server. `nonce` is what the login began with, where it began with one.
    pub(crate) fn verify(&self, keys: &[Key], config: &IssuerConfig, nonce: Option<&str>) -> Result<Claims> {
        let (algorithm, wanted) = (self.header.alg.as_str(), self.key_id());
        let is_named = |key: &&Key| wanted.is_none_or(|id| key.id.as_deref() == Some(id));
        let mut fitting = keys.iter().filter(is_named).filter(|key| key.signs_with(algorithm));
        let (Some(key), None) = (fitting.next(), fitting.next()) else {
            return Err(invalid(format_args!(
                "its token names no key of its own that signs with '{}', or more than one",
                crate::readable(algorithm)
            )));
        };
        if !key.has_signed(algorithm, self.signed.as_bytes(), &self.signature) {
            return Err(invalid("its token is signed by somebody else"));
        }
        let claims: Claims = decoded(self.claims).ok_or_else(|| invalid("its token cannot be read"))?;
        check(&claims, config, nonce)?;
        Ok(claims)
    }
}

fn decoded<T: DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Whether the signed claims are for this server, for this login, and now.
fn check(claims: &Claims, config: &IssuerConfig, nonce: Option<&str>) -> Result<()> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(&config.url) {
        return Err(invalid("its token is of another issuer"));
    }
    let is_us = |value: &Value| value.as_str() == Some(&config.client_id);
    let (is_for_us, is_shared) = match claims.get("aud") {
        Some(Value::Array(all)) => (all.iter().any(is_us), all.len() > 1),
        Some(one) => (is_us(one), false),
        None => (false, false),
    };
    if !is_for_us {
        return Err(invalid("its token is for another client"));
    }
    match claims.get("azp") {
        Some(by) if !is_us(by) => return Err(invalid("its token was made for another client")),
        None if is_shared => {
            return Err(invalid("its token is for several clients and does not say for whom it was made"));
        }
        Some(_) | None => {}
    }
    if let Some(nonce) = nonce {
        let said = text("nonce").unwrap_or_default();
        verify_slices_are_equal(said.as_bytes(), nonce.as_bytes())
            .map_err(|_other| invalid("its token is of another login"))?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (early, late) = (now.saturating_sub(SKEW).as_secs_f64(), (now + SKEW).as_secs_f64());
    let moment = |name: &str| claims.get(name).and_then(Value::as_f64);
    if moment("exp").is_none_or(|end| end <= early) {
        return Err(invalid("its token has run out"));
    }
    if moment("iat").is_none_or(|made| made > late)
        || claims.contains_key("nbf") && moment("nbf").is_none_or(|from| from > late)
    {
        return Err(invalid("its token is of the future: one of the clocks is wrong"));
    }
    Ok(())
}
