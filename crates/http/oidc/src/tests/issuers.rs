//! Issuers that lie, fail, or cannot be one, and how many requests to one there are at once.

use atoll_core::Code;
use serde_json::{Value, json};

use super::{BACK, CLIENT, Fake};
use crate::{Issuer, IssuerConfig};

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
async fn not_many_can_have_the_issuer_asked_at_once() {
    let fake = Fake::start().await;
    let issuer = fake.issuer();
    let turns: Vec<_> = (0..crate::BUSY_MAX_COUNT).map(|_| issuer.turn().unwrap()).collect();
    assert_eq!(issuer.begin_in_browser(BACK).await.unwrap_err().code, Code::LimitExceeded);
    drop(turns);
    assert!(issuer.begin_in_browser(BACK).await.is_ok());
}
