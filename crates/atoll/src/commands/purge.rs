//! `atoll purge`: ends an installation.

use std::path::Path;

use atoll_core::{Code, Error};
use atoll_isolation_host::end_installation;
use atoll_isolation_storage::thaw_volumes_of;

use crate::cli::PurgeArgs;
use crate::daemon::{DataDir, leave_kernel};
use crate::failure::{Failure, Result};
use crate::output::Printer;
use crate::terminal;

pub(super) fn purge(printer: Printer, args: &PurgeArgs) -> Result<()> {
    let path = &args.data_dir;
    // Not every directory that somebody names by mistake is removed.
    if !path.join("installation").try_exists().is_ok_and(|there| there) {
        return Err(Failure::plain(
            Code::InvalidArgument,
            format!("{} is no data directory of a server", path.display()),
        ));
    }
    // Nobody else may begin to use it.
    let dir = DataDir::open(path)?;
    if !args.yes {
        confirm(path)?;
    }
    let killed = end(dir.installation(), Some(dir.path()))?;
    remove(dir)?;
    let purged = serde_json::json!({ "purged": path, "processes": killed });
    printer.result(&purged, || format!("{}: ended, and everything in it removed", path.display()))
}

fn confirm(path: &Path) -> Result<()> {
    let what = format!("all sandboxes, snapshots, volumes, images and keys of {}", path.display());
    if !terminal::can_ask() {
        return Err(Failure::Usage(format!("this removes {what}: add --yes to mean it")));
    }
    if terminal::confirm(&format!("Remove {what}?"))? {
        return Ok(());
    }
    Err(Failure::plain(Code::InvalidArgument, "nothing was removed"))
}

/// Ends what runs of an installation; gives how many processes that were.
pub(super) fn end(installation: &str, data_dir: Option<&Path>) -> Result<usize> {
    let ended = thaw_volumes_of(installation, data_dir).and_then(|()| end_installation(installation));
    leave_kernel(installation);
    ended.map_err(|error| {
        Failure::Plain(
            Error::new(
                Code::Internal,
                format!("the installation resists: {}", crate::failure::chain(&error)),
            )
            .hint("run as root; try again in a moment"),
        )
    })
}

/// Ends what an ephemeral server leaves when it stops, or left when it was killed.
pub(super) fn end_ephemeral(path: &Path) -> Result<()> {
    let dir = DataDir::open(path)?;
    end(dir.installation(), Some(dir.path()))?;
    remove(dir)
}

/// Removes a data directory of which nothing runs any more.
fn remove(dir: DataDir) -> Result<()> {
    let path = dir.path().to_owned();
    // Its name goes last: what is there until then can be purged again.
    let failed = |error| Failure::io(format!("cannot remove {}", path.display()), error);
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == "installation" || entry.file_name() == "lock" {
            continue;
        }
        let is_dir = entry.file_type().map_err(failed)?.is_dir();
        let removed =
            if is_dir { std::fs::remove_dir_all(entry.path()) } else { std::fs::remove_file(entry.path()) };
        removed.map_err(failed)?;
    }
    for name in ["installation", "lock"] {
        std::fs::remove_file(path.join(name)).map_err(failed)?;
    }
    drop(dir);
    match std::fs::remove_dir(&path) {
        // A file system of its own: it is empty now.
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Ok(()),
        other => other.map_err(failed),
    }
}
