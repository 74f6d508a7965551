//! Logins in a browser and on a device, and what is known of a person after one.

use atoll_core::Code;
use atoll_core::person::Person;
use atoll_core::secret::Secret;
use serde_json::{Value, json};

use super::{BACK, CLIENT, Fake, code, log_in, pair, sent, sign};
use crate::Polled;
use crate::code::now_s;

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
