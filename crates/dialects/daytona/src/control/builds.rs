//! Building an image from a Dockerfile that a client made.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use atoll_core::build::{BuildEvent, BuildSpec, BuildState, StartFrom};
use atoll_core::id::KeyId;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::service::Services;
use atoll_core::spec::ResourcesDraft;
use atoll_dialect_kit::request::Caller;
use atoll_engine::{BuildLog, Caller as EngineCaller, Engine};
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
use crate::objects::Context;
use crate::request::{Json, Path, Query, Root};
use crate::who::Read;

/// Prefix of the names of templates that were built for one creation.
const PREFIX: &str = "daytona-build-";
/// Bytes of a log that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Pages of builds that are searched for one with a name.
const LOOKED_AT_PAGES: usize = 3;

/// The build that a client wants.
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
    /// 400 when there is none.
    pub(super) fn dockerfile(&self) -> Result<String> {
        let text = self.dockerfile_content.clone().filter(|text| !text.trim().is_empty());
        text.ok_or_else(|| Failure::bad("buildInfo.dockerfileContent: is missing"))
    }

    /// The clients' names for the archives of the files that they sent.
    fn hashes(&self) -> &[String] {
        self.context_hashes.as_deref().unwrap_or_default()
    }

    /// The files that the Dockerfile copies, as the key has sent them.
    ///
    /// # Errors
    /// 400 for files that the key has not sent.
    pub(super) async fn context(&self, engine: &Engine, key: &KeyId) -> Result<Context> {
        Context::open(engine, key, self.hashes()).await
    }

    /// The name of a template of this Dockerfile that only this key makes and uses: the server does not check the
    /// clients' hashes of files.
    fn name(&self, dockerfile: &str, key: &KeyId) -> String {
        let parts = [key.as_str(), dockerfile].into_iter().chain(self.hashes().iter().map(String::as_str));
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        format!("{PREFIX}{}", hex::encode(&hasher.finalize()[..16]))
    }
}

/// Whether a Dockerfile says which program its sandboxes run.
fn has_entrypoint(dockerfile: &str) -> bool {
    let mut words = dockerfile.lines().filter_map(|line| line.split_whitespace().next());
    words.any(|word| word.eq_ignore_ascii_case("ENTRYPOINT"))
}

/// A build of a Dockerfile.
pub(super) fn spec(name: String, dockerfile: String) -> BuildSpec {
    BuildSpec {
        start: has_entrypoint(&dockerfile).then_some(StartFrom::Image),
        name,
        tags: Vec::new(),
        dockerfile: Some(dockerfile),
        steps: None,
        ignore: None,
        args: BTreeMap::new(),
        target: None,
        no_cache: false,
        ready: None,
        restart: None,
        verify: false,
        memory: false,
        isolation: None,
        resources: ResourcesDraft::default(),
        labels: BTreeMap::new(),
        egress: None,
        template_egress: None,
        ttl_ms: None,
        idle_timeout_ms: None,
        timeout_ms: None,
        services: Services::new(),
    }
}

/// Begins a build, with the files that it copies. If the files cannot be read, the build is cancelled.
pub(super) async fn begin(
    engine: &Engine,
    by: &EngineCaller,
    spec: BuildSpec,
    context: Context,
) -> Result<BuildRecord> {
    let view = engine.create_build(spec, by).await?;
    if !view.needs_context {
        return Ok(view.record);
    }
    match engine.put_build_context(&view.record.id, context.into_tar()).await {
        Ok(view) => Ok(view.record),
        Err(error) => {
            engine.cancel_build(&view.record.id).await?;
            Err(Failure::of(&error))
        }
    }
}

/// The last build with this name.
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

/// Why a build failed.
pub(super) fn why(record: &BuildRecord) -> Option<String> {
    let failure = record.failure.as_ref()?;
    let mut why = failure.message.clone();
    for more in [&failure.output, &failure.hint].into_iter().flatten() {
        why.push('\n');
        why.push_str(more);
    }
    Some(why)
}

/// The template of a Dockerfile, and its version. It is built unless this key has built it before.
pub(super) async fn template_of(
    engine: &Engine,
    by: &EngineCaller,
    key: &KeyId,
    info: &BuildInfo,
) -> Result<String> {
    let dockerfile = info.dockerfile()?;
    let name = info.name(&dockerfile, key);
    // Another key's template may not have the content that the name says. The version is named, too: another key may
    // build further versions.
    let made = origin::template(engine, &name).await?;
    if let Some(made) = made.filter(|made| made.created_by.as_ref() == Some(key)) {
        return Ok(format!("{name}:{}", made.version));
    }
    let running = latest(engine, by, &name).await?;
    let running = running.filter(|build| !build.state.is_final() && build.created_by.as_ref() == Some(key));
    let build = match running {
        // The client asks again while its build runs.
        Some(build) => build,
        None => {
            let context = info.context(engine, key).await?;
            begin(engine, by, spec(name.clone(), dockerfile), context).await?
        }
    };
    let mut log = engine.build_log(&build.id, 0).await?;
    loop {
        let page = log.now(READ_BYTES).await?;
        if let (BuildState::Succeeded, Some(version)) = (page.record.state, page.record.template_version) {
            return Ok(format!("{name}:{version}"));
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

/// The address of the log of a build.
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

/// Whether the client wants to follow the log to its end.
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

/// The next text; `None` at the end.
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
