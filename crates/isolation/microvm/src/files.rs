//! The read-only disks of machines: one EROFS file for all sandboxes of an OCI image.
//!
//! ```text
//! <cache>/images/<digest of the layers' paths>.erofs
//!                                             .layers   their paths, a line each: the file goes with them
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_isolation::IsolationError;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use crate::step::{Step, failed};

/// How the files of an image end.
const IMAGE: &str = "erofs";
const LAYERS: &str = "layers";

/// The EROFS file of all layers (lowest first) together, made once and kept in `dir` under `key`. Blocks for as
/// long as it takes to write the image.
pub(crate) fn image(dir: &Path, key: &str, layers: &[PathBuf]) -> Result<PathBuf, IsolationError> {
    let path = dir.join(key).with_extension(IMAGE);
    if path.try_exists().step("look for an image")? {
        return Ok(path);
    }
    let mut list = String::new();
    for layer in layers {
        let layer =
            layer.to_str().ok_or_else(|| IsolationError::BadRoot("a layer's path is no text".to_owned()))?;
        list = format!("{list}{layer}\n");
    }
    let new = dir.join(key).with_extension("new");
    remove(&new).step("remove an unfinished image")?;
    with_merged(layers, |merged| run(Command::new("mkfs.erofs").arg(&new).arg(merged)))?;
    fs::write(path.with_extension(LAYERS), list).step("write down what an image is made of")?;
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
        let layer =
            layer.to_str().ok_or_else(|| IsolationError::BadRoot("a layer's path is no text".to_owned()))?;
        fsconfig_set_string(&context, "lowerdir+", layer).step("name a layer")?;
    }
    fsconfig_create(&context).step("merge the layers of an image")?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        .step("merge the layers of an image")?;
    // The tool wants a path, and a descriptor of ours is one for as long as it runs.
    let path = format!("/proc/{}/fd/{}/", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&mount));
    work(Path::new(&path))
}

/// Removes the files of images that are not there any more.
pub(crate) fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != LAYERS) {
            continue;
        }
        // Another server that shares the directory may be at the same.
        let layers = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let mut gone = false;
        for layer in layers.lines() {
            gone |= !Path::new(layer).try_exists()?;
        }
        if gone {
            // A machine that runs from it has it open.
            remove(&path.with_extension(IMAGE))?;
            remove(&path)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs a tool; its words on failure.
fn run(command: &mut Command) -> Result<(), IsolationError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(IsolationError::Unavailable(format!(
                "the program {program} is missing: install erofs-utils"
            )));
        }
        other => other.step(format!("run {program}"))?,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(failed(format!("run {program}"), io::Error::other(said)))
}
