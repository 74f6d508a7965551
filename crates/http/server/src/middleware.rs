//! What happens around every handler: request id, log, metrics, origin, panics, error bodies.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use atoll_core::{Code, Error};
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use http_body_util::BodyExt as _;
use tracing::Instrument as _;

use crate::dialect::{Asked, Dialect};
use crate::error::{ApiError, with_body};
use crate::hangup::{self, ClientGone};
use crate::origin;
use crate::revocation::{GrantSlot, UntilRevoked, revoked};
use crate::shared::App;
use crate::streams::Turn;
use crate::trace;

/// Carries the request's id, both ways.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over from a client, bytes.
const REQUEST_ID_MAX_BYTES: usize = 64;
/// Label of requests that no route serves.
const NO_ROUTE: &str = "none";

/// The id of the request at hand.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

/// A client's id if it is harmless in a log and a header, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> RequestId {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|text| {
        (1..=REQUEST_ID_MAX_BYTES).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    });
    match given {
        Some(id) => RequestId(id.into()),
        // Ids are for people who look for a line in a log; without randomness there are bigger worries.
        None => RequestId(format!("{:016x}", getrandom::u64().unwrap_or_default()).into()),
    }
}

/// What the layer wraps: the native API, or a dialect.
#[derive(Debug, Clone)]
pub(crate) struct Around {
    pub(crate) app: App,
    /// None for the native API.
    pub(crate) dialect: Option<Dialect>,
}

impl Around {
    /// Writes the body of an answer that ended with an error, in the form of the API that the client called; passes
    /// other answers on.
    fn render(&self, response: Response, asked: Option<&Asked>, request_id: &str) -> Response {
        let Some((dialect, asked)) = self.dialect.zip(asked) else { return with_body(response, request_id) };
        match response.extensions().get::<ApiError>() {
            Some(ApiError(error)) => (dialect.refuse)(error, asked),
            None => response,
        }
    }
}

/// The layer around everything.
pub(crate) async fn around(State(around): State<Around>, mut request: Request, next: Next) -> Response {
    let app = &around.app;
    let asked = around.dialect.is_some().then(|| Asked::of(&request));
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    // A dialect's routes are its own matter.
    let dialect = around.dialect.map(|dialect| dialect.name);
    // The query is not logged: it belongs to the caller.
    let span = tracing::info_span!("request", id = %id.0, %method, path = request.uri().path());
    request.extensions_mut().insert(id.clone());
    let grant_slot = GrantSlot::default();
    request.extensions_mut().insert(grant_slot.clone());
    let turn = Turn::begin(app, &mut request);
    let gone = ClientGone::default();
    request.extensions_mut().insert(gone.clone());
    let request = request.map(|body| UntilRevoked::body(body, &grant_slot, &app.engine));

    let changes = hangup::may_change(&method);
    let incoming = trace::Incoming::of(&request, dialect, &id, changes);
    // Boxed: it is a large future, and is moved into a task.
    let answering = Box::pin({
        let (app, grant_slot) = (app.clone(), grant_slot.clone());
        async move {
            let origin = origin::check(&method, request.headers(), app.console.own_names());
            let response = match origin {
                Ok(()) => guarded(answer(next, count_received(request, &app), &grant_slot, &app)).await,
                Err(error) => ApiError(error).into_response(),
            };
            let response = turn.answered(response, &grant_slot);
            let took = started.elapsed();
            let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
            let route = dialect.unwrap_or(route);
            app.metrics.request(&method, route, response.status().as_u16(), took);
            let recorded = incoming.answered(&app.engine, &grant_slot, &response, took);
            // Beside the recorder's thread, which writes the record meanwhile.
            log(&response, took);
            recorded.await;
            response
        }
    });
    let response = async {
        if changes { hangup::to_its_end(&app.tasks, gone, answering).await } else { answering.await }
    }
    .instrument(span)
    .await;

    let response = response.map(|body| UntilRevoked::body(body, &grant_slot, &app.engine));
    let mut response = around.render(response, asked.as_ref(), &id.0);
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    count_sent(response, app)
}

/// Answers a request. One that only reads is given up when the caller's right ends, so that the caller does not wait
/// for something that it may no longer see. One that may change something runs to its end, as it does when the client
/// goes: see [`hangup`].
async fn answer(next: Next, request: Request, grant_slot: &GrantSlot, app: &App) -> Response {
    if hangup::may_change(request.method()) {
        return next.run(request).await;
    }
    tokio::select! {
        biased;
        response = next.run(request) => response,
        () = grant_slot.until_revoked(&app.engine) => ApiError(revoked()).into_response(),
    }
}

/// A panic in a handler costs that request, not the server.
async fn guarded(response: impl Future<Output = Response>) -> Response {
    match AssertUnwindSafe(response).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let what = panic.downcast_ref::<&str>().copied();
            let what = what.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(panic = what.unwrap_or("unknown"), "a handler panicked");
            ApiError(Error::new(Code::Internal, "the server failed to handle the request")).into_response()
        }
    }
}

fn log(response: &Response, took: std::time::Duration) {
    let status = response.status();
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    match response.extensions().get::<ApiError>() {
        Some(ApiError(error)) if status.is_server_error() => {
            tracing::warn!(status = status.as_u16(), took_us, code = %error.code, %error, "request failed");
        }
        Some(ApiError(error)) => {
            tracing::info!(status = status.as_u16(), took_us, code = %error.code, %error, "request refused");
        }
        None => tracing::info!(status = status.as_u16(), took_us, "request answered"),
    }
}

fn count_received(request: Request, app: &App) -> Request {
    let app = app.clone();
    request.map(|body| {
        Body::new(body.map_frame(move |frame| {
            app.metrics.received(frame.data_ref().map_or(0, bytes::Bytes::len));
            frame
        }))
    })
}

fn count_sent(response: Response, app: &App) -> Response {
    let app = app.clone();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            app.metrics.sent(frame.data_ref().map_or(0, bytes::Bytes::len));
            frame
        }))
    })
}

/// No such route.
pub(crate) async fn route_not_found(uri: Uri) -> ApiError {
    let path = atoll_core::error::shorten(uri.path());
    // People who begin with the server's address in a browser.
    let hint = if path == "/" {
        "'atoll dashboard' prints a link for a browser; /openapi.json lists the routes of the API"
    } else {
        "/openapi.json lists all routes"
    };
    ApiError(Error::new(Code::RouteNotFound, format!("no route '{path}'")).hint(hint))
}

/// The route exists, the method does not.
pub(crate) async fn method_not_allowed() -> ApiError {
    ApiError(
        Error::new(Code::MethodNotAllowed, "this route does not take this method")
            .hint("the 'allow' header lists those it takes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_ids_are_taken_over() {
        let take = |text: &'static str| {
            let headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static(text))]);
            request_id(&headers).0.to_string()
        };
        assert_eq!(take("trace-1.a_b:c"), "trace-1.a_b:c");
        for bad in ["", "a b", "a\"b", "00000000000000000000000000000000000000000000000000000000000000000"] {
            assert_ne!(take(bad), bad);
        }
        assert_ne!(request_id(&HeaderMap::new()).0, request_id(&HeaderMap::new()).0);
    }
}
