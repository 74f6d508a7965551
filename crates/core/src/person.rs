//! People who log in at an issuer of identities (OpenID Connect), and what they may do.
//!
//! A person is a key without a secret of its own ([`crate::id::KeyId`]): what they make, their roles and what they use is on its
//! account, whenever and by whatever device they log in. What a person may do is no property of that key: it follows from what
//! the issuer said at the last login and the rules that hold now.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::key::Scope;

/// Rules of one server.
pub const RULES_MAX_COUNT: usize = 256;
/// Values of one claim.
pub const CLAIM_VALUES_MAX_COUNT: usize = 1000;
/// Longest name or value of a claim, bytes.
pub const CLAIM_MAX_BYTES: usize = 512;
/// Longest a person stays logged in, milliseconds.
pub const LOGIN_MAX_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// The claim that is believed only when the issuer says that it has verified it.
pub const EMAIL: &str = "email";

/// A person, as the issuer described them when they last logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The address of the issuer.
    pub issuer: String,
    /// The issuer's name for them, which never becomes another person's.
    pub subject: String,
    /// Their address for mail, if the issuer has verified it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Claims that rules may ask for.
    #[serde(default)]
    pub claims: BTreeMap<String, Vec<String>>,
}

impl Person {
    /// The name to show for them.
    #[must_use]
    pub fn name(&self) -> &str {
        self.email.as_deref().unwrap_or(&self.subject)
    }
}

/// Lets every person in for whom the issuer's claim has this value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    claim: String,
    value: String,
    scope: Scope,
    project: Option<String>,
}

/// The scope of a person, and the project in which it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right<'a> {
    /// The most that they may do anywhere.
    pub scope: Scope,
    /// The name of the project that they belong to.
    pub project: Option<&'a str>,
}

impl Rule {
    /// The claim that it asks for.
    #[must_use]
    pub fn claim(&self) -> &str {
        &self.claim
    }

    fn names(&self, person: &Person) -> bool {
        let values = person.claims.get(&self.claim).map(Vec::as_slice).unwrap_or_default();
        if self.claim != EMAIL {
            return values.contains(&self.value);
        }
        // People write them in either case, and no two mailboxes differ in nothing else.
        values.iter().any(|value| match self.value.strip_prefix('*') {
            Some(domain) => {
                value.rfind('@').is_some_and(|at| at > 0 && value[at..].eq_ignore_ascii_case(domain))
            }
            None => value.eq_ignore_ascii_case(&self.value),
        })
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// `CLAIM=VALUE:SCOPE` or `CLAIM=VALUE:SCOPE@PROJECT`. The value may hold `=` and `:`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            Error::invalid("rule", what).hint(
                "write CLAIM=VALUE:SCOPE, such as groups=platform:manage, email=ann@example.com:admin or \
                 email=*@example.com:read; with @PROJECT behind it, for people of a project",
            )
        };
        let (claim, rest) = text.split_once('=').ok_or_else(|| wrong("has no '='"))?;
        let (value, scope) = rest.rsplit_once(':').ok_or_else(|| wrong("has no ':' before a scope"))?;
        let (scope, project) = match scope.split_once('@') {
            Some((scope, project)) => (scope, Some(project)),
            None => (scope, None),
        };
        let scope = Scope::parse(scope).ok_or_else(|| wrong("must end with read, exec, manage or admin"))?;
        if let Some(project) = project {
            crate::spec::name("rule: project", project)?;
            if scope == Scope::Admin {
                return Err(wrong("cannot let anybody in as admin of a project: administrators are of none"));
            }
        }
        let good =
            |text: &str| (1..=CLAIM_MAX_BYTES).contains(&text.len()) && !text.contains(char::is_control);
        if !good(claim) || !good(value) {
            return Err(wrong("needs a claim and a value, of at most 512 bytes"));
        }
        let wildcard =
            claim == EMAIL && value.starts_with("*@") && value.len() > 2 && !value[1..].contains('*');
        if value.contains('*') && !wildcard {
            return Err(wrong("may have a '*' only in email=*@DOMAIN"));
        }
        if claim == EMAIL && !value.contains('@') {
            return Err(wrong("asks for an e-mail address without an '@'"));
        }
        let project = project.map(str::to_owned);
        Ok(Self { claim: claim.to_owned(), value: value.to_owned(), scope, project })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.claim, self.value, self.scope.as_str())?;
        self.project.as_ref().map_or(Ok(()), |project| write!(f, "@{project}"))
    }
}

/// The people who may log in, and with which rights. A person whom no rule names is not let in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    issuer: String,
    rules: Vec<Rule>,
}

impl Rules {
    /// Rules for people of one issuer.
    #[must_use]
    pub const fn new(issuer: String, rules: Vec<Rule>) -> Self {
        Self { issuer, rules }
    }

    /// What the rules give a person: of those that name them, the one with the highest scope counts, and of several the first.
    /// `None` when none names them.
    #[must_use]
    pub fn right_of(&self, person: &Person) -> Option<Right<'_>> {
        // Another issuer's word counts for nothing, also when this server believed it before.
        if person.issuer != self.issuer {
            return None;
        }
        // The last of equals is taken.
        let most = self.rules.iter().rev().filter(|rule| rule.names(person)).max_by_key(|rule| rule.scope)?;
        Some(Right { scope: most.scope, project: most.project.as_deref() })
    }

    /// The claims that rules ask for.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(Rule::claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_of(rules: &Rules, person: &Person) -> Option<Scope> {
        rules.right_of(person).map(|right| right.scope)
    }

    const ISSUER: &str = "https://id.example.com";

    fn rules(texts: &[&str]) -> Rules {
        Rules::new(ISSUER.to_owned(), texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn person(claims: &[(&str, &[&str])]) -> Person {
        let list = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        Person {
            issuer: ISSUER.to_owned(),
            subject: "1".to_owned(),
            email: None,
            claims: claims.iter().map(|(name, values)| ((*name).to_owned(), list(values))).collect(),
        }
    }

    #[test]
    fn a_rule_may_name_a_project() {
        let rules = rules(&["groups=a:exec@alpha", "groups=b:exec@beta", "groups=c:manage"]);
        let of = |groups: &[&str]| {
            let person = person(&[("groups", groups)]);
            rules.right_of(&person).map(|right| (right.scope, right.project.map(str::to_owned)))
        };
        assert_eq!(of(&["a"]), Some((Scope::Exec, Some("alpha".to_owned()))));
        assert_eq!(of(&["b", "a"]), Some((Scope::Exec, Some("alpha".to_owned()))), "the first of equals");
        assert_eq!(of(&["a", "c"]), Some((Scope::Manage, None)), "the strongest");
        let text = "email=*@example.com:read@alpha";
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        for wrong in ["groups=a:admin@alpha", "groups=a:read@", "groups=a:read@A", "groups=a:read@a@b"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_strongest_rule_counts_and_without_one_nobody_comes_in() {
        let rules = rules(&["groups=all:read", "groups=platform:manage", "email=root@example.com:admin"]);
        assert_eq!(scope_of(&rules, &person(&[("groups", &["all"])])), Some(Scope::Read));
        assert_eq!(scope_of(&rules, &person(&[("groups", &["platform", "all"])])), Some(Scope::Manage));
        assert_eq!(scope_of(&rules, &person(&[("email", &["Root@Example.com"])])), Some(Scope::Admin));
        for none in [
            person(&[]),
            person(&[("groups", &[])]),
            person(&[("groups", &["ALL", "all ", "platform:manage"])]),
            person(&[("group", &["all"]), ("roles", &["all"])]),
            person(&[("email", &["root@example.com.evil.example", "xroot@example.com"])]),
            Person { issuer: "https://other.example.com".to_owned(), ..person(&[("groups", &["all"])]) },
        ] {
            assert_eq!(scope_of(&rules, &none), None, "{none:?}");
        }
        assert_eq!(scope_of(&Rules::default(), &person(&[("groups", &["all"])])), None);
    }

    #[test]
    fn a_whole_domain_is_that_domain() {
        let rules = rules(&["email=*@example.com:exec"]);
        for (email, named) in [
            ("ann@example.com", true),
            ("ann@EXAMPLE.com", true),
            ("\"a@b\"@example.com", true),
            ("@example.com", false),
            ("ann@sub.example.com", false),
            ("ann@example.com.evil.example", false),
            ("ann@evil-example.com", false),
            ("ann@example.com@evil.example", false),
            ("example.com", false),
        ] {
            let scope = scope_of(&rules, &person(&[("email", &[email])]));
            assert_eq!(scope.is_some(), named, "{email}");
        }
    }

    #[test]
    fn rules_are_read_and_shown() {
        for text in ["sub=auth0|a:b=c:read", "groups=cn=ops,dc=example:manage", "email=*@example.com:admin"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "groups",
            "groups=all",
            "groups=all:",
            "groups=all:root",
            "=all:read",
            "groups=:read",
            "groups=*:read",
            "email=*:read",
            "email=*@:read",
            "email=*@*.com:read",
            "email=ann:read",
            "groups=a\nb:read",
        ] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }
}
