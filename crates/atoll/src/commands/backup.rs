//! `atoll backup`: an installation as one file.

use std::fs::File;
use std::io::{IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_backup::{BackupError, Header, NewFile, Subject, Watch, pack};
use atoll_core::{Code, Error};
use atoll_isolation_host::in_use_elsewhere;
use atoll_isolation_storage::Still;
use indicatif::ProgressBar;

use super::pipe::Stoppable;
use super::system;
use crate::cli::BackupArgs;
#[cfg(debug_assertions)]
use crate::config;
use crate::daemon::DataDir;
use crate::failure::{Failure, Result};
use crate::output::{Printer, now_ms};
use crate::progress::bytes_bar;
use crate::signals::Stops;
use crate::units::format_bytes;

/// For standard output or input.
pub(super) const STANDARD: &str = "-";
/// For files without names, where there is no better place.
pub(super) const SCRATCH: &str = "/var/tmp";

pub(super) async fn backup(printer: Printer, args: BackupArgs) -> Result<()> {
    #[cfg(debug_assertions)]
    config::arm_failpoints()?;
    let to_stdout = args.file == Path::new(STANDARD);
    if to_stdout && (std::io::stdout().is_terminal() || printer.is_json()) {
        return Err(Failure::Usage(
            "a backup on standard output goes into a pipe or file, without --json".to_owned(),
        ));
    }
    let file = args.file.clone();
    let (header, file_bytes) =
        stoppable(printer, "backup", move |watch, bar| write(&args, watch, bar)).await?;
    if to_stdout {
        return Ok(());
    }
    if !header.of.vault_key {
        printer.note(
            "the vault's key is not in the data directory: keep it, secrets cannot be opened without it",
        );
    }
    let text = format!(
        "{}: {} of the installation {} ({} of content)",
        file.display(),
        format_bytes(file_bytes),
        header.of.installation,
        format_bytes(header.bytes)
    );
    let result = serde_json::json!({ "file": file, "file_bytes": file_bytes, "backup": header });
    printer.result(&result, || text)
}

fn write(args: &BackupArgs, watch: &Watch<'_, impl Fn(u64)>, bar: &ProgressBar) -> Result<(Header, u64)> {
    let dir = open(args)?;
    let root = File::open(dir.path())
        .map_err(|error| Failure::io(format!("cannot open {}", dir.path().display()), error))?;
    let of = subject(&dir, args)?;
    let make = |out: &mut dyn Write, scratch: &Path| {
        let still = Still::hold(dir.installation(), dir.path()).map_err(|error| {
            let why = crate::failure::chain(&error);
            Failure::plain(Code::Internal, format!("sandboxes and volumes do not stand still: {why}"))
        })?;
        atoll_failpoint::fail_point!("backup.held");
        let made = (env!("CARGO_PKG_VERSION"), now_ms());
        let begun = |bytes| bar.set_length(bytes);
        let packed = pack(root.as_fd(), of, made, out, scratch, begun, watch).map_err(failure);
        drop(still);
        packed
    };
    if args.file == Path::new(STANDARD) {
        let mut out = Stoppable { pipe: std::io::stdout(), stop: watch.stop };
        return Ok((make(&mut out, Path::new(SCRATCH))?, 0));
    }
    let file = NewFile::beside(&args.file).map_err(failure)?;
    if file.directory().canonicalize().is_ok_and(|parent| parent.starts_with(dir.path())) {
        return Err(Failure::plain(Code::InvalidArgument, "the backup would be in what it is a backup of"));
    }
    let packed = make(&mut file.file(), file.directory())?;
    Ok((packed, file.keep().map_err(failure)?))
}

/// Describes what a backup of a data directory holds; refuses one without a database.
fn subject(dir: &DataDir, args: &BackupArgs) -> Result<Subject> {
    let there = |name: &str| dir.path().join(name).try_exists().is_ok_and(|there| there);
    let of = Subject {
        installation: dir.installation().to_owned(),
        database: there("atoll.db"),
        vault_key: there("vault.key"),
    };
    if of.database || args.without_database {
        return Ok(of);
    }
    Err(Failure::Plain(
        Error::new(Code::InvalidArgument, format!("there is no database in {}", dir.path().display()))
            .hint("back up the one of --database by its own means, now, and add --without-database"),
    ))
}

/// Takes the data directory of a server that does not run.
fn open(args: &BackupArgs) -> Result<DataDir> {
    let path = &args.data_dir;
    system::need_root("read data directories")?;
    if !path.join("installation").try_exists().is_ok_and(|there| there) {
        return Err(Failure::plain(
            Code::InvalidArgument,
            format!("{} is no data directory of a server", path.display()),
        ));
    }
    let dir = DataDir::open_or(path, a_server_runs)?;
    match in_use_elsewhere(dir.installation(), dir.path()) {
        Ok(Some(other)) => Err(Failure::plain(
            Code::InvalidState,
            format!(
                "{} is the same installation as {}, which is in use: back that one up",
                dir.path().display(),
                other.display()
            ),
        )),
        // An error is no refusal: the backup fails later if it cannot make the sandboxes stand still.
        Ok(None) | Err(_) => Ok(dir),
    }
}

fn a_server_runs(path: &Path) -> Failure {
    let message = format!("a server runs on {}, and changes it all the time", path.display());
    Failure::Plain(Error::new(Code::InvalidState, message).hint(
        "stop it (systemctl stop atoll), make the backup, and start it again: sandboxes stand still meanwhile and go on \
         afterwards",
    ))
}

/// Runs long work on a thread of its own, with a progress bar; a signal asks it to end, and to clean up.
pub(super) async fn stoppable<T: Send + 'static>(
    printer: Printer,
    what: &str,
    work: impl FnOnce(&Watch<'_, &dyn Fn(u64)>, &ProgressBar) -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut stops = Stops::catch()?;
    let stop = Arc::new(AtomicBool::new(false));
    let bar = bytes_bar(printer, what, Some(0));
    let mut task = tokio::task::spawn_blocking({
        let (stop, bar) = (Arc::clone(&stop), bar.clone());
        move || {
            let progress = |bytes| bar.inc(bytes);
            work(&Watch { progress: &progress, stop: &stop }, &bar)
        }
    });
    let mut stopped = None;
    let done = loop {
        tokio::select! {
            done = &mut task => break done,
            signal = stops.next() => {
                // A user who asks twice does not want to wait, not even for the end of a read.
                if stopped.is_some() {
                    return Err(signal.failure());
                }
                stop.store(true, Ordering::Relaxed);
                stopped = Some(signal);
            }
        }
    };
    bar.finish_and_clear();
    let done = done.map_err(|error| Failure::io("the work broke off", std::io::Error::other(error)))?;
    match stopped {
        Some(signal) if done.is_err() => Err(signal.failure()),
        _ => done,
    }
}

/// For people and programs.
pub(super) fn failure(error: BackupError) -> Failure {
    let code = match &error {
        BackupError::Io { .. } => Code::Internal,
        BackupError::NoRoom { .. } => Code::HostDiskFull,
        BackupError::Unfit(_) | BackupError::Stopped => Code::InvalidState,
        BackupError::Invalid(_) | BackupError::Newer { .. } => Code::InvalidArgument,
    };
    let hint = match &error {
        BackupError::Newer { .. } => Some("restore it with that version, or a later one"),
        BackupError::Invalid(_) => Some("nothing was restored; use another copy of it, or an earlier backup"),
        BackupError::Io { .. }
        | BackupError::NoRoom { .. }
        | BackupError::Unfit(_)
        | BackupError::Stopped => None,
    };
    let told = Error::new(code, crate::failure::chain(&error));
    Failure::Plain(match hint {
        Some(hint) => told.hint(hint),
        None => told,
    })
}
