//! The protocol of "Acme", which rents out computers: an example of a dialect, small enough to copy.
//!
//! ```text
//! POST   /computers                {"label": "blue"}          → {"id": "0190…", "label": "blue", "on": true}
//! GET    /computers?label=blue                                → [{…}]
//! DELETE /computers/{id}
//! POST   /computers/{id}/commands  {"id": "c1", "words": ["ls"]} → {"output": "…", "exit": 0}
//! GET    /computers/{id}/file?path=/etc/hosts                 → its bytes
//! ```
//!
//! Its clients find it below `/acme` and at `acme.<domain of ports>`, send their key as `X-Acme-Key`, and read errors
//! as `{"problem": "…"}`. See `docs/dialects.md` for each part.

use atoll_core::exec::OutputStream;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{Command, ExecDraft, SandboxDraft};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Bookmarks, Counting, Event, Feed, Offsets, get_or_create};
use atoll_dialect_kit::files::{SendError, send};
use atoll_dialect_kit::request::{Caller, Exec, Json, Manage, Query, Read};
use atoll_dialect_kit::sandboxes::{Page, awake, list};
use atoll_dialect_kit::{Protocol, annotation, sentence, uuid};
use atoll_engine::SandboxQuery;
use atoll_server::dialect::{Dialect, Host, Mount, credentials};
use atoll_store::SandboxRecord;
use axum::Router;
use axum::extract::{RawPathParams, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde::{Deserialize, Serialize};

/// What to mount: add it to the list in the program's `serve`.
pub const DIALECT: Dialect = Dialect {
    name: "acme",
    mounts: &[Mount::Prefix("/acme"), Mount::Host(|named| named.label == "acme")],
    router,
    credential: |headers| credentials::header(headers, "x-acme-key"),
    refuse: |error, _| Problem::from(error.clone()).into_response(),
};

/// Key of the annotation with what Acme knows of a computer and the engine does not.
const NOTES: &str = "acme";

/// The state of the router.
#[derive(Debug, Clone)]
struct Acme {
    host: Host,
    marks: Bookmarks,
}

impl Protocol for Acme {
    type Failure = Problem;

    fn host(&self) -> &Host {
        &self.host
    }

    fn refused(error: &Error) -> Problem {
        error.clone().into()
    }

    fn sandbox(_: &str, params: &RawPathParams, _: &Parts) -> Option<String> {
        params.iter().find(|(name, _)| *name == "id").map(|(_, value)| uuid::sandbox(value))
    }
}

/// An error in Acme's words.
#[derive(Debug)]
struct Problem(StatusCode, String);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.code {
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::SandboxNotFound | Code::FileNotFound | Code::RouteNotFound => StatusCode::NOT_FOUND,
            code if code.retryable() => StatusCode::SERVICE_UNAVAILABLE,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        Self(status, sentence(&error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            problem: String,
        }
        (self.0, Json(Body { problem: self.1 })).into_response()
    }
}

fn router(host: Host) -> Router {
    Router::new()
        .route("/computers", post(rent).get(rented))
        .route("/computers/{id}", delete(give_back))
        .route("/computers/{id}/commands", post(run))
        .route("/computers/{id}/file", get(file))
        .fallback(async || Problem::from(Error::new(Code::RouteNotFound, "Acme has no such call")))
        .with_state(Acme { host, marks: Bookmarks::default() })
}

/// Acme's notes on a computer.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    label: String,
}

/// A computer as clients see it.
#[derive(Debug, Serialize)]
struct Computer {
    id: String,
    label: String,
    on: bool,
}

impl From<SandboxRecord> for Computer {
    fn from(record: SandboxRecord) -> Self {
        let Notes { label } = annotation::read(&record, NOTES);
        Self { id: uuid::of_sandbox(&record.id), label, on: record.state == SandboxState::Running }
    }
}

async fn rent(
    caller: Caller<Manage>,
    State(acme): State<Acme>,
    Json(notes): Json<Notes>,
) -> Result<Json<Computer>, Problem> {
    let annotations = [(NOTES.to_owned(), annotation::text(&notes)?)].into();
    let draft = SandboxDraft { annotations, ..SandboxDraft::default() };
    let record = acme.host.engine().create_sandbox(draft, caller.engine()).await?;
    Ok(Json(record.into()))
}

async fn rented(
    caller: Caller<Read>,
    State(acme): State<Acme>,
    Query(wanted): Query<Notes>,
) -> Result<Json<Vec<Computer>>, Problem> {
    let query = SandboxQuery::default();
    let matches = |record: &SandboxRecord| annotation::read::<Notes>(record, NOTES).label == wanted.label;
    let (found, _more) = list(acme.host.engine(), query, &Page::default(), caller.engine(), matches).await?;
    Ok(Json(found.into_iter().map(Computer::from).collect()))
}

async fn give_back(caller: Caller<Manage>, State(acme): State<Acme>) -> Result<StatusCode, Problem> {
    acme.host.engine().delete_sandbox(caller.sandbox()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A command. Sent twice with the same id it runs once.
#[derive(Debug, Deserialize)]
struct Words {
    id: Option<String>,
    words: Vec<String>,
}

/// How it went.
#[derive(Debug, Default, Serialize)]
struct Done {
    output: String,
    exit: Option<i32>,
}

async fn run(
    caller: Caller<Exec>,
    State(acme): State<Acme>,
    Json(Words { id: command, words }): Json<Words>,
) -> Result<Json<Done>, Problem> {
    let (engine, sandbox) = (acme.host.engine(), caller.sandbox()?);
    drop(awake(engine, sandbox).await?);
    // A protocol with command lines makes `[shell, "-c", line]` of what it is told here.
    let draft = |_shell: &str| Ok(ExecDraft::new(Command::Argv(words.clone())));
    let view = get_or_create(engine, sandbox, command.as_deref(), None, draft, caller.engine()).await?;
    let mut feed = Feed::open(engine, &view, &acme.marks, Counting::Text, Offsets::default()).await?;
    let mut done = Done::default();
    loop {
        match feed.next().await? {
            Event::Text { stream: OutputStream::Stdout, text, .. } => done.output.push_str(&text),
            Event::Text { .. } | Event::Raw { .. } => {}
            Event::End(exit) => return Ok(Json(Done { exit: exit.code, ..done })),
        }
    }
}

/// Which file.
#[derive(Debug, Deserialize)]
struct Which {
    path: String,
}

async fn file(
    caller: Caller<Read>,
    State(acme): State<Acme>,
    Query(Which { path }): Query<Which>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let lease = awake(acme.host.engine(), caller.sandbox()?).await?;
    send(lease, path, &method, &headers).await.map_err(|error| match error {
        SendError::Engine(error) => error.into(),
        SendError::Range(size) => Problem(StatusCode::RANGE_NOT_SATISFIABLE, format!("it has {size} bytes")),
    })
}
