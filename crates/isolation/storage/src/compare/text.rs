//! The difference between two texts, as `diff -u` shows it.

use std::time::Duration;

use similar::{Algorithm, TextDiff};

/// Largest file that is compared as text, bytes.
pub(super) const FILE_MAX_BYTES: u64 = 256 << 10;
/// All differences of one comparison together, bytes.
pub(super) const TOTAL_MAX_BYTES: usize = 4 << 20;
/// After this a difference may be larger than it needs to be.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Lines around a difference.
const CONTEXT_LINES: usize = 3;

/// The difference, or nothing when either is not text.
pub(super) fn difference(path: &str, from: &[u8], to: &[u8]) -> Option<String> {
    let (from, to) = (text(from)?, text(to)?);
    let diff = TextDiff::configure().algorithm(Algorithm::Patience).timeout(TIMEOUT).diff_lines(from, to);
    let names = (format!("a{path}"), format!("b{path}"));
    Some(diff.unified_diff().context_radius(CONTEXT_LINES).header(&names.0, &names.1).to_string())
}

fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.contains(&0) { None } else { std::str::from_utf8(bytes).ok() }
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn lines_in_their_context() {
        let seen = difference("/f", b"one\ntwo\n", b"one\n2\n").unwrap();
        assert_eq!(seen, "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n");
        assert_eq!(difference("/f", b"\0", b"x"), None);
        assert_eq!(difference("/f", b"\xff", b"x"), None);
    }
}
