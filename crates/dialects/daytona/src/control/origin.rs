//! What a sandbox is made from: Daytona's snapshots are Atoll's templates and snapshots.

use atoll_core::id::{KeyId, SnapshotId};
use atoll_core::snapshot::SnapshotKind;
use atoll_core::spec::SandboxDraft;
use atoll_core::{Code, Error};
use atoll_dialect_kit::uuid;
use atoll_engine::Engine;
use atoll_store::{SnapshotRecord, TemplateRecord};

use crate::error::{Failure, Result};

/// What a creation begins with that names nothing: the template of this name, or the server's default image.
pub(crate) const DEFAULT: &str = "daytona";
/// The tag of snapshots of ours.
pub(crate) const TAG: &str = "latest";
/// Daytona's own snapshots, which differ in their size only.
const VENDORS: [&str; 6] =
    ["default", "daytona-small", "daytona-medium", "daytona-large", "daytonaio/sandbox", "daytona-vm"];

/// Whatever it is.
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

/// Whether it is a name of one of Daytona's own.
fn is_vendors(name: &str) -> bool {
    let bare = name.split(':').next().unwrap_or(name);
    VENDORS.contains(&bare)
}

/// What a name or an id means; `None` is what everybody gets.
///
/// # Errors
/// 404.
pub(crate) async fn find(engine: &Engine, sees: Option<&KeyId>, name: Option<&str>) -> Result<Origin> {
    let Some(name) = name.filter(|name| !name.is_empty() && !is_vendors(name)) else {
        return Ok(template(engine, DEFAULT)
            .await?
            .map_or(Origin::Image, |found| Origin::Template(found.into())));
    };
    if let Some(found) = template(engine, name).await? {
        return Ok(Origin::Template(found.into()));
    }
    match snapshot(engine, sees, name).await? {
        Some(found) => Ok(Origin::Snapshot(found.into())),
        None if name == DEFAULT => Ok(Origin::Image),
        None => Err(missing(name)),
    }
}

pub(crate) fn missing(name: &str) -> Failure {
    Failure::not_found(format!("Snapshot {} not found", atoll_core::error::shorten(name)))
}

/// The template of a name.
pub(crate) async fn template(engine: &Engine, name: &str) -> Result<Option<TemplateRecord>> {
    match engine.template(name, None).await {
        Ok(record) => Ok(Some(record)),
        Err(Error { code: Code::TemplateNotFound | Code::InvalidArgument, .. }) => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// The snapshot of an id or a name, if the key may see it.
pub(crate) async fn snapshot(
    engine: &Engine,
    sees: Option<&KeyId>,
    name: &str,
) -> Result<Option<SnapshotRecord>> {
    let text = match uuid::snapshot(name) {
        Some(id) if id.parse::<SnapshotId>().is_ok() => id,
        _ if name.contains(':') => name.to_owned(),
        _ => format!("{name}:{TAG}"),
    };
    let found = match engine.ready_snapshot(&text).await {
        Ok(record) => record,
        Err(Error { code: Code::SnapshotNotFound | Code::InvalidArgument, .. }) => return Ok(None),
        Err(error) => return Err(Failure::of(&error)),
    };
    Ok(engine.check_sees_snapshot(sees, found.id.as_str()).await.is_ok().then_some(found))
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
