//! The task command router: `modal.task_command_router.TaskCommandRouter`, commands in one sandbox.

mod directory;
mod exec;
mod sandbox;
mod stdin;
mod stdio;
mod tool;

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use axum::body::Body;
use axum::response::Response;

use crate::auth::Asker;
use crate::grpc::{Fault, Requests, Result, answer, stream, unimplemented};
use crate::ids;

pub(crate) use exec::{First, first, size, start_first};
pub(crate) use stdin::write_numbered;

/// The state that calls about commands share.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    marks: atoll_dialect_kit::exec::Bookmarks,
    inputs: stdin::Inputs,
    tools: tool::Tools,
    turns: atoll_dialect_kit::turns::Turns,
}

impl State {
    /// Known places in outputs.
    pub(crate) const fn marks(&self) -> &atoll_dialect_kit::exec::Bookmarks {
        &self.marks
    }
}

/// A caller, in the sandbox that its token is for.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    pub(crate) asker: Asker,
    pub(crate) sandbox: SandboxId,
}

impl Inside {
    pub(crate) const fn id(&self) -> &SandboxId {
        &self.sandbox
    }

    /// The file operation with a client's id.
    fn tool(&self, id: &str) -> Option<std::sync::Arc<tool::Tool>> {
        self.asker.app.task.tools.find(&self.sandbox, id)
    }

    /// Checks that a request is about the sandbox that the token is for.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub(crate) fn is(&self, task: &str) -> Result<()> {
        let (named, _) = ids::parse_task(task)?;
        if named == self.sandbox {
            return Ok(());
        }
        Err(Fault::not_found(format!("task '{}' not found", atoll_core::error::shorten(task))))
    }
}

/// The scope that a call needs: calls that change the sandbox itself need more than commands.
pub(crate) fn needs(method: &str) -> Scope {
    match method {
        "TaskSetNetworkAccess"
        | "TaskSnapshotFilesystem"
        | "TaskSnapshotDirectory"
        | "TaskSnapshotMemory"
        | "TaskMountDirectory" => Scope::Manage,
        _ => Scope::Exec,
    }
}

/// Serves one call.
pub(crate) async fn call(asker: Asker, sandbox: SandboxId, method: &str, body: Body) -> Response {
    let inside = Inside { asker, sandbox };
    let mut requests = Requests::new(body, &inside.asker.app.messages, inside.asker.caller());
    /// Reads the one message, asks the handler, answers.
    macro_rules! one {
        ($answer:ident, $handler:expr) => {{
            let handled = async {
                let request = requests.one().await?;
                $handler(&inside, request).await
            };
            $answer(handled.await)
        }};
    }
    match method {
        "TaskExecStart" => one!(answer, exec::start),
        "TaskExecPoll" => one!(answer, exec::poll),
        "TaskExecWait" => one!(answer, exec::wait),
        "TaskExecStdioRead" => one!(stream, stdio::read),
        "SandboxStdioReadV2" => one!(stream, stdio::read_first),
        "TaskExecStdinWrite" => one!(answer, stdin::write),
        "TaskExecStdinStatus" => one!(answer, stdin::status),
        "SandboxStdinWriteV2" => one!(answer, stdin::write_first),
        "TaskExecStdinWriteStream" => answer(stdin::write_stream(&inside, &mut requests).await),
        "SandboxWaitUntilReady" => one!(answer, sandbox::wait_until_ready),
        "TaskSetNetworkAccess" => one!(answer, sandbox::set_network_access),
        "TaskReloadVolumes" => one!(answer, sandbox::reload_volumes),
        "TaskSnapshotFilesystem" => one!(answer, sandbox::snapshot_filesystem),
        "TaskSnapshotDirectory" => one!(answer, directory::snapshot),
        "TaskMountDirectory" => one!(answer, directory::mount),
        "TaskUnmountDirectory" => one!(answer, directory::unmount),
        "TaskSnapshotMemory" => one!(answer, sandbox::snapshot_memory),
        _ => axum::response::IntoResponse::into_response(unimplemented(method)),
    }
}
