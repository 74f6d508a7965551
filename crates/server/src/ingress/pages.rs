//! What people see in a browser: errors, and the ports of a sandbox. No script, nothing from elsewhere.

use atoll_core::error::Error;
use atoll_core::id::SandboxId;
use atoll_core::{Code, Result};
use atoll_engine::guest_error;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use std::fmt::Write as _;

use super::urls;
use crate::error::{ApiError, status, with_body};
use crate::shared::App;

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Seconds after which a page that shows what may pass looks again.
const REFRESH_S: u32 = 3;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60646c;--line:#d9d9e0;--paper:#fcfcfd;--link:#0a6e5c}\
@media(prefers-color-scheme:dark){:root{--ink:#edeef0;--soft:#b0b4ba;--line:#363a3f;--paper:#111113;--link:#4ccbb0}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:40rem;margin:12vh auto 4rem;padding:0 1.25rem}h1{font-size:1.35rem;margin:0 0 .5rem;overflow-wrap:anywhere}\
p{margin:.4rem 0;color:var(--soft);overflow-wrap:anywhere}code,td:first-child{font-family:ui-monospace,monospace;font-size:.95em}\
table{width:100%;border-collapse:collapse;margin-top:1.5rem}td,th{padding:.6rem .25rem;border-bottom:1px solid var(--line);text-align:left}\
th{font-weight:500;font-size:.85rem;color:var(--soft)}a{color:var(--link);overflow-wrap:anywhere}footer{margin-top:2.5rem;font-size:.8rem;color:var(--soft)}";

/// An error, as a page or as JSON like every other.
pub(super) fn error(error: Error, html: bool, request_id: &str) -> Response {
    if !html {
        return with_body(ApiError(error).into_response(), request_id);
    }
    let code = status(error.code);
    let passes = matches!(error.code, Code::PortClosed | Code::GuestUnavailable | Code::ShuttingDown);
    let title = match error.code {
        Code::Unauthorized => "This port is private",
        Code::PortClosed => "Nothing listens here yet",
        Code::PortBroken => "The server in the sandbox broke off",
        Code::SandboxNotFound => "No such sandbox",
        _ if code.is_server_error() => "The sandbox cannot be reached",
        _ => "This does not work",
    };
    let hint = error.hint.as_deref().map(|hint| format!("<p>{}</p>", escaped(hint))).unwrap_or_default();
    let wait = if passes {
        format!("<p>This page looks again every {REFRESH_S} seconds.</p>")
    } else {
        String::new()
    };
    let body = format!(
        "<h1>{title}</h1><p>{}.</p>{hint}{wait}<footer>{} · {} · request {}</footer>",
        escaped(&capitalised(&error.message)),
        code.as_u16(),
        error.code,
        escaped(request_id),
    );
    page(code, title, &body, passes)
}

/// The ports of a sandbox, with links. `token` is an access to all of them, passed on in the links.
pub(super) async fn ports(
    app: &App,
    id: &SandboxId,
    host: Option<&str>,
    token: Option<&str>,
) -> Result<Response> {
    let guest = app.engine.guest(id.as_str()).await?;
    let ports = guest.ports().await.map_err(guest_error)?;
    let record = app.engine.sandbox(id.as_str())?;
    let name = record.name.as_deref().unwrap_or(id.as_str());
    let mut rows = String::new();
    for port in &ports {
        let url = urls::port(app, &record, *port, host);
        let link = token.map_or_else(|| url.clone(), |token| urls::with_token(&url, token));
        let public = app.engine.public_access(id.as_str(), *port).is_some();
        let _ = write!(
            rows,
            "<tr><td>{port}</td><td><a href=\"{}\" rel=\"noreferrer\" target=\"_blank\">{}</a></td><td>{}</td></tr>",
            escaped(&link),
            escaped(&url),
            if public { "public" } else { "private" },
        );
    }
    let list = if ports.is_empty() {
        "<p>Nothing listens yet. Start a server in the sandbox and it appears here.</p>".to_owned()
    } else {
        format!(
            "<table><thead><tr><th>Port</th><th>Address</th><th>Open to</th></tr></thead><tbody>{rows}</tbody></table>"
        )
    };
    let title = format!("Ports of {name}");
    let body = format!(
        "<h1>{}</h1><p>TCP ports on which something listens, looked up every {REFRESH_S} seconds.</p>{list}\
         <footer>Atoll · sandbox {}</footer>",
        escaped(&title),
        escaped(id.as_str()),
    );
    Ok(page(StatusCode::OK, &title, &body, true))
}

fn page(code: StatusCode, title: &str, body: &str, refresh: bool) -> Response {
    let refresh = if refresh {
        format!("<meta http-equiv=\"refresh\" content=\"{REFRESH_S}\">")
    } else {
        String::new()
    };
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">{refresh}<title>{}</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>",
        escaped(title),
    );
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (code, headers, html).into_response()
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Text as it may stand in a page, also between quotes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_as_asked_for() {
        let what = || Error::new(Code::PortClosed, "nothing <script> listens").hint("a & b");
        let response = error(what(), true, "id");
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert!(response.headers()[CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
        assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], POLICY);
        let response = error(what(), false, "id");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    }

    #[test]
    fn nothing_from_outside_is_markup() {
        assert_eq!(escaped("<a href='x\"&"), "&lt;a href=&#39;x&quot;&amp;");
        assert_eq!(capitalised("ünder"), "Ünder");
        assert_eq!(capitalised(""), "");
    }
}
