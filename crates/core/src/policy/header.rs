//! Names of headers that injection rules speak of.

use super::inject::NAME_MAX_BYTES;
use crate::error::{Error, Result, shorten};

/// Headers in which APIs want their keys, besides `Authorization`: a server takes their values for credentials, and
/// neither stores nor repeats them.
pub const KEY_HEADERS: [&str; 24] = [
    "api-key",
    "apikey",
    "circle-token",
    "dd-api-key",
    "dd-application-key",
    "ocp-apim-subscription-key",
    "private-token",
    "x-access-token",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth-key",
    "x-auth-token",
    "x-figma-token",
    "x-functions-key",
    "x-goog-api-key",
    "x-key",
    "x-rapidapi-key",
    "x-shopify-access-token",
    "x-subscription-token",
    "x-token",
    "x-tracker-token",
    "x-vault-token",
    "xi-api-key",
];
/// Headers that belong to the connection or to the framing, or say where the request goes.
const FIXED_HEADERS: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Checks that a rule may set a header.
pub(super) fn header_name(field: &str, text: &str) -> Result<()> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if text.is_empty() || text.len() > NAME_MAX_BYTES || !text.bytes().all(token) {
        return Err(Error::invalid(field, format_args!("'{}' is not the name of a header", shorten(text))));
    }
    if FIXED_HEADERS.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(Error::invalid(
            field,
            format_args!("'{text}' belongs to the connection: no rule sets it"),
        ));
    }
    Ok(())
}
