//! Disks as a guest that has the block device, or a client that imports one, can make them. Needs root.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_core::id::SnapshotId;
use atoll_isolation::IsolationError;
use atoll_isolation_storage::{
    PoolSize, Storage, StorageConfig, Use, attach, filesystem, mount_ext4, open_upper, path_of, prepare_disk,
};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

const DISK_BYTES: u64 = 256 << 20;
const SECRET: &str = "only the host knows";

/// A storage, and an image layer for what stands on an image.
struct Place {
    dir: tempfile::TempDir,
    storage: Storage,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-hostile-").tempdir().unwrap();
        let config = StorageConfig {
            dir: dir.path().join("data"),
            instance: format!("{:08x}", std::process::id()),
            pool: PoolSize::None,
        };
        fs::create_dir(dir.path().join("layer")).unwrap();
        Self { storage: Storage::open(&config).unwrap(), dir }
    }

    fn layers(&self) -> Vec<PathBuf> {
        vec![self.dir.path().join("layer")]
    }

    /// An artifact whose disk has this content.
    fn artifact(&self, number: u64, content: &Path) -> SnapshotId {
        let id = SnapshotId::from_parts(number, 1);
        self.storage.make_artifact_disk(&id, DISK_BYTES).unwrap();
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
            .args(["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,nodiscard", "-d"])
            .arg(content)
            .arg(self.storage.artifact_disk(&id).unwrap())
            .status();
        assert!(made.unwrap().success());
        id
    }

    /// The content of a disk: `upper` with one file, and `work`.
    fn content(&self, name: &str) -> PathBuf {
        let content = self.dir.path().join(name);
        fs::create_dir_all(content.join("upper")).unwrap();
        fs::create_dir(content.join("work")).unwrap();
        fs::write(content.join("upper/mine"), "of the guest").unwrap();
        content
    }
}

fn is_bad<T: std::fmt::Debug>(result: Result<T, IsolationError>, why: &str) {
    match result {
        Err(IsolationError::BadArtifact(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("it was not refused: {other:?}"),
    }
}

#[test]
fn a_link_in_place_of_a_layer_shows_nothing_of_the_host() {
    let place = Place::new();
    let hosts = place.dir.path().join("hosts");
    fs::create_dir(&hosts).unwrap();
    fs::write(hosts.join("secret"), SECRET).unwrap();
    let good = place.artifact(1, &place.content("good"));
    let seen = place.storage.compare(&place.layers(), None, &good, true).unwrap();
    assert_eq!(seen.changes[0].path, "/mine");
    filesystem::check(&place.storage.artifact_disk(&good).unwrap()).unwrap();
    for (number, name) in [(2, "upper"), (3, "work")] {
        let content = place.content(&format!("bad-{name}"));
        fs::remove_dir_all(content.join(name)).unwrap();
        symlink(&hosts, content.join(name)).unwrap();
        let bad = place.artifact(number, &content);
        let disk = place.storage.artifact_disk(&bad).unwrap();
        let why = format!("its '{name}' is no directory");
        is_bad(filesystem::check(&disk), &why);
        let device = attach(&File::options().read(true).write(true).open(&disk).unwrap()).unwrap();
        let mount = mount_ext4(&device.path(), Use::Disk).unwrap();
        is_bad(prepare_disk(mount.as_fd()), &why);
        // Code that does not check the directories is not led out of the disk either.
        let through = path_of(mount.as_fd()).join(name).join("secret");
        assert!(fs::read(through).is_err(), "the mount follows links");
        drop((mount, device));
        if name == "upper" {
            is_bad(place.storage.compare(&place.layers(), None, &bad, true), &why);
            is_bad(place.storage.compare(&place.layers(), Some(&bad), &good, true), &why);
        }
    }
    // A file does as little as a link.
    let content = place.content("file");
    fs::remove_dir_all(content.join("upper")).unwrap();
    fs::write(content.join("upper"), "").unwrap();
    is_bad(place.storage.compare(&place.layers(), None, &place.artifact(4, &content), true), "no directory");
}

#[test]
fn links_inside_a_layer_are_shown_and_not_followed() {
    let place = Place::new();
    let content = place.content("links");
    symlink("/etc", content.join("upper/etc")).unwrap();
    symlink("../../../../etc/hostname", content.join("upper/name")).unwrap();
    let id = place.artifact(1, &content);
    let seen = place.storage.compare(&place.layers(), None, &id, true).unwrap();
    let paths: Vec<_> = seen.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["/etc", "/mine", "/name"]);
    assert!(seen.changes[0].text.is_none() && seen.changes[2].text.is_none());
}

#[test]
fn a_superblock_that_asks_for_more_is_refused_before_anything_reads_it() {
    let place = Place::new();
    let good = place.artifact(1, &place.content("good"));
    let disk = place.storage.artifact_disk(&good).unwrap();
    let set = |at: u64, bytes: &[u8]| {
        let image = File::options().read(true).write(true).open(&disk).unwrap();
        let mut before = vec![0; bytes.len()];
        image.read_exact_at(&mut before, 1024 + at).unwrap();
        image.write_all_at(bytes, 1024 + at).unwrap();
        before
    };
    let features = |at: u64, more: u32| {
        let mut has = [0; 4];
        File::open(&disk).unwrap().read_exact_at(&mut has, 1024 + at).unwrap();
        (u32::from_le_bytes(has) | more).to_le_bytes()
    };
    let asked: [(&str, u64, Vec<u8>); 9] = [
        ("panic", 0x3C, vec![3, 0]),
        ("a journal that is not there", 0x5C, features(0x5C, 0x4).to_vec()),
        ("to read a journal", 0x60, features(0x60, 0x4).to_vec()),
        ("another device as journal", 0x60, features(0x60, 0x8).to_vec()),
        ("file names without case", 0x60, features(0x60, 0x2_0000).to_vec()),
        ("quota", 0x64, features(0x64, 0x100).to_vec()),
        ("mount options", 0x200, b"errors=panic".to_vec()),
        ("default mount options", 0x100, vec![0x0D, 0, 0, 0]),
        ("no ext4", 0x38, vec![0, 0]),
    ];
    for (what, at, bytes) in asked {
        let before = set(at, &bytes);
        is_bad(filesystem::check(&disk), "");
        is_bad(place.storage.compare(&place.layers(), None, &good, false), "");
        let device = attach(&File::options().read(true).write(true).open(&disk).unwrap()).unwrap();
        is_bad(mount_ext4(&device.path(), Use::Disk), "");
        drop(device);
        set(at, &before);
        let seen = place.storage.compare(&place.layers(), None, &good, false);
        assert!(seen.is_ok(), "{what} was not taken back: {seen:?}");
    }
}

/// Directories one in the other, deeper than any path.
fn nest(at: OwnedFd, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = at;
    for _ in 0..depth {
        mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        here = openat(&here, "d", flags, Mode::empty()).unwrap();
    }
}

/// On the stack of a worker of the server's.
fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let small = std::thread::Builder::new().stack_size(512 << 10);
    std::thread::scope(|scope| small.spawn_scoped(scope, work).unwrap().join().unwrap())
}

#[test]
fn depth_takes_no_stack() {
    const DEPTH: usize = 12_000;
    let place = Place::new();
    let id = place.artifact(1, &place.content("deep"));
    let disk = place.storage.artifact_disk(&id).unwrap();
    let image = File::options().read(true).write(true).open(&disk).unwrap();
    let device = attach(&image).unwrap();
    let mount = mount_ext4(&device.path(), Use::Disk).unwrap();
    nest(open_upper(mount.as_fd()).unwrap(), 1000);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    nest(openat(&mount, "work", flags, Mode::empty()).unwrap(), DEPTH);
    on_a_small_stack(|| prepare_disk(mount.as_fd())).unwrap();
    let work = openat(&mount, "work", flags, Mode::empty()).unwrap();
    let left = fs::read_dir(format!("/proc/self/fd/{}", work.as_raw_fd())).unwrap().count();
    assert_eq!(left, 0);
    drop((work, mount, device));
    let seen = on_a_small_stack(|| place.storage.compare(&place.layers(), None, &id, true)).unwrap();
    assert!(seen.truncated, "a comparison has an end");
}
