//! Files in one line, as clients of SFTP show them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// A line as of `ls -l`, for clients that show it.
pub(super) fn long_name(metadata: &Metadata, name: &str) -> String {
    let kind = match metadata.mode() & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    };
    let mut bits = String::from(kind);
    for at in (0..9).rev() {
        let set = metadata.mode() >> at & 1 == 1;
        bits.push(if set { ['x', 'w', 'r'][at % 3] } else { '-' });
    }
    format!(
        "{bits} {:>4} {:<8} {:<8} {:>10} {} {name}",
        metadata.nlink(),
        metadata.uid(),
        metadata.gid(),
        metadata.size(),
        day(metadata.mtime()),
    )
}

/// The day of a time, `YYYY-MM-DD`, in UTC.
fn day(seconds: i64) -> String {
    // Days since 0000-03-01, in eras of 400 years.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_763_683_200, "2025-11-21"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(day(seconds), text);
        }
    }
}
