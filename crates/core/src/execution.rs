//! Which programs may run in a sandbox.

use serde::{Deserialize, Serialize};

/// Which programs may run.
///
/// It is about programs that the kernel is asked to execute, by whomever and with whatever rights inside. What a program
/// that may run does with its input is its own matter: an interpreter that may run runs any script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecutionPolicy {
    /// Which programs may run.
    pub programs: Programs,
    /// Whether others are refused, or only told of in the journal.
    #[serde(skip_serializing_if = "ExecutionMode::is_default")]
    pub mode: ExecutionMode,
}

/// Which programs may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Programs {
    /// All.
    #[default]
    Any,
    /// What the image brought and nobody has changed since. Nothing that was written, changed or downloaded in the sandbox, nothing in
    /// memory, on a volume or in `/dev/shm`, and no dynamic loader as a program, which would run any of these.
    Image,
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
        self.programs == Programs::Any
    }
}

impl Programs {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Image => "image",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Any, Self::Image].into_iter().find(|programs| programs.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_open() {
        let read = |text| serde_json::from_str::<ExecutionPolicy>(text);
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
}
