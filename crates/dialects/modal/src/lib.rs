//! The Modal protocol over Atoll's engine: sandboxes of Modal's SDKs run on Atoll unmodified.
//!
//! # How a call flows
//!
//! ```text
//! server ─ by gRPC service ─▶ lib
//!    modal.client.ModalClient                     control: apps, images, sandboxes, volumes, …
//!    modal.task_command_router.TaskCommandRouter  task: commands in one sandbox, files, snapshots
//! server ─ below /modal ─▶ control::content: content that is too large for a call
//! ```
//!
//! There are two generations of sandboxes: V1, of clients before 1.6, and V2. They differ in the names of calls, in the
//! form of ids ([`ids`]) and in where the first command's output is read; both are served by the same code.
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table. Apps and images are their own ids; values that a sandbox must tell again are in one of its
//! annotations ([`extras`]). Clients send secrets and files before they make a sandbox of them: until then secrets and
//! lists of files wait in memory, the contents of files in the spool directory, each for its sender.

mod auth;
mod control;
mod extras;
mod grpc;
mod ids;
mod task;
mod wire;

use atoll_core::Error;
use atoll_dialect_kit::memory::Memory;
use atoll_server::dialect::{Arrival, Asked, Dialect, Host, Mount};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::response::{IntoResponse as _, Response};

use crate::auth::{Asker, Head};
use crate::control::content::PREFIX;
use crate::grpc::Fault;

const CONTROL: &str = "modal.client.ModalClient";
const TASK: &str = "modal.task_command_router.TaskCommandRouter";

/// The dialect, for the server to mount.
pub const DIALECT: Dialect = Dialect {
    name: "modal",
    mounts: &[Mount::Service(CONTROL), Mount::Service(TASK), Mount::Prefix(PREFIX)],
    router,
    credential: auth::credential,
    refuse,
};

fn refuse(error: &Error, _: &Asked) -> Response {
    Fault::of(error).into_response()
}

/// Memory for what calls hold as a whole, of all callers together, bytes: open files, outputs that wait, archives of files.
const MEMORY_BYTES: usize = 2 << 30;
/// Memory for the messages of calls, of all callers together, bytes: as they come, and as they are read.
const MESSAGES_BYTES: usize = 2 << 30;

/// The state that all calls share.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) memory: Memory,
    /// For messages.
    pub(crate) messages: Memory,
    pub(crate) control: control::State,
    pub(crate) task: task::State,
}

fn router(host: Host) -> Router {
    let control = control::State::new(host.engine());
    let (memory, messages) = (Memory::new(MEMORY_BYTES), Memory::new(MESSAGES_BYTES));
    let app = App { host, memory, messages, control, task: task::State::default() };
    control::take_up(&app);
    Router::new()
        .fallback(move |request: Request| {
            let app = app.clone();
            Box::pin(serve(app, request))
        })
        .layer(DefaultBodyLimit::disable())
}

async fn serve(app: App, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let mut names = path.trim_start_matches('/').splitn(2, '/');
    let (service, method) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    let method_of_http = parts.method.clone();
    let beside = parts.extensions.get::<Arrival>().is_some_and(|arrival| arrival.prefix == PREFIX);
    let head = Head::new(parts);
    if beside {
        return Box::pin(control::content::serve(app, head, method_of_http, &path, body)).await;
    }
    // The caller is checked before the message is read.
    if service == TASK {
        match Asker::with_token(&app, head, task::needs(method)).await {
            Ok((asker, sandbox)) => Box::pin(task::call(asker, sandbox, method, body)).await,
            Err(fault) => fault.into_response(),
        }
    } else {
        match Asker::with_key(&app, head).await {
            Ok(asker) => Box::pin(control::call(asker, method, body)).await,
            Err(fault) => fault.into_response(),
        }
    }
}
