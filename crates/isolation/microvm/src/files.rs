//! The read-only disks of machines: one EROFS file for all sandboxes of an OCI image.
//!
//! ```text
//! <cache>/images/<digest of the layers' paths>.erofs
//!                                             .layers   their paths, a line each: the file goes with them
//!                                             .digest   digest of the file, once it was asked for
//! ```
//!
//! Every host makes the same bytes of the same layers: a kernel that goes on elsewhere with its memory remembers where in
//! the file things are.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_isolation::IsolationError;
use atoll_isolation_storage::pack_erofs;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, open_tree,
};

use crate::step::Step;
use crate::stream::random;

/// How the files of an image end.
const IMAGE: &str = "erofs";
const LAYERS: &str = "layers";
const DIGEST: &str = "digest";
/// How the directory ends at which the layers are mounted while a file is made.
const TREE: &str = "tree";
/// A digest in its file, bytes.
const DIGEST_BYTES: u64 = 64;

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
    remove(&path.with_extension(DIGEST)).step("forget the digest of an earlier image")?;
    let file = File::options().read(true).write(true).create_new(true).open(&new).step("make an image")?;
    let tree = merged(layers)?;
    pack_erofs(tree.as_fd(), &dir.join(key).with_extension(TREE), &file)?;
    // After a power cut it would be taken for whole.
    file.sync_data().step("write an image to disk")?;
    fs::write(path.with_extension(LAYERS), list).step("write down what an image is made of")?;
    fs::rename(&new, &path).step("put an image in its place")?;
    Ok(path)
}

/// The digest of an image's file, which is read once for that. Blocks for as long as reading it takes.
pub(crate) fn digest(image: &Path) -> Result<String, IsolationError> {
    let path = image.with_extension(DIGEST);
    let whole = fs::metadata(&path).is_ok_and(|meta| meta.len() == DIGEST_BYTES);
    if let Some(known) = whole.then(|| fs::read_to_string(&path).ok()).flatten() {
        return Ok(known);
    }
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(image).step("open an image")?;
    io::copy(&mut file, &mut hasher).step("read an image")?;
    let digest = hasher.finalize().to_hex().to_string();
    // Two tasks that do this write the same.
    let new = image.with_extension(format!("{DIGEST}-{:016x}", random().step("choose a name")?));
    fs::write(&new, &digest)
        .and_then(|()| fs::rename(&new, &path))
        .step("write down the digest of an image")?;
    Ok(digest)
}

/// The layers as one tree, which is mounted nowhere.
fn merged(layers: &[PathBuf]) -> Result<OwnedFd, IsolationError> {
    const STEP: &str = "merge the layers of an image";
    if let [only] = layers {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        return open_tree(CWD, only, flags).step("open the layer of an image");
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step("open the file system type overlay")?;
    for layer in layers.iter().rev() {
        let layer =
            layer.to_str().ok_or_else(|| IsolationError::BadRoot("a layer's path is no text".to_owned()))?;
        fsconfig_set_string(&context, "lowerdir+", layer).step("name a layer")?;
    }
    fsconfig_create(&context).step(STEP)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY).step(STEP)
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
            remove(&path.with_extension(DIGEST))?;
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A layer with these files, made in this order.
    fn layer(dir: &Path, names: &[&str]) -> PathBuf {
        let layer = dir.join("layer");
        fs::create_dir_all(layer.join("bin")).unwrap();
        for name in names {
            fs::write(layer.join("bin").join(name), name.repeat(5000)).unwrap();
        }
        let then = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_789);
        let places = names.iter().map(|name| layer.join("bin").join(name));
        for place in places.chain([layer.join("bin"), layer.clone()]) {
            File::open(place).unwrap().set_modified(then).unwrap();
        }
        layer
    }

    fn made(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let layer = layer(dir.path(), names);
        let image = image(dir.path(), "key", &[layer]).unwrap();
        (dir, image)
    }

    /// Another host unpacks the same layers in another order and at another time.
    #[test]
    fn the_same_layers_become_the_same_bytes() {
        let (_one, first) = made(&["sh", "env", "true"]);
        std::thread::sleep(Duration::from_millis(1100));
        let (_two, second) = made(&["true", "sh", "env"]);
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        assert_eq!(digest(&first).unwrap(), digest(&second).unwrap());
        let (_three, other) = made(&["sh", "env", "false"]);
        assert_ne!(digest(&first).unwrap(), digest(&other).unwrap());
    }

    /// The upper layer hides what the lower one has, and nothing of the host is in the file.
    #[test]
    fn layers_are_one_tree() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["lower", "upper"].map(|name| {
            let layer = dir.path().join(name);
            fs::create_dir(&layer).unwrap();
            fs::write(layer.join(name), name).unwrap();
            fs::write(layer.join("both"), name).unwrap();
            layer
        });
        let image = image(dir.path(), "key", &layers).unwrap();
        let out = dir.path().join("out");
        let extract = format!("--extract={}", out.display());
        let output = Command::new("fsck.erofs").arg(extract).arg(&image).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut found: Vec<_> = fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap()))
            .collect();
        found.sort_unstable();
        let wanted = [("both", "upper"), ("lower", "lower"), ("upper", "upper")];
        assert_eq!(found, wanted.map(|(name, content)| (name.into(), content.to_owned())));
    }

    #[test]
    fn a_digest_goes_with_its_file() {
        let (dir, image) = made(&["sh"]);
        let before = digest(&image).unwrap();
        assert_eq!(digest(&image).unwrap(), before, "read from where it was written down");
        fs::remove_dir_all(dir.path().join("layer")).unwrap();
        sweep(dir.path()).unwrap();
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "image, layers and digest are gone");
    }
}
