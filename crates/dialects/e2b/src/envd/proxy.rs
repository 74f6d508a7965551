//! The door of the data plane: it decides which sandbox and port a request is for, whether the sandbox can answer, and
//! which part answers.
//!
//! | asked for | answered by |
//! |---|---|
//! | 49983 | envd, which is here |
//! | any other | the server inside that listens there |
//!
//! The texts about a sandbox that does not run and about a port without a listener are those that the clients look for.

use atoll_core::access::parse_port;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::{Code, Error};
use atoll_engine::Grant;
use atoll_server::Forward;
use atoll_store::SandboxRecord;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::auth::traffic_grant;
use super::{PORT, Sandboxed, files};
use crate::App;
use crate::error::Failure;
use crate::extras::Extras;
use crate::sandboxes::lifecycle::resume_on_traffic;

/// Header that names the sandbox.
pub(crate) const SANDBOX_HEADER: HeaderName = HeaderName::from_static("e2b-sandbox-id");
/// Header that names the port.
pub(crate) const PORT_HEADER: HeaderName = HeaderName::from_static("e2b-sandbox-port");
/// Header with the token for ports that are not public.
const TRAFFIC_HEADER: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
/// Paths of envd that only its host may call.
const INTERNAL: [&str; 7] =
    ["/init", "/upgrade", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw"];

/// Where a request of the data plane goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) sandbox: String,
    pub(crate) port: u16,
}

/// The destination that the headers name; `None` when they name no sandbox.
///
/// # Errors
/// 400 for more than one sandbox, and for a port that is not valid.
pub(crate) fn by_headers(headers: &HeaderMap) -> Option<Result<Destination, Failure>> {
    let mut named = headers.get_all(SANDBOX_HEADER).iter();
    let sandbox = named.next()?;
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    // A proxy in front of this server might pick the other one of two names.
    let sandbox = text(sandbox).filter(|_| named.next().is_none());
    let mut ports = headers.get_all(PORT_HEADER).iter();
    let port = match (ports.next(), ports.next()) {
        (None, _) => Some(PORT),
        (Some(port), None) => text(port).as_deref().and_then(parse_port),
        (Some(_), Some(_)) => None,
    };
    Some(match (sandbox, port) {
        (Some(sandbox), Some(port)) => Ok(Destination { sandbox, port }),
        (None, _) => Err(Failure::bad("E2b-Sandbox-Id: names no sandbox")),
        (_, None) => Err(Failure::bad("E2b-Sandbox-Port: is not a port")),
    })
}

/// The destination that a host name names: `49983-sb….` before the domain.
pub(crate) fn by_host(label: &str) -> Option<Destination> {
    let (port, sandbox) = label.split_once('-')?;
    let port = parse_port(port)?;
    (!sandbox.is_empty()).then(|| Destination { sandbox: sandbox.to_owned(), port })
}

/// The destination of a signed address that names no sandbox.
pub(crate) fn by_signature(app: &App, request: &Request) -> Option<Destination> {
    let operation = match *request.method() {
        http::Method::GET => files::Operation::Read,
        http::Method::POST => files::Operation::Write,
        _ => return None,
    };
    if request.uri().path() != "/files" {
        return None;
    }
    let query: files::Query = serde_html_form::from_str(request.uri().query()?).ok()?;
    let sandbox = files::signature::sandbox(app, &query, operation)?;
    Some(Destination { sandbox: sandbox.to_string(), port: PORT })
}

/// Answers a request of the data plane.
pub(crate) async fn serve(app: &App, envd: &Router, to: Destination, mut request: Request) -> Response {
    let (sandbox, record) = match usable(app, &to).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    if to.port == PORT {
        if INTERNAL.contains(&request.uri().path()) {
            return Failure::not_found("not found").into_response();
        }
        request.extensions_mut().insert(Sandboxed(sandbox));
        let answered = envd.clone().oneshot(request).await;
        return answered.unwrap_or_else(|never| match never {});
    }
    forward(app, sandbox, &record, to, request).await
}

/// The sandbox, if it can be used. A paused sandbox with `auto_resume` is woken first.
async fn usable(app: &App, to: &Destination) -> Result<(SandboxId, SandboxRecord), Response> {
    let engine = app.host.engine();
    let gone = || unavailable(to, "The sandbox was not found", None);
    // By id alone: a name may pass to another sandbox.
    let id: SandboxId = to.sandbox.parse().map_err(|_malformed: Error| gone())?;
    let record = engine.sandbox(&id).map_err(|_missing| gone())?;
    match record.state {
        SandboxState::Running => Ok((id, record)),
        SandboxState::Paused | SandboxState::Pausing | SandboxState::Resuming
            if Extras::of(&record).auto_resume =>
        {
            match resume_on_traffic(engine, &id, &record).await {
                Ok(record) => Ok((id, record)),
                Err(error) if error.code == Code::SandboxNotFound => Err(gone()),
                Err(error) => Err(Failure::of(&error).into_response()),
            }
        }
        // A client's call resumes or creates it; when the guest answers, it runs.
        SandboxState::Resuming | SandboxState::Creating => match engine.guest(&id).await {
            Ok(_lease) => Ok((id, record)),
            Err(_) => Err(gone()),
        },
        SandboxState::Paused | SandboxState::Pausing | SandboxState::Deleting | SandboxState::Failed => {
            Err(gone())
        }
    }
}

/// 502 in the proxy's own form.
fn unavailable(to: &Destination, message: &str, port: Option<u16>) -> Response {
    let sandbox: String = to.sandbox.chars().take(64).collect();
    let mut body = json!({"sandboxId": sandbox, "message": message, "code": 502});
    if let Some(port) = port {
        body["port"] = port.into();
    }
    json_answer(StatusCode::BAD_GATEWAY, &body)
}

fn json_answer(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn forward(
    app: &App,
    sandbox: SandboxId,
    record: &SandboxRecord,
    to: Destination,
    mut request: Request,
) -> Response {
    let engine = app.host.engine();
    let extras = Extras::of(record);
    // A public port is open to every client; other ports are open to clients with the token.
    let shown = request.headers_mut().remove(TRAFFIC_HEADER);
    let grant = match engine.public_access(&sandbox, to.port) {
        Some(access) => Some(Grant::of_link(access)),
        None => {
            let shown = shown.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
            traffic_grant(engine, shown, &sandbox).await
        }
    };
    let Some(grant) = grant else {
        let why = if shown.is_some() {
            "The traffic access token is wrong"
        } else {
            "The sandbox requires a traffic access token: send it as e2b-traffic-access-token"
        };
        let body = json!({"sandboxId": to.sandbox, "message": why, "code": 403});
        return json_answer(StatusCode::FORBIDDEN, &body);
    };
    for header in [SANDBOX_HEADER, PORT_HEADER, HeaderName::from_static("x-access-token")] {
        request.headers_mut().remove(header);
    }
    let mask = extras.network.as_ref().and_then(|network| network.get("maskRequestHost")?.as_str());
    if let Some(mask) = mask
        && let Ok(host) = HeaderValue::try_from(mask.replace("${PORT}", &to.port.to_string()))
    {
        request.headers_mut().insert(HOST, host);
    }
    let https = extras.network.as_ref().and_then(|network| network.get("httpsPorts")?.as_array());
    let tls = https.is_some_and(|ports| ports.iter().any(|port| port.as_u64() == Some(to.port.into())));
    let forward = Forward { sandbox, port: to.port, prefix: None, keep_host: true, tls, grant };
    match app.host.ingress().try_forward(request, forward).await {
        Ok(response) => response,
        Err(error) if error.code == Code::PortClosed => {
            unavailable(&to, "The sandbox is running but port is not open", Some(to.port))
        }
        Err(error) if matches!(error.code, Code::SandboxNotFound | Code::SandboxFailed) => {
            unavailable(&to, "The sandbox was not found", None)
        }
        Err(error) => json_answer(
            StatusCode::BAD_GATEWAY,
            &json!({"sandboxId": to.sandbox, "message": error.message, "port": to.port, "code": 502}),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn host_names() {
        let envd = Destination { sandbox: "sb00000000000000000000".into(), port: PORT };
        assert_eq!(by_host("49983-sb00000000000000000000"), Some(envd));
        for other in ["api", "49983-", "49983", "0-sb1", "www", ""] {
            assert_eq!(by_host(other), None, "{other}");
        }
    }

    #[test]
    fn destinations() {
        let of = |pairs: &[_]| by_headers(&headers(pairs)).map(Result::ok);
        assert_eq!(of(&[]), None);
        let envd = Destination { sandbox: "sb1".into(), port: PORT };
        assert_eq!(of(&[(SANDBOX_HEADER, "sb1")]), Some(Some(envd)));
        let port = Destination { sandbox: "sb1".into(), port: 80 };
        assert_eq!(of(&[(SANDBOX_HEADER, "sb1"), (PORT_HEADER, "80")]), Some(Some(port)));
        assert_eq!(of(&[(SANDBOX_HEADER, "sb1"), (PORT_HEADER, "0")]), Some(None));
        assert_eq!(of(&[(SANDBOX_HEADER, "sb1"), (SANDBOX_HEADER, "sb2")]), Some(None));
        assert_eq!(of(&[(SANDBOX_HEADER, "a"), (PORT_HEADER, "1"), (PORT_HEADER, "2")]), Some(None));
    }
}
