//! Applies rules: changes a request that was checked, and gives the texts that must not come back in the answer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use atoll_core::id::SandboxId;
use atoll_core::policy::{HostName, InjectRule, KEY_HEADERS, Placeholder, SecretRef, Template};
use atoll_core::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, IF_RANGE, RANGE, REFERER,
    SEC_WEBSOCKET_EXTENSIONS,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::escape::{json_escaped, percent_decoded, percent_encoded, shown_forms};
use super::refusal::Refusal;
use super::replace::{Replacer, Text};
use super::{SecretSource, SecretUsed};

/// The effects of rules on a request, besides changes of its head.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Placeholders to replace in the body, as bytes, and the bytes that replace them.
    pub(super) body: Vec<(Text, Text)>,
    /// Texts that the answer must not show.
    pub(super) masks: Vec<Text>,
    /// Texts that the head of the answer must not show: those of every secret that went out.
    pub(super) header_masks: Vec<Text>,
    /// Uses to be recorded before the request goes on.
    pub(super) uses: Vec<SecretUsed>,
}

/// The sandbox and host of a request, for the look-up of secrets and the record of their uses.
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
    let mut work = Work::new(asking, parts.method.to_string(), parts.uri.path().to_owned());
    work.own = credentials_of_its_own(&parts.headers, rules);
    for rule in rules {
        work.rule(parts, has_body, rule)?;
    }
    left_over(parts, rules)?;
    Ok(work.masked(&mut parts.headers, rules))
}

/// Puts nothing into a request, and sees to it that its answer shows no secret that an earlier one left with the server.
pub(super) fn mask_only(headers: &mut HeaderMap, rules: &[&InjectRule], asking: Asking<'_>) -> Applied {
    Work::new(asking, String::new(), String::new()).masked(headers, rules)
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
    /// Headers in which the client sent credentials that are no placeholders.
    own: Vec<HeaderName>,
    applied: Applied,
}

impl<'a> Work<'a> {
    fn new(asking: Asking<'a>, method: String, path: String) -> Self {
        Self {
            asking,
            method,
            path,
            open: BTreeMap::new(),
            recorded: BTreeSet::new(),
            headers_set: HashSet::new(),
            query_set: BTreeSet::new(),
            own: Vec::new(),
            applied: Applied::default(),
        }
    }

    /// The effects, with the texts that the answer must not show.
    fn masked(mut self, headers: &mut HeaderMap, rules: &[&InjectRule]) -> Applied {
        for rule in rules.iter().filter(|rule| rule.mask_responses) {
            self.mask_all(rule);
        }
        if !self.applied.masks.is_empty() {
            prepare_for_masking(headers);
        }
        self.applied
    }

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
                set_query(parts, name, value.reveal())?;
            }
        }
        if !replaced {
            self.authorization(parts, rule)?;
        }
        Ok(())
    }

    /// Replaces a placeholder where its rule wants it in the head, and plans it for the body. Says whether it was found
    /// in the head.
    ///
    /// A server carries out a request in the name of the owner of its credentials, and what it stores then belongs to
    /// that owner. So a secret goes into a request only as its credential, or where the request has no other
    /// credential.
    fn placeholder(
        &mut self,
        parts: &mut Parts,
        has_body: bool,
        rule: &InjectRule,
        placeholder: &Placeholder,
    ) -> Result<bool, Refusal> {
        let Some(text) = placeholder.value.as_deref() else { return Ok(false) };
        let stands = |name: &HeaderName, value: &HeaderValue| {
            placeholder.in_header(name.as_str()) && holds(value, text)
        };
        let in_headers = parts.headers.iter().any(|(name, value)| stands(name, value));
        let in_path = placeholder.path && parts.uri.path().contains(text);
        let in_query = placeholder.query && parts.uri.query().is_some_and(|query| query.contains(text));
        let in_body = has_body
            && placeholder.body
            && self.own.is_empty()
            && !parts.headers.contains_key(CONTENT_ENCODING);
        if !(in_headers || in_path || in_query || in_body) {
            return Ok(false);
        }
        let beside = if in_path || in_query {
            self.own.first()
        } else {
            self.own.iter().find(|name| in_headers && **name == AUTHORIZATION)
        };
        if let Some(name) = beside {
            return Err(Refusal::forbidden(format!(
                "the request has credentials of its own in '{name}': the secret '{}' does not go beside them; \
                 leave them out",
                placeholder.secret
            )));
        }
        let value = self.secret(rule, &placeholder.secret)?;
        if in_headers {
            for (_, header) in parts.headers.iter_mut().filter(|(name, header)| stands(name, header)) {
                *header = with_secret(header, text, value.reveal())
                    .ok_or_else(|| unsendable(&placeholder.secret))?;
            }
        }
        if in_path || in_query {
            let encoded = Zeroizing::new(percent_encoded(value.reveal()));
            let replaced = |whole: &str, wanted: bool| {
                if wanted { whole.replace(text, &encoded) } else { whole.to_owned() }
            };
            let mut whole = Zeroizing::new(replaced(parts.uri.path(), in_path));
            if let Some(query) = parts.uri.query() {
                whole.push('?');
                whole.push_str(&Zeroizing::new(replaced(query, in_query)));
            }
            set_path_and_query(parts, &whole)?;
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
            let text = Zeroizing::new(text.as_bytes().to_vec());
            self.applied.body.push((text, Zeroizing::new(encoded.into_bytes())));
        }
        Ok(in_headers || in_path || in_query)
    }

    fn authorization(&mut self, parts: &mut Parts, rule: &InjectRule) -> Result<(), Refusal> {
        let text = if let Some(bearer) = &rule.bearer {
            format!("Bearer {}", self.text(rule, bearer)?.reveal())
        } else if let Some(basic) = &rule.basic {
            let (user, password) = (self.text(rule, &basic.username)?, self.text(rule, &basic.password)?);
            let pair = Zeroizing::new(format!("{}:{}", user.reveal(), password.reveal()));
            let encoded = BASE64.encode(pair.as_bytes());
            // As a whole, too: base64 characters that hold bits of two neighbouring parts are in the forms of neither
            // part.
            if [&basic.username, &basic.password].iter().any(|part| part.secrets().next().is_some()) {
                self.applied.header_masks.push(Zeroizing::new(encoded.clone().into_bytes()));
                if rule.mask_responses {
                    self.applied.masks.push(Zeroizing::new(encoded.clone().into_bytes()));
                }
            }
            format!("Basic {encoded}")
        } else {
            return Ok(());
        };
        let text = Zeroizing::new(text);
        if self.headers_set.insert(AUTHORIZATION) {
            parts.headers.insert(AUTHORIZATION, sensitive(&text).ok_or_else(|| unsendable(&rule.name))?);
        }
        Ok(())
    }

    fn header_value(&mut self, rule: &InjectRule, template: &Template) -> Result<HeaderValue, Refusal> {
        let text = self.text(rule, template)?;
        sensitive(text.reveal()).ok_or_else(|| unsendable(&rule.name))
    }

    fn text(&mut self, rule: &InjectRule, template: &Template) -> Result<Secret, Refusal> {
        template.render(|secret| self.secret(rule, secret))
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
            let forms = shown_forms(opened.reveal());
            if rule.mask_responses {
                self.applied.masks.extend(forms.iter().cloned());
            }
            self.applied.header_masks.extend(forms);
        }
        Ok(opened)
    }

    /// Masks secrets of a rule that are not in this request: an earlier one may have left them with the server. A
    /// secret that may not be opened for this host is skipped: the host cannot have it.
    fn mask_all(&mut self, rule: &InjectRule) {
        for reference in rule.secrets().filter(|reference| !self.open.contains_key(reference)) {
            let asking = self.asking;
            if let Ok(opened) = asking.secrets.open(asking.sandbox, reference, asking.host) {
                self.applied.masks.extend(shown_forms(opened.value.reveal()));
            }
        }
    }
}

/// Headers in which a request has credentials that are no placeholders of its rules.
fn credentials_of_its_own(headers: &HeaderMap, rules: &[&InjectRule]) -> Vec<HeaderName> {
    let texts: Vec<&str> = rules
        .iter()
        .flat_map(|rule| &rule.placeholders)
        .filter_map(|placeholder| placeholder.value.as_deref())
        .collect();
    let carries =
        |name: &HeaderName| *name == AUTHORIZATION || *name == COOKIE || KEY_HEADERS.contains(&name.as_str());
    let own = |value: &HeaderValue| !texts.iter().any(|text| holds(value, text));
    let found = headers.iter().filter(|(name, value)| carries(name) && own(value));
    found.map(|(name, _)| name.clone()).collect()
}

/// Refuses a request in which a placeholder is left: it would only be told that its key is wrong.
fn left_over(parts: &Parts, rules: &[&InjectRule]) -> Result<(), Refusal> {
    for rule in rules {
        for placeholder in &rule.placeholders {
            let Some(text) = placeholder.value.as_deref() else { continue };
            // Browsers repeat there where they come from.
            let mut headers = parts.headers.iter().filter(|(name, _)| *name != REFERER);
            let (place, allow) = if parts.uri.path().contains(text) {
                ("the path".to_owned(), "path".to_owned())
            } else if parts.uri.query().is_some_and(|query| query.contains(text)) {
                ("the query".to_owned(), "query".to_owned())
            } else if let Some((name, _)) = headers.find(|(_, value)| holds(value, text)) {
                (format!("the header '{name}'"), format!("header={name}"))
            } else {
                continue;
            };
            return Err(Refusal::forbidden(format!(
                "the placeholder of '{secret}' stands in {place}, where the rule '{}' does not replace it; whoever runs \
                 this sandbox can allow that with --secret {secret}=HOST,{allow}",
                rule.name,
                secret = placeholder.secret,
            )));
        }
    }
    Ok(())
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
    let bytes = |text: &str| Zeroizing::new(text.as_bytes().to_vec());
    let replacer = Replacer::new([(bytes(text), bytes(secret))]);
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
