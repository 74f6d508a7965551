//! Getting images: pulls from registries, with progress as newline-delimited JSON.
//!
//! ```text
//! pull (thread) ─▶ Board: the latest step of each layer ─▶ every 100 ms, what changed ─▶ lines
//! ```
//!
//! Pulls, loads and imports wait for a registry or a client on threads, of which the process has only so many. So each waits
//! for its room among the transfers before it gets a thread. One whose client, or registry, hardly sends anything is given
//! up: of a client when others wait for its room.
//!
//! The task belongs to the answer: a client that goes away stops the pull, and the layers that came so far are kept for
//! the next. A pull that fails before there is anything to report fails with a proper status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_api::{ImageProgress, LayerPhase, PullImage};
use atoll_core::{Code, Error, Result, spec};
use atoll_engine::{Caller as EngineCaller, Room};
use atoll_image::{Credentials, Image, LayerEvent, Phase, Platform, Progress, PullOptions};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::images::image_error;
use crate::auth::{Caller, ManageCommon};
use crate::convert;
use crate::error::{ApiResult, body_of, json};
use crate::extract::Json;
use crate::hangup::ClientGone;
use crate::shared::{App, shutting_down};

/// Pause between reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Lines that wait for a client that reads slowly.
const LINES_MAX_COUNT: usize = 16;
/// Media type of newline-delimited JSON.
const NDJSON: &str = "application/x-ndjson";

/// Pulls an image and prepares it. What is here already is not fetched again.
///
/// The answer is newline-delimited JSON (`ImageProgress`); the last line is `done` or `error`.
#[utoipa::path(post, path = "/v1/images/pull", tag = "images", security(("key" = ["manage"])),
    request_body = PullImage,
    responses((status = 200, content_type = "application/x-ndjson", body = ImageProgress)))]
pub(crate) async fn pull_image(
    caller: Caller<ManageCommon>,
    State(app): State<App>,
    Extension(client): Extension<ClientGone>,
    Json(request): Json<PullImage>,
) -> ApiResult<Response> {
    spec::image_reference("reference", &request.reference)?;
    let reference = request.reference.clone();
    let options = options(&app, request).await?;
    let images = app.engine.images().clone();
    let work = move |board: Arc<Board>, _room: Room| async move {
        images.pull(&reference, &options, &*board).await.map(|image| vec![image])
    };
    with_progress(app, &caller, &client, work).await
}

async fn options(app: &App, request: PullImage) -> Result<PullOptions> {
    let host = atoll_image::registry_of(&request.reference).map_err(image_error)?;
    let stored = app.engine.registry_credentials(&host).await?;
    let known = stored.is_some();
    let credentials = match request.credentials {
        Some(given) => Some(Credentials::Basic { username: given.username, password: given.password }),
        None => stored,
    };
    let platform =
        request.platform.as_deref().map(str::parse::<Platform>).transpose().map_err(image_error)?;
    Ok(PullOptions {
        credentials,
        platform,
        insecure_http: request.insecure_http,
        extra_ca_pem: request.ca_pem,
        known,
        ..PullOptions::default()
    })
}

/// The latest step of each layer.
#[derive(Debug, Default)]
pub(crate) struct Board {
    layers: Mutex<BTreeMap<String, ImageProgress>>,
}

impl Progress for Board {
    fn layer(&self, event: LayerEvent<'_>) {
        let phase = match event.phase {
            Phase::Download => LayerPhase::Download,
            Phase::Extract => LayerPhase::Unpack,
            Phase::Done => LayerPhase::Done,
        };
        let digest = event.layer.to_string();
        let (done_bytes, total_bytes) = (event.done_bytes, event.total_bytes);
        let step = ImageProgress::Layer { digest: digest.clone(), phase, done_bytes, total_bytes };
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, step);
    }
}

impl Board {
    /// What changed since the last call.
    fn take(&self) -> Vec<ImageProgress> {
        let layers = std::mem::take(&mut *self.layers.lock().unwrap_or_else(PoisonError::into_inner));
        layers.into_values().collect()
    }
}

/// Runs `work` once there is room for a transfer of this caller, and answers with its progress. It ends with its client.
///
/// # Errors
/// What `work` fails with before it has reported anything.
pub(crate) async fn with_progress<F, Fut>(
    app: App,
    caller: &Caller<ManageCommon>,
    client: &ClientGone,
    work: F,
) -> ApiResult<Response>
where
    F: FnOnce(Arc<Board>, Room) -> Fut + Send + 'static,
    Fut: Future<Output = atoll_image::Result<Vec<Arc<Image>>>>,
{
    let (lines, mut received) = mpsc::channel(LINES_MAX_COUNT);
    let by = caller.engine().clone();
    let task = AbortOnDropHandle::new(tokio::spawn(async move { report(app, by, work, lines).await }));
    let first = match client.unless_gone(received.recv()).await? {
        Some(Err(error)) => return Err(error.into()),
        Some(Ok(first)) => Some(Ok(first)),
        None => None,
    };
    let request_id = caller.request_id().to_owned();
    let all = stream::iter(first).chain(ReceiverStream::new(received));
    let lines = all.map(move |step: Result<ImageProgress>| {
        // The task lives as long as the answer.
        let _task = &task;
        let step = step.unwrap_or_else(|error| ImageProgress::Error { error: body_of(error, &request_id) });
        Ok::<_, Infallible>(Bytes::from(json(&step) + "\n"))
    });
    Ok(([(CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response())
}

async fn report<F, Fut>(app: App, by: EngineCaller, work: F, lines: mpsc::Sender<Result<ImageProgress>>)
where
    F: FnOnce(Arc<Board>, Room) -> Fut + Send + 'static,
    Fut: Future<Output = atoll_image::Result<Vec<Arc<Image>>>>,
{
    let room = match app.unless_draining(app.engine.room_to_transfer(&by)).await {
        Some(Ok(room)) => room,
        refused => {
            let error = refused.and_then(Result::err).unwrap_or_else(shutting_down);
            // The client may have gone.
            drop(lines.send(Err(error)).await);
            return;
        }
    };
    let board = Arc::new(Board::default());
    let stop = CancellationToken::new();
    let _stops_with_this = stop.clone().drop_guard();
    let mut work = spawn(stop, room, work, Arc::clone(&board));
    let mut ticks = tokio::time::interval(REPORT_EVERY);
    loop {
        let ended: Option<Result<Vec<Arc<Image>>>> = tokio::select! {
            ended = &mut work => Some(outcome(ended)),
            () = app.draining.cancelled() => Some(Err(shutting_down())),
            _ = ticks.tick() => None,
        };
        let over = ended.is_some();
        let mut steps: Vec<Result<ImageProgress>> = board.take().into_iter().map(Ok).collect();
        match ended {
            Some(Ok(images)) => steps.extend(images.iter().map(|image| Ok(done(image)))),
            Some(Err(error)) => steps.push(Err(error)),
            None => {}
        }
        for step in steps {
            if lines.send(step).await.is_err() {
                return;
            }
        }
        if over {
            return;
        }
    }
}

type Ended = Option<atoll_image::Result<Vec<Arc<Image>>>>;

/// Runs `work` on a thread of its own, which has the room, until `stop`. Its future borrows across waits in ways that the
/// compiler cannot prove to be `Send`; besides, unpacking is work for a thread.
fn spawn<F, Fut>(stop: CancellationToken, room: Room, work: F, board: Arc<Board>) -> JoinHandle<Ended>
where
    F: FnOnce(Arc<Board>, Room) -> Fut + Send + 'static,
    Fut: Future<Output = atoll_image::Result<Vec<Arc<Image>>>>,
{
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        // The work may give its part of the room to a stream, which is read on a thread that is not this one.
        let _room = room.clone();
        runtime.block_on(stop.run_until_cancelled(work(board, room)))
    })
}

fn outcome(ended: std::result::Result<Ended, JoinError>) -> Result<Vec<Arc<Image>>> {
    match ended {
        Ok(Some(outcome)) => outcome.map_err(image_error),
        Ok(None) => Err(shutting_down()),
        Err(error) => {
            tracing::error!(%error, "an image operation panicked");
            Err(Error::new(Code::Internal, "the server failed to prepare the image"))
        }
    }
}

fn done(image: &Image) -> ImageProgress {
    ImageProgress::Done { image: convert::image(image) }
}
