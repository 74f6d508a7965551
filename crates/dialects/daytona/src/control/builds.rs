//! Building an image: a Dockerfile that a client made.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use atoll_core::build::{BuildEvent, BuildSpec, BuildState};
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::spec::ResourcesDraft;
use atoll_dialect_kit::request::Caller;
use atoll_engine::{BuildLog, BuildView, Caller as EngineCaller, Engine};
use atoll_store::BuildRecord;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::origin;
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Path, Query, Root};
use crate::who::Read;

/// What templates are called that were built for one creation.
const PREFIX: &str = "daytona-build-";
/// Bytes of a log that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Builds that are looked through for one of a name.
const LOOKED_AT_PAGES: usize = 3;

/// What is to be built.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct BuildInfo {
    dockerfile_content: Option<String>,
    context_hashes: Option<Vec<String>>,
}

impl BuildInfo {
    /// The Dockerfile.
    ///
    /// # Errors
    /// 501 when it wants files of the client.
    pub(super) fn dockerfile(&self) -> Result<String> {
        if self.context_hashes.as_ref().is_some_and(|hashes| !hashes.is_empty()) {
            return Err(no_context());
        }
        let text = self.dockerfile_content.clone().filter(|text| !text.trim().is_empty());
        text.ok_or_else(|| Failure::bad("buildInfo.dockerfileContent: is missing"))
    }
}

fn no_context() -> Failure {
    let instead =
        "build with 'atoll template build' where the files are, and name the template as the snapshot";
    crate::unsupported("building with files of the client (add_local_file, add_local_dir, COPY)", instead)
}

/// A build of a Dockerfile.
pub(super) fn spec(name: String, dockerfile: String) -> BuildSpec {
    BuildSpec {
        name,
        tags: Vec::new(),
        dockerfile: Some(dockerfile),
        steps: None,
        ignore: None,
        args: BTreeMap::new(),
        target: None,
        no_cache: false,
        start: None,
        ready: None,
        memory: false,
        isolation: None,
        resources: ResourcesDraft::default(),
        labels: BTreeMap::new(),
        egress: None,
        template_egress: None,
        ttl_ms: None,
        idle_timeout_ms: None,
        timeout_ms: None,
    }
}

/// A build that waits for files that never come is ended.
pub(super) async fn without_context(engine: &Engine, view: &BuildView) -> Result<()> {
    if !view.needs_context {
        return Ok(());
    }
    engine.cancel_build(&view.record.id).await?;
    Err(no_context())
}

/// The last build of a name.
pub(super) async fn latest(engine: &Engine, by: &EngineCaller, name: &str) -> Result<Option<BuildRecord>> {
    let mut cursor: Option<String> = None;
    for _ in 0..LOOKED_AT_PAGES {
        let page = engine.builds(&[], cursor.as_deref(), Some(PAGE_MAX_COUNT), by).await?;
        if let Some(found) = page.items.into_iter().find(|build| build.spec.name == name) {
            return Ok(Some(found));
        }
        cursor = page.next.map(|next| next.to_string());
        if cursor.is_none() {
            break;
        }
    }
    Ok(None)
}

/// Why a build made nothing.
pub(super) fn why(record: &BuildRecord) -> Option<String> {
    let failure = record.failure.as_ref()?;
    let mut why = failure.message.clone();
    for more in [&failure.output, &failure.hint].into_iter().flatten() {
        why.push('\n');
        why.push_str(more);
    }
    Some(why)
}

/// The template of a Dockerfile, which is built unless that was done before. The name is made of its text.
pub(super) async fn template_of(engine: &Engine, by: &EngineCaller, info: &BuildInfo) -> Result<String> {
    let dockerfile = info.dockerfile()?;
    let hash = Sha256::digest(&dockerfile);
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{PREFIX}{digits}");
    if origin::template(engine, &name).await?.is_some() {
        return Ok(name);
    }
    let running = latest(engine, by, &name).await?.filter(|build| !build.state.is_final());
    let build = match running {
        // Somebody else wants the same.
        Some(build) => build,
        None => {
            let view = engine.create_build(spec(name.clone(), dockerfile), by).await?;
            without_context(engine, &view).await?;
            view.record
        }
    };
    let mut log = engine.build_log(&build.id, 0).await?;
    loop {
        let page = log.now(READ_BYTES).await?;
        if page.record.state == BuildState::Succeeded {
            return Ok(name);
        }
        if page.record.state.is_final() {
            let why = why(&page.record).unwrap_or_else(|| "the build was cancelled".to_owned());
            return Err(Failure::bad(format!("the image could not be built: {why}")));
        }
        if page.entries.is_empty() {
            log.changed().await;
        }
    }
}

/// Where the log of a build is.
pub(super) async fn log_url(
    caller: Caller<Read>,
    root: Root,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    latest(app.host.engine(), caller.engine(), &name).await?.ok_or_else(|| origin::missing(&name))?;
    let name = percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
    Ok(Json(json!({"url": root.url(&format!("/api/snapshots/{name}/build-logs"))})))
}

/// Whether it is to be followed to its end.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Follow {
    follow: Option<bool>,
}

/// The log of a build, as plain text.
pub(super) async fn log(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<Follow>,
) -> Result<Response> {
    let engine = app.host.engine();
    let build = latest(engine, caller.engine(), &name).await?.ok_or_else(|| origin::missing(&name))?;
    let log = engine.build_log(&build.id, 0).await?;
    let (follow, draining) = (query.follow.unwrap_or_default(), app.host.draining_token());
    let lines = stream::try_unfold(log, move |mut log| {
        let draining = draining.clone();
        async move {
            loop {
                let next = tokio::select! {
                    next = text(&mut log, follow) => next,
                    () = draining.cancelled() => return Ok(None),
                };
                match next.map_err(std::io::Error::other)? {
                    Some(text) if text.is_empty() => {}
                    Some(text) => return Ok::<_, std::io::Error>(Some((text, log))),
                    None => return Ok(None),
                }
            }
        }
    });
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(lines)).into_response())
}

/// What comes next; `None` at the end.
async fn text(log: &mut BuildLog, follow: bool) -> Result<Option<String>, atoll_core::Error> {
    let page = log.now(READ_BYTES).await?;
    if page.entries.is_empty() {
        if page.over || !follow {
            return Ok(None);
        }
        log.changed().await;
        return Ok(Some(String::new()));
    }
    let mut text = String::new();
    for entry in page.entries {
        match entry.event {
            BuildEvent::Note { text: note, .. } => {
                text.push_str(&note);
                text.push('\n');
            }
            BuildEvent::Step { step, total, text: line, took_ms: None, .. } => {
                let _ = writeln!(text, "Step {step}/{total} : {line}");
            }
            BuildEvent::Output { text: output, .. } => text.push_str(&output),
            BuildEvent::End { failure: Some(failure), .. } => {
                let _ = writeln!(text, "{}", failure.message);
            }
            BuildEvent::Step { .. } | BuildEvent::End { .. } => {}
        }
    }
    Ok(Some(text))
}
