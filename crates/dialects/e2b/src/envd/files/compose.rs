//! Makes one file of several that a client wrote in parts. The parts are removed then.

use atoll_core::Code;
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileKind, Read, Remove, Stat, Write};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{failure, not_written};
use crate::envd::{Envd, paths};
use crate::error::{Failure, Result};
use crate::request::Json;

/// Most parts of one file.
const SOURCES_MAX: usize = 10_000;

/// The parts, and the file that they become.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Order {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

/// `POST /files/compose`.
pub(crate) async fn compose(envd: Envd, Json(order): Json<Order>) -> Result<Response> {
    if order.source_paths.is_empty() {
        return Err(Failure::bad("source_paths must not be empty"));
    }
    if order.source_paths.len() > SOURCES_MAX {
        return Err(Failure::bad(format!("source_paths: there are more than {SOURCES_MAX}")));
    }
    if order.destination.is_empty() {
        return Err(Failure::bad("destination is required"));
    }
    let user = order.username.clone().filter(|user| !user.is_empty());
    let envd = Envd { user: user.or_else(|| envd.user.clone()), ..envd };
    // Once it has begun, it runs to its end, whether the client waits or not.
    let composing = tokio::spawn(async move { composed(&envd, &order).await });
    let told = composing.await.unwrap_or_else(|_panic| {
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the composition failed"))
    })?;
    Ok(axum::Json(told).into_response())
}

async fn composed(envd: &Envd, order: &Order) -> Result<Value> {
    let guest = envd.guest().await.map_err(|error| Failure::of_file(&error))?;
    let destination = paths::resolve(envd, &guest, &order.destination).await.map_err(failure)?;
    let mut sources = Vec::with_capacity(order.source_paths.len());
    for asked in &order.source_paths {
        let source = paths::resolve(envd, &guest, asked).await.map_err(failure)?;
        if source == destination {
            return Err(Failure::bad(format!("source path '{source}' cannot be the same as destination")));
        }
        check(&guest, &source).await?;
        sources.push(source);
    }
    // An older file at the destination stays until the new one is written as a whole.
    let request =
        Write { path: destination.clone(), mode: 0, user: envd.owner()?, parents: true, in_place: false };
    let wrong = |error| not_written(envd, guest_error(error), &destination);
    let mut writer = guest.write(request).await.map_err(wrong)?;
    for source in &sources {
        let read = Read { path: source.clone(), offset: 0, length: 0 };
        let wrong_source = |error| not_written(envd, guest_error(error), source);
        let mut reader = guest.read(read).await.map_err(wrong_source)?;
        while let Some(piece) = reader.next().await.map_err(wrong_source)? {
            writer.send(piece).await.map_err(wrong)?;
        }
    }
    writer.finish().await.map_err(wrong)?;
    for source in sources {
        // A source that is named twice is gone by now.
        if let Err(error) = guest.remove(Remove { path: source, recursive: false }).await.map_err(guest_error)
        {
            tracing::debug!(%error, "a part of a composed file stays");
        }
    }
    Ok(json!({"name": paths::name(&destination), "type": "file", "path": destination}))
}

/// Refuses a source that is not a regular file.
async fn check(guest: &GuestLease, source: &str) -> Result<()> {
    let stat = Stat { path: source.to_owned(), no_follow: false };
    match guest.stat(stat).await.map_err(guest_error) {
        Ok(info) if info.kind() == FileKind::File => Ok(()),
        Ok(_) => Err(Failure::bad(format!("source path is not a regular file: {source}"))),
        Err(error) if matches!(error.code, Code::FileNotFound | Code::NotADirectory) => {
            Err(Failure::not_found(format!("source file not found: {source}")))
        }
        Err(error) => Err(Failure::of_file(&error)),
    }
}
