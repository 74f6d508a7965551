//! Volumes. The engine has one kind for both versions of the protocol: all sandboxes see each other's changes at once,
//! so there is nothing to commit or to reload.

pub(super) mod files;

use atoll_core::id::VolumeId;
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::volume::{VolumeDraft, VolumeMountDraft};
use atoll_core::{Code, Error, spec};
use atoll_engine::{Resource, Target};
use atoll_store::VolumeRecord;

use crate::auth::Asker;
use crate::grpc::{Fault, Result};
use crate::ids;
use crate::wire::apps::{
    CreationInfo, VolumeCommitRequest, VolumeCommitResponse, VolumeDeleteRequest, VolumeGetOrCreateRequest,
    VolumeGetOrCreateResponse, VolumeMetadata, VolumeReloadRequest,
};
use crate::wire::common::{Empty, VolumeMount};
use crate::wire::content::{
    VolumeGetByIdRequest, VolumeGetByIdResponse, VolumeListItem, VolumeListRequest, VolumeListResponse,
};

use super::Done;

/// `ObjectCreationType`.
mod creation {
    pub(super) const GET: i32 = 0;
    pub(super) const CREATE_FAIL_IF_EXISTS: i32 = 2;
    pub(super) const EPHEMERAL: i32 = 5;
}
/// The version that clients are told when they name none.
const VERSION: i32 = 2;

/// A volume by its id or name, if the caller may know of it.
async fn find(asker: &Asker, text: &str, needs: Needs) -> Result<VolumeId, Error> {
    match asker.grant(needs, Target::Volume(text)).await?.resource() {
        Resource::Volume(id) => Ok(id.clone()),
        _ => Err(VolumeId::not_found(text)),
    }
}

/// `VolumeGetOrCreate`.
pub(super) async fn get_or_create(
    asker: &Asker,
    request: VolumeGetOrCreateRequest,
) -> Result<VolumeGetOrCreateResponse> {
    let kind = request.object_creation_type;
    if kind == creation::EPHEMERAL {
        return Err(Fault::unsupported(
            "ephemeral volumes are not supported by this server: use Volume.from_name(…, create_if_missing=True)",
        ));
    }
    let name = request.deployment_name;
    spec::name("name", &name)?;
    asker.needs(if kind == creation::GET { Scope::Read } else { Scope::Manage })?;
    let missing = || Fault::not_found(format!("Volume '{name}' not found"));
    let id = match find(asker, &name, Needs::READ).await {
        Ok(_) if kind == creation::CREATE_FAIL_IF_EXISTS => {
            return Err(Fault::from(Error::new(
                Code::NameTaken,
                format!("Volume '{name}' is there already"),
            )));
        }
        Ok(id) => id,
        Err(error) if error.code == Code::VolumeNotFound && kind != creation::GET => {
            let draft = VolumeDraft { name: name.clone(), size_bytes: None, from: None, read_only: false };
            match asker.engine().create_volume(draft, asker.caller()).await {
                // Another request has made it in between.
                Err(error) if error.code == Code::NameTaken => find(asker, &name, Needs::READ).await?,
                made => made?.record.id,
            }
        }
        Err(error) if error.code == Code::VolumeNotFound => return Err(missing()),
        Err(error) => return Err(error.into()),
    };
    let version = if request.version == 0 { VERSION } else { request.version };
    Ok(VolumeGetOrCreateResponse {
        volume_id: ids::volume(&id),
        version,
        metadata: Some(VolumeMetadata { version, name, creation_info: None }),
    })
}

fn metadata(record: &VolumeRecord) -> VolumeMetadata {
    let creation_info = Some(CreationInfo { created_at: seconds(record) });
    VolumeMetadata { version: VERSION, name: record.name.clone(), creation_info }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of this age are whole numbers in it")]
fn seconds(record: &VolumeRecord) -> f64 {
    record.created_ms as f64 / 1000.0
}

/// `VolumeGetById`.
pub(super) async fn by_id(asker: &Asker, request: VolumeGetByIdRequest) -> Result<VolumeGetByIdResponse> {
    asker.needs(Scope::Read)?;
    let id = find(asker, ids::parse_volume(&request.volume_id)?.as_str(), Needs::READ).await?;
    let all = asker.engine().volumes(asker.caller());
    let found = all.into_iter().find(|view| view.record.id == id);
    let record = found.ok_or_else(|| VolumeId::not_found(&request.volume_id))?.record;
    Ok(VolumeGetByIdResponse { volume_id: ids::volume(&id), metadata: Some(metadata(&record)) })
}

/// `VolumeList`: newest first.
pub(super) async fn list(asker: &Asker, request: VolumeListRequest) -> Result<VolumeListResponse> {
    asker.needs(Scope::Read)?;
    let page = request.pagination.unwrap_or_default();
    let mut all: Vec<VolumeRecord> =
        asker.engine().volumes(asker.caller()).into_iter().map(|view| view.record).collect();
    all.retain(|record| page.created_before <= 0.0 || seconds(record) < page.created_before);
    all.sort_by(|one, other| (other.created_ms, &other.id).cmp(&(one.created_ms, &one.id)));
    let most = usize::try_from(page.max_objects).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
    cut(&mut all, most);
    let item = |record: &VolumeRecord| VolumeListItem {
        label: record.name.clone(),
        volume_id: ids::volume(&record.id),
        created_at: seconds(record),
        metadata: Some(metadata(record)),
    };
    Ok(VolumeListResponse { items: all.iter().map(item).collect() })
}

/// Leaves the first `most` volumes, and those after them that were made in the same millisecond as the last of these:
/// the clients ask for the next page with nothing but that time, and take only as many as they want.
fn cut(newest_first: &mut Vec<VolumeRecord>, most: usize) {
    let last = most.checked_sub(1).and_then(|last| newest_first.get(last)).map(|last| last.created_ms);
    if let Some(last) = last {
        newest_first.truncate(newest_first.partition_point(|record| record.created_ms >= last));
    }
}

/// `VolumeDelete`.
pub(super) async fn delete(asker: &Asker, request: VolumeDeleteRequest) -> Done {
    asker.needs(Scope::Manage)?;
    let id = ids::parse_volume(&request.volume_id)?;
    let id = find(asker, id.as_str(), Needs::MANAGE).await?;
    asker.engine().delete_volume(&id, asker.caller()).await?;
    Ok(Empty {})
}

/// `VolumeCommit`: written files are there at once.
pub(super) async fn commit(asker: &Asker, request: VolumeCommitRequest) -> Result<VolumeCommitResponse> {
    asker.needs(Scope::Exec)?;
    ids::parse_volume(&request.volume_id)?;
    Ok(VolumeCommitResponse { skip_reload: true })
}

/// `VolumeReload`: the same.
pub(super) async fn reload(asker: &Asker, request: VolumeReloadRequest) -> Done {
    asker.needs(Scope::Exec)?;
    ids::parse_volume(&request.volume_id)?;
    Ok(Empty {})
}

/// The volumes that a sandbox mounts.
///
/// # Errors
/// `INVALID_ARGUMENT`, `NOT_FOUND`.
pub(super) fn mounts(asked: &[VolumeMount]) -> Result<Vec<VolumeMountDraft>> {
    let mount = |mount: &VolumeMount| {
        let volume = ids::parse_volume(&mount.volume_id)?.to_string();
        let (path, subpath) = (mount.mount_path.clone(), mount.sub_path.clone());
        Ok(VolumeMountDraft { volume, path, read_only: mount.read_only, subpath })
    };
    asked.iter().map(mount).collect()
}

#[cfg(test)]
mod tests {
    use atoll_core::volume::VolumeState;

    use super::*;

    fn record(created_ms: u64, number: u64) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId::from_parts(created_ms, number),
            name: format!("v{number}"),
            project: None,
            state: VolumeState::Ready,
            size_bytes: 1,
            source: None,
            read_only: false,
            owner: None,
            created_ms,
        }
    }

    #[test]
    fn no_page_ends_among_volumes_of_one_millisecond() {
        let all: Vec<VolumeRecord> = [3, 2, 2, 2, 1]
            .into_iter()
            .zip(0..)
            .map(|(created_ms, number)| record(created_ms, number))
            .collect();
        for (most, left) in [(0, 5), (1, 1), (2, 4), (4, 4), (5, 5), (6, 5), (usize::MAX, 5)] {
            let mut page = all.clone();
            cut(&mut page, most);
            assert_eq!(page.len(), left, "{most}");
        }
    }
}
