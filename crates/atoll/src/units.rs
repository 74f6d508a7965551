//! Sizes, durations and cores as people write them. Exact: no floating point.

/// Decimal places that are read.
const PLACES_MAX: usize = 9;

/// Splits `12.5GiB` into 12.5 × 10⁹ and `GiB`.
fn number(text: &str) -> Option<(u128, &str)> {
    const SCALE: u128 = 10_u128.pow(9);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    let dangling = digits.contains('.') && places.is_empty();
    if whole.is_empty() || dangling || places.len() > PLACES_MAX || places.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction: u128 = format!("{places:0<PLACES_MAX$}").parse().ok()?;
    Some((u128::from(whole) * SCALE + fraction, unit))
}

/// `value` (× 10⁹) times `factor`, rounded to the nearest.
fn scaled(value: u128, factor: u64) -> Option<u64> {
    const SCALE: u128 = 10_u128.pow(9);
    u64::try_from((value.checked_mul(u128::from(factor))? + SCALE / 2) / SCALE).ok()
}

/// Reads a size in bytes: `512MiB`, `2G`, `1.5GiB`, `100MB`, `4096`. `K`, `M`, `G`, `T` are powers of
/// 1024, as are `KiB`…; `kB`, `MB`… are powers of 1000.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size: write it like 512MiB, 2G or 1.5GB");
    let (value, unit) = number(text.trim()).ok_or_else(wrong)?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    scaled(value, factor).ok_or_else(|| format!("'{text}' is too large"))
}

/// Reads bytes per second: a size as [`parse_bytes`] reads it, with or without `/s`.
pub(crate) fn parse_bytes_per_second(text: &str) -> Result<u64, String> {
    parse_bytes(text.strip_suffix("/s").unwrap_or(text)).map_err(|_unreadable| {
        format!("'{text}' is no number of bytes per second: write it like 50M/s or 1.5GB/s")
    })
}

/// Reads a duration in milliseconds: `90s`, `1h30m`, `500ms`, `2d`, `1.5h`. The unit is needed.
pub(crate) fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a duration: write it like 90s, 1h30m or 500ms");
    let mut rest = text.trim();
    let mut total = 0_u64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (value, after) = number(rest).ok_or_else(wrong)?;
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = scaled(value, factor).ok_or_else(|| format!("'{text}' is too long"))?;
        total = total.checked_add(part).ok_or_else(|| format!("'{text}' is too long"))?;
        rest = next;
    }
    Ok(total)
}

/// Reads cores in thousandths: `2`, `2.5`, `0.25`, `500m`.
pub(crate) fn parse_cpu_millis(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is not a number of cores: write it like 2, 0.5 or 500m");
    let (value, unit) = number(text.trim()).ok_or_else(wrong)?;
    let factor = match unit {
        "" => 1_000,
        "m" => 1,
        _ => return Err(wrong()),
    };
    scaled(value, factor)
        .and_then(|millis| u32::try_from(millis).ok())
        .ok_or_else(|| format!("'{text}' is too many cores"))
}

/// Reads `key=value`. The value may be empty and may hold `=`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// A size for people: `1.5 GiB`. Rounded down to a tenth.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0_u32;
    while unit < 5 && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let name = UNITS[unit as usize];
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, tenth) => format!("{whole}.{tenth} {name}"),
    }
}

/// A duration for people, in its largest two units: `3d 4h`, `90ms`.
pub(crate) fn format_duration_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    let two = |a: u64, unit_a: &str, b: u64, unit_b: &str| match b {
        0 => format!("{a}{unit_a}"),
        _ => format!("{a}{unit_a} {b}{unit_b}"),
    };
    match () {
        () if days > 0 => two(days, "d", hours, "h"),
        () if hours > 0 => two(hours, "h", minutes, "m"),
        () if minutes > 0 => two(minutes, "m", rest, "s"),
        () if seconds > 0 || ms == 0 => format!("{seconds}s"),
        () => format!("{ms}ms"),
    }
}

/// Cores for people: `2`, `0.25`.
pub(crate) fn format_cpu_millis(millis: u32) -> String {
    let (whole, part) = (millis / 1000, millis % 1000);
    if part == 0 {
        return whole.to_string();
    }
    format!("{whole}.{part:03}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates() {
        for text in ["50M/s", "50M", "50 MiB/s", "52428800"] {
            assert_eq!(parse_bytes_per_second(text), Ok(50 << 20), "{text}");
        }
        for text in ["", "/s", "50M/m", "50M/s/s", "fast", "-1", "99999999T/s"] {
            assert!(parse_bytes_per_second(text).unwrap_err().contains("per second"), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512MiB", 512 << 20),
            ("2G", 2 << 30),
            ("2g", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("1.5 GB", 1_500_000_000),
            ("0.5K", 512),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "G",
            "-1",
            "1..5G",
            "1.G",
            ".5G",
            "1X",
            "1e3",
            "99999999999999999999",
            "20000000T",
            "1.0000000001",
        ] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in
            [("90s", 90_000), ("1h30m", 5_400_000), ("500ms", 500), ("2d", 172_800_000), ("1.5h", 5_400_000)]
        {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for bad in
            ["", "90", "s", "1h30", "1y", "-1s", "1h 30m", "99999999999999999999s", "999999999999999999d"]
        {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cores() {
        for (text, millis) in [("2", 2000), ("2.5", 2500), ("0.25", 250), ("500m", 500)] {
            assert_eq!(parse_cpu_millis(text), Ok(millis), "{text}");
        }
        for bad in ["", "m", "two", "1c", "5000000000"] {
            assert!(parse_cpu_millis(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(u64::MAX), "16383.9 PiB");
        assert_eq!(format_duration_ms(0), "0s");
        assert_eq!(format_duration_ms(90), "90ms");
        assert_eq!(format_duration_ms(5_400_000), "1h 30m");
        assert_eq!(format_cpu_millis(2500), "2.5");
        assert_eq!(format_cpu_millis(2000), "2");
    }

    proptest! {
        #[test]
        fn nothing_makes_the_readers_fall_over(text in ".{0,40}") {
            drop(parse_bytes(&text));
            drop(parse_duration_ms(&text));
            drop(parse_cpu_millis(&text));
        }

        #[test]
        fn sizes_shown_are_read_back_within_a_tenth(bytes in 0_u64..1 << 50) {
            let shown = format_bytes(bytes);
            let read = parse_bytes(&shown).unwrap();
            prop_assert!(read <= bytes.saturating_add(1));
            prop_assert!(bytes - read.min(bytes) <= bytes / 10 + 1, "{bytes} was shown as {shown}");
        }

        #[test]
        fn whole_numbers_are_exact(bytes: u64) {
            prop_assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
        }

        #[test]
        fn durations_add_up(h in 0_u64..1000, m in 0_u64..1000, s in 0_u64..1000) {
            let text = format!("{h}h{m}m{s}s");
            prop_assert_eq!(parse_duration_ms(&text), Ok(((h * 60 + m) * 60 + s) * 1000));
        }

        #[test]
        fn cores_round_trip(millis in 0_u32..10_000_000) {
            prop_assert_eq!(parse_cpu_millis(&format_cpu_millis(millis)), Ok(millis));
        }
    }
}
