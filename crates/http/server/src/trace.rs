//! The server as a witness: it records every call of an API that concerns a sandbox, and the caller.

use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::trace::TraceMode;
use atoll_core::traceparent::TraceParent;
use atoll_engine::{Caller, Engine, Grant};
use atoll_recorder::event::Call;
use atoll_recorder::{Recorder, What};
use axum::extract::Request;
use axum::response::Response;

use crate::auth::HOLDER;
use crate::error::ApiError;
use crate::middleware::RequestId;
use crate::revocation::GrantSlot;

/// How long an answer waits for its record, unless the sandbox is recorded strictly: then it waits until it is written.
const PATIENCE: Duration = Duration::from_millis(100);

/// The sandbox that an answer is about, where its request could not name it.
#[derive(Debug, Clone)]
pub(crate) struct Concerns(pub(crate) SandboxId);

/// Marks the answer to a call that is not recorded. If each further read of a journal were recorded, a client that
/// follows the journal would read its own reads for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unrecorded;

/// A call as it came in.
pub(crate) struct Incoming {
    call: Call,
    changes: bool,
}

/// The caller's span. Any other text in that header counts as none, as the standard has it.
pub(crate) fn traceparent(headers: &http::HeaderMap) -> Option<TraceParent> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

impl Incoming {
    pub(crate) fn of(request: &Request, dialect: Option<&str>, id: &RequestId, changes: bool) -> Self {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let call = Call {
            protocol: dialect.unwrap_or("atoll").to_owned(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            holder: header(HOLDER.as_str()).map(str::to_owned),
            request_id: id.0.to_string(),
            traceparent: traceparent(request.headers()).map(String::from),
            ..Call::default()
        };
        Self { call, changes }
    }

    /// Records the call with its answer, if it concerns a sandbox that is recorded. The server waits for the returned
    /// future before it gives the answer.
    pub(crate) fn answered(
        self,
        engine: &Engine,
        slot: &GrantSlot,
        response: &Response,
        took: Duration,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorded = self.record(engine, slot, response, took);
        async move {
            let Some((recorder, sandbox)) = recorded else { return };
            let written = recorder.written(&sandbox);
            if recorder.mode(&sandbox) == TraceMode::Strict {
                // The call has done its work already. If writing the record fails, the sandbox stands still from now
                // on.
                drop(written.await);
            } else {
                drop(tokio::time::timeout(PATIENCE, written).await);
            }
        }
    }

    /// Records the call. Gives the sandbox in whose journal the record will be, if the call changed something.
    fn record(
        self,
        engine: &Engine,
        slot: &GrantSlot,
        response: &Response,
        took: Duration,
    ) -> Option<(Recorder, SandboxId)> {
        let recorder = engine.recorder()?;
        if response.extensions().get::<Unrecorded>().is_some() {
            return None;
        }
        let concerned = response.extensions().get::<Concerns>();
        let grant = slot.grant();
        let caller = grant.and_then(Grant::caller);
        let by_ssh = caller.and_then(Caller::ssh_key).map(str::to_owned);
        let key = by_ssh.or_else(|| caller.and_then(Caller::key).map(ToString::to_string));
        let person = caller.and_then(Caller::key).and_then(|key| engine.person(key));
        let (subject, email) = person.map_or((None, None), |person| {
            (Some(format!("{} at {}", person.subject, person.issuer)), person.email)
        });
        let sandbox = concerned.map(|Concerns(id)| id).or(grant.and_then(Grant::sandbox))?.clone();
        if recorder.mode(&sandbox) == TraceMode::Off {
            return None;
        }
        let error =
            response.extensions().get::<ApiError>().map(|ApiError(error)| error.code.as_str().to_owned());
        let latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let status = response.status().as_u16();
        let call = Call { key, subject, email, status, error, latency_us, ..self.call };
        recorder.note(&sandbox, What::Call(call));
        self.changes.then(|| (recorder.clone(), sandbox))
    }
}
