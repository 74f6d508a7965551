//! `atoll purge`: ends an installation.

use std::path::Path;

use atoll_core::{Code, Error};
use atoll_isolation_host::{end_installation, owner_elsewhere};
use atoll_isolation_storage::thaw_volumes_of;

use super::system;
use crate::cli::PurgeArgs;
use crate::daemon::{DataDir, leave_kernel};
use crate::failure::{Failure, Result};
use crate::output::Printer;
use crate::terminal;

pub(super) fn purge(printer: Printer, args: &PurgeArgs) -> Result<()> {
    let path = &args.data_dir;
    // A directory that the user names by mistake must not be removed.
    if !path.join("installation").try_exists().is_ok_and(|there| there) {
        return Err(Failure::plain(
            Code::InvalidArgument,
            format!("{} is no data directory of a server", path.display()),
        ));
    }
    system::need_root("end an installation")?;
    // While we hold its lock no server can begin to use it.
    let dir = DataDir::open(path)?;
    if !args.yes {
        confirm(path, args.keep_data)?;
    }
    let killed = end_own(&dir)?;
    if args.keep_data {
        let ended = serde_json::json!({ "ended": path, "processes": killed });
        return printer.result(&ended, || format!("{}: ended, and everything in it kept", path.display()));
    }
    remove(dir)?;
    let purged = serde_json::json!({ "purged": path, "processes": killed });
    printer.result(&purged, || format!("{}: ended, and everything in it removed", path.display()))
}

/// Ends everything of the installation that runs, unless it belongs to another directory: one of the two is a copy of
/// the other.
fn end_own(dir: &DataDir) -> Result<usize> {
    match owner_elsewhere(dir.installation(), dir.path()) {
        Ok(Some(_)) => Ok(0),
        // An error is no reason to stop: `end` tells the user what else is wrong there.
        Ok(None) | Err(_) => end(dir.installation(), Some(dir.path())),
    }
}

fn confirm(path: &Path, keep_data: bool) -> Result<()> {
    let (does, what) = if keep_data {
        ("end", format!("all sandboxes of {} that run", path.display()))
    } else {
        ("remove", format!("all sandboxes, snapshots, volumes, images and keys of {}", path.display()))
    };
    if !terminal::can_ask() {
        return Err(Failure::Usage(format!("this {does}s {what}: add --yes to mean it")));
    }
    if terminal::confirm(&format!("{}{} {what}?", &does[..1].to_uppercase(), &does[1..]))? {
        return Ok(());
    }
    Err(Failure::plain(
        Code::InvalidArgument,
        format!("nothing was {}", if keep_data { "ended" } else { "removed" }),
    ))
}

/// Ends the running processes of an installation; gives how many there were.
pub(super) fn end(installation: &str, data_dir: Option<&Path>) -> Result<usize> {
    let ended = thaw_volumes_of(installation, data_dir).and_then(|()| end_installation(installation));
    // While a sandbox may still run, the programs in the kernel record it and hold it to its policy.
    if ended.is_ok() {
        leave_kernel(installation);
    }
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

/// Ends the sandboxes that an ephemeral server leaves when it stops, or left when it was killed, and removes its
/// directory.
pub(super) fn end_ephemeral(path: &Path) -> Result<()> {
    let dir = DataDir::open(path)?;
    end(dir.installation(), Some(dir.path()))?;
    remove(dir)
}

/// Removes a data directory of which nothing runs any more.
fn remove(dir: DataDir) -> Result<()> {
    let path = dir.path().to_owned();
    // The installation's name goes last: a directory that still has it can be purged again.
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
