//! Profiles: what the processes of one sandbox may do, each with less than the sandbox.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result, shorten};
use crate::execution::program_path;
use crate::limits::{
    PROFILE_MEMORY_MIN_BYTES, PROFILE_PATHS_MAX_COUNT, PROFILE_STEPS_MAX_COUNT, PROFILES_MAX_COUNT,
};
use crate::policy::EgressPolicy;
use crate::spec::check;

/// Every program that `on_exec` does not name otherwise.
pub const EVERY_PROGRAM: &str = "*";

/// Where a sandbox with profiles that can be asked for from inside has the command `atoll-run`, and below it a *door* for each profile: a
/// program that runs another, and whose file means that profile to the kernel of the host.
pub const RUN_DIR: &str = "/.atoll";

/// Where the door of a profile is.
#[must_use]
pub fn door(profile: &str) -> String {
    format!("{RUN_DIR}/profiles/{profile}")
}

/// The profiles of a sandbox. A process is in one from its exec's first moment on, or in none; it leaves it only by running a program,
/// and only for one that the profile names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Profiles {
    /// The profile of execs that ask for none; in none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// By name. What rules of the network and of secrets say is `from: {profile: NAME}` is for its processes alone.
    pub named: BTreeMap<String, Profile>,
}

/// What the processes of a profile may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Profile {
    /// User of its execs, unless one says another; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its execs are killed this long after their start, unless one asks for less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Files and directories whose content it does not see, and below which it changes nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<String>,
    /// Files and directories below which it changes nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    /// The profile in which a program runs that its processes execute: by path in the image, as rules about programs name them, and `*`
    /// for all others. The profile's own name lets a program stay in it. Nothing changes the profile when this is empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub on_exec: BTreeMap<String, String>,
    /// The profiles that its processes may ask for with `atoll-run --profile NAME -- COMMAND`, beside the one to which `*` leads in `on_exec`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub may_run: Vec<String>,
    /// What each process may use that begins in it, or gets into it; less than the sandbox has.
    #[serde(skip_serializing_if = "ProfileLimits::is_none")]
    pub limits: ProfileLimits,
}

/// Limits of each process of a profile. They are inherited, and no process inside can raise them. All together have the sandbox's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProfileLimits {
    /// Memory that one process may write to, bytes; asking for more fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// A process of it makes no other while its user has so many in the sandbox, threads included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// CPU time of one process, seconds; then it is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u32>,
}

impl ProfileLimits {
    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self, field: &str) -> Result<()> {
        let below = |name: &str, given: Option<u64>, min: u64| match given {
            Some(given) if given < min => {
                Err(Error::invalid(&format!("{field}.{name}"), format_args!("at least {min}")))
            }
            _ => Ok(()),
        };
        below("memory_bytes", self.memory_bytes, PROFILE_MEMORY_MIN_BYTES)?;
        below("processes", self.processes.map(u64::from), 1)?;
        below("cpu_seconds", self.cpu_seconds.map(u64::from), 1)
    }
}

impl Profile {
    /// The profiles that its processes may ask for.
    #[must_use]
    pub fn asks(&self) -> BTreeSet<&str> {
        let others = self.on_exec.get(EVERY_PROGRAM);
        self.may_run.iter().chain(others).map(String::as_str).collect()
    }

    /// The profiles that its processes can get into.
    fn next(&self) -> BTreeSet<&str> {
        self.on_exec.values().chain(&self.may_run).map(String::as_str).collect()
    }
}

/// The profile in which an exec begins, as it was when that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecProfile {
    /// Its name.
    pub name: String,
    /// It, and those that its processes can get into.
    pub named: BTreeMap<String, Profile>,
}

impl Profiles {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.named.is_empty()
    }

    /// The one that an exec means: by name, or the default.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for one that is not there.
    pub fn of_exec(&self, asked: Option<&str>) -> Result<Option<(&str, &Profile)>> {
        let Some(name) = asked.or(self.default.as_deref()) else { return Ok(None) };
        let found = self.named.get_key_value(name);
        found
            .map(|(name, profile)| Some((name.as_str(), profile)))
            .ok_or_else(|| self.unknown("profile", name))
    }

    /// What an exec has to know that begins in a profile of this name.
    #[must_use]
    pub fn from(&self, name: &str) -> ExecProfile {
        let mut named = BTreeMap::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            if let Some((name, profile)) = self.named.get_key_value(name)
                && named.insert(name.clone(), profile.clone()).is_none()
            {
                open.extend(profile.next());
            }
        }
        ExecProfile { name: name.to_owned(), named }
    }

    /// Checks the form of profiles, that each name means one, and that no process comes back to a profile that it left.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] or [`Code::PathInvalid`] naming the field.
    pub fn validate(&self, field: &str) -> Result<()> {
        if self.named.len() > PROFILES_MAX_COUNT {
            let why = format_args!("more than {PROFILES_MAX_COUNT}");
            return Err(Error::invalid(&format!("{field}.named"), why));
        }
        for (name, profile) in &self.named {
            check::name(&format!("{field}.named"), name)?;
            self.validate_one(&format!("{field}.named.{name}"), name, profile)?;
        }
        if let Some(name) = self.default.as_deref().filter(|name| !self.named.contains_key(*name)) {
            return Err(self.unknown(&format!("{field}.default"), name));
        }
        for name in self.named.keys() {
            self.check_way(field, &mut vec![name.as_str()])?;
        }
        Ok(())
    }

    /// Checks that rules of the network and of secrets name profiles that there are.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub fn check_rules(&self, field: &str, policy: &EgressPolicy) -> Result<()> {
        for origin in policy.origins() {
            if let Some(name) = origin.profile()
                && !self.named.contains_key(name)
            {
                return Err(self.unknown(&format!("{field}: from.profile"), name));
            }
        }
        Ok(())
    }

    fn validate_one(&self, field: &str, name: &str, profile: &Profile) -> Result<()> {
        if let Some(user) = &profile.user {
            check::user(&format!("{field}.user"), user)?;
        }
        if let Some(ms) = profile.timeout_ms {
            check::duration(&format!("{field}.timeout_ms"), ms)?;
        }
        profile.limits.validate(&format!("{field}.limits"))?;
        let mut seen = BTreeSet::new();
        for (what, paths) in [("hide", &profile.hide), ("read_only", &profile.read_only)] {
            let field = format!("{field}.{what}");
            if paths.len() > PROFILE_PATHS_MAX_COUNT {
                return Err(Error::invalid(&field, format_args!("more than {PROFILE_PATHS_MAX_COUNT}")));
            }
            for (number, path) in paths.iter().enumerate() {
                let field = format!("{field}[{number}]");
                plain_path(&field, path)?;
                if !seen.insert(path) {
                    return Err(Error::invalid(&field, format_args!("'{}' was named before", shorten(path))));
                }
            }
        }
        self.validate_asked(&format!("{field}.may_run"), name, profile)?;
        self.validate_steps(&format!("{field}.on_exec"), name, profile)
    }

    fn validate_asked(&self, field: &str, name: &str, profile: &Profile) -> Result<()> {
        for (number, asked) in profile.may_run.iter().enumerate() {
            let field = format!("{field}[{number}]");
            if !self.named.contains_key(asked) {
                return Err(self.unknown(&field, asked));
            }
            if asked == name {
                return Err(Error::invalid(&field, format_args!("what is in '{name}' need not ask for it")));
            }
            if profile.may_run[..number].contains(asked) {
                return Err(Error::invalid(&field, format_args!("'{asked}' was named before")));
            }
        }
        Ok(())
    }

    fn validate_steps(&self, field: &str, name: &str, profile: &Profile) -> Result<()> {
        let steps = &profile.on_exec;
        if steps.len() > PROFILE_STEPS_MAX_COUNT {
            return Err(Error::invalid(field, format_args!("more than {PROFILE_STEPS_MAX_COUNT}")));
        }
        for (program, next) in steps {
            if program != EVERY_PROGRAM {
                program_path(field, program)?;
            }
            if !self.named.contains_key(next) {
                return Err(self.unknown(&format!("{field}: '{}'", shorten(program)), next));
            }
        }
        match steps.get(EVERY_PROGRAM) {
            None if !steps.is_empty() => Err(Error::invalid(
                field,
                format_args!(
                    "says nothing of other programs: a copy of one that is named would stay in '{name}'"
                ),
            )
            .hint("name the profile of all others: \"*\": \"PROFILE\"")),
            Some(next) if next == name => Err(Error::invalid(
                field,
                format_args!("'*' stays in '{name}': then nothing leaves it for certain"),
            )
            .hint("leave on_exec out, or let '*' lead to another profile")),
            _ => Ok(()),
        }
    }

    /// Follows every way from the last of `way`.
    fn check_way<'a>(&'a self, field: &str, way: &mut Vec<&'a str>) -> Result<()> {
        let Some(last) = way.last().copied() else { return Ok(()) };
        let steps = self.named.get(last).into_iter().flat_map(Profile::next);
        for name in steps.filter(|next| *next != last) {
            if way.contains(&name) {
                let names: Vec<&str> = way.iter().copied().chain([name]).collect();
                let why = format_args!("leads back: {}", names.join(" → "));
                let from = &self.named[last];
                let what = if from.on_exec.values().any(|next| next == name) { "on_exec" } else { "may_run" };
                return Err(Error::invalid(&format!("{field}.named.{last}.{what}"), why)
                    .hint("a process may only lose rights on its way"));
            }
            way.push(name);
            self.check_way(field, way)?;
            way.pop();
        }
        Ok(())
    }

    fn unknown(&self, field: &str, name: &str) -> Error {
        let there: Vec<&str> = self.named.keys().map(String::as_str).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        Error::invalid(field, format_args!("there is no profile '{}'", shorten(name)))
            .hint(format!("this sandbox's profiles: {there}"))
    }
}

/// A path that means one place: absolute, without `.` and `..`, and not the root.
pub(crate) fn plain_path(field: &str, path: &str) -> Result<()> {
    check::path(field, path)?;
    let names = path.split('/').skip(1).all(|name| !matches!(name, "" | "." | ".."));
    if path.starts_with('/') && names {
        return Ok(());
    }
    Err(Error::new(Code::PathInvalid, format!("{field}: '{}' is no plain path", shorten(path)))
        .hint("write it from '/', without '.' and '..'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: serde_json::Value) -> Profiles {
        serde_json::from_value(value).unwrap()
    }

    fn refused(value: serde_json::Value) -> String {
        read(value).validate("profiles").unwrap_err().to_string()
    }

    fn steps(all: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"named": all})
    }

    #[test]
    fn an_agent_and_its_tools() {
        let good = read(serde_json::json!({"default": "tool", "named": {
            "agent": {"on_exec": {"/usr/bin/env": "agent", "/bin/bash": "shell", "*": "tool"}},
            "shell": {"on_exec": {"*": "tool"}},
            "tool": {"user": "1000", "hide": ["/opt/agents"], "read_only": ["/etc"], "timeout_ms": 1000}}}));
        good.validate("profiles").unwrap();
        assert_eq!(good.of_exec(None).unwrap().unwrap().0, "tool");
        assert_eq!(good.of_exec(Some("agent")).unwrap().unwrap().0, "agent");
        assert!(good.of_exec(Some("aget")).unwrap_err().to_string().contains("no profile 'aget'"));
        assert!(good.named["agent"].asks().contains("tool") && good.named["agent"].asks().len() == 1);
        let reached: Vec<String> = good.from("shell").named.into_keys().collect();
        assert_eq!(reached, ["shell", "tool"]);
        assert!(Profiles::default().of_exec(None).unwrap().is_none());
        assert!(Profiles::default().is_empty() && !good.is_empty());
        Profiles::default().validate("profiles").unwrap();
        for bad in [r#"{"name":{}}"#, r#"{"named":{"a":{"egress":"none"}}}"#] {
            assert!(serde_json::from_str::<Profiles>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_thing_that_cannot_be_meant_is_said() {
        use serde_json::json;
        let cases = [
            (json!({"default": "x"}), "profiles.default: there is no profile 'x'"),
            (json!({"named": {"A b": {}}}), "profiles.named: 'A b' is not a name"),
            (steps(json!({"a": {"on_exec": {"*": "b"}}})), "on_exec: '*': there is no profile 'b'"),
            (steps(json!({"a": {"on_exec": {"/bin/sh": "b"}}, "b": {}})), "says nothing of other programs"),
            (steps(json!({"a": {"on_exec": {"*": "a"}}})), "'*' stays in 'a'"),
            (steps(json!({"a": {"on_exec": {"sh": "b", "*": "b"}}, "b": {}})), "'sh' is no path of programs"),
            (
                steps(json!({"a": {"on_exec": {"*": "b"}}, "b": {"on_exec": {"*": "a"}}})),
                "profiles.named.b.on_exec: leads back: a → b → a",
            ),
            (
                steps(json!({"a": {"on_exec": {"*": "b"}}, "b": {"on_exec": {"*": "c"}},
                    "c": {"on_exec": {"/bin/x": "b", "*": "d"}}, "d": {}})),
                "leads back: a → b → c → b",
            ),
            (steps(json!({"a": {"may_run": ["b"]}})), "a.may_run[0]: there is no profile 'b'"),
            (steps(json!({"a": {"may_run": ["a"]}})), "a.may_run[0]: what is in 'a' need not ask"),
            (steps(json!({"a": {"may_run": ["b", "b"]}, "b": {}})), "a.may_run[1]: 'b' was named before"),
            (
                steps(json!({"a": {"on_exec": {"*": "b"}}, "b": {"may_run": ["a"]}})),
                "profiles.named.b.may_run: leads back: a → b → a",
            ),
            (steps(json!({"a": {"limits": {"processes": 0}}})), "a.limits.processes: at least 1"),
            (steps(json!({"a": {"limits": {"memory_bytes": 4096}}})), "a.limits.memory_bytes: at least"),
            (steps(json!({"a": {"limits": {"cpu_seconds": 0}}})), "a.limits.cpu_seconds: at least 1"),
            (steps(json!({"a": {"user": "a b"}})), "profiles.named.a.user"),
            (steps(json!({"a": {"timeout_ms": 0}})), "profiles.named.a.timeout_ms"),
            (steps(json!({"a": {"hide": ["opt"]}})), "profiles.named.a.hide[0]"),
            (steps(json!({"a": {"hide": ["/opt/../x"]}})), "profiles.named.a.hide[0]"),
            (steps(json!({"a": {"hide": ["/"]}})), "profiles.named.a.hide[0]"),
            (
                steps(json!({"a": {"hide": ["/opt"], "read_only": ["/opt"]}})),
                "read_only[0]: '/opt' was named before",
            ),
        ];
        for (value, why) in cases {
            let said = refused(value.clone());
            assert!(said.contains(why), "{value}: {said}");
        }
        let many: BTreeMap<String, Profile> =
            (0..=PROFILES_MAX_COUNT).map(|n| (format!("p{n}"), Profile::default())).collect();
        assert!(Profiles { default: None, named: many }.validate("profiles").is_err());
    }

    #[test]
    fn rules_name_profiles_that_there_are() {
        use serde_json::json;
        let policy: EgressPolicy = serde_json::from_value(json!({"internet": "rules", "rules":
            [{"action": "allow", "domain": "a.example", "from": {"profile": "agent"}}]}))
        .unwrap();
        policy.validate("egress").unwrap();
        let said = Profiles::default().check_rules("egress", &policy).unwrap_err().to_string();
        assert!(said.contains("egress: from.profile: there is no profile 'agent'"), "{said}");
        read(json!({"named": {"agent": {}}})).check_rules("egress", &policy).unwrap();
    }
}
