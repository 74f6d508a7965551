//! Every call of the protocol on real objects, with every kind of key: see [`atoll_walk`].

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_walk::{
    Answer, Call, Key, Objects, Protocol, Route, Verdict, World, on_sandbox, on_server, on_snapshot,
};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// The sources in which calls are told apart by their names.
const CONTROL: &str = include_str!("../src/control/mod.rs");
const TASK: &str = include_str!("../src/task/mod.rs");

/// The names of the calls that a source serves.
fn calls_in(source: &'static str) -> BTreeSet<&'static str> {
    let arms = source.lines().map(str::trim).filter(|line| line.starts_with('"') && line.contains("=>"));
    // The function that tells a call's scope matches names, too.
    let arms = arms.filter(|line| !line.contains("Scope::"));
    arms.flat_map(|line| line.split("=>").next().unwrap_or_default().split('"').skip(1).step_by(2)).collect()
}

/// The table of the control plane.
fn control() -> Vec<Route> {
    let server = |name, needs| on_server("POST", name, needs);
    let sandbox = |name, needs| on_sandbox("POST", name, needs);
    let snapshot = |name, needs| on_snapshot("POST", name, needs);
    vec![
        server("ClientHello", Scope::Read),
        server("AuthTokenGet", Scope::Read),
        server("AppGetOrCreate", Scope::Read),
        server("AppCreate", Scope::Read),
        server("AppHeartbeat", Scope::Read),
        server("AppClientDisconnect", Scope::Read),
        server("AppStop", Scope::Read),
        server("EnvironmentGetOrCreate", Scope::Read),
        server("SecretGetOrCreate", Scope::Read),
        server("VolumeGetOrCreate", Scope::Manage),
        server("VolumeGetById", Scope::Read),
        server("VolumeList", Scope::Read),
        server("VolumeDelete", Scope::Manage),
        server("VolumeCommit", Scope::Exec),
        server("VolumeReload", Scope::Exec),
        server("VolumeListFiles", Scope::Read),
        server("VolumeListFiles2", Scope::Read),
        server("VolumeGetFile2", Scope::Read),
        server("VolumeRemoveFile", Scope::Exec),
        server("VolumeRemoveFile2", Scope::Exec),
        server("VolumeCopyFiles", Scope::Exec),
        server("VolumeCopyFiles2", Scope::Exec),
        server("VolumePutFiles", Scope::Exec),
        server("VolumePutFiles2", Scope::Exec),
        server("BlobCreate", Scope::Manage),
        server("VolumeHeartbeat", Scope::Read),
        server("ImageGetOrCreate", Scope::Manage),
        // The build belongs to the key that began it.
        server("ImageJoinStreaming", Scope::Manage),
        server("MountBatchedCheckExistence", Scope::Manage),
        server("MountPutFile", Scope::Manage),
        server("MountGetOrCreate", Scope::Manage),
        snapshot("ImageFromId", Scope::Read),
        snapshot("ImageDelete", Scope::Manage),
        server("SandboxCreate", Scope::Manage),
        server("SandboxCreateV2", Scope::Manage),
        sandbox("SandboxGetTaskId", Scope::Read),
        sandbox("SandboxGetTaskIdV2", Scope::Read),
        sandbox("TaskGetCommandRouterAccess", Scope::Exec),
        sandbox("SandboxGetCommandRouterAccess", Scope::Exec),
        sandbox("SandboxWait", Scope::Read),
        sandbox("SandboxWaitV2", Scope::Read),
        sandbox("SandboxTerminate", Scope::Manage),
        sandbox("SandboxTerminateV2", Scope::Manage),
        server("SandboxList", Scope::Read),
        server("SandboxListV2", Scope::Read),
        sandbox("SandboxGetFromName", Scope::Read),
        sandbox("SandboxGetFromNameV2", Scope::Read),
        sandbox("SandboxTagsGet", Scope::Read),
        sandbox("SandboxTagsGetV2", Scope::Read),
        sandbox("SandboxTagsSet", Scope::Manage),
        sandbox("SandboxTagsSetV2", Scope::Manage),
        sandbox("SandboxSetName", Scope::Manage),
        sandbox("ContainerFilesystemExec", Scope::Exec),
        // It names an operation, whose sandbox the server checks.
        server("ContainerFilesystemExecGetOutput", Scope::Read),
        sandbox("SandboxSnapshot", Scope::Manage),
        sandbox("SandboxSnapshotFs", Scope::Manage),
        snapshot("SandboxSnapshotWait", Scope::Read),
        snapshot("SandboxSnapshotGet", Scope::Read),
        // For a snapshot that the key may read.
        server("SandboxRestore", Scope::Manage),
        server("SandboxRestoreV2", Scope::Manage),
        sandbox("SandboxGetLogs", Scope::Read),
        sandbox("SandboxStdinWrite", Scope::Exec),
        sandbox("SandboxGetTunnels", Scope::Read),
        sandbox("SandboxGetTunnelsV2", Scope::Read),
        sandbox("SandboxCreateConnectToken", Scope::Exec),
        sandbox("SandboxCreateConnectTokenV2", Scope::Exec),
    ]
}

/// The table of the task command router.
fn task() -> Vec<Route> {
    let sandbox = |name, needs| on_sandbox("POST", name, needs);
    vec![
        sandbox("TaskExecStart", Scope::Exec),
        sandbox("TaskExecPoll", Scope::Exec),
        sandbox("TaskExecWait", Scope::Exec),
        sandbox("TaskExecStdioRead", Scope::Exec),
        sandbox("SandboxStdioReadV2", Scope::Exec),
        sandbox("TaskExecStdinWrite", Scope::Exec),
        sandbox("TaskExecStdinStatus", Scope::Exec),
        sandbox("SandboxStdinWriteV2", Scope::Exec),
        sandbox("TaskExecStdinWriteStream", Scope::Exec),
        sandbox("SandboxWaitUntilReady", Scope::Exec),
        sandbox("TaskSetNetworkAccess", Scope::Manage),
        sandbox("TaskReloadVolumes", Scope::Exec),
        sandbox("TaskSnapshotFilesystem", Scope::Manage),
        sandbox("TaskSnapshotDirectory", Scope::Manage),
        sandbox("TaskMountDirectory", Scope::Manage),
        sandbox("TaskUnmountDirectory", Scope::Exec),
        sandbox("TaskSnapshotMemory", Scope::Manage),
    ]
}

/// A field that holds text or a message: all that these calls need.
fn field(tag: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let len = u8::try_from(value.len()).expect("a short text");
    assert!(tag < 16 && len < 128, "one byte holds each");
    [&[tag << 3 | 2, len], value].concat()
}

/// A message as it travels.
fn frame(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("a short message");
    [&[0], len.to_be_bytes().as_slice(), message].concat()
}

fn request(name: &str, on: &Objects) -> Vec<u8> {
    let body = on.sandbox.as_str().trim_start_matches(SandboxId::PREFIX);
    let (sandbox, task) = (format!("sb-{body}"), format!("ta-{body}V"));
    match name {
        "SandboxTagsSet" | "SandboxTagsSetV2" => field(2, sandbox),
        "SandboxGetFromName" | "SandboxGetFromNameV2" => field(1, &on.name),
        "SandboxSetName" => [field(1, sandbox), field(2, "renamed")].concat(),
        // An input with a number and the end.
        "SandboxStdinWrite" => [field(1, sandbox), field(2, "x"), vec![3 << 3, 1]].concat(),
        "ContainerFilesystemExec" => [field(10, task), field(11, field(1, "/"))].concat(),
        "TaskGetCommandRouterAccess" => field(1, task),
        "TaskExecStdinWriteStream" => field(1, [field(1, task), field(2, "none")].concat()),
        "TaskExecStart" => {
            [field(1, task), field(2, "00000000-0000-4000-8000-000000000000"), field(3, "true")].concat()
        }
        name if name.starts_with("TaskExec") => [field(1, task), field(2, "none")].concat(),
        name if self::task().iter().any(|route| route.path == name) => field(1, task),
        "ImageFromId" | "ImageDelete" => field(1, format!("im-{}", on.snapshot)),
        "SandboxSnapshotWait" | "SandboxSnapshotGet" => field(1, format!("sn-{}", on.snapshot)),
        "SandboxRestore" | "SandboxRestoreV2" | "ContainerFilesystemExecGetOutput" => field(1, "sn-none"),
        // Made if it is missing.
        "VolumeGetOrCreate" => [field(1, "walked"), vec![4 << 3, 1]].concat(),
        _ if control()
            .iter()
            .any(|route| route.path == name && route.about == atoll_walk::About::Sandbox) =>
        {
            field(1, sandbox)
        }
        _ => Vec::new(),
    }
}

fn call(service: &str, route: &Route, on: &Objects) -> Call {
    let headers = vec![("content-type", "application/grpc+proto".to_owned())];
    Call {
        method: route.method.to_owned(),
        path: format!("/{service}/{}", route.path),
        headers,
        body: frame(&request(route.path, on)),
    }
}

fn verdict(answer: &Answer) -> Verdict {
    let has = |text: &str| answer.text.contains(text);
    let is = |status: u8| has(&format!("grpc-status: {status}\r\n"));
    let named = ["sandbox", "Sandbox", "snapshot", "Image", "image", "task '"];
    if is(16) {
        Verdict::NoKey
    } else if is(9) && has("for itself") {
        Verdict::Leased
    } else if is(7) {
        Verdict::Weak
    } else if is(5) && named.iter().any(|name| has(name)) && (has("not found") || has("no sandbox")) {
        Verdict::Missing
    } else {
        Verdict::Admitted
    }
}

/// A refused call says so in its head; a call that was done has its status at the end.
fn is_done(answer: &Answer) -> bool {
    answer.status == 200 && !answer.text.contains("grpc-status: ")
}

struct Control;

impl Protocol for Control {
    fn routes(&self) -> Vec<Route> {
        control()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let mut call = call("modal.client.ModalClient", route, on);
        // Clients send a pair. Any key will do as its second half.
        for name in ["x-modal-token-id", "x-modal-token-secret"] {
            call.headers.extend(shown.map(|key| (name, key.to_owned())));
        }
        call
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        verdict(answer)
    }

    fn is_done(&self, answer: &Answer) -> bool {
        is_done(answer)
    }
}

struct Task;

impl Protocol for Task {
    fn routes(&self) -> Vec<Route> {
        task()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let mut call = call("modal.task_command_router.TaskCommandRouter", route, on);
        call.headers.extend(shown.map(|token| ("authorization", format!("Bearer {token}"))));
        call
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        verdict(answer)
    }

    /// The token that `SandboxGetCommandRouterAccess` would give.
    fn shown(&self, world: &World, key: &Key, on: &Objects) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        let end = (since + Duration::from_secs(600)).as_secs();
        let code = world.engine.sandbox_token(&format!("modal task until {end}"), &key.id, &on.sandbox);
        let claims = format!(r#"{{"exp":{end},"task":"{}"}}"#, on.sandbox);
        ["{}", &claims, code.reveal()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part)).join(".")
    }

    fn is_done(&self, answer: &Answer) -> bool {
        is_done(answer)
    }
}

async fn world() -> World {
    World::new(&[atoll_dialect_modal::DIALECT]).await
}

#[test]
fn the_tables_have_every_call() {
    for (source, table) in [(CONTROL, control()), (TASK, task())] {
        let table: BTreeSet<_> = table.iter().map(|route| route.path).collect();
        assert_eq!(calls_in(source), table);
    }
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    atoll_walk::private(&world().await, &Control).await;
    atoll_walk::private(&world().await, &Task).await;
}

#[tokio::test]
async fn the_least_of_scope_and_role_counts() {
    atoll_walk::roles(&world().await, &Control).await;
    atoll_walk::roles(&world().await, &Task).await;
}

#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    atoll_walk::leased(&world().await, &Control).await;
    atoll_walk::leased(&world().await, &Task).await;
}
#[tokio::test]
async fn keys_of_other_projects_see_nothing() {
    atoll_walk::apart(&world().await, &Control).await;
    atoll_walk::apart(&world().await, &Task).await;
}

#[tokio::test]
async fn what_was_taken_back_is_good_for_nothing() {
    atoll_walk::revoked(&world().await, &Control).await;
    atoll_walk::revoked(&world().await, &Task).await;
}

#[tokio::test]
async fn a_right_that_ends_while_a_message_comes_does_nothing_more() {
    let calls = atoll_walk::cut_off(&world().await, &Control).await
        + atoll_walk::cut_off(&world().await, &Task).await;
    assert!(calls > 30, "only {calls} calls read a message");
}

/// What a request without an idempotency key made for a client that left is deleted.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let world = world().await;
    let hung_up = atoll_walk::hung_up(&world, &Control).await;
    assert!(hung_up > 10, "clients of Control hung up only {hung_up} times");
    let hung_up = atoll_walk::hung_up(&world, &Task).await;
    assert!(hung_up > 10, "clients of Task hung up only {hung_up} times");
}
