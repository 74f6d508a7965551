//! Assertions about a policy: what it must allow, and what it must not.
//!
//! One in a line: `allow GET https://api.example.com/v1/x`, `deny connect db.example.com:5432 from /usr/bin/curl`,
//! `allow lookup example.com`, `deny exec /tmp/x`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use atoll_core::execution::ProgramOrigin;
use atoll_core::policy::HostName;
use serde::{Deserialize, Serialize};

use crate::file::Policies;
use crate::trace::{Asked, Program, What};
use crate::verdict::{Outcome, verdict};

/// The address of a host that an assertion names without one: public, and of no host in particular.
const SOMEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(1, 0, 0, 1));
/// Directories in which no image has programs: a program there was written in the sandbox unless the assertion says
/// otherwise.
const WRITTEN: [&str; 6] = ["/tmp/", "/var/tmp/", "/dev/", "/run/", "/proc/", "/home/"];
/// Most assertions of a file.
const COUNT_MAX: usize = 10_000;

/// Assertions in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The file of the policy, beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The assertions.
    pub tests: Vec<Assertion>,
}

/// One assertion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Assertion {
    text: String,
    allowed: bool,
    asked: Asked,
}

/// An assertion and what the policy says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The assertion.
    pub test: String,
    /// Whether it holds.
    pub passed: bool,
    /// What the policy says: `allowed`, `refused`.
    pub outcome: &'static str,
    /// The rule, or that there is none.
    pub why: String,
}

/// Asks a policy about each assertion.
#[must_use]
pub fn check(policies: &Policies, tests: &[Assertion]) -> Vec<Checked> {
    let one = |test: &Assertion| {
        let verdict = verdict(policies, &test.asked);
        let outcome = match verdict.outcome {
            Outcome::Allowed => "allowed",
            Outcome::Refused => "refused",
            Outcome::Unclear => "unclear",
        };
        let passed = match verdict.outcome {
            Outcome::Allowed => test.allowed,
            Outcome::Refused => !test.allowed,
            Outcome::Unclear => false,
        };
        Checked { test: test.text.clone(), passed, outcome, why: verdict.why }
    };
    tests.iter().map(one).collect()
}

impl Suite {
    /// Reads assertions, one in a line; empty lines and what follows a `#` at the beginning of a word are not looked at.
    ///
    /// # Errors
    /// Which line is wrong, and why.
    pub fn lines(text: &str) -> Result<Self, String> {
        let mut tests = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            tests.push(line.parse().map_err(|why| format!("line {}: {why}", number + 1))?);
        }
        Self { policy: None, tests }.limited()
    }

    /// The same, if there are not too many, nor none.
    ///
    /// # Errors
    /// How many are possible.
    pub fn limited(self) -> Result<Self, String> {
        match self.tests.len() {
            0 => Err("there are no tests in it".to_owned()),
            1..=COUNT_MAX => Ok(self),
            _ => Err(format!("there are more than {COUNT_MAX} tests in it")),
        }
    }
}

/// The words of an assertion after what it is about.
#[derive(Debug, Default)]
struct Words<'a> {
    at: Option<&'a str>,
    from: Option<&'a str>,
    digest: Option<&'a str>,
    origin: Option<ProgramOrigin>,
    tls: bool,
}

impl<'a> Words<'a> {
    fn read(mut words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut read = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("'{word}' wants a word after it"));
            match word {
                "at" => read.at = Some(value()?),
                "from" => read.from = Some(value()?),
                "digest" => read.digest = Some(value()?),
                "image" => read.origin = Some(ProgramOrigin::Image),
                "written" => read.origin = Some(ProgramOrigin::Written),
                "elsewhere" => read.origin = Some(ProgramOrigin::Elsewhere),
                "tls" => read.tls = true,
                _ => {
                    return Err(format!(
                        "'{word}' is none of: at ADDRESS, from PROGRAM, digest DIGEST, tls, image, written, elsewhere"
                    ));
                }
            }
        }
        Ok(read)
    }

    fn program(&self, path: &str, origin: Option<ProgramOrigin>) -> Result<Program, String> {
        if !path.starts_with('/') {
            return Err(format!("'{path}' is no path of a program: write it from '/'"));
        }
        let guessed = if WRITTEN.iter().any(|dir| path.starts_with(dir)) {
            ProgramOrigin::Written
        } else {
            ProgramOrigin::Image
        };
        let digest = self.digest.map(str::to_owned);
        Ok(Program { path: path.to_owned(), origin: origin.unwrap_or(guessed), digest, layer: None })
    }

    /// A lookup, connection or request. An assertion that names no program is about a program that no rule names.
    fn network(&self, host: &str, port: Option<u16>, tls: bool, what: What) -> Result<Asked, String> {
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let names: Vec<HostName> = match literal {
            Some(_) => Vec::new(),
            None => vec![host.parse().map_err(|_none| format!("'{host}' is no host name and no address"))?],
        };
        let at = self.at.map(|at| at.parse::<IpAddr>().map_err(|_none| format!("'{at}' is no address")));
        let ip = at.transpose()?.or(literal).unwrap_or(SOMEWHERE);
        let by = match self.from {
            Some(path) => self.program(path, self.origin)?,
            None => {
                Program { path: String::new(), origin: ProgramOrigin::Elsewhere, digest: None, layer: None }
            }
        };
        let address = port.map(|port| SocketAddr::new(ip, port));
        Ok(Asked { names, address, own: false, closed: None, tls, by: Some(by), what })
    }
}

/// A host and a port; brackets around an IPv6 address.
fn host_port(text: &str) -> (&str, Option<Result<u16, String>>) {
    let end = text.rfind(']').map_or(0, |at| at + 1);
    match text[end..].rfind(':').filter(|_| end > 0 || text.matches(':').count() == 1) {
        Some(at) => {
            let port = &text[end + at + 1..];
            let parsed = port.parse().ok().filter(|port| *port > 0);
            (&text[..end + at], Some(parsed.ok_or_else(|| format!("'{port}' is no port"))))
        }
        None => (text, None),
    }
}

fn request(method: &str, url: &str, words: &Words<'_>) -> Result<Asked, String> {
    let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => {
            return Err(format!("'{url}' is no URL: write http://HOST/PATH or https://HOST/PATH"));
        }
    };
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let (host, port) = host_port(authority);
    let port = port.transpose()?.unwrap_or(if tls { 443 } else { 80 });
    let what = What::Request { method: method.to_owned(), path: path.to_owned() };
    words.network(host, Some(port), tls, what)
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let allowed = match words.next() {
            Some("allow") => true,
            Some("deny") => false,
            _ => return Err(format!("'{text}' does not begin with 'allow' or 'deny'")),
        };
        let (Some(verb), Some(whom)) = (words.next(), words.next()) else {
            return Err(format!("'{text}': write exec PATH, connect HOST:PORT, lookup NAME, or METHOD URL"));
        };
        let words = Words::read(words)?;
        let asked = match verb {
            "exec" => {
                let program = words.program(whom, words.origin)?;
                Asked {
                    by: None,
                    address: None,
                    ..words.network("a.example", None, false, What::Program(program))?
                }
            }
            "connect" => {
                let (host, port) = host_port(whom);
                let port = port.ok_or_else(|| format!("'{whom}' lacks a port: write HOST:PORT"))??;
                words.network(host, Some(port), words.tls, What::Connect)?
            }
            "lookup" => words.network(whom, None, false, What::Lookup)?,
            method if method.bytes().all(|byte| byte.is_ascii_uppercase()) => request(method, whom, &words)?,
            other => {
                return Err(format!("'{other}' is none of: exec, connect, lookup, a METHOD in capitals"));
            }
        };
        Ok(Self { text: text.to_owned(), allowed, asked })
    }
}

impl TryFrom<String> for Assertion {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Assertion> for String {
    fn from(assertion: Assertion) -> Self {
        assertion.text
    }
}

impl Assertion {
    /// Whether it is about what may run, not about what may be reached.
    #[must_use]
    pub const fn is_about_programs(&self) -> bool {
        matches!(self.asked.what, What::Program(_))
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies() -> Policies {
        Policies::read(
            r#"{"egress":{"internet":"rules","rules":[
                 {"action":"allow","domain":"api.example.com","ports":[443],"methods":["GET"],"path":"/v1/*"},
                 {"action":"allow","domain":"*.cdn.example"},
                 {"action":"allow","cidr":"10.1.2.3","ports":[5432]},
                 {"action":"allow","domain":"git.example","from":{"program":"/usr/lib/git-core/*"}}]},
               "execution":{"programs":"image","rules":[{"action":"deny","path":"/usr/bin/curl"}]}}"#,
        )
        .unwrap()
    }

    #[test]
    fn each_form_asks_what_it_says() {
        let suite = Suite::lines(
            "# what the job needs
             allow GET https://api.example.com/v1/models?x=1   # with a query
             deny POST https://api.example.com/v1/models
             deny GET https://api.example.com/v2
             deny GET http://api.example.com/v1/models
             allow connect a.cdn.example:8080
             deny connect cdn.example:8080
             deny connect a.cdn.example:80 at 169.254.169.254
             allow connect 10.1.2.3:5432
             deny connect [fd00::1]:5432
             allow connect git.example:443 from /usr/lib/git-core/git-remote-http
             deny connect git.example:443
             deny connect git.example:443 from /usr/bin/curl
             deny connect git.example:443 from /usr/lib/git-core/x written
             allow lookup a.cdn.example
             deny lookup other.example
             allow exec /usr/bin/git
             deny exec /usr/bin/curl
             deny exec /tmp/x
             deny exec /opt/x written",
        )
        .unwrap();
        assert_eq!(suite.tests.len(), 19);
        for checked in check(&policies(), &suite.tests) {
            assert!(checked.passed, "{checked:?}");
        }
        let wrong = check(&policies(), &["allow exec /usr/bin/curl".parse().unwrap()]);
        assert_eq!((wrong[0].passed, wrong[0].why.as_str()), (false, "rule 1 (deny /usr/bin/curl)"));
    }

    #[test]
    fn what_is_no_assertion_is_told() {
        for (bad, why) in [
            ("permit exec /x", "allow"),
            ("allow exec", "write exec PATH"),
            ("allow exec x", "no path"),
            ("allow get https://x.de/", "METHOD"),
            ("allow GET x.de/", "no URL"),
            ("allow connect x.de", "lacks a port"),
            ("allow connect x.de:0", "no port"),
            ("allow connect x.de:70000", "no port"),
            ("allow connect x_.de:1 at nowhere", "no address"),
            ("allow connect -x:1", "no host name"),
            ("allow lookup x.de from", "wants a word"),
            ("allow lookup x.de by y", "none of"),
        ] {
            let error = bad.parse::<Assertion>().unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(Suite::lines("# nothing").is_err());
        assert!(Suite::lines("\n\nallow x").unwrap_err().starts_with("line 3"));
    }
}
