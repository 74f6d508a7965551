//! An issuer over real sockets that says what each test wants it to say.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use atoll_core::person::Person;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::code::now_s;
use crate::{Issuer, IssuerConfig, Polled, Verified};

const CLIENT: &str = "atoll";
const BACK: &str = "http://console.localhost:4600/login/oidc/callback";

/// A key pair of the issuer.
struct Pair {
    id: &'static str,
    signs: EcdsaKeyPair,
    public: Value,
}

fn pair(id: &'static str) -> Pair {
    let signs = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let (x, y) = coordinates(signs.public_key().as_ref());
    let public =
        json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256", "x": x, "y": y});
    Pair { id, signs, public }
}

fn coordinates(point: &[u8]) -> (String, String) {
    let (x, y) = point[1..].split_at(point.len() / 2);
    (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y))
}

/// A token that `sign` signs.
fn token(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn sign(pair: &Pair, claims: &Value) -> String {
    token(&json!({"alg": "ES256", "kid": pair.id}), claims, |message| ecdsa(&pair.signs, message))
}

fn ecdsa(pair: &EcdsaKeyPair, message: &[u8]) -> Vec<u8> {
    pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
}

fn hmac(secret: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec()
}

type Answers = Arc<Mutex<HashMap<String, (u16, String)>>>;

/// An issuer that answers each path with what was set.
struct Fake {
    url: String,
    answers: Answers,
}

impl Fake {
    async fn start() -> Self {
        let answers = Answers::default();
        let say = |State(answers): State<Answers>, uri: Uri| async move {
            let (status, body) =
                answers.lock().unwrap().get(uri.path()).cloned().unwrap_or((404, String::new()));
            let status = StatusCode::from_u16(status).unwrap();
            (status, [("location", "http://127.0.0.1:1/elsewhere")], body)
        };
        let router = Router::new().fallback(say).with_state(Arc::clone(&answers));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let fake = Self { url, answers };
        fake.set("/.well-known/openid-configuration", 200, fake.metadata());
        fake
    }

    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.url);
        json!({"issuer": self.url, "authorization_endpoint": at("/auth"), "token_endpoint": at("/token"),
            "jwks_uri": at("/keys"), "device_authorization_endpoint": at("/device")})
    }

    fn set(&self, path: &str, status: u16, body: impl ToString) {
        self.answers.lock().unwrap().insert(path.to_owned(), (status, body.to_string()));
    }

    fn keys(&self, pairs: &[&Pair]) {
        let keys: Vec<_> = pairs.iter().map(|pair| pair.public.clone()).collect();
        self.set("/keys", 200, json!({ "keys": keys }));
    }

    fn gives(&self, token: &str) {
        self.set("/token", 200, json!({"id_token": token, "access_token": "access", "token_type": "Bearer"}));
    }

    fn issuer(&self) -> Issuer {
        Issuer::new(IssuerConfig {
            url: self.url.clone(),
            client_id: CLIENT.to_owned(),
            client_secret: Some(Secret::new("s:e&c")),
            scopes: vec!["email".to_owned()],
            claims: vec!["groups".to_owned(), "email".to_owned()],
        })
        .unwrap()
    }

    fn claims(&self, nonce: &str) -> Value {
        json!({"iss": self.url, "sub": "ann-1", "aud": CLIENT, "exp": now_s() + 60, "iat": now_s(), "nonce": nonce,
            "email": "ann@example.com", "email_verified": true, "groups": ["a", "b"]})
    }
}

/// The parts of where a browser is sent.
fn sent(location: &str) -> HashMap<String, String> {
    reqwest::Url::parse(location).unwrap().query_pairs().into_owned().collect()
}

/// One login, in which the issuer signs what `change` makes of good claims.
async fn log_in(
    fake: &Fake,
    issuer: &Issuer,
    token: impl FnOnce(Value) -> String,
) -> Result<Verified, Error> {
    let begun = issuer.begin_in_browser(BACK).await?;
    let asked = sent(&begun.location);
    fake.gives(&token(fake.claims(&asked["nonce"])));
    issuer.finish_in_browser(&begun.kept, &format!("code=c&state={}", asked["state"])).await
}

fn code(result: Result<Verified, Error>) -> Code {
    result.unwrap_err().code
}

#[tokio::test]
async fn a_login_in_a_browser() {
    let (fake, pair) = (Fake::start().await, pair("1"));
    fake.keys(&[&pair]);
    let issuer = fake.issuer();
    let begun = issuer.begin_in_browser(BACK).await.unwrap();
    let asked = sent(&begun.location);
    assert!(begun.location.starts_with(&format!("{}/auth?", fake.url)), "{}", begun.location);
    let expected = [
        ("response_type", "code"),
        ("client_id", CLIENT),
        ("redirect_uri", BACK),
        ("scope", "openid email"),
        ("code_challenge_method", "S256"),
    ];
    for (name, value) in expected {
        assert_eq!(asked[name], value, "{name}");
    }
    assert!(
        !begun.location.contains("verifier")
            && asked["state"].len() >= 43
            && asked["nonce"] != asked["state"]
    );
    let verified = log_in(&fake, &issuer, |claims| sign(&pair, &claims)).await.unwrap();
    let Person { issuer: url, subject, email, claims } = verified.person;
    assert_eq!(
        (url, subject.as_str(), email.as_deref()),
        (fake.url.clone(), "ann-1", Some("ann@example.com"))
    );
    assert_eq!(claims["groups"], ["a", "b"]);
    assert_eq!(claims["email"], ["ann@example.com"]);
}

#[tokio::test]
async fn what_is_not_the_login_that_began_is_refused() {
    let (fake, pair) = (Fake::start().await, pair("1"));
    fake.keys(&[&pair]);
    let issuer = fake.issuer();
    let (one, two) =
        (issuer.begin_in_browser(BACK).await.unwrap(), issuer.begin_in_browser(BACK).await.unwrap());
    let (first, second) = (sent(&one.location), sent(&two.location));
    fake.gives(&sign(&pair, &fake.claims(&first["nonce"])));
    let state = &first["state"];
    for query in [
        String::new(),
        "code=c".to_owned(),
        format!("code=c&state={}", second["state"]),
        format!("code=c&state={state}x"),
        format!("code=c&state=x&state={state}"),
        format!("code=c&code=d&state={state}"),
        format!("state={state}"),
        format!("state={state}&error=access_denied"),
    ] {
        assert_eq!(code(issuer.finish_in_browser(&one.kept, &query).await), Code::Unauthorized, "{query}");
    }
    let good = format!("code=c&state={state}");
    assert_eq!(code(issuer.finish_in_browser(&Secret::new("{}"), &good).await), Code::Unauthorized);
    let other = format!("{good}&iss=https%3A%2F%2Fevil.example");
    assert_eq!(code(issuer.finish_in_browser(&one.kept, &other).await), Code::IssuerInvalid);
    assert!(issuer.finish_in_browser(&one.kept, &good).await.is_ok());
    // The nonce of one login does not serve another.
    let query = format!("code=c&state={}", second["state"]);
    assert_eq!(code(issuer.finish_in_browser(&two.kept, &query).await), Code::IssuerInvalid);
    let mut late: Value = serde_json::from_str(one.kept.reveal()).unwrap();
    late["until_s"] = json!(now_s() - 1);
    assert_eq!(
        code(issuer.finish_in_browser(&Secret::new(late.to_string()), &good).await),
        Code::Unauthorized
    );
}

#[tokio::test]
async fn what_the_issuer_signs_must_hold() {
    let (fake, good, other) = (Fake::start().await, pair("1"), pair("1"));
    fake.keys(&[&good]);
    let issuer = fake.issuer();
    let url = fake.url.clone();
    let with = |changes: &[(&str, Value)]| {
        let changes: Vec<_> =
            changes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let good = &good;
        move |mut claims: Value| {
            for (name, value) in changes {
                match value {
                    Value::Null => drop(claims.as_object_mut().unwrap().remove(&name)),
                    value => claims[&name] = value,
                }
            }
            sign(good, &claims)
        }
    };
    for changes in [
        vec![("iss", json!("https://evil.example"))],
        vec![("iss", json!(format!("{url}/")))],
        vec![("iss", Value::Null)],
        vec![("aud", json!("another"))],
        vec![("aud", json!([]))],
        vec![("aud", Value::Null)],
        vec![("aud", json!([CLIENT, "another"]))],
        vec![("azp", json!("another"))],
        vec![("azp", json!(7))],
        vec![("exp", json!(now_s() - 61))],
        vec![("exp", Value::Null)],
        vec![("exp", json!("tomorrow"))],
        vec![("nbf", json!(now_s() + 120))],
        vec![("iat", json!(now_s() + 120))],
        vec![("iat", Value::Null)],
        vec![("nonce", json!("another"))],
        vec![("nonce", Value::Null)],
        vec![("sub", Value::Null)],
        vec![("sub", json!(""))],
        vec![("sub", json!("a\nb"))],
        vec![("sub", json!("a".repeat(513)))],
        vec![("groups", json!(vec!["a"; 1001]))],
    ] {
        assert_eq!(code(log_in(&fake, &issuer, with(&changes)).await), Code::IssuerInvalid, "{changes:?}");
    }
    for changes in [
        vec![("exp", json!(now_s() - 30))],
        vec![("nbf", json!(now_s() + 30)), ("iat", json!(now_s() + 30))],
        vec![("aud", json!([CLIENT, "another"])), ("azp", json!(CLIENT))],
    ] {
        let verified = log_in(&fake, &issuer, with(&changes)).await;
        assert!(verified.is_ok(), "{changes:?}: {verified:?}");
    }
    // Signed with another key under the same name, not signed, signed with the public key, which everybody knows.
    assert_eq!(code(log_in(&fake, &issuer, |claims| sign(&other, &claims)).await), Code::IssuerInvalid);
    for alg in ["none", "None", "ES256", "HS256", ""] {
        let unsigned = |claims: Value| token(&json!({"alg": alg, "kid": "1"}), &claims, |_| Vec::new());
        assert_eq!(code(log_in(&fake, &issuer, unsigned).await), Code::IssuerInvalid, "{alg}");
    }
    let public = good.public["x"].as_str().unwrap().as_bytes();
    let by_hmac =
        |claims: Value| token(&json!({"alg": "HS256", "kid": "1"}), &claims, |message| hmac(public, message));
    assert_eq!(code(log_in(&fake, &issuer, by_hmac).await), Code::IssuerInvalid);
    for header in [
        json!({"alg": "ES384", "kid": "1"}),
        json!({"alg": "ES256", "kid": "2"}),
        json!({"alg": "ES256", "kid": "1", "crit": ["exp"]}),
    ] {
        let odd = |claims: Value| token(&header, &claims, |message| ecdsa(&good.signs, message));
        assert_eq!(code(log_in(&fake, &issuer, odd).await), Code::IssuerInvalid, "{header}");
    }
    // The claims of one token under the signature of another.
    let swapped = |claims: Value| {
        let (mine, theirs) = (sign(&good, &claims), sign(&good, &json!({"sub": "eve"})));
        format!("{}.{}", theirs.rsplit_once('.').unwrap().0, mine.rsplit_once('.').unwrap().1)
    };
    assert_eq!(code(log_in(&fake, &issuer, swapped).await), Code::IssuerInvalid);
    for nonsense in ["", "a.b.c", "a.b", &"a".repeat(70_000)] {
        assert_eq!(code(log_in(&fake, &issuer, |_| nonsense.to_owned()).await), Code::IssuerInvalid);
    }
}

#[tokio::test]
async fn a_secret_that_is_published_as_a_key_signs_nothing() {
    let fake = Fake::start().await;
    let secret = b"0123456789abcdef0123456789abcdef";
    let key = json!({"kty": "oct", "kid": "1", "k": URL_SAFE_NO_PAD.encode(secret)});
    fake.set("/keys", 200, json!({"keys": [key, {"kty": "new"}, 7]}));
    let signed =
        |claims: Value| token(&json!({"alg": "HS256", "kid": "1"}), &claims, |message| hmac(secret, message));
    assert_eq!(code(log_in(&fake, &fake.issuer(), signed).await), Code::IssuerInvalid);
}

#[tokio::test]
async fn every_kind_of_key_signs_its_own() {
    let fake = Fake::start().await;
    let rng = SystemRandom::new();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let (n, e) = {
        let public = rsa.public_key();
        (
            public.modulus().big_endian_without_leading_zero().to_vec(),
            public.exponent().big_endian_without_leading_zero().to_vec(),
        )
    };
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let (x, y) = coordinates(p384.public_key().as_ref());
    let ed = Ed25519KeyPair::generate().unwrap();
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    // With a zero before the number, as some issuers write it.
    let n0 = text(&[&[0], n.as_slice()].concat());
    fake.set(
        "/keys",
        200,
        json!({"keys": [
            {"kty": "RSA", "kid": "rsa", "n": n0, "e": text(&e)},
            {"kty": "RSA", "kid": "pinned", "alg": "RS256", "n": text(&n), "e": text(&e)},
            {"kty": "RSA", "kid": "sealing", "use": "enc", "n": text(&n), "e": text(&e)},
            {"kty": "EC", "kid": "p384", "crv": "P-384", "x": x, "y": y},
            {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": text(ed.public_key().as_ref())},
        ]}),
    );
    let by_rsa = |padding: &'static dyn RsaEncoding, message: &[u8]| {
        let mut signature = vec![0; rsa.public_modulus_len()];
        rsa.sign(padding, &rng, message, &mut signature).unwrap();
        signature
    };
    let issuer = fake.issuer();
    for (kid, alg, good) in [
        ("rsa", "RS256", true),
        ("rsa", "PS512", true),
        ("rsa", "HS256", false),
        ("pinned", "RS256", true),
        ("pinned", "PS512", false),
        ("sealing", "RS256", false),
        ("p384", "ES384", true),
        ("p384", "ES256", false),
        ("ed", "EdDSA", true),
        ("ed", "ES256", false),
    ] {
        let signed = |claims: Value| {
            token(&json!({"alg": alg, "kid": kid}), &claims, |message| match (kid, alg) {
                (_, "HS256") => hmac(&n, message),
                ("p384", _) => ecdsa(&p384, message),
                ("ed", _) => ed.sign(message).as_ref().to_vec(),
                (_, "PS512") => by_rsa(&RSA_PSS_SHA512, message),
                _ => by_rsa(&RSA_PKCS1_SHA256, message),
            })
        };
        let result = log_in(&fake, &issuer, signed).await;
        assert_eq!(result.is_ok(), good, "{kid} {alg}: {result:?}");
    }
    // Several could be meant by a token that names none.
    let nameless = |claims: Value| {
        token(&json!({"alg": "RS256"}), &claims, |message| by_rsa(&RSA_PKCS1_SHA256, message))
    };
    assert_eq!(code(log_in(&fake, &issuer, nameless).await), Code::IssuerInvalid);
}

#[tokio::test]
async fn keys_change() {
    let (fake, old, new) = (Fake::start().await, pair("old"), pair("new"));
    fake.keys(&[&old]);
    let issuer = fake.issuer();
    log_in(&fake, &issuer, |claims| sign(&old, &claims)).await.unwrap();
    fake.keys(&[&new]);
    // The keys are not fetched again at once, however many tokens name keys that the issuer does not have.
    assert_eq!(code(log_in(&fake, &issuer, |claims| sign(&new, &claims)).await), Code::IssuerInvalid);
    issuer.known.lock().await.forget_keys_for_a_while();
    log_in(&fake, &issuer, |claims| sign(&new, &claims)).await.unwrap();
    assert_eq!(code(log_in(&fake, &issuer, |claims| sign(&old, &claims)).await), Code::IssuerInvalid);
}

#[tokio::test]
async fn an_address_counts_when_it_is_verified() {
    let (fake, pair) = (Fake::start().await, pair("1"));
    fake.keys(&[&pair]);
    for (verified, counts) in [
        (json!(true), true),
        (json!("true"), true),
        (json!(false), false),
        (json!(1), false),
        (Value::Null, false),
    ] {
        let signed = |mut claims: Value| {
            claims["email_verified"] = verified.clone();
            sign(&pair, &claims)
        };
        let person = log_in(&fake, &fake.issuer(), signed).await.unwrap().person;
        assert_eq!(
            (person.email.is_some(), !person.claims["email"].is_empty()),
            (counts, counts),
            "{verified}"
        );
    }
}

#[tokio::test]
async fn what_is_not_in_the_token_is_asked_for_beside_it() {
    let (fake, pair) = (Fake::start().await, pair("1"));
    fake.keys(&[&pair]);
    let mut metadata = fake.metadata();
    metadata["userinfo_endpoint"] = json!(format!("{}/me", fake.url));
    fake.set("/.well-known/openid-configuration", 200, &metadata);
    let bare = |mut claims: Value| {
        for name in ["groups", "email", "email_verified"] {
            claims.as_object_mut().unwrap().remove(name);
        }
        sign(&pair, &claims)
    };
    fake.set("/me", 200, json!({"sub": "ann-1", "groups": "one", "email": "a@b.c", "email_verified": true}));
    let person = log_in(&fake, &fake.issuer(), bare).await.unwrap().person;
    assert_eq!(
        (person.claims["groups"].clone(), person.email.as_deref()),
        (vec!["one".to_owned()], Some("a@b.c"))
    );
    for other in [json!({"sub": "eve"}), json!({"groups": ["admin"]}), json!(["sub"])] {
        fake.set("/me", 200, &other);
        assert_eq!(code(log_in(&fake, &fake.issuer(), bare).await), Code::IssuerInvalid, "{other}");
    }
    // The signed claims come first.
    fake.set("/me", 200, json!({"sub": "ann-1", "groups": ["admin"]}));
    let unmailed = |mut claims: Value| {
        claims.as_object_mut().unwrap().remove("email");
        sign(&pair, &claims)
    };
    let person = log_in(&fake, &fake.issuer(), unmailed).await.unwrap().person;
    assert_eq!(person.claims["groups"], ["a", "b"]);
}

#[tokio::test]
async fn an_issuer_that_lies_about_itself() {
    let fake = Fake::start().await;
    let begin = async |change: &dyn Fn(&mut Value)| {
        let mut metadata = fake.metadata();
        change(&mut metadata);
        fake.set("/.well-known/openid-configuration", 200, metadata);
        fake.issuer().begin_in_browser(BACK).await.map(drop).map_err(|error| error.code)
    };
    assert_eq!(begin(&|_| {}).await, Ok(()));
    for (name, value) in [
        ("issuer", json!("https://evil.example")),
        ("issuer", Value::Null),
        ("token_endpoint", json!("http://evil.example/token")),
        ("token_endpoint", json!("file:///etc/passwd")),
        ("authorization_endpoint", json!("javascript:alert(1)")),
        ("authorization_endpoint", json!("https://user:password@evil.example/")),
        ("jwks_uri", json!("http://169.254.169.254/keys")),
        ("jwks_uri", json!(7)),
    ] {
        let refused = begin(&|metadata| metadata[name] = value.clone()).await;
        assert_eq!(refused, Err(Code::IssuerInvalid), "{name} {value}");
    }
}

#[tokio::test]
async fn answers_are_bounded_and_lead_nowhere() {
    let fake = Fake::start().await;
    let path = "/.well-known/openid-configuration";
    for (status, body, expected) in [
        (302, fake.metadata().to_string(), Code::IssuerInvalid),
        (200, format!("{}{}", fake.metadata(), " ".repeat(2 << 20)), Code::IssuerInvalid),
        (200, "<html>".to_owned(), Code::IssuerInvalid),
        (404, String::new(), Code::IssuerInvalid),
        (500, String::new(), Code::IssuerUnavailable),
    ] {
        fake.set(path, status, body);
        let refused = fake.issuer().begin_in_browser(BACK).await.unwrap_err();
        assert_eq!(refused.code, expected, "{status}: {refused}");
    }
    let config = IssuerConfig { url: "http://127.0.0.1:1".to_owned(), ..fake.issuer().config };
    let refused = Issuer::new(config).unwrap().begin_in_browser(BACK).await.unwrap_err();
    assert_eq!(refused.code, Code::IssuerUnavailable);
    assert!(!format!("{:?}", fake.issuer()).contains("s:e&c"));
}

#[tokio::test]
async fn addresses_that_cannot_be_an_issuer() {
    let issuer = |url: &str| {
        let (client_id, url) = (CLIENT.to_owned(), url.to_owned());
        Issuer::new(IssuerConfig {
            url,
            client_id,
            client_secret: None,
            scopes: Vec::new(),
            claims: Vec::new(),
        })
    };
    for good in
        ["https://id.example.com", "https://id.example.com/realms/a", "http://localhost:1", "http://[::1]:1"]
    {
        assert!(issuer(good).is_ok(), "{good}");
    }
    for wrong in [
        "",
        "id.example.com",
        "http://id.example.com",
        "https://id.example.com/?a=b",
        "https://a:b@id.example.com",
        "ftp://localhost",
    ] {
        assert_eq!(issuer(wrong).unwrap_err().code, Code::InvalidArgument, "{wrong}");
    }
}

#[tokio::test]
async fn a_login_on_a_device() {
    let (fake, pair) = (Fake::start().await, pair("1"));
    fake.keys(&[&pair]);
    let issuer = fake.issuer();
    let answer = json!({"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": "https://id.example.com/device",
        "expires_in": 600, "interval": 0});
    fake.set("/device", 200, &answer);
    let begun = issuer.begin_on_device().await.unwrap();
    assert_eq!((begun.user_code.as_str(), begun.interval_s, begun.address_with_code), ("ABCD-EFGH", 1, None));
    let denied = |error: &str| fake.set("/token", 400, json!({ "error": error }));
    denied("authorization_pending");
    assert!(matches!(issuer.poll_device(&begun.kept).await, Ok(Polled::Pending)));
    denied("slow_down");
    assert!(matches!(issuer.poll_device(&begun.kept).await, Ok(Polled::Slower)));
    for error in ["expired_token", "access_denied", "\u{1b}[2J"] {
        denied(error);
        let refused = issuer.poll_device(&begun.kept).await.unwrap_err();
        assert!(refused.code == Code::Unauthorized && !refused.message.contains('\u{1b}'), "{refused}");
    }
    fake.gives(&sign(&pair, &fake.claims("")));
    let Polled::Verified(verified) = issuer.poll_device(&begun.kept).await.unwrap() else {
        panic!("it is done")
    };
    assert_eq!((verified.person.subject.as_str(), verified.exchange.as_str()), ("ann-1", "device d"));
    assert_eq!(issuer.poll_device(&Secret::new("x")).await.unwrap_err().code, Code::Unauthorized);
    for (name, value) in [
        ("user_code", json!("\u{1b}]0;title\u{7}")),
        ("user_code", json!("")),
        ("user_code", json!("a".repeat(65))),
        ("verification_uri", json!("javascript:alert(1)")),
        ("verification_uri", json!("http://evil.example/")),
        ("device_code", json!("d".repeat(5000))),
    ] {
        let mut answer = answer.clone();
        answer[name] = value.clone();
        fake.set("/device", 200, answer);
        assert_eq!(issuer.begin_on_device().await.unwrap_err().code, Code::IssuerInvalid, "{name} {value}");
    }
}

#[tokio::test]
async fn not_many_can_have_the_issuer_asked_at_once() {
    let fake = Fake::start().await;
    let issuer = fake.issuer();
    let turns: Vec<_> = (0..crate::BUSY_MAX_COUNT).map(|_| issuer.turn().unwrap()).collect();
    assert_eq!(issuer.begin_in_browser(BACK).await.unwrap_err().code, Code::LimitExceeded);
    drop(turns);
    assert!(issuer.begin_in_browser(BACK).await.is_ok());
}
