//! The key file: private, whole, and there from one moment to the next.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use zeroize::{Zeroize as _, Zeroizing};

use crate::vault::VaultError;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// Reads a key from a file that only the server's user can read.
pub(crate) fn read_key(path: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, VaultError> {
    let io_error = |source| VaultError::KeyFile { source };
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).or(Err(VaultError::KeyFilePermissions))?;
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(VaultError::KeyFilePermissions);
        }
        Err(error) => return Err(io_error(error)),
    };
    let meta = file.metadata().map_err(io_error)?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !ours || meta.mode() & 0o077 != 0 {
        return Err(VaultError::KeyFilePermissions);
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if meta.len() != KEY_BYTES as u64 {
        return Err(VaultError::KeyFileLength);
    }
    file.read_exact(&mut key[..]).map_err(io_error)?;
    Ok(key)
}

/// Writes a random key to a new file and gives it its name last. When another process has made the key file
/// meanwhile, that process's key stands.
pub(crate) fn create_key(path: &Path) -> Result<(), VaultError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let mut tag = [0; 8];
    aws_lc_rs::rand::fill(&mut key[..]).or(Err(VaultError::Cipher))?;
    aws_lc_rs::rand::fill(&mut tag).or(Err(VaultError::Cipher))?;
    let draft = path.with_added_extension(format!("{:016x}.new", u64::from_ne_bytes(tag)));
    tag.zeroize();
    let written = write_new(&draft, &key[..]).and_then(|()| match std::fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    let removed = std::fs::remove_file(&draft);
    written.and(removed).and_then(|()| sync_parent(path)).map_err(|source| VaultError::KeyFile { source })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
