//! How rules name secrets, and where a secret may go.

use serde::{Deserialize, Serialize};

use super::domain::{DomainPattern, HostName};
use crate::error::{Code, Error, Result, shorten};
use crate::id::KeyId;
use crate::limits::{
    SECRET_NAME_MAX_BYTES, SECRET_SCOPE_MAX_COUNT, SECRET_VALUE_MAX_BYTES, SECRET_VALUE_MIN_BYTES,
    TEMPLATE_TEXT_MAX_BYTES,
};
use crate::secret::Secret;

/// Checks the name of a secret: 1 to 128 letters, digits, `_`, `-` and `.`, starting with a letter or `_`.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn secret_name(field: &str, text: &str) -> Result<()> {
    let inner = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if inner && first && text.len() <= SECRET_NAME_MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("'{}' is not the name of a secret", shorten(text)))
        .hint("use 1 to 128 letters, digits, '_', '-' and '.', starting with a letter or '_'"))
}

/// Checks the size of a value. The error does not repeat it.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn secret_value(field: &str, value: &Secret) -> Result<()> {
    let text = value.reveal();
    if !(SECRET_VALUE_MIN_BYTES..=SECRET_VALUE_MAX_BYTES).contains(&text.len()) || text.contains('\0') {
        return Err(Error::invalid(field, "a secret has 4 bytes to 32 KiB and no NUL"));
    }
    Ok(())
}

/// A secret as a rule names it: `NAME` for its newest version, `NAME@3` for a pinned one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretRef {
    /// Its name.
    pub name: String,
    /// The version; the newest when absent.
    pub version: Option<u32>,
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version {
            None => f.write_str(&self.name),
            Some(version) => write!(f, "{}@{version}", self.name),
        }
    }
}

impl std::str::FromStr for SecretRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, version) = match text.split_once('@') {
            None => (text, None),
            Some((name, digits)) => {
                let version = digits.parse().ok().filter(|&version| version > 0);
                let wrong = || Error::invalid("secret", format_args!("'{}' names no version", shorten(text)));
                (name, Some(version.ok_or_else(wrong)?))
            }
        };
        secret_name("secret", name)?;
        Ok(Self { name: name.to_owned(), version })
    }
}

impl TryFrom<String> for SecretRef {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<SecretRef> for String {
    fn from(reference: SecretRef) -> Self {
        reference.to_string()
    }
}

/// Text in which `{secret:NAME}` stands for the value of a secret. Every other brace is itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Secret(SecretRef),
}

impl Template {
    /// The text, with the references in it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The secrets it needs.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Secret(secret) => Some(secret),
        })
    }

    /// Puts values in.
    ///
    /// # Errors
    /// The first that `value` gives.
    pub fn render<E>(
        &self,
        mut value: impl FnMut(&SecretRef) -> std::result::Result<Secret, E>,
    ) -> std::result::Result<Secret, E> {
        let mut values = Vec::new();
        for secret in self.secrets() {
            values.push(value(secret)?);
        }
        // All at once: a text that grows leaves copies of itself behind.
        let length = self.text.len() + values.iter().map(|value| value.reveal().len()).sum::<usize>();
        let mut out = String::with_capacity(length);
        let mut values = values.iter();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Secret(_) => out.push_str(values.next().map_or("", Secret::reveal)),
            }
        }
        Ok(Secret::new(out))
    }
}

impl std::str::FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const OPEN: &str = "{secret:";
        if text.len() > TEMPLATE_TEXT_MAX_BYTES || text.contains(['\0', '\r', '\n']) {
            return Err(Error::invalid("value", "is longer than 8 KiB, or has a line break or NUL"));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(OPEN) {
            let (before, from) = rest.split_at(at);
            let (name, after) = from[OPEN.len()..].split_once('}').ok_or_else(|| {
                Error::invalid("value", "a '{secret:' is not closed").hint("write {secret:NAME}")
            })?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Secret(name.parse()?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl TryFrom<String> for Template {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.text
    }
}

/// Where a secret may go: the lock on the secret itself, whatever a sandbox's rules say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SecretScope {
    /// Hosts that may receive it; `*` means any.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub hosts: Vec<DomainPattern>,
    /// Names of templates whose sandboxes may use it; any sandbox when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<String>,
    /// Ids or names of sandboxes that may use it; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandboxes: Vec<String>,
    /// API keys whose sandboxes may use it; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub keys: Vec<KeyId>,
}

/// Who wants to use a secret.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecretUser<'a> {
    /// Id of the sandbox.
    pub sandbox: &'a str,
    /// Name of the sandbox, if it has one.
    pub name: Option<&'a str>,
    /// Template it came from, as `name:version`.
    pub template: Option<&'a str>,
    /// API key that made it.
    pub owner: Option<&'a KeyId>,
}

impl SecretScope {
    /// Checks the form.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("scope.hosts", "names no host")
                .hint("name the hosts that may receive the secret; '*' means any"));
        }
        let counts = [
            ("scope.hosts", self.hosts.len()),
            ("scope.templates", self.templates.len()),
            ("scope.sandboxes", self.sandboxes.len()),
            ("scope.keys", self.keys.len()),
        ];
        for (field, count) in counts {
            if count > SECRET_SCOPE_MAX_COUNT {
                return Err(Error::invalid(field, format_args!("more than {SECRET_SCOPE_MAX_COUNT}")));
            }
        }
        for name in &self.templates {
            crate::spec::recipe_name("scope.templates", name)?;
        }
        for name in self.sandboxes.iter().filter(|name| name.parse::<crate::id::SandboxId>().is_err()) {
            crate::spec::name("scope.sandboxes", name)?;
        }
        Ok(())
    }

    /// Whether it may go to `host` at all.
    #[must_use]
    pub fn admits_host(&self, host: &HostName) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Whether this sandbox may use it.
    ///
    /// # Errors
    /// [`Code::Forbidden`] saying what is in the way.
    pub fn admits_user(&self, name: &str, user: &SecretUser<'_>) -> Result<()> {
        let template = user.template.map(|text| text.split(':').next().unwrap_or(text));
        let one_of = |list: &[String], text: Option<&str>| {
            list.is_empty() || text.is_some_and(|text| list.iter().any(|item| item == text))
        };
        let what = if !one_of(&self.templates, template) {
            "sandboxes of this template"
        } else if !one_of(&self.sandboxes, Some(user.sandbox)) && !one_of(&self.sandboxes, user.name) {
            "this sandbox"
        } else if !self.keys.is_empty() && !user.owner.is_some_and(|key| self.keys.contains(key)) {
            "sandboxes of this API key"
        } else {
            return Ok(());
        };
        Err(Error::new(Code::Forbidden, format!("the secret '{name}' is not for {what}"))
            .hint("its scope says who may use it: 'atoll secret ls'; an admin can change it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(texts: &[&str]) -> SecretScope {
        let hosts = texts.iter().map(|text| text.parse().unwrap()).collect();
        SecretScope { hosts, templates: Vec::new(), sandboxes: Vec::new(), keys: Vec::new() }
    }

    #[test]
    fn references_are_found_and_filled() {
        let template: Template = "Bearer {secret:KEY} {x} {secret:B@2}{".parse().unwrap();
        let names: Vec<_> = template.secrets().map(ToString::to_string).collect();
        assert_eq!(names, ["KEY", "B@2"]);
        let text = template.render(|secret| Ok::<_, ()>(Secret::new(format!("<{secret}>")))).unwrap();
        assert_eq!(text.reveal(), "Bearer <KEY> {x} <B@2>{");
        assert_eq!(template.render(|_| Err::<Secret, _>(7)), Err(7));
    }

    #[test]
    fn wrong_references_are_refused() {
        for bad in
            ["{secret:", "{secret:}", "{secret:a b}", "{secret:A@0}", "{secret:A@x}", "{secret:1}", "a\nb"]
        {
            assert!(bad.parse::<Template>().is_err(), "{bad}");
        }
        assert!("x".repeat(TEMPLATE_TEXT_MAX_BYTES).parse::<Template>().is_ok());
        assert!("x".repeat(TEMPLATE_TEXT_MAX_BYTES + 1).parse::<Template>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused_and_stays_itself(text in "[a-z{}:@secret]{0,60}") {
            if let Ok(template) = text.parse::<Template>() {
                let same = |secret: &SecretRef| Ok::<_, ()>(Secret::new(format!("{{secret:{secret}}}")));
                let again = template.render(same).unwrap();
                prop_assert_eq!(again.reveal(), text);
            }
        }
    }

    #[test]
    fn scopes_lock_hosts_and_users() {
        let scope = hosts(&["api.example.com", "*.example.org"]);
        let admits = |scope: &SecretScope, host: &str| scope.admits_host(&host.parse().unwrap());
        assert!(admits(&scope, "api.example.com") && admits(&scope, "x.example.org"));
        assert!(!admits(&scope, "example.com") && !admits(&scope, "evil.com"));
        assert!(admits(&hosts(&["*"]), "anything"));
        assert!(hosts(&[]).validate().is_err());

        let key = KeyId::from_parts(1, 1);
        let user = SecretUser { sandbox: "sb1", name: Some("n"), template: Some("t:3"), owner: Some(&key) };
        assert!(scope.admits_user("S", &user).is_ok());
        let with = |templates: &[&str], sandboxes: &[&str], keys: Vec<KeyId>| SecretScope {
            templates: templates.iter().map(|&t| t.to_owned()).collect(),
            sandboxes: sandboxes.iter().map(|&t| t.to_owned()).collect(),
            keys,
            ..hosts(&["*"])
        };
        assert!(with(&["t"], &["n"], vec![key.clone()]).admits_user("S", &user).is_ok());
        assert!(with(&[], &["sb1"], Vec::new()).admits_user("S", &user).is_ok());
        for denied in [
            with(&["other"], &[], Vec::new()),
            with(&[], &["other"], Vec::new()),
            with(&[], &[], vec![KeyId::from_parts(2, 2)]),
        ] {
            let error = denied.admits_user("S", &user).unwrap_err();
            assert_eq!(error.code, Code::Forbidden);
        }
        let anonymous = SecretUser { sandbox: "sb1", ..SecretUser::default() };
        assert!(with(&[], &[], vec![key]).admits_user("S", &anonymous).is_err());
    }
}
