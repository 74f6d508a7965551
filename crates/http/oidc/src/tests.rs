//! An issuer over real sockets that says what each test wants it to say.

mod issuers;
mod logins;
mod tokens;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::code::now_s;
use crate::{Issuer, IssuerConfig, Verified};

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
