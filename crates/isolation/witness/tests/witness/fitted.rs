//! Programs that one server fitted to the kernel are loaded by the next as they are, and by none as another user or a
//! torn file would have them.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_witness::{Witness, close_pins};

use crate::common::Kept;

/// Opens a witness below `dir` and closes it: its programs were loaded.
fn open_once(dir: &Path) {
    let place = dir.join("witness");
    let witness = Witness::open(&place, Arc::new(Kept::default())).unwrap();
    witness.close();
    close_pins(&place);
}

fn kept(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("fitted-")).collect()
}

#[test]
fn what_one_server_fitted_the_next_one_loads() {
    let dir = tempfile::tempdir().unwrap();
    open_once(dir.path());
    let [file] = kept(dir.path()).try_into().unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let was = std::fs::read(&file).unwrap();
    // The file says of itself when it was written: a server that fits anew replaces it.
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let first = inode(&file);
    open_once(dir.path());
    assert_eq!((inode(&file), std::fs::read(&file).unwrap()), (first, was.clone()));

    for damage in [was[..was.len() / 2].to_vec(), b"{\"offsets\":null,\"programs\":{}}".to_vec()] {
        std::fs::write(&file, damage).unwrap();
        open_once(dir.path());
        assert_eq!(std::fs::read(&file).unwrap(), was, "it was fitted anew");
    }
}

#[test]
fn a_file_that_another_user_could_have_written_counts_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    open_once(dir.path());
    let [file] = kept(dir.path()).try_into().unwrap();
    let was = std::fs::read(&file).unwrap();
    for spoil in [(|file| chown(file, Some(1000), None).unwrap()) as fn(&Path), |file| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).unwrap();
    }] {
        std::fs::write(&file, b"{\"offsets\":null,\"programs\":{}}").unwrap();
        spoil(&file);
        open_once(dir.path());
        assert_eq!(std::fs::read(&file).unwrap(), was);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // Nor is one kept where others can write.
    std::fs::remove_file(&file).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    open_once(dir.path());
    assert_eq!(kept(dir.path()), Vec::<PathBuf>::new());
}
