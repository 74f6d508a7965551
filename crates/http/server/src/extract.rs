//! Strict parsing: a misspelt field is an error that names the field, and is never ignored.

use atoll_core::error::shorten;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::{Code, Error};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::body;
use crate::error::{ApiError, ApiResult, json};
use crate::shared::App;

/// Parts of the path.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub(crate) struct Path<T>(pub(crate) T);

/// The query string.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> ApiResult<Self> {
        Ok(parse_query(parts.uri.query().unwrap_or_default()).map(Self)?)
    }
}

fn parse_query<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let pairs = serde_html_form::Deserializer::from_bytes(text.as_bytes());
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let field = field(error.path(), "query");
        Error::invalid(&field, clean(error.inner())).hint("see the parameters of this route in /openapi.json")
    })
}

/// A JSON body, of a request or an answer.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _app: &App) -> ApiResult<Self> {
        let bytes = body::read_all(request.into_body(), JSON_BODY_MAX_BYTES).await?;
        Ok(parse_json(&bytes).map(Self)?)
    }
}

/// Reads JSON and says where it is wrong.
///
/// # Errors
/// [`Code::InvalidJson`] with line and column, [`Code::InvalidArgument`] with the field's path.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let at = field(error.path(), "body");
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data => {
                Error::invalid(&at, clean(&inner)).hint("see the body of this route in /openapi.json")
            }
            serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof
            | serde_json::error::Category::Io => malformed(&inner),
        }
    })?;
    text.end().map_err(|error| malformed(&error))?;
    // The derived parsers also take a list of the fields in their order, which no client means.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::invalid("body", "must be a JSON object")
            .hint("see the body of this route in /openapi.json"));
    }
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> Error {
    Error::new(Code::InvalidJson, format!("the body is not JSON: {}", clean(error)))
        .hint("send one JSON object; '{}' where nothing needs to be said")
}

/// The path of a field; `whole` for the document itself.
fn field(path: &serde_path_to_error::Path, whole: &str) -> String {
    let path = path.to_string();
    if path == "." || path == "?" { whole.to_owned() } else { path }
}

/// A parser's error quotes the client's text: it is cut and cleaned before it stands in a message.
fn clean(error: &dyn std::fmt::Display) -> String {
    const MAX_CHARS: usize = 400;
    let text = error.to_string();
    let kept: String = text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if kept.len() < text.len() { format!("{kept}…") } else { kept }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], json(&self.0)).into_response()
    }
}

/// Permission bits in octal, such as `0644`.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub(crate) fn octal(field: &str, text: &str) -> Result<u32, Error> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits && mode <= 0o7777 => Ok(mode),
        _ => Err(Error::invalid(field, format_args!("'{}' is not a mode", shorten(text)))
            .hint("write permissions in octal, such as 0644")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::CreateSandbox;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Params {
        #[serde(default)]
        label: Vec<String>,
        limit: Option<u32>,
        #[serde(default)]
        close: bool,
    }

    fn query(text: &str) -> Result<Params, String> {
        parse_query(text).map_err(|error| error.message)
    }

    #[test]
    fn queries() {
        let params = query("label=a%3D1&limit=3&label=b%3D2&close=true").unwrap();
        assert_eq!(params, Params { label: vec!["a=1".into(), "b=2".into()], limit: Some(3), close: true });
        assert!(query("limit=x").unwrap_err().starts_with("limit: "));
        assert!(query("limit=-1").unwrap_err().starts_with("limit: "));
        assert!(query("limits=1").unwrap_err().contains("limits"));
        assert!(query("close=maybe").unwrap_err().starts_with("close: "));
        assert!(query("limit=1&limit=2").is_err());
    }

    #[test]
    fn json_errors_say_where() {
        let parse = |text: &str| parse_json::<CreateSandbox>(text.as_bytes()).unwrap_err();
        let error = parse("{\n \"name\": }");
        assert_eq!(error.code, Code::InvalidJson);
        assert!(error.message.contains("line 2"), "{}", error.message);
        assert_eq!(parse("").code, Code::InvalidJson);
        assert_eq!(parse("{} {}").code, Code::InvalidJson);
        let error = parse("{\"resources\": {\"pids\": \"many\"}}");
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.starts_with("resources.pids: "), "{}", error.message);
        let error = parse("{\"nmae\": \"x\"}");
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("nmae"), "{}", error.message);
        assert!(parse(&format!("{{\"{}\": 1}}", "x".repeat(5000))).message.len() < 600);
    }

    #[test]
    fn modes() {
        assert_eq!(octal("mode", "0644"), Ok(0o644));
        assert_eq!(octal("mode", "7777"), Ok(0o7777));
        for bad in ["", "8", "+1", "-1", "10000", "0x1f", "rwx"] {
            assert!(octal("mode", bad).is_err(), "{bad}");
        }
    }
}
