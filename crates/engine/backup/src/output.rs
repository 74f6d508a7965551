//! A new file that is whole, or not there.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{BackupError, Result};

/// A file without its name yet, which only its owner may read. Gone when this is dropped.
#[derive(Debug)]
pub struct NewFile {
    file: tempfile::NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Begins a file that is to be at `path`.
    ///
    /// # Errors
    /// [`BackupError::Io`].
    pub fn beside(path: &Path) -> Result<Self> {
        let failed = |error| BackupError::io(format!("write {}", path.display()), error);
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let file = tempfile::Builder::new()
            .prefix(&format!(".{}.", name.to_string_lossy()))
            .suffix(".partial")
            .permissions(std::fs::Permissions::from_mode(0o600))
            .tempfile_in(directory(path))
            .map_err(failed)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Where to write.
    #[must_use]
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// The directory that it is in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        directory(&self.path)
    }

    /// Gives it its name, for good, in place of what had it; gives how large it is, bytes.
    ///
    /// # Errors
    /// [`BackupError::Io`].
    pub fn keep(self) -> Result<u64> {
        let Self { file, path } = self;
        let failed = |error| BackupError::io(format!("write {}", path.display()), error);
        file.as_file().sync_all().map_err(failed)?;
        let bytes = file.as_file().metadata().map_err(failed)?.len();
        file.persist(&path).map_err(|error| failed(error.error))?;
        File::open(directory(&path)).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(bytes)
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
