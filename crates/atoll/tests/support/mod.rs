//! A server that speaks just enough of the API, and a way to run the built program against it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "tests; no binary uses all of it"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_api::{
    AttachClientMessage, AttachServerMessage, CreateExec, ErrorBody, Exec, ExecWithOutput, OutputFrame,
    Sandbox, SignalExec,
};
use atoll_core::exec::{ExecState, Exit, ExitReason, OutputStream};
use atoll_core::idle::OnIdle;
use atoll_core::network::{DenialView, NetworkView, Stage, Transferred};
use atoll_core::policy::{EgressPolicy, Internet};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_core::usage::Budget;
use atoll_core::{Code, Error};
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path as UrlPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use tokio::sync::Notify;

/// Longest that any test here may wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Far in the future, so that ages are always zero.
const LATER_MS: u64 = 4_000_000_000_000;

#[derive(Default)]
struct World {
    requests: Mutex<Vec<String>>,
    exec: Mutex<CreateExec>,
    signalled: Notify,
    uploads: Mutex<Vec<Vec<u8>>>,
    archive: Mutex<Vec<u8>>,
}

/// The server, and the requests that it saw.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    world: Arc<World>,
    _runtime: tokio::runtime::Runtime,
}

type Shared = State<Arc<World>>;

fn refuse(status: StatusCode, error: Error) -> Response {
    let body = ErrorBody { request_id: Some("req_7".into()), ..error.into() };
    (status, Json(body)).into_response()
}

fn sandbox(id: &str, state: SandboxState) -> Sandbox {
    Sandbox {
        id: id.into(),
        name: Some(format!("{id}-name")),
        state,
        reason: None,
        image: "docker.io/library/debian:12".into(),
        image_digest: None,
        template: None,
        snapshot: None,
        auto_checkpoints: None,
        isolation: IsolationLevel::Container,
        accelerator: None,
        resources: Resources::default(),
        env: [].into(),
        annotations: [].into(),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        user: "root".into(),
        workdir: None,
        created_at_ms: LATER_MS,
        expires_at_ms: None,
        idle_timeout_ms: None,
        egress: EgressPolicy::default(),
        execution: Default::default(),
        profiles: Default::default(),
        paused: None,
        paused_at_ms: None,
        kept_at_ms: None,
        durability: None,
        restored_from_ms: None,
        restored_at_ms: None,
        boot_id: "b007".into(),
        on_idle: OnIdle::Delete,
        idle_freeze_ms: None,
        hibernate_after_ms: None,
        delete_paused_after_ms: None,
        budget: Budget::default(),
        last_active_at_ms: LATER_MS,
        volumes: Vec::new(),
        layers: [].into(),
        owner: None,
        project: None,
    }
}

fn exec(create: &CreateExec) -> Exec {
    Exec {
        id: "ex_1".into(),
        sandbox: "sb_1".into(),
        profile: None,
        argv: create.argv.clone().unwrap_or_default(),
        state: ExecState::Running,
        pid: Some(2),
        user: "root".into(),
        cwd: None,
        tty: create.tty.is_some(),
        exit: None,
        output_bytes: 0,
        cpu_us: 0,
        output_first: 0,
        created_at_ms: LATER_MS,
        ended_at_ms: None,
        started_by: None,
    }
}

async fn list(Query(query): Query<Vec<(String, String)>>) -> Response {
    // Two pages.
    let first = !query.iter().any(|(key, _)| key == "cursor");
    let (item, next) = if first {
        (sandbox("sb_1", SandboxState::Running), Some("page2".to_owned()))
    } else {
        (sandbox("sb_2\u{1b}[31m", SandboxState::Failed), None)
    };
    Json(atoll_api::SandboxList { items: vec![item], next_cursor: next }).into_response()
}

async fn get_sandbox(UrlPath(id): UrlPath<String>) -> Response {
    match id.as_str() {
        "none" => refuse(
            StatusCode::NOT_FOUND,
            Error::new(Code::SandboxNotFound, "no sandbox 'none'").hint("'atoll ls --all' lists them"),
        ),
        id => Json(sandbox(id, SandboxState::Running)).into_response(),
    }
}

async fn create_exec(State(world): Shared, Json(create): Json<CreateExec>) -> Json<ExecWithOutput> {
    let made = exec(&create);
    *world.exec.lock().unwrap() = create;
    Json(ExecWithOutput { exec: made, output: None })
}

async fn signal(State(world): Shared, Json(_signal): Json<SignalExec>) -> StatusCode {
    world.signalled.notify_one();
    StatusCode::NO_CONTENT
}

/// No snapshot is there.
async fn diff() -> Response {
    refuse(StatusCode::NOT_FOUND, Error::new(Code::SnapshotNotFound, "no snapshot of that name"))
}

/// What the network refused: one thing before the command that runs, and one to the programs `offline` and `lucky`.
async fn network(State(world): Shared) -> Json<NetworkView> {
    let argv = world.exec.lock().unwrap().argv.clone().unwrap_or_default();
    let denial = |what: &str, last_at_ms| DenialView {
        stage: Stage::Dns,
        what: what.to_owned(),
        why: "no rule allows it (internet: rules)".to_owned(),
        ask: Some(format!("--allow {what}")),
        last_at_ms,
        count: 1,
        observed: false,
    };
    let asks = ["offline", "lucky"].contains(&argv[0].as_str());
    let now = asks.then(|| denial("web.test", LATER_MS + 1));
    Json(NetworkView {
        internet: Internet::Rules,
        transferred: Transferred::default(),
        connections: Vec::new(),
        totals: Vec::new(),
        denials: now.into_iter().chain([denial("old.test", LATER_MS - 1)]).collect(),
    })
}

/// The programs of this world: `both`, `cat`, `hang`, `offline` (fails), `lucky` (does not), `missing` and the terminal
/// `term`.
async fn attach(State(world): Shared, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let create = world.exec.lock().unwrap().clone();
        let mut program = Program { socket, offset: 0 };
        let attached = AttachServerMessage::Attached { exec: exec(&create), offset: 0 };
        program.tell(&attached).await;
        let name = create.argv.as_ref().map_or("sh", |argv| argv[0].as_str()).to_owned();
        let code = match name.as_str() {
            "both" => {
                program.write(OutputStream::Stdout, b"out\n").await;
                program.write(OutputStream::Stderr, b"err\n").await;
                7
            }
            "cat" => program.cat().await,
            "hang" => {
                program.write(OutputStream::Stdout, b"ready\n").await;
                world.signalled.notified().await;
                130
            }
            "term" => program.term(&create).await,
            "offline" => 6,
            "lucky" => 0,
            _ => {
                let exit = Exit::not_started(Code::CommandNotFound);
                return program.end(exit).await;
            }
        };
        program.end(Exit { reason: ExitReason::Exited, code: Some(code), signal: None, error: None }).await;
    })
}

struct Program {
    socket: WebSocket,
    offset: u64,
}

impl Program {
    async fn tell(&mut self, message: &AttachServerMessage) {
        drop(self.socket.send(Message::text(serde_json::to_string(message).unwrap())).await);
    }

    async fn write(&mut self, stream: OutputStream, data: &[u8]) {
        let mut message = OutputFrame { stream, offset: self.offset }.encode().to_vec();
        message.extend_from_slice(data);
        self.offset += data.len() as u64;
        drop(self.socket.send(Message::Binary(message.into())).await);
    }

    async fn end(&mut self, exit: Exit) {
        let offset = self.offset;
        self.tell(&AttachServerMessage::Exit { state: ExecState::Exited, exit, offset }).await;
    }

    async fn cat(&mut self) -> i32 {
        while let Some(Ok(message)) = self.socket.recv().await {
            match message {
                Message::Binary(data) => self.write(OutputStream::Stdout, &data).await,
                Message::Text(text) if text.contains("close_stdin") => return 0,
                Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
            }
        }
        1
    }

    /// Shows its size, shows the keys that are typed, ends at `q`.
    async fn term(&mut self, create: &CreateExec) -> i32 {
        let size = create.tty.unwrap();
        self.write(OutputStream::Stdout, format!("made {}x{}\r\n", size.cols, size.rows).as_bytes()).await;
        while let Some(Ok(message)) = self.socket.recv().await {
            match message {
                Message::Binary(data) => {
                    let typed = format!("typed {data:?}\r\n");
                    self.write(OutputStream::Stdout, typed.as_bytes()).await;
                    if data.contains(&b'q') {
                        return 3;
                    }
                }
                Message::Text(text) => {
                    if let Ok(AttachClientMessage::Resize { cols, rows }) = serde_json::from_str(&text) {
                        self.write(OutputStream::Stdout, format!("size {cols}x{rows}\r\n").as_bytes()).await;
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
            }
        }
        1
    }
}

async fn stat(Query(query): Query<Vec<(String, String)>>) -> Response {
    let path = &query[0].1;
    let kind = match path.as_str() {
        "/dir" => atoll_api::FileKind::Directory,
        "/file" => atoll_api::FileKind::File,
        _ => return refuse(StatusCode::NOT_FOUND, Error::new(Code::FileNotFound, format!("no file {path}"))),
    };
    Json(atoll_api::FileEntry {
        path: path.clone(),
        kind,
        size_bytes: 5,
        mode: "0640".into(),
        uid: 0,
        gid: 0,
        user: None,
        group: None,
        modified_at_ms: 0,
        target: None,
    })
    .into_response()
}

async fn take(State(world): Shared, body: Bytes) -> Json<atoll_api::FileWritten> {
    let bytes = body.len() as u64;
    world.uploads.lock().unwrap().push(body.to_vec());
    Json(atoll_api::FileWritten { bytes })
}

async fn archive(State(world): Shared) -> Vec<u8> {
    world.archive.lock().unwrap().clone()
}

async fn note(State(world): Shared, request: Request, next: Next) -> Response {
    let line = format!("{} {}", request.method(), request.uri());
    world.requests.lock().unwrap().push(line);
    let key = request.headers().get(header::AUTHORIZATION);
    if key.is_none_or(|key| key != "Bearer sesame") {
        return refuse(StatusCode::UNAUTHORIZED, Error::new(Code::Unauthorized, "the API key is not valid"));
    }
    next.run(request).await
}

impl Fake {
    pub(crate) fn start() -> Self {
        let world = Arc::new(World::default());
        let in_box = Router::new()
            .route("/execs", post(create_exec))
            .route("/execs/{exec}/attach", get(attach))
            .route("/execs/{exec}/signal", post(signal))
            .route("/network", get(network))
            .route("/diff", get(diff))
            .route("/files", get(|| async { "hello" }).put(take))
            .route("/files/stat", get(stat))
            .route("/archive", get(archive).put(take));
        let router = Router::new()
            .route("/v1/sandboxes", get(list).post(|| async { Json(sandbox("sb_1", SandboxState::Running)) }))
            .route("/v1/sandboxes/{id}", get(get_sandbox))
            .route("/v1/sandboxes/{id}", delete(|| async { StatusCode::NO_CONTENT }))
            .nest("/v1/sandboxes/{id}", in_box)
            .layer(middleware::from_fn_with_state(Arc::clone(&world), note))
            .with_state(Arc::clone(&world));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        drop(runtime.spawn(async move { axum::serve(listener, router).await.unwrap() }));
        Self { address, world, _runtime: runtime }
    }

    /// The program with this server and a right key, and nothing else of our environment.
    pub(crate) fn atoll(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.env("ATOLL_URL", format!("http://{}", self.address)).env("ATOLL_API_KEY", "sesame");
        command
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.world.requests.lock().unwrap().clone()
    }

    pub(crate) fn uploads(&self) -> Vec<Vec<u8>> {
        self.world.uploads.lock().unwrap().clone()
    }

    pub(crate) fn set_archive(&self, tar: Vec<u8>) {
        *self.world.archive.lock().unwrap() = tar;
    }

    /// The result as a person sees it: streams, exit code; addresses are made the same in every run.
    pub(crate) fn shown(&self, args: &[&str]) -> String {
        let output = finish(self.atoll(args).stdin(Stdio::null()));
        show(args, &output).replace(&self.address.to_string(), "SERVER")
    }
}

/// The program without anything in its environment.
pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    command.args(args).env_clear().current_dir(Path::new("/"));
    command
}

/// Runs to the end, or is killed at the deadline.
pub(crate) fn finish(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

pub(crate) fn show(args: &[&str], output: &Output) -> String {
    format!(
        "$ atoll {}\n[exit {}]\n--- stdout\n{}--- stderr\n{}",
        args.join(" "),
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Waits until `so` is true.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !so() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
