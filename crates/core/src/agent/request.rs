//! Requests to an agent that serves HTTP.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request to an agent that serves HTTP. A line of an outbox is one of these, written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// Path and query.
    pub path: String,
    /// The body to post; without one, the request is a `GET`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

impl HttpRequest {
    /// A `GET`.
    #[must_use]
    pub const fn get(path: String) -> Self {
        Self { path, body: None }
    }

    /// A `POST`.
    #[must_use]
    pub const fn post(path: String, body: Value) -> Self {
        Self { path, body: Some(body) }
    }

    /// As a line of an outbox.
    #[must_use]
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From a line of an outbox.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// A text as a value in a query.
pub(super) fn in_query(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut query, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            query.push(char::from(byte));
        } else {
            // Writing into a text does not fail.
            write!(query, "%{byte:02X}").unwrap_or_default();
        }
        query
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_place_in_a_query() {
        assert_eq!(in_query("/work/é &#?\r\n"), "/work/%C3%A9%20%26%23%3F%0D%0A");
        let request = HttpRequest::post("/x".into(), Value::from(1));
        assert_eq!(HttpRequest::of_line(&request.to_line()), Some(request));
        assert_eq!(HttpRequest::of_line("hello"), None);
    }
}
