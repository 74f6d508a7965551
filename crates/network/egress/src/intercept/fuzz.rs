//! Content that requests may have, found by coverage: `make fuzz`. It also runs for a short time with the other tests.

use bolero::check;

use super::escape::{percent_decoded, percent_encoded, shown_forms};

#[test]
fn escapes() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        assert!(percent_decoded(text).len() <= text.len());
        assert_eq!(percent_decoded(&percent_encoded(text)), text.as_bytes());
        assert!(shown_forms(text).iter().all(|form| form.len() <= 16 * text.len() + 16));
    });
}
