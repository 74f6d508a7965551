//! What clients send over a WebSocket, and where they say that they stopped, found by coverage: `make fuzz`. It also runs for a
//! short time with the other tests.

use std::fmt::Debug;

use atoll_api::{AttachClientMessage, CreateExec};
use atoll_core::{Code, Error, Result};
use atoll_store::Cursor;
use bolero::check;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::agent_attach::read;
use super::events::{LAST_EVENT_ID, last_event_id};
use crate::extract::parse_json;

/// Longest message of an error, bytes: a field and a parser's words, both cut.
const WHY_MAX_BYTES: usize = 2048;

/// A message that is taken means what any other parser of JSON makes of it; one that is not is refused in words of bounded
/// length that are fit to be shown.
fn assert_one_meaning<T>(text: &[u8], read: Result<T>)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    match read {
        Ok(message) => {
            let other: Value = serde_json::from_slice(text).unwrap();
            assert!(other.is_object(), "{other}");
            assert_eq!(serde_json::from_value::<T>(other).unwrap(), message);
            assert_eq!(parse_json::<T>(&serde_json::to_vec(&message).unwrap()).unwrap(), message);
        }
        Err(Error { code, message, .. }) => {
            assert!(matches!(code, Code::InvalidJson | Code::InvalidArgument), "{code}");
            assert!(message.len() <= WHY_MAX_BYTES && !message.contains(char::is_control), "{message:?}");
        }
    }
}

#[test]
fn messages_of_clients() {
    check!().for_each(|text: &[u8]| {
        assert_one_meaning(text, parse_json::<AttachClientMessage>(text));
        assert_one_meaning(text, parse_json::<CreateExec>(text));
        let message = read(text);
        if let Ok(message) = &message {
            assert!(message.id().is_none_or(|id| id.len() <= 128), "{message:?}");
        }
        assert_one_meaning(text, message);
    });
}

/// The number that digits are, if it is one of an event.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    text.iter().try_fold(0, append)
}

#[test]
fn where_a_client_stopped() {
    check!().for_each(|text: &[u8]| {
        if let Ok(value) = HeaderValue::from_bytes(text) {
            let headers = HeaderMap::from_iter([(LAST_EVENT_ID, value)]);
            let last = last_event_id(&headers);
            assert_eq!(last.ok(), number(text).map(Some), "{:?}", text.escape_ascii().to_string());
        }
        let Ok(text) = std::str::from_utf8(text) else { return };
        if let Ok(cursor) = text.parse::<Cursor>() {
            let (ms, id) = text.split_once('.').unwrap();
            assert_eq!(cursor.to_string(), format!("{}.{id}", number(ms.as_bytes()).unwrap()));
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
    });
}
