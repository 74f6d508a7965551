//! From the task of a sandbox to its end.

use std::time::Duration;

use atoll_core::Code;
use atoll_core::exec::{Exit, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::sandbox::SandboxState;
use atoll_dialect_kit::status::Status;
use atoll_store::SandboxRecord;

use super::ended::status;
use crate::auth::{self, Asker};
use crate::extras::Extras;
use crate::grpc::{Fault, Result};
use crate::ids::{self, Generation};
use crate::task;
use crate::wire::common::GenericResult;
use crate::wire::sandboxes::{
    SandboxGetCommandRouterAccessRequest, SandboxGetCommandRouterAccessResponse, SandboxGetTaskIdRequest,
    SandboxGetTaskIdResponse, SandboxHandleMetadata, SandboxTerminateRequest, SandboxTerminateResponse,
    SandboxWaitRequest, SandboxWaitResponse, TaskGetCommandRouterAccessRequest,
    TaskGetCommandRouterAccessResponse,
};

/// Longest that one call waits for an end, seconds. The clients ask again.
const WAIT_MAX_S: f32 = 55.0;
/// How often the server looks whether a sandbox is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Clients of JavaScript.
const JAVASCRIPT: &str = "8";
/// Names of this machine, as the clients know them.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The address at which a client runs commands of a sandbox, which is this server, and the token for it.
///
/// Clients that reached the server under a name of this machine without TLS may go on so. JavaScript clients want to
/// read `https` all the same, and dial without TLS. All others want TLS with a certificate that they can verify.
pub(super) fn access(asker: &Asker, sandbox: &SandboxId) -> (String, String) {
    let authority = &asker.head.authority;
    let host = authority.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let host = host.map_or(authority.as_str(), |(host, _)| host).trim_matches(['[', ']']);
    let is_javascript = asker.head.text("x-modal-client-type") == Some(JAVASCRIPT);
    let in_clear = LOCAL.contains(&host) && !asker.head.encrypted && !is_javascript;
    let scheme = if in_clear { "http" } else { "https" };
    (format!("{scheme}://{authority}"), asker.token(sandbox))
}

/// `SandboxGetTaskId`: a sandbox's task runs as soon as the sandbox is there.
pub(super) async fn task_id(
    asker: &Asker,
    request: SandboxGetTaskIdRequest,
    generation: Generation,
) -> Result<SandboxGetTaskIdResponse> {
    let (id, result, _) = state(asker, &request.sandbox_id).await?;
    Ok(SandboxGetTaskIdResponse { task_id: Some(ids::task(&id, generation)), task_result: result })
}

/// `TaskGetCommandRouterAccess`.
pub(super) async fn task_access(
    asker: &Asker,
    request: TaskGetCommandRouterAccessRequest,
) -> Result<TaskGetCommandRouterAccessResponse> {
    let (id, _) = ids::parse_task(&request.task_id)?;
    let (url, jwt) = granted(asker, &id, &request.task_id).await?;
    Ok(TaskGetCommandRouterAccessResponse { jwt, url })
}

/// `SandboxGetCommandRouterAccess`.
pub(super) async fn sandbox_access(
    asker: &Asker,
    request: SandboxGetCommandRouterAccessRequest,
) -> Result<SandboxGetCommandRouterAccessResponse> {
    let (id, named) = match (request.sandbox_id, request.task_id) {
        (Some(text), _) => (ids::parse_sandbox(&text)?.0, text),
        (None, Some(text)) => (ids::parse_task(&text)?.0, text),
        (None, None) => return Err(Fault::invalid("neither a sandbox nor a task is named")),
    };
    let (url, jwt) = granted(asker, &id, &named).await?;
    Ok(SandboxGetCommandRouterAccessResponse { jwt, url })
}

async fn granted(asker: &Asker, id: &SandboxId, named: &str) -> Result<(String, String)> {
    asker.may(id, Scope::Exec).await.map_err(|fault| match fault.status {
        Status::NotFound => ids::no_sandbox(named),
        _ => fault,
    })?;
    Ok(access(asker, id))
}

/// A sandbox that is there or was there: its id, how it ended if it has, and its app.
async fn state(asker: &Asker, text: &str) -> Result<(SandboxId, Option<GenericResult>, String)> {
    let (id, _) = ids::parse_sandbox(text)?;
    match asker.may(&id, Scope::Read).await {
        Ok(()) => {}
        Err(fault) if fault.status == Status::NotFound => {
            // A sandbox that is there but hidden from the key stays hidden: only its maker is told what is remembered.
            let ended =
                asker.app.control.ended.of(&id, |owner| asker.may_use_of(owner), asker.engine().now_ms());
            let (result, app) = ended.ok_or_else(|| ids::no_sandbox(text))?;
            return Ok((id, Some(result), app));
        }
        Err(fault) => return Err(fault),
    }
    let record = match asker.engine().sandbox(&id) {
        Ok(record) => record,
        Err(_gone) => {
            let ended =
                asker.app.control.ended.of(&id, |owner| asker.may_use_of(owner), asker.engine().now_ms());
            let (result, app) = ended.ok_or_else(|| ids::no_sandbox(text))?;
            return Ok((id, Some(result), app));
        }
    };
    let extras = Extras::of(&record);
    asker.app.control.ended.note(&record, &extras.app);
    let result = result(asker, &record, &extras).await;
    if let Some(result) = &result {
        asker.app.control.ended.over(&id, result.clone());
    }
    Ok((id, result, extras.app))
}

/// How a sandbox that the engine knows ended, if it has.
async fn result(asker: &Asker, record: &SandboxRecord, extras: &Extras) -> Option<GenericResult> {
    match record.state {
        SandboxState::Failed => {
            let exception = record.reason.clone().unwrap_or_default();
            let memory = exception.contains("memory");
            let status = if memory { status::OUT_OF_MEMORY } else { status::INTERNAL_FAILURE };
            Some(GenericResult { status, exception, exitcode: 1 })
        }
        SandboxState::Deleting => {
            let ended = asker.app.control.ended.of(&record.id, |_| true, asker.engine().now_ms());
            ended.map(|(result, _)| result)
        }
        _ if extras.command => {
            let first = task::first(asker.engine(), &record.id).await.ok()?;
            first.record.exit.as_ref().map(of_exit)
        }
        _ => None,
    }
}

/// The end of a sandbox whose first command ended with this exit.
pub(super) fn of_exit(exit: &Exit) -> GenericResult {
    let exitcode = exit.code.unwrap_or(1);
    let status = match exit.reason {
        ExitReason::OutOfMemory => status::OUT_OF_MEMORY,
        ExitReason::SandboxDied => status::INTERNAL_FAILURE,
        _ if exitcode == 0 => status::SUCCESS,
        _ => status::FAILURE,
    };
    GenericResult { status, exception: String::new(), exitcode }
}

/// `SandboxWait`, of both generations: answers when the sandbox has ended, or when the time is over.
pub(super) async fn wait(asker: &Asker, request: SandboxWaitRequest) -> Result<SandboxWaitResponse> {
    let over = async {
        let end = tokio::time::Instant::now() + super::seconds(request.timeout, WAIT_MAX_S);
        loop {
            let (_, result, app) = state(asker, &request.sandbox_id).await?;
            let late = tokio::time::Instant::now() >= end || asker.app.host.draining_token().is_cancelled();
            if result.is_some() || late {
                return Ok::<_, Fault>((result, app));
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let (result, app_id) = Box::pin(asker.head.gone.unless_gone(over)).await??;
    let metadata = SandboxHandleMetadata { result: result.clone(), app_id };
    Ok(SandboxWaitResponse { result, metadata: Some(metadata) })
}

/// `SandboxTerminate`, of both generations. For a sandbox that has ended already, the answer gives its end.
pub(super) async fn terminate(
    asker: &Asker,
    request: SandboxTerminateRequest,
) -> Result<SandboxTerminateResponse> {
    asker.needs(Scope::Manage)?;
    let (id, existing_result, _) = state(asker, &request.sandbox_id).await?;
    if asker.engine().sandbox(&id).is_err() {
        return Ok(SandboxTerminateResponse { existing_result });
    }
    auth::sandbox(asker, &request.sandbox_id, Scope::Manage).await?;
    let terminated = GenericResult { status: status::TERMINATED, ..GenericResult::default() };
    match asker.engine().delete_sandbox(&id).await {
        Ok(()) => {}
        Err(error) if error.code == Code::SandboxNotFound => {}
        Err(error) => return Err(error.into()),
    }
    asker.app.control.ended.over(&id, terminated);
    Ok(SandboxTerminateResponse { existing_result })
}
