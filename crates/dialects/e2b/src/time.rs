//! Times as the clients read them.

const DAY_S: i64 = 24 * 3600;

pub(crate) use atoll_dialect_kit::time::now_ms;

/// `2026-11-21T19:15:00.123Z` for milliseconds since the epoch.
pub(crate) fn of_ms(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    rfc3339(seconds, i32::try_from(ms % 1000).unwrap_or_default() * 1_000_000)
}

/// RFC 3339 in UTC, with as many digits of the fraction as are needed: none, 3, 6 or 9.
pub(crate) fn rfc3339(seconds: i64, nanos: i32) -> String {
    let (year, month, day) = civil(seconds.div_euclid(DAY_S));
    let rest = seconds.rem_euclid(DAY_S);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let fraction = match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1000 == 0 => format!(".{:06}", n / 1000),
        n => format!(".{n:09}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Milliseconds since the epoch of an RFC 3339 time, rounded down.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let mut parts = clock.splitn(3, ':');
    let hour: i64 = parts.next()?.parse().ok()?;
    let minute: i64 = parts.next()?.parse().ok()?;
    let (second, fraction) = parts.next()?.split_once('.').unwrap_or((clock.rsplit(':').next()?, ""));
    let second: i64 = second.parse().ok()?;
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    let millis: i64 = digits.parse().ok()?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !in_range {
        return None;
    }
    let offset_minutes = match zone {
        "Z" | "z" => 0,
        zone => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    let seconds = days(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second - offset_minutes * 60;
    u64::try_from(seconds * 1000 + millis).ok()
}

/// Year, month and day of a count of days since the epoch (the "civil from days" of proleptic Gregorian
/// calendars, with eras of 400 years that begin in March).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The reverse: the count of days since the epoch.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        assert_eq!(of_ms(0), "1970-01-01T00:00:00Z");
        assert_eq!(of_ms(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(-1, 1), "1969-12-31T23:59:59.000000001Z");
        for ms in [0, 951_782_400_123, 1_735_689_599_999] {
            assert_eq!(parse(&of_ms(ms)), Some(ms));
        }
        assert_eq!(parse("2000-02-29T02:00:00.1234567+02:00"), Some(951_782_400_123));
        for bad in ["", "2000-02-29", "2000-13-01T00:00:00Z", "x-y-zT00:00:00Z", "2000-02-29T00:00Z+"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
