//! Heads that a sender may write, found by coverage: `make fuzz`. It also runs for a short time with the other tests.

use bolero::check;
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, TE, UPGRADE};

use crate::{HOP_BY_HOP, KEPT, named, set_upgrade, strip_hop_by_hop, upgrade};

/// The headers in lines of names and values; lines that are no header are left out.
fn headers(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts.next().and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let (Some(name), Some(value)) = (name, value)
            && headers.len() < 200
        {
            headers.append(name, value);
        }
    }
    headers
}

#[test]
fn only_what_is_for_the_other_end_passes() {
    check!().for_each(|text: &[u8]| {
        let before = headers(text);
        let mut after = before.clone();
        let protocol = strip_hop_by_hop(&mut after);
        for (name, value) in &after {
            let trailers = *name == TE && value == "trailers";
            assert!(trailers || !HOP_BY_HOP.contains(name), "{name} passed");
            assert!(
                trailers || KEPT.contains(name) || named(&before).all(|other| other != name),
                "{name} passed"
            );
        }
        for name in before.keys().filter(|name| !HOP_BY_HOP.contains(name)) {
            let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
            let stays = KEPT.contains(name) || named(&before).all(|other| other != *name);
            assert_eq!(values(&after), if stays { values(&before) } else { Vec::new() }, "{name}");
        }
        // The next connection's own headers are no reason to remove anything else.
        if let Some(protocol) = protocol {
            assert!(!protocol.to_str().unwrap().to_lowercase().contains("h2c"), "{protocol:?}");
            assert!(before.get_all(UPGRADE).iter().eq([&protocol]));
            set_upgrade(&mut after, protocol.clone());
            assert_eq!((upgrade(&after), after.get_all(CONNECTION).iter().count()), (Some(protocol), 1));
        }
        let mut again = after.clone();
        strip_hop_by_hop(&mut again);
        after.remove(CONNECTION);
        after.remove(UPGRADE);
        assert_eq!(again, after, "it is the same the second time");
    });
}
