//! Refusals, as the sandbox sees them.

use std::fmt;

use bytes::Bytes;
use http_body_util::Full;

use atoll_core::network::{Stage, narrowest};
use atoll_recorder::event::Destination;

/// Why a connection, request or lookup may not pass, in words for the programs in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// At which point.
    pub stage: Stage,
    /// What was refused: `GET http://example.com/x`, `example.com:443`.
    pub what: String,
    /// Why: the rule, or that there is none.
    pub why: String,
    /// Arguments of the command line that would allow it.
    pub ask: Option<String>,
    /// Where it led, for the record.
    pub to: Option<Box<Destination>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was refused: {}", self.what, self.why)
    }
}

impl std::error::Error for Refusal {}

/// Marks answers that come from the gateway and not from the server that was asked. Where the gateway reads a server's
/// answer it takes this header away ([`unmark`]); inside TLS that it does not open a server may send what it likes.
pub(crate) const HEADER: &str = "x-atoll-refused";

/// Takes the gateway's mark from the answer of a server.
pub(crate) fn unmark(headers: &mut http::HeaderMap) {
    headers.remove(HEADER);
}

impl Refusal {
    /// The answer to an HTTP request: 403, or 429 for a limit, with a text to be read.
    #[must_use]
    pub fn response(&self) -> http::Response<Full<Bytes>> {
        let text = explain(&self.what, &self.why, self.ask.as_deref());
        let text = format!("Atoll refused this request.\n\n{text}");
        let (status, reason) = match self.stage {
            Stage::Limit => (http::StatusCode::TOO_MANY_REQUESTS, "limit"),
            Stage::Dns | Stage::Connect | Stage::Request => (http::StatusCode::FORBIDDEN, "policy"),
        };
        plain(status, reason, text)
    }
}

/// A line each for the refused destination, the reason, and what to ask for: options of a new sandbox, and the command for
/// this one.
pub(crate) fn explain(what: &str, why: &str, ask: Option<&str>) -> String {
    let ask = ask.map(|ask| {
        let now = narrowest(ask).map(|(_, target)| format!(" (now: atoll net allow SANDBOX {target})"));
        format!("ask:  whoever runs this sandbox can allow it with {ask}{}\n", now.unwrap_or_default())
    });
    format!("what: {what}\nwhy:  {why}\n{}", ask.unwrap_or_default())
}

/// An answer of the gateway itself, in place of the server's.
pub(crate) fn plain(
    status: http::StatusCode,
    reason: &'static str,
    text: String,
) -> http::Response<Full<Bytes>> {
    let mut response = self::text(status, text);
    let reason = http::HeaderValue::from_static(reason);
    response.headers_mut().insert(http::HeaderName::from_static(HEADER), reason);
    response
}

/// A text to be read.
pub(crate) fn text(status: http::StatusCode, text: String) -> http::Response<Full<Bytes>> {
    let mut response = http::Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}
