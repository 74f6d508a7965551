//! The control plane: `modal.client.ModalClient`.

mod apps;
pub(crate) mod content;
mod create;
mod ended;
mod files;
mod first;
mod images;
mod lifecycle;
mod list;
mod network;
mod once;
mod opened;
mod secrets;
mod snapshots;
mod stdio;
#[cfg(test)]
mod tests;
mod tunnels;
mod volumes;

use atoll_engine::Engine;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};

use crate::auth::Asker;
use crate::grpc::{Fault, Requests, Result, answer, stream, unimplemented};
use crate::ids::Generation::{V1, V2};

pub(crate) use ended::Ended;
pub(crate) use first::take_up;
pub(crate) use images::{ImageSource, directory_note};
pub(crate) use network::policy;
pub(crate) use secrets::given;
pub(crate) use snapshots::take as snapshot;

/// The state that calls of the control plane share.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) ended: Ended,
    followed: first::Followed,
    once: once::Once,
    secrets: secrets::Shelf,
    files: files::Files,
    builds: images::Builds,
    mounts: images::Mounts,
    tickets: content::Tickets,
}

impl State {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            ended: Ended::new(engine),
            followed: first::Followed::default(),
            once: once::Once::new(engine),
            secrets: secrets::Shelf::default(),
            files: files::Files::default(),
            builds: images::Builds::default(),
            mounts: images::Mounts::default(),
            tickets: content::Tickets::default(),
        }
    }
}

/// Serves one call.
pub(crate) async fn call(asker: Asker, method: &str, body: Body) -> Response {
    let mut requests = Requests::new(body, &asker.app.messages, asker.caller());
    /// Reads the one message, asks the handler, answers.
    macro_rules! one {
        ($handler:expr) => {{
            let handled = async {
                let request = requests.one().await?;
                $handler(&asker, request).await
            };
            answer(handled.await)
        }};
        ($handler:expr, $generation:expr) => {
            one!(async |asker: &Asker, request| $handler(asker, request, $generation).await)
        };
    }
    /// The same, for a call that makes a sandbox.
    macro_rules! made {
        ($handler:expr) => {{
            let handled = async {
                let request = requests.one().await?;
                $handler(&asker, request).await
            };
            match handled.await {
                Ok((message, undo)) => (undo.map(axum::Extension), answer(Ok(message))).into_response(),
                Err(fault) => Fault::into_response(fault),
            }
        }};
    }
    match method {
        "ClientHello" => one!(apps::hello),
        "AuthTokenGet" => one!(apps::auth_token),
        "AppGetOrCreate" => one!(apps::get_or_create),
        "AppCreate" => one!(apps::create),
        "AppHeartbeat" | "AppClientDisconnect" | "AppStop" => one!(apps::ignored),
        "EnvironmentGetOrCreate" => one!(apps::environment),
        "SecretGetOrCreate" => one!(secrets::get_or_create),
        "VolumeGetOrCreate" => one!(volumes::get_or_create),
        "VolumeGetById" => one!(volumes::by_id),
        "VolumeList" => one!(volumes::list),
        "VolumeDelete" => one!(volumes::delete),
        "VolumeCommit" => one!(volumes::commit),
        "VolumeReload" => one!(volumes::reload),
        "VolumeListFiles" | "VolumeListFiles2" => {
            let handled = async { volumes::files::list(&asker, requests.one().await?).await };
            stream(handled.await)
        }
        "VolumeGetFile2" => one!(volumes::files::get),
        "VolumeRemoveFile" | "VolumeRemoveFile2" => one!(volumes::files::remove),
        "VolumeCopyFiles" | "VolumeCopyFiles2" => one!(volumes::files::copy),
        "VolumePutFiles" => one!(volumes::files::put),
        "VolumePutFiles2" => one!(volumes::files::put_blocks),
        "BlobCreate" => one!(content::create),
        "VolumeHeartbeat" => one!(apps::ignored),
        "ImageGetOrCreate" => one!(images::get_or_create),
        "ImageJoinStreaming" => {
            let handled = async { images::join(&asker, requests.one().await?).await };
            stream(handled.await)
        }
        "ImageDelete" => one!(images::delete),
        "MountBatchedCheckExistence" => one!(images::check_existence),
        "MountPutFile" => one!(images::put_file),
        "MountGetOrCreate" => one!(images::get_or_create_mount),
        "ImageFromId" => one!(images::from_id),
        "SandboxCreate" => made!(create::v1),
        "SandboxCreateV2" => made!(create::v2),
        "SandboxGetTaskId" => one!(lifecycle::task_id, V1),
        "SandboxGetTaskIdV2" => one!(lifecycle::task_id, V2),
        "TaskGetCommandRouterAccess" => one!(lifecycle::task_access),
        "SandboxGetCommandRouterAccess" => one!(lifecycle::sandbox_access),
        "SandboxWait" | "SandboxWaitV2" => one!(lifecycle::wait),
        "SandboxTerminate" | "SandboxTerminateV2" => one!(lifecycle::terminate),
        "SandboxList" => one!(list::list, V1),
        "SandboxListV2" => one!(list::list, V2),
        "SandboxGetFromName" => one!(list::from_name, V1),
        "SandboxGetFromNameV2" => one!(list::from_name, V2),
        "SandboxTagsGet" | "SandboxTagsGetV2" => one!(list::tags_get),
        "SandboxTagsSet" | "SandboxTagsSetV2" => one!(list::tags_set),
        "SandboxSetName" => one!(list::set_name),
        "ContainerFilesystemExec" => one!(files::exec),
        "ContainerFilesystemExecGetOutput" => {
            let handled = async { files::output(&asker, requests.one().await?).await };
            stream(handled.await)
        }
        "SandboxSnapshot" => one!(snapshots::memory),
        "SandboxSnapshotFs" => one!(snapshots::disk),
        "SandboxSnapshotWait" => one!(snapshots::wait),
        "SandboxSnapshotGet" => one!(snapshots::get),
        "SandboxRestore" => made!(snapshots::restore_v1),
        "SandboxRestoreV2" => made!(snapshots::restore_v2),
        "SandboxGetLogs" => {
            let handled = async { stdio::logs(&asker, requests.one().await?).await };
            stream(handled.await)
        }
        "SandboxStdinWrite" => one!(stdio::write),
        "SandboxGetTunnels" | "SandboxGetTunnelsV2" => one!(tunnels::get),
        "SandboxCreateConnectToken" | "SandboxCreateConnectTokenV2" => one!(tunnels::connect_token),
        _ => unimplemented(method).into_response(),
    }
}

/// Seconds of a request as a pause; a number that is not finite gives no pause.
pub(crate) fn seconds(asked: f32, most: f32) -> std::time::Duration {
    let sensible = if asked.is_finite() { asked.clamp(0.0, most) } else { 0.0 };
    std::time::Duration::from_secs_f32(sensible)
}

/// An id made of names of any form: the same names give the same id.
fn id_of(prefix: &str, context: &str, parts: &[&str]) -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let hash = hasher.finalize();
    let body: String =
        hash.as_bytes().iter().take(22).map(|byte| char::from(ALPHABET[usize::from(byte % 62)])).collect();
    format!("{prefix}-{body}")
}

/// The answer of a handler that has nothing to tell.
type Done = Result<crate::wire::common::Empty>;
