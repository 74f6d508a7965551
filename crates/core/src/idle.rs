//! What a sandbox does while no client uses it: it costs memory for a while, then nothing.
//!
//! Four steps, each optional and each cheaper to keep and slower to come back from: frozen between execs
//! ([`IdlePolicy::freeze_ms`], invisible), paused or deleted after its idle timeout ([`OnIdle`]), put to disk when it
//! has been frozen for long ([`IdlePolicy::hibernate_after_ms`]), deleted when no client came back for it
//! ([`IdlePolicy::delete_paused_after_ms`]).

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::{DURATION_MAX_MS, IDLE_FREEZE_MIN_MS};
use crate::sandbox::PauseMode;

/// What happens when the idle timeout ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OnIdle {
    /// The sandbox is deleted.
    #[default]
    Delete,
    /// It is paused as `frozen`: everything stays as it is, in memory.
    Freeze,
    /// It is paused as `filesystem`: processes end, files stay.
    Hibernate,
}

impl OnIdle {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Delete, Self::Freeze, Self::Hibernate];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Freeze => "freeze",
            Self::Hibernate => "hibernate",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.as_str() == text)
    }

    /// How it pauses, if it does.
    #[must_use]
    pub const fn pause(self) -> Option<PauseMode> {
        match self {
            Self::Delete => None,
            Self::Freeze => Some(PauseMode::Frozen),
            Self::Hibernate => Some(PauseMode::Filesystem),
        }
    }
}

/// What a sandbox does while nothing runs in it and nobody asks it anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdlePolicy {
    /// What the end of the idle timeout means.
    pub on_idle: OnIdle,
    /// Freeze it after so many milliseconds without a running exec or a request. Its state stays `running` and
    /// the next use thaws it; processes that execs left behind stand still meanwhile.
    pub freeze_ms: Option<u64>,
    /// Pause it as `filesystem` after it has been paused as `frozen` for so many milliseconds.
    pub hibernate_after_ms: Option<u64>,
    /// Delete it after it has been paused, in whatever mode, for so many milliseconds.
    pub delete_paused_after_ms: Option<u64>,
    /// Pause it in this mode at the end of its time to live, rather than delete it. Once it is paused it has no end
    /// any more: who resumes it gives it another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_at_end: Option<PauseMode>,
}

impl IdlePolicy {
    /// Checks the durations.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        in_range("idle_freeze_ms", self.freeze_ms, IDLE_FREEZE_MIN_MS)?;
        in_range("hibernate_after_ms", self.hibernate_after_ms, 1)?;
        in_range("delete_paused_after_ms", self.delete_paused_after_ms, 1)
    }
}

fn in_range(field: &str, value: Option<u64>, min: u64) -> Result<()> {
    match value {
        Some(ms) if !(min..=DURATION_MAX_MS).contains(&ms) => {
            Err(Error::invalid(field, format_args!("{ms} is not between {min} and {DURATION_MAX_MS}")))
        }
        _ => Ok(()),
    }
}

/// Changes of an [`IdlePolicy`]. Absent fields stay; `Some(None)` removes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleUpdate {
    /// See [`IdlePolicy::on_idle`].
    pub on_idle: Option<OnIdle>,
    /// See [`IdlePolicy::freeze_ms`].
    pub freeze_ms: Option<Option<u64>>,
    /// See [`IdlePolicy::hibernate_after_ms`].
    pub hibernate_after_ms: Option<Option<u64>>,
    /// See [`IdlePolicy::delete_paused_after_ms`].
    pub delete_paused_after_ms: Option<Option<u64>>,
    /// See [`IdlePolicy::pause_at_end`].
    pub pause_at_end: Option<Option<PauseMode>>,
}

impl IdleUpdate {
    /// What follows from it.
    ///
    /// # Errors
    /// As [`IdlePolicy::validate`].
    pub fn over(self, current: IdlePolicy) -> Result<IdlePolicy> {
        let next = IdlePolicy {
            on_idle: self.on_idle.unwrap_or(current.on_idle),
            freeze_ms: self.freeze_ms.unwrap_or(current.freeze_ms),
            hibernate_after_ms: self.hibernate_after_ms.unwrap_or(current.hibernate_after_ms),
            delete_paused_after_ms: self.delete_paused_after_ms.unwrap_or(current.delete_paused_after_ms),
            pause_at_end: self.pause_at_end.unwrap_or(current.pause_at_end),
        };
        next.validate().map(|()| next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_at_their_edges() {
        let freeze = |ms| IdlePolicy { freeze_ms: Some(ms), ..IdlePolicy::default() }.validate();
        assert!(freeze(IDLE_FREEZE_MIN_MS).is_ok() && freeze(DURATION_MAX_MS).is_ok());
        assert!(freeze(IDLE_FREEZE_MIN_MS - 1).unwrap_err().message.contains("idle_freeze_ms"));
        assert!(freeze(DURATION_MAX_MS + 1).is_err());
        let hibernate = IdlePolicy { hibernate_after_ms: Some(0), ..IdlePolicy::default() };
        assert!(hibernate.validate().unwrap_err().message.contains("hibernate_after_ms"));
        let delete = IdlePolicy { delete_paused_after_ms: Some(0), ..IdlePolicy::default() };
        assert!(delete.validate().unwrap_err().message.contains("delete_paused_after_ms"));
    }

    #[test]
    fn an_update_changes_only_what_it_names() {
        let current = IdlePolicy {
            on_idle: OnIdle::Freeze,
            freeze_ms: Some(500),
            hibernate_after_ms: Some(9),
            delete_paused_after_ms: Some(10),
            pause_at_end: Some(PauseMode::Frozen),
        };
        let update = IdleUpdate { freeze_ms: Some(None), ..IdleUpdate::default() };
        assert_eq!(update.over(current).unwrap(), IdlePolicy { freeze_ms: None, ..current });
        assert_eq!(IdleUpdate::default().over(current).unwrap(), current);
    }
}
