//! Which programs may run in a sandbox.

mod decide;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shorten};
use crate::limits::{
    EXECUTION_MESSAGE_MAX_BYTES, EXECUTION_RULES_MAX_COUNT, PACKAGE_NAME_MAX_BYTES, PATH_MAX_BYTES,
};

pub use decide::{ProgramBasis, ProgramDecision, ProgramFile, ProgramOrigin, covers_program};

/// Which programs may run.
///
/// It is about programs that the kernel is asked to execute, by whomever and with whatever rights inside. What a program
/// that may run does with its input is its own matter: an interpreter that may run runs any script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecutionPolicy {
    /// Which programs may run that no rule names.
    pub programs: Programs,
    /// Whether others are refused, or only told of in the journal.
    #[serde(skip_serializing_if = "ExecutionMode::is_default")]
    pub mode: ExecutionMode,
    /// Exceptions: the first rule that names a program decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ExecutionRule>,
}

/// Which programs may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Programs {
    /// All.
    #[default]
    Any,
    /// What the image brought and no process has changed since. Nothing that was written, changed or downloaded in the sandbox, nothing in
    /// memory, on a volume or in `/dev/shm`, and no dynamic loader as a program, which would run any of these.
    Image,
    /// None but those that a rule allows, of the image and unchanged.
    Listed,
}

/// What happens to a program that may not run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ExecutionMode {
    /// It is killed before its first instruction, and the journal says so.
    #[default]
    Enforce,
    /// It runs, and the journal says that it would have been refused.
    Observe,
}

/// What holds for some programs of the image: those at a path, those with a digest, or the one that has both; those of a layer, also at a
/// path; those of a package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecutionRule {
    /// Whether they may run.
    pub action: ExecutionAction,
    /// Where the image has them: `/usr/bin/git`, also through links of the image; `/opt/tools/*` is every program in a directory,
    /// `/opt/tools/**` every one below it. Looked up when the sandbox is made, woken or changed, in the image as its template left
    /// it: what processes inside did to names since changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Their content: `sha256:` or `blake3:` and 64 hexadecimal digits. Without a path it is every program of the image with
    /// this content, which takes reading all of them once. With a path the image must have exactly this there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The layer that brought them: `sha256:` and 64 hexadecimal digits, the digest of its content as the image's configuration has it, which
    /// is also what the journal calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The Debian package that brought them: `git`, or `git:amd64`, as the image's own list of files has it (`/var/lib/dpkg/info/git.list`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// What the journal says of a refusal by this rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a program may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ExecutionAction {
    /// It may.
    Allow,
    /// It may not.
    #[default]
    Deny,
}

impl ExecutionMode {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
    fn is_default(&self) -> bool {
        *self == Self::Enforce
    }
}

impl ExecutionPolicy {
    /// Programs of the image only.
    #[must_use]
    pub fn image() -> Self {
        Self { programs: Programs::Image, ..Self::default() }
    }

    /// Whether everything may run, and nothing is told.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.programs == Programs::Any && self.rules.is_empty()
    }

    /// Checks the form of rules, and that none contradicts another.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self, field: &str) -> Result<()> {
        let rules = format!("{field}.rules");
        if self.rules.len() > EXECUTION_RULES_MAX_COUNT {
            return Err(Error::invalid(&rules, format_args!("more than {EXECUTION_RULES_MAX_COUNT}")));
        }
        for (number, rule) in self.rules.iter().enumerate() {
            rule.validate(&format!("{rules}[{number}]"))?;
            let same = |other: &ExecutionRule| other.subject() == rule.subject();
            if let Some(earlier) = self.rules[..number].iter().position(same) {
                let what = if self.rules[earlier].action == rule.action { "repeats" } else { "contradicts" };
                let why = format_args!("{what} {rules}[{earlier}], which names the same");
                return Err(Error::invalid(&format!("{rules}[{number}]"), why));
            }
        }
        let has = |action| self.rules.iter().any(|rule| rule.action == action);
        match self.programs {
            Programs::Any if !self.rules.is_empty() && !has(ExecutionAction::Deny) => {
                let why = "allow what may run anyway: nothing is refused";
                Err(Error::invalid(&rules, why)
                    .hint("write programs: image or listed, or a rule that denies"))
            }
            Programs::Listed if !has(ExecutionAction::Allow) => {
                let why = "allow nothing, and with programs: listed nothing else runs";
                Err(Error::invalid(&rules, why))
            }
            _ => Ok(()),
        }
    }
}

impl ExecutionRule {
    /// What it names.
    fn subject(&self) -> [&Option<String>; 4] {
        [&self.path, &self.digest, &self.layer, &self.package]
    }

    fn validate(&self, field: &str) -> Result<()> {
        if let Some(path) = &self.path {
            program_path(&format!("{field}.path"), path)?;
        }
        if let Some(digest) = &self.digest {
            program_digest(&format!("{field}.digest"), digest)?;
            if self.path.as_deref().is_some_and(|path| path.ends_with("/*") || path.ends_with("/**")) {
                return Err(Error::invalid(
                    &format!("{field}.digest"),
                    "is of one file: give its path without '*'",
                ));
            }
        } else if self.subject().iter().all(|named| named.is_none()) {
            return Err(Error::invalid(field, "names nothing: give a path, a digest, a layer or a package"));
        }
        if let Some(layer) = &self.layer {
            program_layer(&format!("{field}.layer"), layer)?;
        }
        if let Some(package) = &self.package {
            program_package(&format!("{field}.package"), package)?;
        }
        let with_layer = self.layer.is_some() && (self.digest.is_some() || self.package.is_some());
        if with_layer || self.package.is_some() && (self.path.is_some() || self.digest.is_some()) {
            let why = "a layer goes with a path or alone, a package alone";
            return Err(Error::invalid(field, why));
        }
        if let Some(message) = &self.message
            && (message.len() > EXECUTION_MESSAGE_MAX_BYTES || message.chars().any(char::is_control))
        {
            let why = format_args!("at most {EXECUTION_MESSAGE_MAX_BYTES} bytes, on one line");
            return Err(Error::invalid(&format!("{field}.message"), why));
        }
        Ok(())
    }
}

/// Checks a path that names programs of an image: absolute, plain, with `/*` or `/**` only at its end.
///
/// # Errors
/// [`crate::Code::InvalidArgument`].
pub fn program_path(field: &str, text: &str) -> Result<()> {
    let path = text.strip_suffix("/**").or_else(|| text.strip_suffix("/*")).unwrap_or(text);
    let is_root = path.is_empty() && text != path;
    let names = path.split('/').skip(1).all(|name| !matches!(name, "" | "." | ".."));
    let plain = !path.contains(['*', '?', '[']) && !path.chars().any(char::is_control);
    if text.len() > PATH_MAX_BYTES || !plain || !(is_root || path.starts_with('/') && names) {
        let why = format_args!("'{}' is no path of programs", shorten(text));
        return Err(Error::invalid(field, why)
            .hint("write it from '/', without '.' and '..'; '*' only as '/*' or '/**' at its end"));
    }
    Ok(())
}

/// Checks a digest that names a layer.
fn program_layer(field: &str, text: &str) -> Result<()> {
    let hex = text.strip_prefix("sha256:").or_else(|| text.strip_prefix("chain:")).unwrap_or_default();
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        let why = format_args!("'{}' is no layer", shorten(text));
        return Err(Error::invalid(field, why)
            .hint("write sha256: and 64 hexadecimal digits in lower case, as the image's configuration and the journal have it"));
    }
    Ok(())
}

/// Checks the name of a Debian package, which becomes part of a file's name.
fn program_package(field: &str, text: &str) -> Result<()> {
    let (name, arch) = text.split_once(':').unwrap_or((text, "all"));
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.');
    let is_name = first && name.len() <= PACKAGE_NAME_MAX_BYTES && name.bytes().all(plain);
    let is_arch = (1..=32).contains(&arch.len())
        && arch.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if is_name && is_arch {
        return Ok(());
    }
    let why = format_args!("'{}' is no name of a Debian package", shorten(text));
    Err(Error::invalid(field, why).hint("write it as dpkg does: git, or git:amd64"))
}

/// Checks a digest that names a program.
///
/// # Errors
/// [`crate::Code::InvalidArgument`].
pub fn program_digest(field: &str, text: &str) -> Result<()> {
    let Some((algorithm, hex)) = text.split_once(':') else {
        return Err(Error::invalid(field, "write the algorithm first: sha256:… or blake3:…"));
    };
    if !matches!(algorithm, "sha256" | "blake3") {
        let why = format_args!("digests of the algorithm '{}' are not known", shorten(algorithm));
        return Err(Error::invalid(field, why).hint("use sha256 or blake3"));
    }
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        let why = format_args!("'{algorithm}:' is followed by 64 hexadecimal digits in lower case");
        return Err(Error::invalid(field, why));
    }
    Ok(())
}

impl std::fmt::Display for ExecutionRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.action.as_str())?;
        for what in [&self.path, &self.digest].into_iter().flatten() {
            write!(f, " {what}")?;
        }
        for (kind, what) in [("layer", &self.layer), ("package", &self.package)] {
            if let Some(what) = what {
                write!(f, " {kind} {what}")?;
            }
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

impl ExecutionAction {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Programs {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Any, Self::Image, Self::Listed];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Image => "image",
            Self::Listed => "listed",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|programs| programs.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Result<ExecutionPolicy> {
        serde_json::from_str(text)
    }

    #[test]
    fn what_is_not_said_is_open() {
        assert!(read("{}").unwrap().is_open());
        assert_eq!(read(r#"{"programs":"image"}"#).unwrap(), ExecutionPolicy::image());
        assert!(read(r#"{"programs":"all"}"#).is_err());
        assert!(
            read(r#"{"program":"image"}"#).is_err(),
            "a word that is misspelt must not mean that all may run"
        );
        let text = serde_json::to_string(&ExecutionPolicy::image()).unwrap();
        assert_eq!(text, r#"{"programs":"image"}"#);
    }

    fn refused(text: &str) -> String {
        let error = read(text).unwrap().validate("execution").unwrap_err();
        assert_eq!(error.code, crate::Code::InvalidArgument);
        error.message
    }

    #[test]
    fn rules_have_a_form() {
        let rule = |more: &str| format!(r#"{{"rules":[{{"action":"deny",{more}}}]}}"#);
        let path = |path: &str| rule(&format!(r#""path":"{path}""#));
        for good in ["/usr/bin/git", "/usr/bin/*", "/opt/**", "/*", "/**", "/usr/bin/[", "/usr/bin/g++"] {
            let result = read(&path(good)).unwrap().validate("execution");
            assert_eq!(result.is_ok(), good != "/usr/bin/[", "{good}");
        }
        for bad in [
            "",
            "/",
            "git",
            "usr/bin/*",
            "/usr/*/git",
            "/usr/../bin",
            "/usr//bin",
            "/usr/./x",
            "/a*",
            "/usr/bin/",
        ] {
            assert!(refused(&path(bad)).starts_with("execution.rules[0].path"), "{bad}");
        }
        let digest = |digest: &str| rule(&format!(r#""digest":"{digest}""#));
        let (a, long) = ("a".repeat(64), "a".repeat(128));
        read(&digest(&format!("sha256:{a}"))).unwrap().validate("execution").unwrap();
        read(&digest(&format!("blake3:{a}"))).unwrap().validate("execution").unwrap();
        assert!(refused(&digest(&format!("sha512:{long}"))).contains("algorithm 'sha512' are not known"));
        assert!(refused(&digest("md5:00")).contains("algorithm 'md5'"));
        for bad in [a.clone(), format!("sha256:{}", "A".repeat(64)), format!("sha256:{long}"), String::new()]
        {
            assert!(refused(&digest(&bad)).starts_with("execution.rules[0].digest"), "{bad}");
        }
        assert!(refused(&rule(&format!(r#""path":"/bin/*","digest":"blake3:{a}""#))).contains("one file"));
        assert!(refused(r#"{"rules":[{"action":"deny"}]}"#).contains("names nothing"));
        assert!(refused(&rule(r#""path":"/bin/sh","message":"two\nlines""#)).contains("message"));
        assert!(read(r#"{"rules":[{"action":"kill","path":"/bin/sh"}]}"#).is_err());
        for (bad, why) in [
            (r#""layer":"x""#, "rules[0].layer: 'x' is no layer"),
            (r#""layer":"sha512:00""#, "is no layer"),
            (r#""package":"../x""#, "rules[0].package: '../x' is no name of a Debian package"),
            (r#""package":"Git""#, "is no name of a Debian package"),
            (r#""package":"git:""#, "is no name of a Debian package"),
            (r#""package":"git:a/b""#, "is no name of a Debian package"),
            (r#""package":"git","path":"/x""#, "a package alone"),
        ] {
            assert!(refused(&rule(bad)).contains(why), "{bad}");
        }
        let layer = format!(r#""layer":"sha256:{a}""#);
        assert!(
            refused(&rule(&format!(r#"{layer},"digest":"blake3:{a}""#))).contains("with a path or alone")
        );
        for good in
            [layer.clone(), format!(r#"{layer},"path":"/usr/bin/*""#), r#""package":"g++:amd64""#.to_owned()]
        {
            read(&rule(&good)).unwrap().validate("execution").unwrap();
        }
        let many = vec![r#"{"action":"deny","path":"/x"}"#; EXECUTION_RULES_MAX_COUNT + 1].join(",");
        assert!(refused(&format!(r#"{{"rules":[{many}]}}"#)).contains("more than"));
    }

    #[test]
    fn rules_that_contradict_are_none() {
        let rules = |programs: &str, rules: &[(&str, &str)]| {
            let rules: Vec<_> = rules
                .iter()
                .map(|(action, path)| format!(r#"{{"action":"{action}","path":"{path}"}}"#))
                .collect();
            format!(r#"{{"programs":"{programs}","rules":[{}]}}"#, rules.join(","))
        };
        let both = [("allow", "/bin/a"), ("deny", "/bin/b"), ("deny", "/bin/a")];
        let said = refused(&rules("image", &both));
        assert!(said.contains("rules[2]: contradicts execution.rules[0]"), "{said}");
        assert!(refused(&rules("image", &[("deny", "/bin/a"), ("deny", "/bin/a")])).contains("repeats"));
        assert!(refused(&rules("any", &[("allow", "/bin/a")])).contains("nothing is refused"));
        assert!(refused(&rules("listed", &[("deny", "/bin/a")])).contains("nothing else runs"));
        assert!(refused(r#"{"programs":"listed"}"#).contains("nothing else runs"));
        for (programs, good) in [
            ("any", [("allow", "/bin/a"), ("deny", "/bin/*")]),
            ("listed", [("deny", "/bin/a"), ("allow", "/bin/*")]),
            ("image", [("deny", "/bin/a"), ("deny", "/bin/*")]),
        ] {
            read(&rules(programs, &good)).unwrap().validate("execution").unwrap();
        }
    }
}
