//! What an agent is sent by time.

use serde::{Deserialize, Serialize};

/// When messages are due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum When {
    /// Each time that so many milliseconds have passed since the schedule was made.
    EveryMs(u64),
    /// When a clock on a wall shows it.
    Cron {
        /// Minute, hour, day of the month, month, day of the week.
        expression: String,
        /// Name of the clock's time zone in the IANA database.
        time_zone: String,
    },
}

/// What is sent, where to, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// When.
    pub when: When,
    /// The thread of the session, which is begun if there is none.
    pub thread: String,
    /// The message.
    pub text: String,
}

/// How a schedule has fared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleStatus {
    /// When the next message is due, milliseconds since the epoch.
    pub next_ms: u64,
    /// The last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
}

/// One time that a message was due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleRun {
    /// When it was due, milliseconds since the epoch.
    pub due_at_ms: u64,
    /// The number of the message in its session; absent when it was not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Why it was not taken: the code of an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
