//! Makes a person of the claims of an issuer.

use std::collections::BTreeMap;

use atoll_core::Result;
use atoll_core::person::{CLAIM_MAX_BYTES, CLAIM_VALUES_MAX_COUNT, EMAIL, Person};
use serde_json::Value;

use crate::token::Claims;
use crate::{IssuerConfig, invalid};

/// Whether something is missing in a token that the issuer may say elsewhere.
pub(crate) fn lacks(signed: &Claims, wanted: &[String]) -> bool {
    !signed.contains_key(EMAIL) || wanted.iter().any(|name| !signed.contains_key(name))
}

/// `told` is what the issuer says beside its token: of the same person, or not at all.
pub(crate) fn person(config: &IssuerConfig, signed: &Claims, told: Option<&Claims>) -> Result<Person> {
    let subject = signed.get("sub").and_then(Value::as_str).unwrap_or_default();
    if !is_short(subject) {
        return Err(invalid("its token names nobody"));
    }
    if told.is_some_and(|told| told.get("sub").and_then(Value::as_str) != Some(subject)) {
        return Err(invalid("it speaks of somebody else than its token"));
    }
    let all = || std::iter::once(signed).chain(told);
    let said = |name: &str| all().find(|all| all.contains_key(name));
    let email = all().find_map(verified_email).map(str::to_owned);
    let mut claims = BTreeMap::new();
    for name in &config.claims {
        let values = match (name.as_str(), said(name)) {
            (EMAIL, _) => email.iter().cloned().collect(),
            (_, Some(all)) => values(name, all.get(name).unwrap_or(&Value::Null))?,
            (_, None) => Vec::new(),
        };
        claims.insert(name.clone(), values);
    }
    Ok(Person { issuer: config.url.clone(), subject: subject.to_owned(), email, claims })
}

/// An email address counts when the issuer has verified that it is the person's: anybody can claim any address.
fn verified_email(all: &Claims) -> Option<&str> {
    let is_verified = match all.get("email_verified")? {
        Value::Bool(verified) => *verified,
        // Some issuers send a text.
        Value::String(text) => text == "true",
        _ => false,
    };
    all.get(EMAIL)?.as_str().filter(|email| is_verified && is_short(email) && email.contains('@'))
}

fn values(name: &str, value: &Value) -> Result<Vec<String>> {
    let all = match value {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    if all.len() > CLAIM_VALUES_MAX_COUNT {
        return Err(invalid(format_args!(
            "its claim '{name}' has more than {CLAIM_VALUES_MAX_COUNT} values"
        )));
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    // No rule can name a longer one.
    Ok(all.iter().filter_map(text).filter(|text| is_short(text)).collect())
}

fn is_short(text: &str) -> bool {
    (1..=CLAIM_MAX_BYTES).contains(&text.len()) && !text.contains(char::is_control)
}
