//! The origins of sandboxes: Daytona's snapshots are Atoll's templates and snapshots.

use atoll_core::sharing::Needs;
use atoll_core::snapshot::SnapshotKind;
use atoll_core::spec::SandboxDraft;
use atoll_core::{Code, Error};
use atoll_dialect_kit::uuid;
use atoll_engine::{Caller as EngineCaller, Engine};
use atoll_store::{SnapshotRecord, TemplateRecord};

use crate::error::{Failure, Result};

/// The snapshot of clients that name none: the template of this name, or else the server's default image.
pub(crate) const DEFAULT: &str = "daytona";
/// The tag of snapshots that this dialect takes.
pub(crate) const TAG: &str = "latest";
/// Daytona's own snapshots, which differ only in their size.
const VENDORS: [&str; 6] =
    ["default", "daytona-small", "daytona-medium", "daytona-large", "daytonaio/sandbox", "daytona-vm"];

/// A template, a snapshot, or the server's default image.
#[derive(Debug)]
pub(crate) enum Origin {
    Template(Box<TemplateRecord>),
    Snapshot(Box<SnapshotRecord>),
    Image,
}

impl Origin {
    /// Makes a draft begin with it.
    pub(crate) fn apply(&self, draft: &mut SandboxDraft) {
        match self {
            Self::Template(record) => draft.template = Some(record.name.clone()),
            Self::Snapshot(record) => {
                draft.snapshot = Some(record.id.to_string());
                draft.memory = record.manifest.kind == SnapshotKind::Memory;
            }
            Self::Image => {}
        }
    }
}

/// Whether it is one of the names of the default.
pub(crate) fn is_default(name: &str) -> bool {
    name == DEFAULT || is_vendors(name)
}

/// Whether it is the name of one of Daytona's own snapshots.
fn is_vendors(name: &str) -> bool {
    let bare = name.split(':').next().unwrap_or(name);
    VENDORS.contains(&bare)
}

/// The origin that a name or an id means; `None` means the default.
///
/// # Errors
/// 404.
pub(crate) async fn find(engine: &Engine, by: &EngineCaller, name: Option<&str>) -> Result<Origin> {
    let Some(name) = name.filter(|name| !name.is_empty() && !is_vendors(name)) else {
        return Ok(template(engine, DEFAULT)
            .await?
            .map_or(Origin::Image, |found| Origin::Template(found.into())));
    };
    if let Some(found) = template(engine, name).await? {
        return Ok(Origin::Template(found.into()));
    }
    match snapshot(engine, Needs::READ, by, name).await? {
        Some(found) => Ok(Origin::Snapshot(found.into())),
        None if name == DEFAULT => Ok(Origin::Image),
        None => Err(missing(name)),
    }
}

pub(crate) fn missing(name: &str) -> Failure {
    Failure::not_found(format!("Snapshot {} not found", atoll_core::error::shorten(name)))
}

/// The template with this name.
pub(crate) async fn template(engine: &Engine, name: &str) -> Result<Option<TemplateRecord>> {
    match engine.template(name, None).await {
        Ok(record) => Ok(Some(record)),
        Err(Error { code: Code::TemplateNotFound | Code::InvalidArgument, .. }) => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// The snapshot with this id or name, if the caller may do with it what `needs` says; `None` if it may not know of it.
pub(crate) async fn snapshot(
    engine: &Engine,
    needs: Needs,
    by: &EngineCaller,
    name: &str,
) -> Result<Option<SnapshotRecord>> {
    let text = match uuid::snapshot(name) {
        Some(id) => id.to_string(),
        None if name.contains(':') => name.to_owned(),
        None => format!("{name}:{TAG}"),
    };
    match engine.usable_snapshot(&text, needs, by).await {
        Ok(record) => Ok(Some(record)),
        Err(Error { code: Code::SnapshotNotFound | Code::InvalidArgument, .. }) => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_vendor() {
        assert!(is_vendors("daytonaio/sandbox:0.5.0") && is_vendors("daytona-small"));
        assert!(!is_vendors("daytona") && !is_vendors("mine"));
    }
}
