//! What sandboxes have mounted of volumes.

use atoll_core::error::shorten;
use atoll_core::volume::{VolumeMount, VolumeMountDraft, check_mounts, subpath};
use atoll_core::{Code, Error, Result};
use atoll_isolation::PlannedVolume;
use atoll_isolation::volumes::VolumeError;

use super::{ready, volume_error};
use crate::authorize::Caller;
use crate::engine::Inner;

/// Why a directory of a volume cannot be mounted.
fn part_error(mount: &VolumeMount, error: &VolumeError) -> Error {
    let error = volume_error(error);
    let why = match error.code {
        Code::FileNotFound => "is not there, and the volume is a snapshot: nothing can be made in it",
        Code::NotADirectory => "is no directory, or lies in what is none",
        Code::PathInvalid => "leads over a symbolic link, or has too long a name",
        _ => return error,
    };
    let path = shorten(mount.subpath.as_deref().unwrap_or_default());
    Error::new(Code::PathInvalid, format!("volumes: '{path}' of the volume '{}' {why}", mount.name))
}

impl Inner {
    /// Finds the volumes that a draft names.
    pub(crate) fn mounts(&self, caller: &Caller, drafts: &[VolumeMountDraft]) -> Result<Vec<VolumeMount>> {
        check_mounts(drafts)?;
        let mount = |draft: &VolumeMountDraft| {
            let record = ready(self.volume_of(caller, &draft.volume)?)?;
            Ok(VolumeMount {
                read_only: draft.read_only || record.read_only,
                id: record.id,
                name: record.name,
                path: draft.path.clone(),
                subpath: subpath(draft.subpath.as_deref())?,
            })
        };
        drafts.iter().map(mount).collect()
    }

    /// The mounts of a sandbox as drivers take them.
    pub(crate) fn planned_volumes(&self, mounts: &[VolumeMount]) -> Vec<PlannedVolume> {
        let planned = |mount: &VolumeMount| PlannedVolume {
            id: mount.id.clone(),
            path: mount.path.clone(),
            read_only: mount.read_only,
            subpath: mount.subpath.clone(),
            make: self.volumes.get(&mount.id).is_ok_and(|record| !record.read_only),
        };
        mounts.iter().map(planned).collect()
    }

    /// Prepares the directories of volumes that are mounted by themselves. A caller that asks for one that cannot be
    /// there is told why. Drivers look again.
    pub(crate) async fn prepare_volumes(&self, mounts: &[VolumeMount]) -> Result<()> {
        for (mount, planned) in mounts.iter().zip(self.planned_volumes(mounts)) {
            if mount.subpath.is_some() {
                let prepared = self.volume_host()?.prepare(&planned).await;
                prepared.map_err(|error| part_error(mount, &error))?;
            }
        }
        Ok(())
    }

    /// Whether the volumes of a sandbox that was entered in the table are still there.
    pub(crate) fn check_volumes(&self, mounts: &[VolumeMount]) -> Result<()> {
        mounts.iter().try_for_each(|mount| ready(self.volumes.get(&mount.id)?).map(drop))
    }
}
