//! Journals that were cut or changed, found by coverage: `make fuzz`. It runs shortly with the other tests, too.

use bolero::check;

use crate::chain::{Kind, Link, Next, decode, encode};

#[test]
fn records_of_a_journal() {
    check!().for_each(|bytes: &[u8]| {
        let mut rest = bytes;
        while let Next::Frame(frame) = decode(rest) {
            assert!(frame.size > frame.payload.len() && frame.size <= rest.len());
            rest = &rest[frame.size..];
        }
        let mut written = Vec::new();
        let link = encode(&mut written, Link::start("sb"), Kind::Event, bytes);
        let Next::Frame(frame) = decode(&written) else { panic!("what is written can be read") };
        assert_eq!((frame.payload, frame.size), (bytes, written.len()));
        assert_eq!(Link::parse(&link.hex()), Some(link));
    });
}
