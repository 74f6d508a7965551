//! `atoll backup --cluster` and `atoll restore --cluster`: what the nodes of a cluster share, as one file and back.
//!
//! ```text
//! data/database/…   the rows of each table, all of one moment
//! data/objects/…    the bucket's objects, under their names
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use atoll_backup::{Header, NewFile, Subject, pack};
use atoll_core::{Code, Error};
use atoll_objects::{Objects, ObjectsError};
use atoll_store::{StoreUrl, WholeError, check_empty, dump, load};
use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use super::backup::{SCRATCH, STANDARD, failure, stoppable};
use super::restore;
use super::serve::open_objects;
use crate::cli::{BackupArgs, RestoreArgs, SharedArgs};
use crate::config;
use crate::failure::{Failure, Result, chain};
use crate::output::{Printer, now_ms};
use crate::signals::Stops;
use crate::units::format_bytes;

/// Stands in the place of the installation's name in such a backup.
pub(super) const CLUSTER: &str = "cluster";
/// How often the database is read anew when copies that it speaks of were removed meanwhile.
const ATTEMPTS_MAX_COUNT: usize = 5;
/// Object that says that a bucket is being filled.
const RESTORING: &str = "restoring";
/// Longest part of an object's name: as of a file's.
const PART_MAX_BYTES: usize = 255;

/// The database and the bucket that are backed up, or restored into.
struct Shared {
    database: StoreUrl,
    objects: Option<Objects>,
}

fn shared(args: &SharedArgs) -> Result<Shared> {
    let given = args.database.clone().map_or_else(config::database, |given| Ok(Some(given)))?;
    let missing = || Failure::Usage("--cluster: name the database, --database postgres://…".to_owned());
    let database = given.ok_or_else(missing)?;
    let database =
        database.parse::<StoreUrl>().map_err(|error| Failure::Usage(format!("--database: {error}")))?;
    let objects = args
        .objects
        .as_ref()
        .map(|url| open_objects(url, args.objects_endpoint.clone(), args.objects_region.clone()));
    Ok(Shared { database, objects: objects.transpose()? })
}

pub(super) async fn backup(printer: Printer, args: BackupArgs) -> Result<()> {
    let from = shared(&args.shared)?;
    if args.file == Path::new(STANDARD) {
        return Err(Failure::Usage("a backup of a cluster goes into a file".to_owned()));
    }
    let file = NewFile::beside(&args.file).map_err(failure)?;
    let staging = staging(file.directory())?;
    let mut stops = Stops::catch()?;
    tokio::select! {
        staged = stage(&from, staging.path()) => staged?,
        signal = stops.next() => return Err(signal.failure()),
    }
    drop(stops);
    let (header, file_bytes) = stoppable(printer, "backup", move |watch, bar| {
        let root =
            File::open(staging.path()).map_err(|error| Failure::io("cannot open what was fetched", error))?;
        let of = Subject { installation: CLUSTER.to_owned(), database: true, vault_key: false };
        let (made, begun) = ((env!("CARGO_PKG_VERSION"), now_ms()), |bytes| bar.set_length(bytes));
        let header = pack(root.as_fd(), of, made, &mut file.file(), file.directory(), begun, watch);
        let header = header.map_err(failure)?;
        Ok((header, file.keep().map_err(failure)?))
    })
    .await?;
    printer.note("the vault's key is not in it: keep it, secrets cannot be opened without it");
    let text = format!(
        "{}: {} of the cluster ({} of content)",
        args.file.display(),
        format_bytes(file_bytes),
        format_bytes(header.bytes)
    );
    let result = serde_json::json!({ "file": args.file, "file_bytes": file_bytes, "backup": header });
    printer.result(&result, || text)
}

/// A directory that only its owner may read; dropping it removes it and its content.
fn staging(parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(".atoll-cluster-").tempdir_in(parent);
    made.map_err(|error| Failure::io(format!("cannot make a directory in {}", parent.display()), error))
}

/// Fetches everything. Objects are there before rows that name them. If objects were removed after the rows were read,
/// that is noticed, and the rows are read again.
async fn stage(from: &Shared, dir: &Path) -> Result<()> {
    let (rows, objects) = (dir.join("database"), dir.join("objects"));
    let failed = |error| Failure::io("cannot write what was fetched", error);
    tokio::fs::create_dir(&objects).await.map_err(failed)?;
    for _ in 0..ATTEMPTS_MAX_COUNT {
        tokio::fs::create_dir(&rows).await.map_err(failed)?;
        let copies = dump(&from.database, &rows).await.map_err(|error| database_failure(&error))?;
        let Some(bucket) = &from.objects else {
            if copies.is_empty() {
                return Ok(());
            }
            let told = "there are copies of sandboxes in a bucket: name it with --objects";
            return Err(Failure::plain(Code::InvalidArgument, told));
        };
        let there = fetch(bucket, &objects).await?;
        if copies.iter().all(|copy| there.contains(copy)) {
            return Ok(());
        }
        tokio::fs::remove_dir_all(&rows).await.map_err(failed)?;
    }
    Err(Failure::Plain(
        Error::new(Code::InvalidState, "copies that the database speaks of are not in the bucket")
            .hint("is it the bucket of this cluster? If so, try again when fewer sandboxes come and go"),
    ))
}

/// Fetches the objects that are not there yet. Gives the copies of sandboxes, sandbox and upload, of which nothing went away.
async fn fetch(bucket: &Objects, dir: &Path) -> Result<BTreeSet<(String, String)>> {
    let (mut there, mut gone) = (BTreeSet::new(), BTreeSet::new());
    let mut names = bucket.list("");
    while let Some(name) = names.next().await {
        let name = name.map_err(|error| bucket_failure(&error))?;
        let path = place(dir, &name)?;
        let copy = copy_of(&name);
        if !fetch_one(bucket, &name, &path).await? {
            gone.extend(copy);
            continue;
        }
        there.extend(copy);
    }
    Ok(there.difference(&gone).cloned().collect())
}

/// Says whether it was there.
async fn fetch_one(bucket: &Objects, name: &str, path: &Path) -> Result<bool> {
    let failed = |error| Failure::io(format!("cannot fetch '{name}'"), error);
    if tokio::fs::try_exists(path).await.map_err(failed)? {
        return Ok(true);
    }
    let mut pieces = match bucket.get(name).await {
        Ok(pieces) => pieces,
        Err(ObjectsError::NotFound) => return Ok(false),
        Err(error) => return Err(bucket_failure(&error)),
    };
    if let Some(parent) = path.parent() {
        tokio::fs::create_dir_all(parent).await.map_err(failed)?;
    }
    let mut file = tokio::fs::File::create_new(path).await.map_err(failed)?;
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.map_err(failed)?).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    Ok(true)
}

/// Which copy of which sandbox an object is a part of: `kept/PLACE/SANDBOX/UPLOAD/…`.
fn copy_of(name: &str) -> Option<(String, String)> {
    let mut parts = name.strip_prefix("kept/")?.split('/').skip(1);
    Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
}

/// Where an object of this name is, as a file.
fn place(dir: &Path, name: &str) -> Result<PathBuf> {
    let is_usable =
        |part: &str| !matches!(part, "" | "." | "..") && part.len() <= PART_MAX_BYTES && !part.contains('\0');
    if name.split('/').all(is_usable) {
        return Ok(dir.join(name));
    }
    Err(Failure::plain(Code::InvalidState, format!("the object {name:?} has a name that no file can have")))
}

pub(super) async fn restore(printer: Printer, args: RestoreArgs) -> Result<()> {
    let into = shared(&args.shared)?;
    check_empty(&into.database).await.map_err(|error| database_failure(&error))?;
    if let Some(bucket) = &into.objects {
        check_bucket(bucket).await?;
    }
    let staging = staging(Path::new(SCRATCH))?;
    let (dir, file) = (staging.path().to_owned(), args.file.clone());
    let header: Header =
        stoppable(printer, "restore", move |watch, bar| restore::unpack_cluster(&file, &dir, watch, bar))
            .await?;
    let data = staging.path().join("data");
    let mut stops = Stops::catch()?;
    tokio::select! {
        filled = fill(&into, &data) => filled?,
        signal = stops.next() => return Err(signal.failure()),
    }
    printer.warn("the vault's key is not in the backup: give the servers the same one as before");
    let text = format!("restored {} of a cluster", format_bytes(header.bytes));
    printer.result(&serde_json::json!({ "verified": true, "backup": header }), || text)
}

/// Refuses a bucket that is not empty, unless a restoration that was interrupted left the objects there.
async fn check_bucket(bucket: &Objects) -> Result<()> {
    let first = bucket.list("").next().await.transpose().map_err(|error| bucket_failure(&error))?;
    let Some(first) = first else { return Ok(()) };
    if bucket.exists(RESTORING).await.map_err(|error| bucket_failure(&error))? {
        return Ok(());
    }
    Err(Failure::Plain(
        Error::new(Code::InvalidState, format!("the bucket is not empty: there is '{first}'"))
            .hint("restore into another bucket or below another prefix"),
    ))
}

/// The bucket first: rows are there only when everything is that they speak of.
async fn fill(into: &Shared, data: &Path) -> Result<()> {
    let mut files = Vec::new();
    files_below(&data.join("objects"), "", &mut files)?;
    match &into.objects {
        Some(bucket) => fill_bucket(bucket, &files).await?,
        None if files.is_empty() => {}
        None => {
            let told = "there are objects in the backup: name a bucket for them, --objects";
            return Err(Failure::plain(Code::InvalidArgument, told));
        }
    }
    load(&into.database, &data.join("database")).await.map_err(|error| database_failure(&error))?;
    match &into.objects {
        // Last: a restoration that was interrupted before this can be begun anew.
        Some(bucket) => bucket.remove(RESTORING).await.map_err(|error| bucket_failure(&error)),
        None => Ok(()),
    }
}

async fn fill_bucket(bucket: &Objects, files: &[(String, PathBuf)]) -> Result<()> {
    let failed = |error| bucket_failure(&error);
    bucket.put_small(RESTORING, Vec::new()).await.map_err(failed)?;
    let mut left = bucket.list("");
    while let Some(name) = left.next().await {
        let name = name.map_err(failed)?;
        if name != RESTORING {
            bucket.remove(&name).await.map_err(failed)?;
        }
    }
    for (name, path) in files {
        let file = tokio::fs::File::open(path).await;
        let file = file.map_err(|error| Failure::io(format!("cannot read '{name}'"), error))?;
        bucket.put(name, ReaderStream::new(file)).await.map_err(failed)?;
    }
    Ok(())
}

/// All files below a directory with the names of their objects.
fn files_below(dir: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let failed = |error| Failure::io("cannot read what was unpacked", error);
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            files_below(&entry.path(), &format!("{name}/"), found)?;
        } else if kind.is_file() {
            found.push((name, entry.path()));
        } else {
            return Err(Failure::plain(Code::InvalidArgument, format!("'{name}' in the backup is no file")));
        }
    }
    Ok(())
}

fn database_failure(error: &WholeError) -> Failure {
    let (code, hint) = match error {
        WholeError::NotShared => (Code::InvalidArgument, "write postgres://user:password@host/database"),
        WholeError::Version { .. } => {
            (Code::InvalidState, "use the version of Atoll that the cluster has, and upgrade afterwards")
        }
        WholeError::NotEmpty { .. } => (Code::InvalidState, "restore into a new database"),
        WholeError::File { .. } | WholeError::Store(_) => {
            (Code::StoreUnavailable, "nothing was changed in the database")
        }
    };
    Failure::Plain(Error::new(code, format!("--database: {}", chain(error))).hint(hint))
}

fn bucket_failure(error: &ObjectsError) -> Failure {
    Failure::plain(Code::ObjectsUnavailable, format!("--objects: {}", chain(error)))
}
