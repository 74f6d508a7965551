//! People who log in, with an issuer that signs what the test asks it to: over real sockets, as a browser and as the
//! command line.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::key::Scope;
use atoll_core::person::{Person, Rules};
use atoll_core::project::{ProjectDefaults, Quota};
use atoll_engine::{Clock, People};
use atoll_manual_clock::ManualClock;
use atoll_oidc::{Issuer, IssuerConfig};
use atoll_server::{PeopleConfig, ServerConfig};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::{COOKIE, HOST, HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Method, redirect};
use serde_json::{Value, json};

use crate::support::Harness;

/// The person who logs in next, and the nonce for it.
type Next = Arc<Mutex<(String, String)>>;

struct Fake {
    url: String,
    next: Next,
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Fake {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let next = Next::default();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let keys = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "x": text(x), "y": text(y)}]});
        let at = |path: &str| format!("{url}{path}");
        let metadata = json!({"issuer": url, "authorization_endpoint": at("/auth"), "token_endpoint": at("/token"),
            "jwks_uri": at("/keys"), "device_authorization_endpoint": at("/device")});
        let device =
            json!({"device_code": "d", "user_code": "ABCD", "verification_uri": at("/go"), "expires_in": 60});
        let (issuer, who) = (url.clone(), Arc::clone(&next));
        let token = move || {
            let (subject, nonce) = who.lock().unwrap().clone();
            let claims = json!({"iss": issuer, "sub": subject, "aud": "atoll", "exp": now_s() + 60, "iat": now_s(),
                "nonce": nonce, "email": format!("{subject}@example.com"), "email_verified": true});
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let signed = format!("{}.{}", part(&json!({"alg": "ES256", "kid": "1"})), part(&claims));
            let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
            let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()));
            async move { Json(json!({"id_token": token, "access_token": "a", "token_type": "Bearer"})) }
        };
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(async || Json(metadata)))
            .route("/keys", get(async || Json(keys)))
            .route("/device", post(async || Json(device)))
            .route("/token", post(token));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, next }
    }

    fn people(&self, login_ms: u64) -> People {
        let rules = [
            "email=ann@example.com:exec",
            "email=root@example.com:admin",
            "team=alpha:manage@alpha",
            "team=beta:manage@beta",
        ];
        let rules = rules.into_iter().map(|rule| rule.parse().unwrap()).collect();
        People { rules: Rules::new(self.url.clone(), rules), login_ms }
    }

    async fn harness(&self, login_ms: u64) -> Harness {
        self.harness_with(Clock::default(), login_ms).await
    }

    async fn harness_with(&self, clock: Clock, login_ms: u64) -> Harness {
        let change = |config: &mut ServerConfig| {
            let issuer = Issuer::new(IssuerConfig {
                url: self.url.clone(),
                client_id: "atoll".to_owned(),
                client_secret: None,
                scopes: Vec::new(),
                claims: vec!["email".to_owned()],
            });
            config.people =
                Some(PeopleConfig { issuer: Arc::new(issuer.unwrap()), name: "Example".to_owned() });
        };
        Harness::start_for(self.people(login_ms), clock, change).await
    }
}

/// A browser without a window: its cookies, and where it was sent.
struct Browser<'a> {
    harness: &'a Harness,
    client: reqwest::Client,
    cookies: Vec<(String, String)>,
}

struct Page {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Page {
    fn location(&self) -> &str {
        self.headers.get(LOCATION).map_or("", |value| value.to_str().unwrap())
    }
}

impl<'a> Browser<'a> {
    fn new(harness: &'a Harness) -> Self {
        let client = reqwest::Client::builder().redirect(redirect::Policy::none()).build().unwrap();
        Self { harness, client, cookies: Vec::new() }
    }

    fn host(&self) -> String {
        let port = self.harness.address.rsplit_once(':').unwrap().1;
        format!("console.localhost:{port}")
    }

    async fn ask(&mut self, method: Method, path: &str, more: &[(&str, &str)]) -> Page {
        let mut request = self.client.request(method, format!("http://{}{path}", self.harness.address));
        request = request.header(HOST, self.host());
        let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            request = request.header(COOKIE, cookies.join("; "));
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        for set in answer.headers().get_all(SET_COOKIE) {
            let (name, rest) = set.to_str().unwrap().split_once('=').unwrap();
            let value = rest.split(';').next().unwrap().to_owned();
            self.cookies.retain(|(known, _)| known != name);
            if !value.is_empty() {
                self.cookies.push((name.to_owned(), value));
            }
        }
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Page { status, headers, body: answer.text().await.unwrap() }
    }

    async fn get(&mut self, path: &str) -> Page {
        self.ask(Method::GET, path, &[]).await
    }

    /// Begins a login, and gives the query with which the issuer sends it back.
    async fn begin(&mut self, fake: &Fake, subject: &str) -> String {
        let page = self.get("/login/oidc").await;
        assert_eq!(page.status, 303, "{}", page.body);
        let location = reqwest::Url::parse(page.location()).unwrap();
        let find =
            |name: &str| location.query_pairs().find(|(found, _)| found == name).unwrap().1.into_owned();
        assert_eq!(find("redirect_uri"), format!("http://{}/login/oidc/callback", self.host()));
        *fake.next.lock().unwrap() = (subject.to_owned(), find("nonce"));
        format!("/login/oidc/callback?code=c&state={}", find("state"))
    }

    async fn log_in(&mut self, fake: &Fake, subject: &str) -> Page {
        let back = self.begin(fake, subject).await;
        self.get(&back).await
    }

    fn has(&self, name: &str) -> bool {
        self.cookies.iter().any(|(known, _)| known == name)
    }
}

#[tokio::test]
async fn a_login_is_of_one_browser_and_counts_once() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    // Another browser, without the cookie, or with one of a login of its own.
    let (mut browser, mut other) = (Browser::new(&harness), Browser::new(&harness));
    other.begin(&fake, "ann").await;
    let back = browser.begin(&fake, "ann").await;
    assert!(browser.has("atoll_login") && !browser.has("atoll_console"));
    let sealed = &browser.cookies[0].1;
    assert!(sealed.len() > 100, "{sealed}");
    assert_eq!(Browser::new(&harness).get(&back).await.status, 401);
    assert_eq!(other.get(&back).await.status, 401);
    assert!(other.cookies.is_empty(), "however it ended, it is over: {:?}", other.cookies);
    // Other parameters that the browser brings decide nothing.
    let page = browser.get(&format!("{back}&redirect_uri=https://evil.example&next=//evil.example")).await;
    assert_eq!((page.status, page.location()), (303, "/"), "{}", page.body);
    assert!(browser.has("atoll_console") && !browser.has("atoll_login"));
    // The same again, with what a thief copied of the browser: the issuer of this test would take the code twice.
    let mut thief = Browser::new(&harness);
    let back = thief.begin(&fake, "ann").await;
    let copied = thief.cookies.clone();
    assert_eq!(thief.get(&back).await.status, 303);
    let mut again = Browser { cookies: copied, ..Browser::new(&harness) };
    let page = again.get(&back).await;
    assert!(page.status == 401 && page.body.contains("used before"), "{}", page.body);
}

#[tokio::test]
async fn no_other_page_begins_a_login() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    let mut browser = Browser::new(&harness);
    for (method, header, expected) in [
        (Method::GET, ("sec-fetch-site", "cross-site"), 403),
        (Method::GET, ("sec-fetch-site", "same-site"), 403),
        (Method::GET, ("sec-purpose", "prefetch"), 403),
        (Method::POST, ("sec-fetch-site", "same-origin"), 405),
        (Method::GET, ("sec-fetch-site", "same-origin"), 303),
    ] {
        let page = browser.ask(method, "/login/oidc", &[header]).await;
        assert_eq!(page.status, expected, "{header:?}");
    }
    // Under any other name it is not there.
    let elsewhere = reqwest::get(format!("http://{}/login/oidc", harness.address)).await.unwrap();
    assert_eq!(elsewhere.status(), 404);
    let refused =
        browser.get("/login/oidc/callback?error=access_denied&error_description=%3Cscript%3E").await;
    assert!(refused.status == 401 && !refused.body.contains("<script>"), "{}", refused.body);
    let told: Value = serde_json::from_str(&browser.get("/login/with").await.body).unwrap();
    assert_eq!(told, json!({"name": "Example"}));
    let without = Harness::start().await;
    let mut browser = Browser::new(&without);
    assert_eq!(browser.get("/login/with").await.body, "null");
    assert_eq!(browser.get("/login/oidc").await.status, 404);
    let asked = without.bare(Method::POST, "/v1/login/device");
    assert_eq!(without.send(asked).await.status, 404);
}

#[tokio::test]
async fn a_session_of_a_person() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    let mut browser = Browser::new(&harness);
    let page = browser.log_in(&fake, "eve").await;
    assert!(page.status == 403 && page.body.contains("no rule lets eve@example.com in"), "{}", page.body);
    assert!(!browser.has("atoll_console"));
    assert_eq!(browser.log_in(&fake, "ann").await.status, 303);
    let session: Value = serde_json::from_str(&browser.get("/session").await.body).unwrap();
    let csrf = session["csrf"].as_str().unwrap().to_owned();
    assert_eq!(browser.get("/v1/sandboxes").await.status, 200);
    assert_eq!(browser.get("/v1/keys").await.status, 403);
    let origin = format!("http://{}", browser.host());
    let own = [("origin", origin.as_str()), ("x-atoll-csrf", csrf.as_str())];
    for headers in [&own[..1], &own[1..], &[("origin", "http://evil.example"), own[1]]] {
        assert_eq!(browser.ask(Method::DELETE, "/session", headers).await.status, 403, "{headers:?}");
    }
    // The cookie is no key, and the key no cookie.
    let cookie = browser.cookies.iter().find(|(name, _)| name == "atoll_console").unwrap().1.clone();
    let as_key = harness.bare(Method::GET, "/v1/sandboxes").bearer_auth(&cookie);
    assert_eq!(harness.send(as_key).await.status, 401);
    let copied = browser.cookies.clone();
    assert_eq!(browser.ask(Method::DELETE, "/session", &own).await.status, 204);
    let mut thief = Browser { cookies: copied, ..Browser::new(&harness) };
    assert_eq!(thief.get("/session").await.status, 401, "a copy of the cookie opens nothing any more");
}

async fn on_device(harness: &Harness, fake: &Fake, subject: &str) -> crate::support::Answer {
    *fake.next.lock().unwrap() = (subject.to_owned(), String::new());
    let begun = harness.send(harness.bare(Method::POST, "/v1/login/device")).await;
    assert_eq!((begun.status, &begun.body["user_code"]), (201, &json!("ABCD")));
    let login = &begun.body["login"];
    let poll = harness.bare(Method::POST, "/v1/login/device/poll").json(&json!({ "login": login }));
    harness.send(poll).await
}

#[tokio::test]
async fn a_login_on_a_device_ends_when_it_should() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    assert_eq!(on_device(&harness, &fake, "eve").await.status, 403);
    let done = on_device(&harness, &fake, "ann").await;
    assert_eq!((done.status, done.body["state"].clone()), (200, json!("done")));
    let secret = done.body["secret"].as_str().unwrap().to_owned();
    let ask = async |method: Method, path: &str, key: &str| {
        harness.send(harness.bare(method, path).bearer_auth(key)).await.status
    };
    assert_eq!(ask(Method::GET, "/v1/sandboxes", &secret).await, 200);
    assert_eq!(ask(Method::GET, "/v1/keys", &secret).await, 403);
    // The issuer of this test gives one device code to all: it opens one login.
    assert_eq!(on_device(&harness, &fake, "ann").await.status, 401);
    let admin = harness.key(Scope::Admin).to_owned();
    let listed = harness.send(harness.bare(Method::GET, "/v1/keys").bearer_auth(&admin)).await.body;
    let people: Vec<_> =
        listed["items"].as_array().unwrap().iter().filter(|key| key["person"].is_object()).collect();
    assert_eq!(people.len(), 1, "{listed}");
    assert_eq!((&people[0]["name"], &people[0]["scope"]), (&json!("ann@example.com"), &json!("exec")));
    let id = people[0]["id"].as_str().unwrap();
    assert_eq!(ask(Method::DELETE, &format!("/v1/keys/{id}/logins"), &secret).await, 403);
    assert_eq!(ask(Method::DELETE, "/v1/login", &admin).await, 409, "it came by a key");
    assert_eq!(ask(Method::DELETE, "/v1/login", &secret).await, 204);
    assert_eq!(ask(Method::GET, "/v1/sandboxes", &secret).await, 401);
    for wrong in
        [json!({}), json!({"login": ""}), json!({"login": "AAAA"}), json!({"login": "a".repeat(10_000)})]
    {
        let poll = harness.bare(Method::POST, "/v1/login/device/poll").json(&wrong);
        let status = harness.send(poll).await.status;
        assert!([401, 400, 422].contains(&status), "{status}");
    }
}

#[tokio::test]
async fn a_login_ends_with_its_time() {
    const LOGIN_MS: u64 = 8 * 3_600_000;
    let (fake, clock) = (Fake::start().await, ManualClock::at(1_800_000_000_000));
    let harness = fake.harness_with(clock.clock(), LOGIN_MS).await;
    let secret = on_device(&harness, &fake, "ann").await.body["secret"].as_str().unwrap().to_owned();
    let mut browser = Browser::new(&harness);
    assert_eq!(browser.log_in(&fake, "ann").await.status, 303);
    for (passes_ms, status) in [(LOGIN_MS - 1, 200), (1, 401)] {
        clock.advance(Duration::from_millis(passes_ms));
        let asked = harness.bare(Method::GET, "/v1/sandboxes").bearer_auth(&secret);
        assert_eq!(harness.send(asked).await.status, status);
        assert_eq!(browser.get("/v1/sandboxes").await.status, status);
    }
}

#[tokio::test]
async fn people_keep_what_they_have_and_rules_count_at_once() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    let person = |claims: &[&str]| Person {
        issuer: fake.url.clone(),
        subject: "1".to_owned(),
        email: Some("ann@example.com".to_owned()),
        claims: std::iter::once(("email".to_owned(), claims.iter().map(|&one| one.to_owned()).collect()))
            .collect(),
    };
    let log_in = async |exchange: &[u8], claims: &[&str]| {
        harness.engine.log_in(person(claims), atoll_store::LoginBy::Key, exchange).await
    };
    let first = log_in(b"1", &["ann@example.com"]).await.unwrap();
    let one = harness.engine.verify_key(first.secret.reveal()).unwrap();
    let second = log_in(b"2", &["root@example.com"]).await.unwrap();
    let two = harness.engine.verify_key(second.secret.reveal()).unwrap();
    assert_eq!(one.id, two.id, "the same person");
    assert_ne!(one.login, two.login);
    // What the issuer said last counts for both.
    let now = harness.engine.verify_key(first.secret.reveal()).unwrap();
    assert_eq!((one.scope.as_str(), two.scope.as_str(), now.scope.as_str()), ("exec", "admin", "admin"));
    assert!(log_in(b"3", &["eve@example.com"]).await.is_err());
    assert!(harness.engine.verify_key(first.secret.reveal()).is_ok(), "whom nobody lets in changes nothing");
    // Links and SSH keys are of the person, as long as one login is there.
    assert!(harness.engine.key_behind(&one.id).is_ok());
    harness.engine.end_login(one.login.as_ref().unwrap()).await.unwrap();
    assert!(harness.engine.verify_key(first.secret.reveal()).is_err());
    assert!(harness.engine.key_behind(&one.id).is_ok());
    harness.engine.end_logins_of(one.id.as_str()).await.unwrap();
    assert!(harness.engine.key_behind(&one.id).is_err());
    let third = log_in(b"4", &["ann@example.com"]).await.unwrap();
    assert_eq!(
        harness.engine.verify_key(third.secret.reveal()).unwrap().id,
        one.id,
        "they come back as who they were"
    );
    harness.engine.delete_key(one.id.as_str()).await.unwrap();
    assert!(harness.engine.verify_key(third.secret.reveal()).is_err());
    let anew = log_in(b"5", &["ann@example.com"]).await.unwrap();
    assert_ne!(harness.engine.verify_key(anew.secret.reveal()).unwrap().id, one.id);
}

/// A person whom a rule moves to another project has nothing of what they had in the project before, until they are
/// back.
#[tokio::test]
async fn in_another_project_a_person_is_somebody_else() {
    let fake = Fake::start().await;
    let harness = fake.harness(60_000).await;
    let log_in = async |exchange: &[u8], team: &str| {
        let claims = std::iter::once(("team".to_owned(), vec![team.to_owned()])).collect();
        let person = Person { issuer: fake.url.clone(), subject: "1".to_owned(), email: None, claims };
        harness.engine.log_in(person, atoll_store::LoginBy::Key, exchange).await
    };
    assert_eq!(log_in(b"0", "alpha").await.unwrap_err().code, atoll_core::Code::Forbidden, "no such project");
    for project in ["alpha", "beta"] {
        harness.engine.create_project(project, Quota::default(), ProjectDefaults::default()).await.unwrap();
    }
    let key_of = |login: &atoll_engine::NewKey| login.secret.reveal().to_owned();
    let made_by = async |key: &str| {
        let request = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(key);
        let answered = harness.send(request.header("idempotency-key", "same").json(&json!({}))).await;
        assert!([200, 201].contains(&answered.status), "{answered:?}");
        answered.body["id"].as_str().unwrap().to_owned()
    };
    let used_by = async |key: &str, id: &str| {
        let request = harness.bare(Method::GET, &format!("/v1/usage?group=sandbox&sandbox={id}"));
        let answered = harness.send(request.bearer_auth(key)).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        answered.body["items"].as_array().unwrap().len()
    };
    let first = log_in(b"1", "alpha").await.unwrap();
    let of_alpha = harness.engine.verify_key(first.secret.reveal()).unwrap();
    let sandbox = made_by(&key_of(&first)).await;
    assert_eq!(used_by(&key_of(&first), &sandbox).await, 1);

    let moved = log_in(b"2", "beta").await.unwrap();
    let of_beta = harness.engine.verify_key(moved.secret.reveal()).unwrap();
    assert_ne!(of_alpha.id, of_beta.id);
    // What the issuer said last counts for all accounts of the person.
    assert!(harness.engine.verify_key(first.secret.reveal()).is_err());
    assert!(harness.engine.key_behind(&of_alpha.id).is_err(), "links and SSH keys");
    let other = made_by(&key_of(&moved)).await;
    assert_ne!(other, sandbox, "another's idempotency key");
    assert_eq!(used_by(&key_of(&moved), &sandbox).await, 0);
    for path in [format!("/v1/sandboxes/{sandbox}"), format!("/v1/sandboxes/{sandbox}/events")] {
        let answered = harness.send(harness.bare(Method::GET, &path).bearer_auth(key_of(&moved))).await;
        assert_eq!(answered.status, 404, "{path}");
    }

    let back = log_in(b"3", "alpha").await.unwrap();
    assert_eq!(harness.engine.verify_key(back.secret.reveal()).unwrap().id, of_alpha.id);
    assert_eq!(made_by(&key_of(&back)).await, sandbox);
}
