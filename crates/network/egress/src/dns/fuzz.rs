//! Questions that a sandbox may send, found by coverage: `make fuzz`. It also runs for a short time with the other
//! tests.

use bolero::check;
use hickory_proto::op::ResponseCode;

use super::message::{answer, for_udp, question};

#[test]
fn questions_to_the_resolver() {
    check!().for_each(|bytes: &[u8]| {
        let Some(asked) = question(bytes) else { return };
        let told = answer(&asked, ResponseCode::Refused, Vec::new(), Some("no rule allows it"));
        let Some(sent) = for_udp(&asked, &told) else { return };
        assert!(sent.len() <= 1232 && question(&sent).is_none());
    });
}
