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
/// Seconds after which a page loads itself again that shows an error which may pass.
const REFRESH_S: u32 = 3;

/// How often the page with the ports looks again by itself: each look keeps the sandbox awake, and a forgotten tab
/// must not do that for ever.
const LOOKS_MAX_COUNT: u32 = 200;
/// Counts the looks in the page's address.
const LOOK_PARAMETER: &str = "look";

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#16202a;--soft:#5b6673;--line:#dfe4e9;--paper:#f5f7f8;--card:#fff;--link:#0b6b5b;--tint:#e3f3ef;--warn:#8a4b08;--warm:#fbeedb}\
@media(prefers-color-scheme:dark){:root{--ink:#e8edf1;--soft:#98a4b0;--line:#2a333c;--paper:#0f1418;--card:#171d23;--link:#5bd0b5;--tint:#143029;--warn:#f0b566;--warm:#382a14}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:42rem;margin:clamp(2rem,10vh,7rem) auto 3rem;padding:0 1.25rem}h1{font-size:1.6rem;line-height:1.25;letter-spacing:-.01em;margin:0 0 .4rem;overflow-wrap:anywhere}\
p{margin:.4rem 0;color:var(--soft);overflow-wrap:anywhere}code,.port{font-family:ui-monospace,monospace}code{font-size:.9em;color:var(--ink)}\
.brand{display:flex;align-items:center;gap:.5rem;margin:0 0 1.75rem;font-size:.8rem;font-weight:600;letter-spacing:.08em;text-transform:uppercase}\
.brand::before{content:'';width:.85rem;height:.85rem;border-radius:50%;border:.22rem solid var(--link)}\
ul{list-style:none;margin:1.75rem 0 0;padding:0;border:1px solid var(--line);border-radius:.75rem;background:var(--card);overflow:hidden}li+li{border-top:1px solid var(--line)}\
li a{display:grid;grid-template-columns:5rem 1fr auto;align-items:center;gap:.25rem 1rem;padding:1rem 1.15rem;color:inherit;text-decoration:none}\
li a:hover,li a:focus-visible{background:var(--tint);outline:0}.port{font-size:1.2rem;font-weight:600}.where{color:var(--link);overflow-wrap:anywhere}\
.open{font-size:.75rem;font-weight:600;padding:.15rem .6rem;border-radius:1rem;color:var(--link);background:var(--tint)}.all{color:var(--warn);background:var(--warm)}\
@media(max-width:34rem){li a{grid-template-columns:1fr auto}.where{grid-column:1/-1;grid-row:2;font-size:.9rem}}\
.none{margin-top:1.75rem;padding:1.75rem 1.25rem;border:1px dashed var(--line);border-radius:.75rem;text-align:center}\
footer{margin-top:2rem;font-size:.8rem;color:var(--soft);overflow-wrap:anywhere}";

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
    let again = REFRESH_S.to_string();
    page(code, title, &body, passes.then_some(again.as_str()))
}

/// The ports of a sandbox, with links. `token` is an access to all of them, passed on in the links; `query` is
/// the page's own.
pub(super) async fn ports(
    app: &App,
    id: &SandboxId,
    host: Option<&str>,
    token: Option<&str>,
    query: Option<&str>,
) -> Result<Response> {
    let guest = app.engine.guest(id).await?;
    let ports = guest.ports().await.map_err(guest_error)?;
    let record = app.engine.sandbox(id)?;
    let name = record.name.as_deref().unwrap_or(id.as_str());
    let mut rows = String::new();
    for port in &ports {
        let url = urls::port(app, &record, *port, host);
        let link = token.map_or_else(|| url.clone(), |token| urls::with_token(&url, token));
        let open = if app.engine.public_access(id, *port).is_some() {
            "<span class=\"open all\">public</span>"
        } else {
            "<span class=\"open\">private</span>"
        };
        let shown = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).trim_end_matches('/');
        let _ = write!(
            rows,
            "<li><a href=\"{}\" rel=\"noreferrer\" target=\"_blank\"><span class=\"port\">{port}</span>\
             <span class=\"where\">{}</span>{open}</a></li>",
            escaped(&link),
            escaped(shown),
        );
    }
    let list = if ports.is_empty() {
        "<p class=\"none\">Nothing listens yet. Start a server in the sandbox, on any TCP port of its loopback, \
         and it appears here.</p>"
            .to_owned()
    } else {
        format!("<ul>{rows}</ul>")
    };
    let look = query.map_or(0, look_of).saturating_add(1);
    let again = (look < LOOKS_MAX_COUNT).then(|| format!("{REFRESH_S};url=?{LOOK_PARAMETER}={look}"));
    let keeps = match again {
        Some(_) => format!("This page looks again every {REFRESH_S} seconds."),
        None => "This page has stopped looking, so that the sandbox may rest: load it again.".to_owned(),
    };
    let title = format!("Ports of {name}");
    let body = format!(
        "<h1>{}</h1><p>What listens in this sandbox. A private port opens with your link; a public one for \
         everybody who has its address.</p>{list}<footer>{keeps} Sandbox <code>{}</code></footer>",
        escaped(&title),
        escaped(id.as_str()),
    );
    Ok(page(StatusCode::OK, &title, &body, again.as_deref()))
}

/// How often the page has looked, as its address says.
fn look_of(query: &str) -> u32 {
    let of = |pair: &str| pair.strip_prefix(LOOK_PARAMETER)?.strip_prefix('=')?.parse().ok();
    query.split('&').find_map(of).unwrap_or(0)
}

/// `again` says when the browser is to load it again, and from where.
fn page(code: StatusCode, title: &str, body: &str, again: Option<&str>) -> Response {
    let refresh = again
        .map(|again| format!("<meta http-equiv=\"refresh\" content=\"{}\">", escaped(again)))
        .unwrap_or_default();
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">{refresh}<title>{}</title><style>{STYLE}</style></head>\
         <body><main><div class=\"brand\">Atoll</div>{body}</main></body></html>",
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
    fn looks_are_counted_in_the_address() {
        for (query, looks) in
            [("look=7", 7), ("a=b&look=8", 8), ("look=", 0), ("look=x", 0), ("outlook=9", 0)]
        {
            assert_eq!(look_of(query), looks, "{query}");
        }
    }

    #[test]
    fn nothing_from_outside_is_markup() {
        assert_eq!(escaped("<a href='x\"&"), "&lt;a href=&#39;x&quot;&amp;");
        assert_eq!(capitalised("ünder"), "Ünder");
        assert_eq!(capitalised(""), "");
    }
}
