//! Small files and directories of the image store: each file is written whole, or not at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ImageError, Result};

pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ImageError::io("remove a file", error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Names of all files in a directory that are UTF-8, which ours are.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>> {
    let fail = |error| ImageError::io("list the image directory", error);
    let entries = fs::read_dir(dir).map_err(fail)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).map_err(fail));
    names.filter_map(Result::transpose).collect()
}

/// Reads every file that can be read; a file that cannot be read does not stop the others from being read.
pub(crate) fn read_all<T: DeserializeOwned>(dir: &Path) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for name in file_names(dir)? {
        let bytes = fs::read(dir.join(&name)).map_err(|error| ImageError::io("read a record", error))?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => all.push(value),
            Err(error) => tracing::warn!(file = name, %error, "an image record cannot be read"),
        }
    }
    Ok(all)
}

pub(crate) fn write_json(tmp: &Path, path: &Path, value: &impl Serialize) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(tmp)?;
        serde_json::to_writer(&mut file, value)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    write().map_err(|error| ImageError::io("write a record", error))
}
