//! Signals by name or number.

use atoll_core::{Error, Result};

/// Names of the standard signals, Linux numbers. Real-time signals go by number.
const NAMES: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];
/// Highest signal number of Linux.
const SIGNAL_MAX: i32 = 64;

/// Reads `TERM`, `SIGTERM`, `term` or `15`.
pub(super) fn parse(text: &str) -> Result<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    by_name.or_else(|| text.parse().ok()).filter(|number| (1..=SIGNAL_MAX).contains(number)).ok_or_else(
        || {
            Error::invalid("signal", format_args!("'{}' is not a signal", atoll_core::error::shorten(text)))
                .hint("write a name such as TERM or a number from 1 to 64")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn names_and_numbers() {
        for (text, number) in [("TERM", 15), ("sigint", 2), ("SIGKILL", 9), ("64", 64), ("1", 1)] {
            assert_eq!(parse(text).unwrap(), number);
        }
        for bad in ["", "0", "65", "-9", "NOPE", "SIG"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
