//! What requests may hold on connections that the gateway looks into, found by coverage: `make fuzz`. It also runs for a
//! short time with the other tests.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::policy::{HostName, InjectRule, KEY_HEADERS, SecretRef};
use atoll_core::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bolero::check;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body::Body as _;
use hyper::body::Incoming;

use super::apply::{Asking, apply};
use super::authority::Protocol;
use super::check::{Expected, check as belongs};
use super::escape::{percent_decoded, percent_encoded, shown_forms};
use super::session::{address, outgoing, parser, tidy_request, wants_upgrade};
use super::upstream::writer;
use crate::budget::{Budget, Common};

use super::{OpenedSecret, OutBody, SecretSource, SecretUsed, meter};
use crate::fuzz::wire::{Heard, Requests, Way};

const HOST: &str = "api.example.com";
const SECRET: &str = "s3cret-value";
/// What stands for the secret inside; short, so that it is found by chance.
const TOKEN: &str = "~k~";

#[derive(Debug)]
struct Fixed;

#[async_trait]
impl SecretSource for Fixed {
    fn open(&self, _: &SandboxId, _: &SecretRef, _: &HostName) -> atoll_core::Result<OpenedSecret> {
        Ok(OpenedSecret { value: Secret::new(SECRET), version: 1 })
    }

    async fn used(&self, _used: SecretUsed) -> atoll_core::Result<()> {
        Ok(())
    }
}

/// What the gateway knows of a request that passes.
#[derive(Debug, Clone, PartialEq)]
struct Judged {
    /// As the client sent them.
    headers: HeaderMap,
    /// How many uses of the secret are recorded.
    uses: usize,
}

/// A placeholder is replaced in the usual headers for keys, and in bodies.
fn rule() -> InjectRule {
    let placeholder = serde_json::json!({"secret": "KEY", "value": TOKEN, "body": true});
    let rule = serde_json::json!({"name": "r", "hosts": [HOST], "placeholders": [placeholder]});
    serde_json::from_value(rule).unwrap()
}

/// As a session does it, with the policy left out.
async fn judged(request: Request<Incoming>, rule: Arc<InjectRule>) -> Option<(Judged, Request<OutBody>)> {
    let host: HostName = HOST.parse().unwrap();
    let expected = Expected { host: &host, port: 443, encrypted: true };
    belongs(&request, expected).ok()?;
    let upgrade = wants_upgrade(&request);
    let (mut parts, body) = request.into_parts();
    let headers = parts.headers.clone();
    tidy_request(&mut parts.headers, upgrade);
    let rules = [&*rule];
    meter::unmark(&mut parts.headers, &rules);
    let sandbox = SandboxId::from_parts(1, 1);
    let asking = Asking { sandbox: &sandbox, host: &host, secrets: &Fixed };
    let applied = apply(&mut parts, !body.is_end_stream(), &rules, asking).ok()?;
    let body = outgoing(&mut parts.headers, body, &applied, &Budget::new(&Common::of_host())).await.ok()?;
    let mut request = Request::from_parts(parts, body);
    address(&mut request, expected, Protocol::Http1);
    Some((Judged { headers, uses: applied.uses.len() }, request))
}

fn passed(bytes: &[u8], piece: usize) -> Requests<Judged> {
    let rule = Arc::new(rule());
    Way { parser: parser(), writer: writer() }
        .pass(bytes, piece, move |request| judged(request, Arc::clone(&rule)))
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Whether a header holds a text, also within `Basic` credentials.
fn holds(value: &HeaderValue, text: &str) -> bool {
    let decoded =
        value.to_str().ok().and_then(|value| value.split_once(' ')).and_then(|(scheme, encoded)| {
            let basic = scheme.eq_ignore_ascii_case("basic");
            basic.then(|| BASE64.decode(encoded.trim()).ok()).flatten()
        });
    has(value.as_bytes(), text) || decoded.is_some_and(|decoded| has(&decoded, text))
}

fn is_for_credentials(name: &HeaderName) -> bool {
    *name == AUTHORIZATION || KEY_HEADERS.contains(&name.as_str())
}

/// A secret is in a request only as its credential, or where the request has no other; and then its use is recorded.
fn assert_secret_in_place(judged: &Judged, heard: &Heard) {
    let own = judged
        .headers
        .iter()
        .any(|(name, value)| (is_for_credentials(name) || *name == COOKIE) && !holds(value, TOKEN));
    assert!(!has(heard.target.as_bytes(), SECRET), "in the address: {heard:?}");
    let mut found = has(&heard.body, SECRET);
    assert!(!(own && found), "in the body, beside other credentials: {heard:?}");
    for (name, value) in heard.headers.iter().filter(|(_, value)| holds(value, SECRET)) {
        assert!(is_for_credentials(name), "in {name}: {heard:?}");
        let said = judged.headers.get_all(name).iter().any(|value| holds(value, TOKEN));
        assert!(said, "in {name}, where the client has put no placeholder: {heard:?}");
        let beside = judged.headers.get_all(AUTHORIZATION).iter().any(|value| !holds(value, TOKEN));
        assert!(!beside, "beside an authorization of another: {value:?} {heard:?}");
        found = true;
    }
    assert!(!found || judged.uses == 1, "a use that is not recorded: {judged:?} {heard:?}");
}

#[test]
fn requests_are_for_their_host_and_hold_a_secret_only_where_it_belongs() {
    check!().for_each(|bytes: &[u8]| {
        // What is not known inside cannot come from inside.
        if has(bytes, SECRET) {
            return;
        }
        let whole = passed(bytes, bytes.len().max(1));
        for (judged, heard) in &whole.passed {
            assert!(heard.len() <= 1, "{judged:?} became {heard:?}");
            let Some(heard) = heard.first() else { continue };
            assert_eq!(heard.only("host"), HOST.as_bytes());
            assert!(!["CONNECT", "TRACE"].contains(&heard.method.as_str()), "{heard:?}");
            assert!(heard.target.starts_with('/') || heard.target == "*", "{heard:?}");
            heard.assert_end_to_end();
            assert_secret_in_place(judged, heard);
        }
        let cut = 1 + bytes.len() % 7;
        assert_eq!(passed(bytes, cut).certain(), whole.certain(), "in pieces of {cut}");
    });
}

#[test]
fn escapes() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        assert!(percent_decoded(text).len() <= text.len());
        assert_eq!(percent_decoded(&percent_encoded(text)), text.as_bytes());
        assert!(shown_forms(text).iter().all(|form| form.len() <= 16 * text.len() + 16));
    });
}
