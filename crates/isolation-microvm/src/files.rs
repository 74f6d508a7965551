//! The disks of machines: one read-only image for all sandboxes of an OCI image, and a writable disk for each.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_isolation::IsolationError;
use rustix::fs::SeekFrom;
use rustix::mount::{MountAttrFlags, FsMountFlags, FsOpenFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use crate::step::{Step, failed};

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;

/// An EROFS file of all layers (lowest first) together, made once and kept in `dir` under `key`.
pub(crate) fn image(dir: &Path, key: &str, layers: &[PathBuf]) -> Result<PathBuf, IsolationError> {
    let path = dir.join(format!("{key}.erofs"));
    if path.exists() {
        return Ok(path);
    }
    let new = dir.join(format!("{key}.new"));
    with_merged(layers, |merged| {
        run(Command::new("mkfs.erofs").arg("--quiet").arg("-T0").arg(&new).arg(merged))
            .or_else(|_older| run(Command::new("mkfs.erofs").arg("-T0").arg(&new).arg(merged)))
    })?;
    fs::rename(&new, &path).step("put an image in its place")?;
    Ok(path)
}

/// Shows the layers as one tree for as long as `work` runs.
fn with_merged(
    layers: &[PathBuf],
    work: impl FnOnce(&Path) -> Result<(), IsolationError>,
) -> Result<(), IsolationError> {
    if let [only] = layers {
        return work(only);
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step("open the file system type overlay")?;
    for layer in layers.iter().rev() {
        let layer = layer.to_str().ok_or_else(|| IsolationError::BadRoot("a layer's path is no text".to_owned()))?;
        fsconfig_set_string(&context, "lowerdir+", layer).step("name a layer")?;
    }
    fsconfig_create(&context).step("merge the layers of an image")?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        .step("merge the layers of an image")?;
    // The tool wants a path, and a descriptor of ours is one for as long as it runs.
    let path = format!("/proc/{}/fd/{}/", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&mount));
    work(Path::new(&path))
}


/// An empty disk of `bytes`, of which one template for each size is kept in `dir`.
pub(crate) fn disk(dir: &Path, bytes: u64, to: &Path) -> Result<(), IsolationError> {
    let template = dir.join(format!("{bytes}.ext4"));
    if !template.exists() {
        let new = dir.join(unique(&bytes.to_string()));
        make_disk(bytes, &new)?;
        fs::rename(&new, &template).step("put the template of a disk in its place")?;
    }
    copy_sparse(&template, to).step("copy the template of a disk")
}

/// A name that nobody else uses: several may make the same thing, and the last one stays.
fn unique(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{name}.{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn make_disk(bytes: u64, to: &Path) -> Result<(), IsolationError> {
    let content = to.with_extension("content");
    for name in ["upper", "work"] {
        fs::create_dir_all(content.join(name)).step("make the template of a disk")?;
    }
    File::create(to).and_then(|file| file.set_len(bytes)).step("size the template of a disk")?;
    // As a container's: no journal, because a disk does not survive a crash of the host.
    let made = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
        .args(["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,nodiscard", "-d"])
        .arg(&content)
        .arg(to));
    fs::remove_dir_all(&content).step("remove what a disk was made of")?;
    made
}

/// Copies what is not a hole.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let from = File::open(from)?;
    let to = File::create_new(to)?;
    to.set_len(from.metadata()?.len())?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = data;
        let end = rustix::fs::seek(&from, SeekFrom::Hole(data))?;
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            from.read_exact_at(&mut buffer[..len], at)?;
            to.write_all_at(&buffer[..len], at)?;
            at += len as u64;
        }
    }
}

/// Runs a tool; its words on failure.
fn run(command: &mut Command) -> Result<(), IsolationError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(IsolationError::Unavailable(format!("the program {program} is missing")));
        }
        other => other.step(format!("run {program}"))?,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(failed(format!("run {program}"), io::Error::other(said)))
}
