//! What a policy about programs decides, for a program that is known from a record.
//!
//! In a sandbox the kernel decides, by the files that rules were found to mean (`bpf/gate.h` of the witness). Here the
//! same questions are asked in the same order about the facts that a record has of a file: where the image has it,
//! whether it is the image's, its content. A path in a record has no links; a rule's may have some, which cannot be
//! followed without the image.

use std::fmt;

use super::{ExecutionAction, ExecutionPolicy, ExecutionRule, Programs};

/// Where a program's file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgramOrigin {
    /// The image, unchanged.
    Image,
    /// Written or changed in the sandbox.
    Written,
    /// Memory, a volume, or another file system.
    Elsewhere,
}

/// A program's file, as the kernel of the host saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramFile<'a> {
    /// Its path without links.
    pub path: &'a str,
    /// Where it comes from.
    pub origin: ProgramOrigin,
    /// Its content, when that is known: `blake3:…` or `sha256:…`.
    pub digest: Option<&'a str>,
    /// The layer that brought it, when that is known.
    pub layer: Option<&'a str>,
}

/// What a decision about a program rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgramBasis {
    /// A rule, by its place in the list, from 0.
    Rule(usize),
    /// No rule names it, and [`Programs`] lets it run.
    Programs,
    /// It was written or changed in the sandbox.
    Written,
    /// It is in memory, on a volume or another file system.
    Elsewhere,
    /// It is a dynamic loader.
    Loader,
    /// No rule allows it.
    Unlisted,
}

/// Whether a program may run, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramDecision {
    /// Whether it may.
    pub allowed: bool,
    /// Why.
    pub basis: ProgramBasis,
}

impl fmt::Display for ProgramBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rule(index) => return write!(f, "rule {}", index + 1),
            Self::Programs => "no rule names it",
            Self::Written => {
                "only programs of the image may run: this one was written or changed in the sandbox"
            }
            Self::Elsewhere => {
                "only programs of the image may run: this one is in memory or on another file system"
            }
            Self::Loader => {
                "only programs of the image may run: this one is a dynamic loader, which runs any file"
            }
            Self::Unlisted => "only programs that a rule allows may run",
        })
    }
}

impl ExecutionPolicy {
    /// Whether a program may run. The mode plays no part.
    #[must_use]
    pub fn decide(&self, program: &ProgramFile<'_>) -> ProgramDecision {
        let unchanged = program.origin == ProgramOrigin::Image;
        // Rules name files of the image. A file that was changed counts as another file.
        let named = unchanged.then(|| self.rules.iter().position(|rule| rule.names(program))).flatten();
        let (allowed, basis) = match (named, self.programs) {
            (Some(index), _) => {
                (self.rules[index].action == ExecutionAction::Allow, ProgramBasis::Rule(index))
            }
            (None, Programs::Any) => (true, ProgramBasis::Programs),
            (None, Programs::Image | Programs::Listed) if program.origin == ProgramOrigin::Written => {
                (false, ProgramBasis::Written)
            }
            (None, Programs::Image | Programs::Listed) if !unchanged => (false, ProgramBasis::Elsewhere),
            (None, Programs::Listed) => (false, ProgramBasis::Unlisted),
            (None, Programs::Image) if program.is_loader() => (false, ProgramBasis::Loader),
            (None, Programs::Image) => (true, ProgramBasis::Programs),
        };
        ProgramDecision { allowed, basis }
    }

    /// Says in words what a decision rests on, such as `rule 2 (deny /usr/bin/curl)`.
    #[must_use]
    pub fn describe(&self, basis: ProgramBasis) -> String {
        match basis {
            ProgramBasis::Rule(index) => match self.rules.get(index) {
                Some(rule) => format!("{basis} ({rule})"),
                None => basis.to_string(),
            },
            ProgramBasis::Programs => format!("{basis} (programs: {})", self.programs.as_str()),
            ProgramBasis::Written
            | ProgramBasis::Elsewhere
            | ProgramBasis::Loader
            | ProgramBasis::Unlisted => basis.to_string(),
        }
    }
}

impl ExecutionRule {
    /// Whether it names an unchanged program of the image. A digest of an algorithm that the record does not have is not this one's, nor is
    /// a package's: which files that has only the image knows.
    #[must_use]
    pub fn names(&self, program: &ProgramFile<'_>) -> bool {
        let path = self.path.as_deref().is_none_or(|pattern| covers_program(pattern, program.path));
        let digest = self.digest.as_deref().is_none_or(|digest| program.digest == Some(digest));
        let layer = self.layer.as_deref().is_none_or(|layer| program.layer == Some(layer));
        path && digest && layer && self.package.is_none()
    }
}

impl ProgramFile<'_> {
    /// Whether it has the name of a dynamic loader, which as a program runs any other file.
    #[must_use]
    pub fn is_loader(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        ["ld-", "ld.so", "ld64.so"].iter().any(|start| name.starts_with(start)) || name == "libc.so"
    }
}

/// Whether a pattern of programs covers a path without links: the path itself, `DIR/*` what lies in a directory, `DIR/**` what
/// lies below it.
#[must_use]
pub fn covers_program(pattern: &str, path: &str) -> bool {
    let below = |dir: &str| path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/'));
    match (pattern.strip_suffix("/**"), pattern.strip_suffix("/*")) {
        (Some(dir), _) => below(dir).is_some_and(|rest| !rest.is_empty()),
        (None, Some(dir)) => below(dir).is_some_and(|rest| !rest.is_empty() && !rest.contains('/')),
        (None, None) => pattern == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn file<'a>(path: &'a str, origin: ProgramOrigin) -> ProgramFile<'a> {
        ProgramFile { path, origin, digest: None, layer: None }
    }

    fn policy(text: &str) -> ExecutionPolicy {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn patterns_cover_what_they_say() {
        for (pattern, path, covered) in [
            ("/usr/bin/git", "/usr/bin/git", true),
            ("/usr/bin/git", "/usr/bin/gitk", false),
            ("/usr/bin/*", "/usr/bin/git", true),
            ("/usr/bin/*", "/usr/bin/x/git", false),
            ("/usr/bin/*", "/usr/bin", false),
            ("/usr/**", "/usr/bin/git", true),
            ("/usr/**", "/usrx/git", false),
            ("/*", "/init", true),
            ("/*", "/bin/init", false),
            ("/**", "/bin/init", true),
        ] {
            assert_eq!(covers_program(pattern, path), covered, "{pattern} {path}");
        }
    }

    #[test]
    fn decisions_have_the_order_of_the_kernels() {
        use ProgramOrigin::{Elsewhere, Image, Written};
        let image = policy(r#"{"programs":"image","rules":[{"action":"deny","path":"/bin/curl"}]}"#);
        let listed = policy(
            r#"{"programs":"listed","rules":[{"action":"deny","path":"/opt/a"},{"action":"allow","path":"/opt/*"}]}"#,
        );
        let any = policy(r#"{"rules":[{"action":"deny","path":"/bin/curl"}]}"#);
        for (policy, path, origin, expected) in [
            (&image, "/bin/ls", Image, (true, ProgramBasis::Programs)),
            (&image, "/bin/curl", Image, (false, ProgramBasis::Rule(0))),
            (&image, "/bin/ls", Written, (false, ProgramBasis::Written)),
            (&image, "/memfd:x", Elsewhere, (false, ProgramBasis::Elsewhere)),
            (&image, "/lib64/ld-linux-x86-64.so.2", Image, (false, ProgramBasis::Loader)),
            (&image, "/lib/ld64.so.1", Image, (false, ProgramBasis::Loader)),
            (&image, "/lib/libc.so", Image, (false, ProgramBasis::Loader)),
            (&image, "/lib/libc.so.6", Image, (true, ProgramBasis::Programs)),
            (&listed, "/opt/b", Image, (true, ProgramBasis::Rule(1))),
            (&listed, "/opt/a", Image, (false, ProgramBasis::Rule(0))),
            (&listed, "/opt/b", Written, (false, ProgramBasis::Written)),
            (&listed, "/bin/ls", Image, (false, ProgramBasis::Unlisted)),
            (&any, "/bin/curl", Image, (false, ProgramBasis::Rule(0))),
            (&any, "/bin/curl", Written, (true, ProgramBasis::Programs)),
            (&any, "/tmp/x", Written, (true, ProgramBasis::Programs)),
        ] {
            let decision = policy.decide(&file(path, origin));
            assert_eq!((decision.allowed, decision.basis), expected, "{path} {origin:?}");
        }
        assert_eq!(image.describe(ProgramBasis::Rule(0)), "rule 1 (deny /bin/curl)");
    }

    #[test]
    fn a_layer_is_what_the_record_says_and_a_package_is_not_known() {
        let layer = format!("sha256:{}", "a".repeat(64));
        let policy = policy(&format!(
            r#"{{"programs":"image","rules":[{{"action":"deny","layer":"{layer}"}},{{"action":"deny","package":"git"}}]}}"#
        ));
        let other = file("/usr/bin/git", ProgramOrigin::Image);
        assert!(policy.decide(&other).allowed);
        assert!(!policy.decide(&ProgramFile { layer: Some(&layer), ..other }).allowed);
        assert_eq!(policy.describe(ProgramBasis::Rule(1)), "rule 2 (deny package git)");
    }

    #[test]
    fn a_digest_that_is_not_known_is_nobodys() {
        let digest = format!("blake3:{}", "a".repeat(64));
        let policy = policy(&format!(
            r#"{{"programs":"listed","rules":[{{"action":"allow","path":"/bin/a","digest":"{digest}"}}]}}"#
        ));
        let known = ProgramFile { digest: Some(&digest), ..file("/bin/a", ProgramOrigin::Image) };
        assert!(policy.decide(&known).allowed);
        assert!(!policy.decide(&file("/bin/a", ProgramOrigin::Image)).allowed);
        assert!(!policy.decide(&ProgramFile { path: "/bin/b", ..known }).allowed);
    }
}
