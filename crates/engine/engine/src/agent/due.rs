//! When messages of schedules are due. Pure.

use atoll_core::agent::When;
use atoll_core::limits::{AGENT_SCHEDULE_CRON_MAX_BYTES, AGENT_SCHEDULE_EVERY_MIN_MS, DURATION_MAX_MS};
use atoll_core::{Error, Result};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// What tells when messages of one schedule are due.
#[derive(Debug)]
pub(super) enum Timer {
    Every { begun_ms: u64, every_ms: u64 },
    Cron { cron: Box<Cron>, zone: TimeZone },
}

impl Timer {
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`].
    pub(super) fn new(when: &When, begun_ms: u64) -> Result<Self> {
        match when {
            When::EveryMs(every_ms) => {
                if !(AGENT_SCHEDULE_EVERY_MIN_MS..=DURATION_MAX_MS).contains(every_ms) {
                    let (least, most) = (AGENT_SCHEDULE_EVERY_MIN_MS, DURATION_MAX_MS);
                    let why = format_args!("must lie between {least} and {most}");
                    return Err(Error::invalid("every_ms", why));
                }
                Ok(Self::Every { begun_ms, every_ms: *every_ms })
            }
            When::Cron { expression, time_zone } => {
                let zone = short("time_zone", time_zone).and_then(|name| {
                    TimeZone::get(name).map_err(|_unknown| {
                        Error::invalid("time_zone", "is not known").hint("such as UTC, or Europe/Berlin")
                    })
                })?;
                // A minute is the least that a wall clock is asked for, and nothing ends with a year.
                let parser =
                    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
                let cron = short("cron", expression).and_then(|text| {
                    parser.parse(text).map_err(|error| {
                        Error::invalid("cron", error)
                            .hint("minute, hour, day of the month, month, day of the week: '0 9 * * 1-5'")
                    })
                })?;
                Ok(Self::Cron { cron: Box::new(cron), zone })
            }
        }
    }

    /// The first time after a moment. `None`: never again.
    pub(super) fn next(&self, after_ms: u64) -> Option<u64> {
        match self {
            Self::Every { begun_ms, every_ms } => {
                let gone = after_ms.saturating_sub(*begun_ms) / every_ms;
                begun_ms.checked_add((gone + 1).checked_mul(*every_ms)?)
            }
            Self::Cron { cron, zone } => {
                let next = cron.find_next_occurrence(&shown(zone, after_ms)?, false).ok()?;
                u64::try_from(next.timestamp().as_millisecond()).ok()
            }
        }
    }

    /// The time that a message is due for now, if one has been since `next_ms`: of several that were missed the last.
    pub(super) fn due(&self, next_ms: u64, now_ms: u64) -> Option<u64> {
        (next_ms <= now_ms).then(|| self.last(now_ms).unwrap_or(next_ms).max(next_ms))
    }

    /// The last time before a moment, or at it.
    fn last(&self, until_ms: u64) -> Option<u64> {
        match self {
            Self::Every { begun_ms, every_ms } => {
                let gone = until_ms.saturating_sub(*begun_ms) / every_ms;
                Some(begun_ms + gone * every_ms)
            }
            Self::Cron { cron, zone } => {
                let last = cron.find_previous_occurrence(&shown(zone, until_ms)?, true).ok()?;
                u64::try_from(last.timestamp().as_millisecond()).ok()
            }
        }
    }
}

fn short<'a>(field: &str, text: &'a str) -> Result<&'a str> {
    let max = AGENT_SCHEDULE_CRON_MAX_BYTES;
    if (1..=max).contains(&text.len()) && text.is_ascii() {
        return Ok(text);
    }
    Err(Error::invalid(field, format_args!("must be 1 to {max} ASCII characters")))
}

/// What a clock in a time zone shows.
fn shown(zone: &TimeZone, at_ms: u64) -> Option<Zoned> {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
    Some(at.to_zoned(zone.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::Code;

    fn ms(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    fn cron(expression: &str, time_zone: &str) -> Result<Timer> {
        Timer::new(&When::Cron { expression: expression.into(), time_zone: time_zone.into() }, 0)
    }

    #[test]
    fn every_counts_from_the_beginning() {
        let timer = Timer::new(&When::EveryMs(1000), 500).unwrap();
        assert_eq!(timer.next(500), Some(1500));
        assert_eq!(timer.next(1499), Some(1500));
        assert_eq!(timer.next(1500), Some(2500));
        assert_eq!((timer.due(1500, 1499), timer.due(1500, 1500)), (None, Some(1500)));
        // Of what was missed one is made up for; a clock that was set back changes nothing.
        assert_eq!((timer.due(1500, 9700), timer.next(9700)), (Some(9500), Some(10_500)));
        assert_eq!(timer.due(1500, 100), None);
        for wrong in [0, 999, u64::MAX] {
            assert_eq!(Timer::new(&When::EveryMs(wrong), 0).unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn cron_means_a_clock_on_a_wall() {
        let utc = cron("30 9 * * 1-5", "UTC").unwrap();
        // A Friday; then the Monday.
        assert_eq!(utc.next(ms("2026-01-02T09:30:00Z")), Some(ms("2026-01-05T09:30:00Z")));
        let (friday, sunday) = (ms("2026-01-02T09:30:00Z"), ms("2026-01-04T12:00:00Z"));
        assert_eq!(utc.due(ms("2025-12-30T09:30:00Z"), sunday), Some(friday));
        // Berlin: an hour before in winter, two in summer.
        let berlin = cron("30 9 * * *", "Europe/Berlin").unwrap();
        assert_eq!(berlin.next(ms("2026-01-02T00:00:00Z")), Some(ms("2026-01-02T08:30:00Z")));
        assert_eq!(berlin.next(ms("2026-07-02T00:00:00Z")), Some(ms("2026-07-02T07:30:00Z")));
        // 02:30 comes twice on this day, and is one time of day.
        let twice = cron("30 2 * * *", "Europe/Berlin").unwrap();
        let first = twice.next(ms("2026-10-24T12:00:00Z")).unwrap();
        assert_eq!(twice.next(first), Some(ms("2026-10-26T01:30:00Z")));
        // And on this one not at all: that day is not left out.
        let never = twice.next(ms("2026-03-28T12:00:00Z")).unwrap();
        assert!((ms("2026-03-29T00:00:00Z")..ms("2026-03-30T00:00:00Z")).contains(&never), "{never}");
        assert!(cron("@daily", "UTC").is_ok());
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let long = "0,".repeat(100) + "0 0 * * *";
        for wrong in ["", "x", "* * * *", "* * * * * *", "0 0 0 1 1 * 2030", "99 * * * *", "é * * * *", &long]
        {
            let error = cron(wrong, "UTC").unwrap_err();
            assert!(
                error.code == Code::InvalidArgument && error.message.contains("cron"),
                "{wrong}: {error}"
            );
        }
        for wrong in ["", "Mars/Olympus", "../../etc/passwd"] {
            let error = cron("0 0 * * *", wrong).unwrap_err();
            assert!(
                error.code == Code::InvalidArgument && error.message.contains("time_zone"),
                "{wrong}: {error}"
            );
        }
        // A day that never comes.
        assert_eq!(cron("0 0 30 2 *", "UTC").unwrap().next(ms("2026-01-01T00:00:00Z")), None);
    }
}
