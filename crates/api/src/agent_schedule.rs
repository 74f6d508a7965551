//! Messages to agents by time.

use atoll_core::agent::{ScheduleRun, ScheduleSpec, When};
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The thread that messages go to when a schedule names none.
const THREAD: &str = "main";
/// The time zone that a clock shows when a schedule names none.
const TIME_ZONE: &str = "UTC";

/// Has messages sent to an agent by time. Give either `every_ms` or `cron`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateAgentSchedule {
    /// Each time that so many milliseconds have passed since now: at least 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// When a clock shows it: minute, hour, day of the month, month, day of the week, as `0 9 * * 1-5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The clock's time zone, as the IANA database names it; `UTC` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The thread of the session that gets the messages, which is begun if there is none; `main` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// What to say: at most 16 KiB.
    #[schema(required)]
    pub text: String,
}

impl CreateAgentSchedule {
    /// The spec that this request means.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] unless exactly one of `every_ms` and `cron` is given.
    pub fn spec(self) -> Result<ScheduleSpec> {
        let when = match (self.every_ms, self.cron) {
            (Some(_), None) if self.time_zone.is_some() => {
                return Err(Error::invalid("time_zone", "belongs to 'cron'"));
            }
            (Some(every_ms), None) => When::EveryMs(every_ms),
            (None, Some(expression)) => {
                let time_zone = self.time_zone.unwrap_or_else(|| TIME_ZONE.to_owned());
                When::Cron { expression, time_zone }
            }
            _ => return Err(Error::invalid("every_ms", "give exactly one of 'every_ms' and 'cron'")),
        };
        let thread = self.thread.unwrap_or_else(|| THREAD.to_owned());
        Ok(ScheduleSpec { when, thread, text: self.text })
    }
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentSchedule {
    /// Its id.
    pub id: String,
    /// How often, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// When, by a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The clock's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The thread that gets the messages.
    pub thread: String,
    /// What is said.
    pub text: String,
    /// When the next message is due.
    pub next_at_ms: u64,
    /// The last time that one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// The schedules of an agent, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentScheduleList {
    /// All of them.
    pub items: Vec<AgentSchedule>,
}
