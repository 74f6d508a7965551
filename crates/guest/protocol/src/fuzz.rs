//! Input that a hostile peer may send, found by coverage: `make fuzz`. Each test also runs for a short time with the
//! other tests.

use bolero::check;
use bytes::Bytes;

use crate::control::{Answer, Ask};
use crate::messages;
use crate::serial::{Deframer, PAYLOAD_MAX_BYTES, encode};
use crate::wire::{Decoder, Kind, RECORD_MAX_BYTES, WireError, decode_message};

/// The records of a body that arrives in pieces; raw bytes of one kind are joined.
fn records(body: &[u8], piece: usize) -> Result<Vec<(Kind, Vec<u8>)>, WireError> {
    let mut decoder = Decoder::new();
    let mut found: Vec<(Kind, Vec<u8>)> = Vec::new();
    for chunk in body.chunks(piece) {
        decoder.push(Bytes::copy_from_slice(chunk));
        while let Some(record) = decoder.next_record()? {
            assert!(record.payload.len() <= RECORD_MAX_BYTES);
            match found.last_mut() {
                Some((kind, bytes)) if *kind == record.kind && matches!(kind, Kind::Data | Kind::DataErr) => {
                    bytes.extend_from_slice(&record.payload);
                }
                _ => found.push((record.kind, record.payload.to_vec())),
            }
        }
    }
    decoder.finish()?;
    Ok(found)
}

#[test]
fn records_do_not_depend_on_how_they_are_cut() {
    check!().for_each(|body: &[u8]| {
        let whole = records(body, body.len().max(1));
        for piece in [1, 3, 7] {
            assert_eq!(records(body, piece), whole);
        }
    });
}

#[test]
fn frames_of_a_serial_port() {
    check!().for_each(|bytes: &[u8]| {
        let mut whole = Vec::new();
        Deframer::new().push(bytes, |frame| whole.push(frame));
        let (mut pieces, mut deframer) = (Vec::new(), Deframer::new());
        for piece in bytes.chunks(5) {
            deframer.push(piece, |frame| pieces.push(frame));
        }
        assert_eq!(whole, pieces);
        for frame in whole {
            assert!(frame.payload.len() <= PAYLOAD_MAX_BYTES);
            let (mut again, mut found) = (Vec::new(), Vec::new());
            encode(frame.kind, &frame.payload, &mut again);
            Deframer::new().push(&again, |frame| found.push(frame));
            assert_eq!(found, [frame]);
        }
    });
}

#[test]
fn messages_of_either_side() {
    check!().for_each(|payload: &[u8]| {
        let payload = Bytes::copy_from_slice(payload);
        drop(decode_message::<messages::Hello>(payload.clone()));
        drop(decode_message::<messages::Failure>(payload.clone()));
        drop(decode_message::<messages::Exited>(payload.clone()));
        drop(decode_message::<messages::StartExec>(payload.clone()));
        drop(decode_message::<Ask>(payload.clone()));
        drop(decode_message::<Answer>(payload));
    });
}
