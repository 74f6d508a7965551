//! Reading and writing files.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Failure, Read as ReadFile, Reason, Write as WriteFile};
use atoll_guest_protocol::server::failure;
use rustix::fs::{OFlags, RenameFlags};

use super::place::{Place, real};
use super::{DIRECTORY_MODE, MODE_BITS, Names, checked, make_directories, owner};
use crate::blocking::{BLOCK_BYTES, Framing, Inlet, Threads, consume, produce};
use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;
use crate::users::Identity;

/// Permission bits of a new file when the host names none.
const FILE_MODE: u32 = 0o644;

/// `read`.
pub(crate) async fn read(
    threads: &Threads,
    request: ReadFile,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    let told = |error: &io::Error| match error.raw_os_error() {
        Some(libc::EINVAL) => invalid(format!("{}: not a regular file", request.path)),
        _ => io_error(&request.path, error),
    };
    let place = Place::follow(path).map_err(|error| told(&error))?;
    let mut file = place.open_regular().map_err(|error| told(&error))?;
    let metadata = file.metadata().map_err(|error| told(&error))?;
    let info = Names::read().info(path, (place.directory(), place.name()), &metadata);
    response.message(&info).await?;
    if request.offset > 0 {
        file.seek(SeekFrom::Start(request.offset)).map_err(|error| told(&error))?;
    }
    let limit = if request.length == 0 { u64::MAX } else { request.length };
    let sent = produce(threads, response, Framing::Data, move |outlet| {
        let mut file = file.take(limit);
        let mut sent = 0;
        loop {
            let mut block = Vec::with_capacity(BLOCK_BYTES);
            let len = Read::by_ref(&mut file)
                .take(BLOCK_BYTES as u64)
                .read_to_end(&mut block)
                .map_err(|error| io_error(&request.path, &error))?;
            if len == 0 {
                return Ok(sent);
            }
            sent += len as u64;
            block.shrink_to_fit();
            outlet.send(block.into()).map_err(|error| io_error(&request.path, &error))?;
        }
    })
    .await?;
    Ok(Answer::done(sent))
}

/// `write`.
pub(crate) async fn write(threads: &Threads, request: &mut RecordReader) -> Result<Answer, Stop> {
    let wanted: WriteFile = request.message().await?;
    checked(&wanted.path)?;
    let written = consume(threads, request, move |inlet| write_file(&wanted, inlet)).await?;
    Ok(Answer::done(written))
}

/// A file beside the one that is written. Gone when it is dropped, unless it was put in place.
struct Beside {
    place: Place,
    file: File,
    placed: bool,
}

impl Beside {
    fn new(target: &Place) -> io::Result<Self> {
        let place = target.beside(&super::spare_name());
        let file = place.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?;
        Ok(Self { place, file, placed: false })
    }

    fn place(mut self, target: &Place) -> io::Result<()> {
        self.place.rename(target, RenameFlags::empty())?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.placed {
            drop(self.place.remove_file());
        }
    }
}

fn write_file(request: &WriteFile, mut inlet: Inlet) -> Result<u64, Failure> {
    let told = |error: io::Error| io_error(&request.path, &error);
    let owner = owner(&request.user)?;
    let target = target(request, &owner)?;
    let existing = match target.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            return Err(failure(Reason::IsADirectory, format!("{}: is a directory", request.path)));
        }
        Ok(metadata) if !metadata.is_file() => {
            return Err(invalid(format!("{}: not a regular file", request.path)));
        }
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(told(error)),
    };
    if request.path.ends_with('/') {
        return Err(failure(Reason::NotADirectory, format!("{}: not a directory", request.path)));
    }
    if request.in_place {
        return write_in_place(request, &target, &owner, inlet).map_err(told);
    }
    let mut beside = Beside::new(&target).map_err(told)?;
    let mut written = 0;
    while let Some(bytes) = inlet.next().map_err(told)? {
        beside.file.write_all(&bytes).map_err(told)?;
        written += bytes.len() as u64;
    }
    let (uid, gid) = existing.as_ref().map_or((owner.uid, owner.gid), |file| (file.uid(), file.gid()));
    let mode = match (request.mode, existing) {
        (0, Some(file)) => file.mode(),
        (0, None) => FILE_MODE,
        (mode, _) => mode,
    };
    // The owner first: changing it clears the set-id bits.
    fchown(&beside.file, Some(uid), Some(gid)).map_err(told)?;
    beside.file.set_permissions(Permissions::from_mode(mode & MODE_BITS)).map_err(told)?;
    beside.place(&target).map_err(told)?;
    Ok(written)
}

/// The file that a path stands for, whether it exists or not; the directories above it are made if that was asked for.
fn target(request: &WriteFile, owner: &Identity) -> Result<Place, Failure> {
    let told = |error: io::Error| io_error(&request.path, &error);
    let path = Path::new(&request.path);
    match Place::follow(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && request.parents => {}
        found => return found.map_err(told),
    }
    let path = real(path).map_err(told)?;
    make_directories(path.parent().unwrap_or(Path::new("/")), DIRECTORY_MODE, owner)?;
    Place::of(&path).map_err(told)
}

/// Writes into the file itself.
fn write_in_place(
    request: &WriteFile,
    target: &Place,
    owner: &Identity,
    mut inlet: Inlet,
) -> io::Result<u64> {
    let mode = if request.mode == 0 { FILE_MODE } else { request.mode & MODE_BITS };
    // The file may have been replaced by a FIFO meanwhile: opening it must not wait.
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // A file that exists is opened without `O_CREAT`: in directories like /tmp the kernel refuses `O_CREAT` for files
    // of other users, to root as well (fs.protected_regular).
    let mut file = match target.open(flags, 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => target.open(flags | OFlags::CREATE, mode)?,
        opened => opened?,
    };
    fchown(&file, Some(owner.uid), Some(owner.gid))?;
    if request.mode != 0 {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    let mut written = 0;
    while let Some(bytes) = inlet.next()? {
        file.write_all(&bytes)?;
        written += bytes.len() as u64;
    }
    Ok(written)
}
