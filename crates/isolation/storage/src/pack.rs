//! Packs the files of an image into one file, which a machine has as a block device.
//!
//! They are whatever the image's author put there, so `mkfs.erofs` is confined as the programs of e2fsprogs are. It wants
//! a path, and resolves it before it uses it, so a path below `/proc/PID/fd` will not do: the real path of a mount that is
//! attached nowhere is `/`, the host's own. So the files are mounted where that program alone sees them.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Command;

use atoll_isolation::IsolationError;

use crate::step::Step;
use crate::tools::{self, Tree};

const PROGRAM: &str = "mkfs.erofs";
/// What would be drawn at random otherwise, and what would be the time of making. Files keep their own times, as far as
/// they are before that.
const UUID: &str = "61746f6c-6c00-4000-8000-000000000000";
const MADE_AT_UNIX_S: &str = "4102444800";

/// Writes the files of a mount, which is attached nowhere yet, into `file`, as an EROFS file system: the same bytes on
/// every host. Makes `at`, an empty directory, for as long as that takes. Blocks.
///
/// # Errors
/// [`IsolationError::Unavailable`] when `mkfs.erofs` is missing, [`IsolationError::HostFull`],
/// [`IsolationError::Kernel`].
pub fn pack_erofs(mount: BorrowedFd<'_>, at: &Path, file: &File) -> Result<(), IsolationError> {
    let program = tools::find(PROGRAM).ok_or_else(|| {
        IsolationError::Unavailable(format!("the program {PROGRAM} is missing: install erofs-utils"))
    })?;
    match std::fs::create_dir(at) {
        // A server was killed while it packed.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        other => other.step("make a directory for the files of an image")?,
    }
    let mut command = Command::new(program);
    command.args(["-U", UUID, tools::IMAGE]).arg(at).env("SOURCE_DATE_EPOCH", MADE_AT_UNIX_S);
    let packed = tools::run_on(&command, &Tree { mount, at }, file, "run mkfs.erofs");
    std::fs::remove_dir(at).step("remove the directory for the files of an image")?;
    let ended = packed?;
    if ended.status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    Err(ended.error("run mkfs.erofs"))
}
