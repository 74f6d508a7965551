//! `atoll restore`: a data directory of what `atoll backup` wrote.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use atoll_backup::{Backup, BackupError, Header, Restoration, Watch};
use atoll_core::{Code, Error};
use atoll_isolation_host::is_running;
use indicatif::ProgressBar;

use super::backup::{SCRATCH, STANDARD, failure, stoppable};
use super::pipe::Stoppable;
use super::shared::CLUSTER;
use super::system;
use crate::cli::RestoreArgs;
#[cfg(debug_assertions)]
use crate::config;
use crate::daemon::Claim;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age};
use crate::units::format_bytes;

pub(super) async fn restore(printer: Printer, args: RestoreArgs) -> Result<()> {
    #[cfg(debug_assertions)]
    config::arm_failpoints()?;
    let (file, data_dir) = (args.file.clone(), args.data_dir.clone());
    let what = if args.verify { "verify" } else { "restore" };
    let header = stoppable(printer, what, move |watch, bar| {
        let backup = open(&args.file, watch.stop, bar)?;
        match &args.data_dir {
            None => backup.check(Path::new(SCRATCH), watch).map_err(failure),
            Some(dir) => into(backup, dir, watch),
        }
    })
    .await?;
    let text = format!(
        "{}: {} of the installation {}, backed up {} ago",
        data_dir.as_deref().unwrap_or(&file).display(),
        format_bytes(header.bytes),
        header.of.installation,
        age(header.created_at_ms)
    );
    if data_dir.is_some() {
        say_what_is_missing(printer, &header);
    }
    let result = serde_json::json!({ "data_dir": data_dir, "verified": true, "backup": header });
    printer.result(&result, || text)
}

fn say_what_is_missing(printer: Printer, header: &Header) {
    if !header.of.database {
        printer.warn(
            "the database is not in the backup: restore the one that was backed up with it, for --database",
        );
    }
    if !header.of.vault_key {
        printer.warn("the vault's key is not in the backup: give the server the same one as before");
    }
}

type Input<'a> = Backup<Box<dyn Read + 'a>>;

fn open<'a>(path: &Path, stop: &'a AtomicBool, bar: &ProgressBar) -> Result<Input<'a>> {
    let file: Box<dyn Read + 'a> = if path == Path::new(STANDARD) {
        Box::new(Stoppable { pipe: std::io::stdin(), stop })
    } else {
        let failed = |error| Failure::io(format!("cannot read {}", path.display()), error);
        Box::new(File::open(path).map_err(failed)?)
    };
    let backup = Backup::open(file).map_err(failure)?;
    bar.set_length(backup.header().bytes);
    Ok(backup)
}

/// Unpacks the backup of a cluster below `data` in a directory of its own.
pub(super) fn unpack_cluster(
    file: &Path,
    dir: &Path,
    watch: &Watch<'_, impl Fn(u64)>,
    bar: &ProgressBar,
) -> Result<Header> {
    let backup = open(file, watch.stop, bar)?;
    if backup.header().of.installation != CLUSTER {
        let told = "this is the backup of one installation, not of what a cluster shares";
        return Err(Failure::Plain(
            Error::new(Code::InvalidArgument, told).hint("leave --cluster away, and name a --data-dir"),
        ));
    }
    let data = dir.join("data");
    std::fs::create_dir(&data).map_err(|error| Failure::io("cannot make a directory", error))?;
    let root = File::open(&data).map_err(|error| Failure::io("cannot open a directory", error))?;
    backup.unpack(root.as_fd(), dir, watch).map_err(failure)
}

fn into(backup: Input<'_>, path: &Path, watch: &Watch<'_, impl Fn(u64)>) -> Result<Header> {
    system::need_root("make data directories")?;
    if backup.header().of.installation == CLUSTER {
        let told = "this is the backup of what a cluster shares: it has no data directory";
        return Err(Failure::Plain(
            Error::new(Code::InvalidArgument, told)
                .hint("say --cluster, and --database and --objects to restore into"),
        ));
    }
    refuse_beside_itself(backup.header())?;
    // Before anything of ours is in it.
    Restoration::check(path).map_err(failure)?;
    let was_there = path.try_exists().is_ok_and(|there| there);
    let claim = Claim::for_restore(path)?;
    let restored = unpack(backup, claim.path(), watch).map_err(failure);
    if restored.is_err() {
        claim.leave(was_there);
    }
    restored
}

fn unpack(backup: Input<'_>, dir: &Path, watch: &Watch<'_, impl Fn(u64)>) -> Result<Header, BackupError> {
    let restoration = Restoration::begin(dir)?;
    let header = backup.unpack(restoration.root(), &restoration.scratch(), watch)?;
    restoration.finish()?;
    Ok(header)
}

/// A server on the restored directory would take running sandboxes of the same installation for its own.
fn refuse_beside_itself(header: &Header) -> Result<()> {
    let name = &header.of.installation;
    let runs = is_running(name).map_err(|error| {
        Failure::plain(
            Code::Internal,
            format!("what runs here is not known: {}", crate::failure::chain(&error)),
        )
    })?;
    if !runs {
        return Ok(());
    }
    Err(Failure::Plain(
        Error::new(Code::InvalidState, format!("sandboxes of the installation {name} run on this host"))
            .hint("end them with 'atoll purge --keep-data --data-dir DIR', or with 'atoll doctor --leaks --remove' if it is gone; or \
                   restore on another host"),
    ))
}
