//! Volumes as directories of the host, for tests: no size is enforced, no owner is set, and links inside are trusted.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use atoll_core::id::VolumeId;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::volumes::{
    PlannedVolume, VolumeChange, VolumeDirectory, VolumeError, VolumeFile, VolumeFileKind, VolumeUsage,
    VolumeWrite, Volumes,
};

/// Volumes in a directory that goes with them.
#[derive(Debug)]
pub struct FakeVolumes {
    dir: TempDir,
}

impl FakeVolumes {
    /// None yet.
    ///
    /// # Errors
    /// When there is no directory for temporary files.
    pub fn new() -> io::Result<Self> {
        Ok(Self { dir: tempfile::Builder::new().prefix("atoll-volumes").tempdir()? })
    }

    fn root(&self, id: &VolumeId) -> PathBuf {
        self.dir.path().join(id.as_str())
    }

    /// The place of a path in a volume that is there.
    fn place(&self, id: &VolumeId, path: &str) -> Result<PathBuf, VolumeError> {
        let root = self.root(id);
        if root.is_dir() { Ok(root.join(path.trim_start_matches('/'))) } else { Err(VolumeError::Gone) }
    }
}

fn file<T>(done: io::Result<T>) -> Result<T, VolumeError> {
    done.map_err(VolumeError::File)
}

fn entry(path: &str, place: &Path, metadata: &Metadata) -> VolumeFile {
    let kind = match metadata.file_type() {
        of if of.is_file() => VolumeFileKind::File,
        of if of.is_dir() => VolumeFileKind::Directory,
        of if of.is_symlink() => VolumeFileKind::Symlink,
        _ => VolumeFileKind::Other,
    };
    VolumeFile {
        path: path.to_owned(),
        kind,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        modified_ms: metadata.mtime().saturating_mul(1000),
        accessed_ms: metadata.atime().saturating_mul(1000),
        changed_ms: metadata.ctime().saturating_mul(1000),
        target: fs::read_link(place).ok().map(|target| target.to_string_lossy().into_owned()),
    }
}

fn look(path: &str, place: &Path) -> Result<VolumeFile, VolumeError> {
    file(place.symlink_metadata().map(|metadata| entry(path, place, &metadata)))
}

fn set_mode(place: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(place, fs::Permissions::from_mode(mode))
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for found in fs::read_dir(from)? {
        let found = found?;
        let (place, target) = (found.path(), to.join(found.file_name()));
        if found.file_type()?.is_dir() {
            copy_tree(&place, &target)?;
        } else {
            fs::copy(place, target)?;
        }
    }
    Ok(())
}

#[async_trait]
impl Volumes for FakeVolumes {
    async fn create(&self, id: &VolumeId, _: u64) -> Result<(), VolumeError> {
        file(fs::create_dir(self.root(id)))
    }

    async fn copy(&self, from: &VolumeId, to: &VolumeId) -> Result<(), VolumeError> {
        file(copy_tree(&self.place(from, "")?, &self.root(to)))
    }

    async fn prepare(&self, volume: &PlannedVolume) -> Result<(), VolumeError> {
        let place = self.place(&volume.id, volume.subpath.as_deref().unwrap_or_default())?;
        file(if volume.make { fs::create_dir_all(place) } else { place.metadata().map(drop) })
    }

    async fn remove(&self, id: &VolumeId) -> Result<(), VolumeError> {
        match fs::remove_dir_all(self.root(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::File(error)),
            _ => Ok(()),
        }
    }

    async fn recover(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<VolumeId>, VolumeError> {
        let found = file(fs::read_dir(self.dir.path()))?;
        Ok(found.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    async fn usage(&self, id: &VolumeId) -> Result<VolumeUsage, VolumeError> {
        self.place(id, "")?;
        Ok(VolumeUsage::default())
    }

    async fn stat(&self, id: &VolumeId, path: &str) -> Result<VolumeFile, VolumeError> {
        look(path, &self.place(id, path)?)
    }

    async fn list_files(
        &self,
        id: &VolumeId,
        path: &str,
        max: usize,
    ) -> Result<(Vec<VolumeFile>, bool), VolumeError> {
        let mut found = Vec::new();
        for one in file(fs::read_dir(self.place(id, path)?))? {
            let one = file(one)?;
            found.push(look(&one.file_name().to_string_lossy(), &one.path())?);
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        let more = found.len() > max;
        found.truncate(max);
        Ok((found, more))
    }

    async fn read(&self, id: &VolumeId, path: &str) -> Result<File, VolumeError> {
        file(File::open(self.place(id, path)?))
    }

    async fn write(
        &self,
        id: &VolumeId,
        path: &str,
        write: VolumeWrite,
        mut content: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<u64, VolumeError> {
        let place = self.place(id, path)?;
        let mut bytes = Vec::new();
        file(content.read_to_end(&mut bytes).await)?;
        if file(place.try_exists())? && !write.replace {
            return Err(VolumeError::File(io::ErrorKind::AlreadyExists.into()));
        }
        if let Some(parent) = place.parent().filter(|_| write.parents) {
            file(fs::create_dir_all(parent))?;
        }
        file(fs::write(&place, &bytes).and_then(|()| set_mode(&place, write.mode)))?;
        Ok(bytes.len() as u64)
    }

    async fn make_directory(
        &self,
        id: &VolumeId,
        path: &str,
        new: VolumeDirectory,
    ) -> Result<VolumeFile, VolumeError> {
        let place = self.place(id, path)?;
        let made = if new.parents { fs::create_dir_all(&place) } else { fs::create_dir(&place) };
        file(made.and_then(|()| set_mode(&place, new.mode)))?;
        look(path, &place)
    }

    async fn change(
        &self,
        id: &VolumeId,
        path: &str,
        change: VolumeChange,
    ) -> Result<VolumeFile, VolumeError> {
        let place = self.place(id, path)?;
        file(change.mode.map_or(Ok(()), |mode| set_mode(&place, mode)))?;
        look(path, &place)
    }

    async fn remove_file(&self, id: &VolumeId, path: &str, recursive: bool) -> Result<(), VolumeError> {
        let place = self.place(id, path)?;
        let is_directory = file(place.symlink_metadata())?.is_dir();
        file(match (is_directory, recursive) {
            (true, true) => fs::remove_dir_all(place),
            (true, false) => fs::remove_dir(place),
            (false, _) => fs::remove_file(place),
        })
    }
}
