//! Tokens: what they say, who signed them, and with which key.

use atoll_core::Code;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{CLIENT, Fake, code, coordinates, ecdsa, hmac, log_in, pair, sign, token};
use crate::code::now_s;

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
