//! Rules at work: changes a request that was checked, and says what must not come back in the answer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use atoll_core::id::SandboxId;
use atoll_core::policy::{HostName, InjectRule, Placeholder, SecretRef, Template};
use atoll_core::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, IF_RANGE, RANGE, SEC_WEBSOCKET_EXTENSIONS,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::escape::{json_escaped, percent_decoded, percent_encoded};
use super::refusal::Refusal;
use super::replace::Replacer;
use super::{SecretSource, SecretUsed};

/// What rules did to a request, besides changing its head.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Placeholders to replace in the body, as bytes and what stands for them.
    pub(super) body: Vec<(Vec<u8>, Vec<u8>)>,
    /// Texts that the answer must not show.
    pub(super) masks: Vec<Vec<u8>>,
    /// Uses to be recorded before the request goes on.
    pub(super) uses: Vec<SecretUsed>,
}

/// Who asks, for the look-up of secrets and the record of their uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) sandbox: &'a SandboxId,
    pub(super) host: &'a HostName,
    pub(super) secrets: &'a dyn SecretSource,
}

/// Applies rules, in their order, to the head of a request.
pub(super) fn apply(
    parts: &mut Parts,
    has_body: bool,
    rules: &[&InjectRule],
    asking: Asking<'_>,
) -> Result<Applied, Refusal> {
    let mut work = Work {
        asking,
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        open: BTreeMap::new(),
        recorded: BTreeSet::new(),
        headers_set: HashSet::new(),
        query_set: BTreeSet::new(),
        applied: Applied::default(),
    };
    for rule in rules {
        work.rule(parts, has_body, rule)?;
    }
    if !work.applied.masks.is_empty() {
        prepare_for_masking(&mut parts.headers);
    }
    Ok(work.applied)
}

/// Makes the server answer in a way that can be looked through: not compressed, and whole.
fn prepare_for_masking(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for name in [RANGE, IF_RANGE, SEC_WEBSOCKET_EXTENSIONS] {
        headers.remove(name);
    }
}

struct Work<'a> {
    asking: Asking<'a>,
    method: String,
    path: String,
    open: BTreeMap<SecretRef, (Secret, u32)>,
    recorded: BTreeSet<(SecretRef, String)>,
    headers_set: HashSet<HeaderName>,
    query_set: BTreeSet<String>,
    applied: Applied,
}

impl Work<'_> {
    fn rule(&mut self, parts: &mut Parts, has_body: bool, rule: &InjectRule) -> Result<(), Refusal> {
        let mut replaced = false;
        for placeholder in &rule.placeholders {
            replaced |= self.placeholder(parts, has_body, rule, placeholder)?;
        }
        for name in &rule.remove_headers {
            parts.headers.remove(name.as_str());
        }
        for (name, value) in &rule.headers {
            let (name, value) = (header_name(name)?, self.header_value(rule, value)?);
            if self.headers_set.insert(name.clone()) {
                parts.headers.insert(name, value);
            }
        }
        for (name, value) in &rule.add_headers {
            let value = self.header_value(rule, value)?;
            parts.headers.append(header_name(name)?, value);
        }
        for (name, value) in &rule.query {
            let value = self.text(rule, value)?;
            if self.query_set.insert(name.clone()) {
                set_query(parts, name, &value)?;
            }
        }
        if !replaced {
            self.authorization(parts, rule)?;
        }
        Ok(())
    }

    /// Replaces a placeholder in headers, path and query, and plans it for the body. Says whether it was found.
    fn placeholder(
        &mut self,
        parts: &mut Parts,
        has_body: bool,
        rule: &InjectRule,
        placeholder: &Placeholder,
    ) -> Result<bool, Refusal> {
        let Some(text) = placeholder.value.as_deref() else { return Ok(false) };
        let in_uri = parts.uri.path_and_query().is_some_and(|whole| whole.as_str().contains(text));
        let in_headers = parts.headers.values().any(|value| holds(value, text));
        let in_body = has_body && placeholder.body && !parts.headers.contains_key(CONTENT_ENCODING);
        if !(in_uri || in_headers || in_body) {
            return Ok(false);
        }
        let value = self.secret(rule, &placeholder.secret)?;
        if in_headers {
            for header in parts.headers.values_mut().filter(|header| holds(header, text)) {
                *header = with_secret(header, text, value.reveal())
                    .ok_or_else(|| unsendable(&placeholder.secret))?;
            }
        }
        if in_uri {
            let whole = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
            let new = whole.replace(text, &percent_encoded(value.reveal()));
            set_path_and_query(parts, &new)?;
        }
        if in_body {
            let kind =
                parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            let encoded = if kind.contains("json") {
                json_escaped(value.reveal())
            } else if kind.starts_with("application/x-www-form-urlencoded") {
                percent_encoded(value.reveal())
            } else {
                value.reveal().to_owned()
            };
            self.applied.body.push((text.as_bytes().to_vec(), encoded.into_bytes()));
        }
        Ok(in_uri || in_headers)
    }

    fn authorization(&mut self, parts: &mut Parts, rule: &InjectRule) -> Result<(), Refusal> {
        let text = if let Some(bearer) = &rule.bearer {
            format!("Bearer {}", self.text(rule, bearer)?)
        } else if let Some(basic) = &rule.basic {
            let pair = format!("{}:{}", self.text(rule, &basic.username)?, self.text(rule, &basic.password)?);
            let encoded = BASE64.encode(pair);
            if rule.mask_responses {
                self.applied.masks.push(encoded.clone().into_bytes());
            }
            format!("Basic {encoded}")
        } else {
            return Ok(());
        };
        if self.headers_set.insert(AUTHORIZATION) {
            parts.headers.insert(AUTHORIZATION, sensitive(&text).ok_or_else(|| unsendable(&rule.name))?);
        }
        Ok(())
    }

    fn header_value(&mut self, rule: &InjectRule, template: &Template) -> Result<HeaderValue, Refusal> {
        let text = self.text(rule, template)?;
        sensitive(&text).ok_or_else(|| unsendable(&rule.name))
    }

    fn text(&mut self, rule: &InjectRule, template: &Template) -> Result<String, Refusal> {
        template.render(|secret| self.secret(rule, secret).map(|value| value.reveal().to_owned()))
    }

    /// Opens a secret, once for each request, and notes its use, once for each rule.
    fn secret(&mut self, rule: &InjectRule, reference: &SecretRef) -> Result<Secret, Refusal> {
        let asking = self.asking;
        let (opened, version) = match self.open.get(reference) {
            Some(known) => known.clone(),
            None => {
                let opened = asking.secrets.open(asking.sandbox, reference, asking.host);
                let opened = opened.map_err(|error| Refusal::secret(&error))?;
                let both = (opened.value, opened.version);
                self.open.insert(reference.clone(), both.clone());
                both
            }
        };
        if self.recorded.insert((reference.clone(), rule.name.clone())) {
            self.applied.uses.push(SecretUsed {
                sandbox: asking.sandbox.clone(),
                secret: reference.clone(),
                version,
                host: asking.host.clone(),
                method: self.method.clone(),
                path: self.path.clone(),
                rule: rule.name.clone(),
            });
            if rule.mask_responses {
                self.mask(opened.reveal());
            }
        }
        Ok(opened)
    }

    /// Every form in which a server may show a secret.
    fn mask(&mut self, value: &str) {
        let json = json_escaped(value);
        // Some writers of JSON escape slashes as well.
        let slashes = json.replace('/', "\\/");
        let forms = [value.to_owned(), percent_encoded(value), json, slashes, BASE64.encode(value)];
        for form in forms {
            let form = form.into_bytes();
            if !self.applied.masks.contains(&form) {
                self.applied.masks.push(form);
            }
        }
    }
}

fn header_name(name: &str) -> Result<HeaderName, Refusal> {
    // Rules are checked when they are set.
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_malformed| Refusal::unavailable("a rule names a header that is none"))
}

/// A header that hyper neither shows nor indexes in HTTP/2.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn unsendable(what: &impl std::fmt::Display) -> Refusal {
    Refusal::unavailable(format!("'{what}' has characters that cannot be sent in a header"))
}

/// The text in `Basic` credentials, if they hold `text`.
fn basic(header: &HeaderValue, text: &str) -> Option<String> {
    let (scheme, encoded) = header.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(BASE64.decode(encoded.trim()).ok()?).ok()?;
    pair.contains(text).then_some(pair)
}

fn holds(header: &HeaderValue, text: &str) -> bool {
    let bytes = header.as_bytes();
    bytes.windows(text.len()).any(|window| window == text.as_bytes()) || basic(header, text).is_some()
}

fn with_secret(header: &HeaderValue, text: &str, secret: &str) -> Option<HeaderValue> {
    if let Some(pair) = basic(header, text) {
        return sensitive(&format!("Basic {}", BASE64.encode(pair.replace(text, secret))));
    }
    let replacer = Replacer::new([(text.as_bytes().to_vec(), secret.as_bytes().to_vec())]);
    let mut value = HeaderValue::from_bytes(&replacer.whole(header.as_bytes())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn set_query(parts: &mut Parts, name: &str, value: &str) -> Result<(), Refusal> {
    let others = parts.uri.query().unwrap_or_default().split('&').filter(|pair| {
        let key = pair.split('=').next().unwrap_or_default();
        !pair.is_empty() && percent_decoded(&key.replace('+', " ")) != name.as_bytes()
    });
    let own = format!("{}={}", percent_encoded(name), percent_encoded(value));
    let query: Vec<&str> = others.chain([own.as_str()]).collect();
    let whole = format!("{}?{}", parts.uri.path(), query.join("&"));
    set_path_and_query(parts, &whole)
}

fn set_path_and_query(parts: &mut Parts, whole: &str) -> Result<(), Refusal> {
    // The error would show the text, and with it the secret.
    let whole = PathAndQuery::try_from(whole)
        .map_err(|_error| Refusal::unavailable("a secret cannot be put into the request's address"))?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(whole);
    parts.uri = http::Uri::from_parts(uri)
        .map_err(|_error| Refusal::unavailable("a secret cannot be put into the request's address"))?;
    Ok(())
}

#[cfg(test)]
mod tests;
