//! What an issuer says of itself, and the keys with which it signs. Both are asked for when they are needed, and kept for a
//! while; a key that is not known makes them be asked for again, so that an issuer may change its keys at any time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Error, Result};
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::fetch::Http;
use crate::invalid;
use crate::key::Key;

/// How long a document that was fetched counts: a key that the issuer has withdrawn works no longer than this.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Keys are fetched again for one that is not known at most this often.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long an issuer is left alone after it could not be asked: else all logins that wait would ask it again at once.
const REST: Duration = Duration::from_secs(1);
/// Keys of an issuer; others are not looked at.
const KEYS_MAX_COUNT: usize = 100;
/// Longest address, bytes.
const ADDRESS_MAX_BYTES: usize = 2048;

/// The addresses at which an issuer is asked.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) authorization_endpoint: Url,
    pub(crate) token_endpoint: Url,
    pub(crate) device_endpoint: Option<Url>,
    pub(crate) userinfo_endpoint: Option<Url>,
    /// The issuer names itself in its answers through browsers (RFC 9207).
    pub(crate) names_itself: bool,
    keys: Url,
    methods: Option<Vec<String>>,
}

impl Metadata {
    /// Whether the client's secret goes into `Authorization`: the default, and what is best.
    pub(crate) fn takes_basic(&self) -> bool {
        self.methods.as_ref().is_none_or(|methods| methods.iter().any(|one| one == "client_secret_basic"))
    }
}

#[derive(Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    device_authorization_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

#[derive(Deserialize)]
struct KeyDocument {
    keys: Vec<Value>,
}

/// The documents of an issuer that were fetched.
#[derive(Debug, Default)]
pub(crate) struct Known {
    metadata: Option<(Instant, Arc<Metadata>)>,
    keys: Option<(Instant, Arc<Vec<Key>>)>,
    failed: Option<(Instant, Error)>,
}

impl Known {
    pub(crate) async fn metadata(&mut self, http: &Http, issuer: &str) -> Result<Arc<Metadata>> {
        if let Some((at, metadata)) = &self.metadata
            && at.elapsed() < KEPT_FOR
        {
            return Ok(Arc::clone(metadata));
        }
        self.rest()?;
        let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let address = check_issuer(&address)?;
        let document = self.noted(http.document(&address).await)?;
        let metadata = Arc::new(self.noted(read(document, issuer))?);
        self.metadata = Some((Instant::now(), Arc::clone(&metadata)));
        Ok(metadata)
    }

    /// The issuer's keys, with the one that is named if there is such a one.
    pub(crate) async fn keys(
        &mut self,
        http: &Http,
        metadata: &Metadata,
        wanted: Option<&str>,
    ) -> Result<Arc<Vec<Key>>> {
        if let Some((at, keys)) = &self.keys {
            let knows = wanted.is_none_or(|id| keys.iter().any(|key| key.id.as_deref() == Some(id)));
            let age = at.elapsed();
            if age < AGAIN_AFTER || knows && age < KEPT_FOR {
                return Ok(Arc::clone(keys));
            }
        }
        self.rest()?;
        let document: KeyDocument = self.noted(http.document(&metadata.keys).await)?;
        let all = document.keys.into_iter().take(KEYS_MAX_COUNT);
        // Keys of kinds that we do not know are left out.
        let keys = Arc::new(all.filter_map(Key::read).collect::<Vec<_>>());
        self.keys = Some((Instant::now(), Arc::clone(&keys)));
        Ok(keys)
    }

    /// As if the keys had been fetched a while ago.
    #[cfg(test)]
    pub(crate) fn forget_keys_for_a_while(&mut self) {
        if let Some((at, _)) = &mut self.keys {
            *at = at.checked_sub(AGAIN_AFTER).unwrap_or(*at);
        }
    }

    fn rest(&self) -> Result<()> {
        match &self.failed {
            Some((at, error)) if at.elapsed() < REST => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        self.failed = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        result
    }
}

fn read(document: Document, issuer: &str) -> Result<Metadata> {
    if document.issuer != issuer {
        return Err(invalid(format_args!(
            "it calls itself '{}', not '{issuer}'",
            crate::readable(&document.issuer)
        )));
    }
    let is_local = check_issuer(issuer)?.scheme() == "http";
    let address = |name: &str, text: &str| {
        let url = Url::parse(text).ok().filter(|_| text.len() <= ADDRESS_MAX_BYTES);
        let good = |url: &Url| {
            may_be_asked(url) && (is_local || url.scheme() == "https") && url.fragment().is_none()
        };
        url.filter(good).ok_or_else(|| invalid(format_args!("its {name} is no https address")))
    };
    let optional =
        |name: &str, text: &Option<String>| text.as_deref().map(|text| address(name, text)).transpose();
    Ok(Metadata {
        authorization_endpoint: address("authorization_endpoint", &document.authorization_endpoint)?,
        token_endpoint: address("token_endpoint", &document.token_endpoint)?,
        keys: address("jwks_uri", &document.jwks_uri)?,
        userinfo_endpoint: optional("userinfo_endpoint", &document.userinfo_endpoint)?,
        device_endpoint: optional("device_authorization_endpoint", &document.device_authorization_endpoint)?,
        methods: document.token_endpoint_auth_methods_supported,
        names_itself: document.authorization_response_iss_parameter_supported,
    })
}

/// Reads an issuer's address.
pub(crate) fn check_issuer(text: &str) -> Result<Url> {
    let wrong = |what: &str| {
        Error::invalid("issuer", what).hint("write it as the issuer does, such as https://id.example.com")
    };
    let url = Url::parse(text).map_err(|error| wrong(&format!("is no address: {error}")))?;
    if text.len() > ADDRESS_MAX_BYTES || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("must have neither query nor fragment"));
    }
    if !may_be_asked(&url) {
        return Err(wrong("must be an https address; http only on this machine"));
    }
    Ok(url)
}

/// Whether it is safe to send a secret there: over TLS, or without leaving this machine.
pub(crate) fn may_be_asked(url: &Url) -> bool {
    let plain = url.username().is_empty() && url.password().is_none();
    let Some(host) = url.host_str().filter(|_| plain) else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    url.scheme() == "https" || url.scheme() == "http" && is_loopback
}
