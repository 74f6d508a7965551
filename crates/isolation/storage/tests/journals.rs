//! Journals of disks: which have one, and that the host's kernel never reads one. Needs root.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_core::id::SnapshotId;
use atoll_isolation::{DiskSource, IsolationError};
use atoll_isolation_storage::filesystem::{self, Templates};
use atoll_isolation_storage::{
    DISK_FILE, Frozen, LoopDevice, MountedDisk, PoolSize, Storage, StorageConfig, Use, attach,
    attach_read_only, mount_ext4, path_of,
};
use atoll_testing::journals::{self, inode_of};

const DISK_BYTES: u64 = 256 << 20;
/// Files that are made at least, and at most, before a copy is.
const FILES_MIN: usize = 2000;
const FILES_MAX: usize = 40_000;

/// Bits of a superblock's feature words: where the word is, and the bit.
const HAS_JOURNAL: (u64, u32) = (0x5C, 0x4);
const HAS_TO_BE_RECOVERED: (u64, u32) = (0x60, 0x4);

/// A storage, and templates of disks.
struct Place {
    dir: tempfile::TempDir,
    storage: Storage,
    templates: Templates,
}

/// A disk that is mounted. The mount goes first.
struct Disk {
    mount: OwnedFd,
    device: LoopDevice,
    image: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-journals-").tempdir().unwrap();
        let config = StorageConfig {
            dir: dir.path().join("data"),
            instance: format!("{:08x}", std::process::id()),
            pool: PoolSize::None,
        };
        let templates = Templates::open(dir.path().join("templates")).unwrap();
        Self { storage: Storage::open(&config).unwrap(), templates, dir }
    }

    /// A new disk.
    fn disk(&self, bytes: u64) -> Disk {
        let spare = self.storage.make_spare(&self.templates, &DiskSource::Empty, bytes).unwrap();
        Disk::mount(spare.move_to(self.dir.path().join(format!("disk-{bytes}"))).unwrap())
    }

    /// A disk as earlier versions made them.
    fn older_disk(&self, bytes: u64) -> Disk {
        let (content, image) = (self.dir.path().join("content"), self.dir.path().join("older"));
        for name in ["upper", "work"] {
            fs::create_dir_all(content.join(name)).unwrap();
        }
        File::create_new(&image).unwrap().set_len(bytes).unwrap();
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
            .args(["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,nodiscard", "-d"])
            .args([&content, &image])
            .status();
        assert!(made.unwrap().success());
        Disk::mount(image)
    }

    /// Where the disk of a new artifact is to lie.
    fn artifact(&self, id: &SnapshotId) -> PathBuf {
        self.storage.make_artifact(id).unwrap().join(DISK_FILE)
    }
}

impl Disk {
    fn mount(image: PathBuf) -> Self {
        let device = attach(&open(&image)).unwrap();
        let mount = mount_ext4(&device.path(), Use::Disk).unwrap();
        Self { mount, device, image }
    }

    fn mounted(&self) -> MountedDisk {
        MountedDisk::open(self.mount.as_fd()).unwrap()
    }
}

fn open(image: &Path) -> File {
    File::options().read(true).write(true).open(image).unwrap()
}

fn upper(mount: &OwnedFd) -> PathBuf {
    path_of(mount.as_fd()).join("upper")
}

fn has(image: &Path, (at, bit): (u64, u32)) -> bool {
    let mut word = [0; 4];
    File::open(image).unwrap().read_exact_at(&mut word, 1024 + at).unwrap();
    u32::from_le_bytes(word) & bit != 0
}

/// Mounts a disk that nothing uses.
fn mount(image: &Path, purpose: Use) -> Result<(OwnedFd, LoopDevice), IsolationError> {
    let file = open(image);
    let device = match purpose {
        Use::Reading => attach_read_only(&file).unwrap(),
        _ => attach(&file).unwrap(),
    };
    mount_ext4(&device.path(), purpose).map(|mount| (mount, device))
}

fn is_bad<T>(result: Result<T, IsolationError>, why: &str) {
    match result {
        Err(IsolationError::BadArtifact(text)) => assert!(text.contains(why), "{text}"),
        Err(error) => panic!("it failed in another way: {error:?}"),
        Ok(_) => panic!("it was not refused: {why}"),
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Makes files whose content is their name, and removes every third, until it is told to stop. Gives those that are
/// there.
fn write(dir: &Path, stop: &AtomicBool) -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for number in 0..FILES_MAX {
        if number >= FILES_MIN && stop.load(Ordering::Relaxed) {
            break;
        }
        let name = number.to_string();
        fs::write(dir.join(&name), &name).unwrap();
        if number % 3 == 2 {
            fs::remove_file(dir.join(&name)).unwrap();
        } else {
            there.insert(name);
        }
    }
    there
}

/// What `e2fsck` finds out of order: the line before each of its questions.
fn complaints(image: &Path) -> Vec<String> {
    let told = Command::new("e2fsck").args(["-f", "-n"]).arg(image).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let lines: Vec<_> = told.lines().filter(|line| !line.is_empty()).collect();
    let pairs = lines.windows(2).filter(|pair| pair[1].ends_with("? no"));
    pairs.map(|pair| pair[0].to_owned()).collect()
}

#[test]
fn a_copy_of_a_mounted_disk_is_like_one_that_was_unmounted() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    let (mounted, dir) = (disk.mounted(), upper(&disk.mount));
    let stop = AtomicBool::new(false);
    let there = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&dir, &stop));
        mounted.write_out_until_little_is_left().unwrap();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let id = SnapshotId::from_parts(1, 1);
    let to = place.artifact(&id);
    let copy = place.storage.copy_mounted(&mounted, &disk.image, &to).unwrap();
    // The original goes on while the copy is finished.
    for name in &there {
        fs::remove_file(dir.join(name)).unwrap();
    }
    mounted.write_out().unwrap();
    assert!(has(&to, HAS_TO_BE_RECOVERED), "nothing would keep an unfinished copy from being used");
    is_bad(mount(&to, Use::Disk), "incompatible features 0x4");
    copy.finish().unwrap();
    assert!(has(&to, HAS_JOURNAL) && !has(&to, HAS_TO_BE_RECOVERED));
    assert!(has(&disk.image, HAS_TO_BE_RECOVERED), "the original is mounted and no longer says so");
    // The kernel writes these sums down when it unmounts a disk.
    let sums = ["Free blocks count wrong (", "Free inodes count wrong ("];
    let found = complaints(&to);
    assert!(found.iter().all(|line| sums.iter().any(|sum| line.starts_with(sum))), "{found:?}");
    for purpose in [Use::Reading, Use::Disk] {
        let (mount, _device) = mount(&to, purpose).unwrap();
        assert_eq!(names(&upper(&mount)), there);
        for name in &there {
            assert_eq!(fs::read_to_string(upper(&mount).join(name)).unwrap(), *name);
        }
    }
    place.storage.seal_artifact(&id).unwrap();
    filesystem::check(&to).unwrap();
    assert!(names(&dir).is_empty(), "the copy is not a file of its own");
}

#[test]
fn what_was_deleted_and_open_does_not_stay_in_a_copy() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    let path = upper(&disk.mount).join("deleted");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let held = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let id = SnapshotId::from_parts(1, 1);
    let to = place.artifact(&id);
    place.storage.copy_mounted(&disk.mounted(), &disk.image, &to).unwrap().finish().unwrap();
    let used = |mount: &OwnedFd| {
        let stat = rustix::fs::statvfs(&*path_of(mount.as_fd())).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    let before = used(&disk.mount);
    let (mount, _device) = mount(&to, Use::Disk).unwrap();
    assert!(used(&mount) + (1 << 20) <= before, "{} and {before} bytes are used", used(&mount));
    drop(held);
}

#[test]
fn a_disk_with_something_in_its_journal_is_mounted_after_a_program_put_it_in_order() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    fs::write(upper(&disk.mount).join("f"), "kept").unwrap();
    disk.mounted().write_out().unwrap();
    // As a power cut leaves it, or who copies it without emptying its journal.
    let left = place.artifact(&SnapshotId::from_parts(1, 1));
    drop(place.storage.duplicate(&disk.image, &left).unwrap());
    drop(disk);
    let all_refuse = |why: &str| {
        is_bad(mount(&left, Use::Disk), why);
        is_bad(mount(&left, Use::Reading), why);
        is_bad(filesystem::check(&left), why);
        is_bad(filesystem::grow(&left), why);
    };
    all_refuse("incompatible features 0x4");
    // Who takes the mark off has not emptied the journal.
    let (at, bit) = HAS_TO_BE_RECOVERED;
    let mut word = [0; 4];
    open(&left).read_exact_at(&mut word, 1024 + at).unwrap();
    let without = (u32::from_le_bytes(word) & !bit).to_le_bytes();
    open(&left).write_all_at(&without, 1024 + at).unwrap();
    all_refuse("its journal is not empty");
    open(&left).write_all_at(&word, 1024 + at).unwrap();
    filesystem::recover(&left).unwrap();
    filesystem::check(&left).unwrap();
    let (mount, _device) = mount(&left, Use::Disk).unwrap();
    assert_eq!(fs::read_to_string(upper(&mount).join("f")).unwrap(), "kept");
}

/// As a node gets it whose host could not write to the disk any more.
#[test]
fn an_artifact_that_was_not_unmounted_is_put_in_order_when_it_is_sealed() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    fs::write(upper(&disk.mount).join("f"), "kept").unwrap();
    disk.mounted().write_out().unwrap();
    let id = SnapshotId::from_parts(1, 1);
    let left = place.artifact(&id);
    drop(place.storage.duplicate(&disk.image, &left).unwrap());
    is_bad(filesystem::check(&left), "incompatible features 0x4");
    place.storage.seal_artifact(&id).unwrap();
    filesystem::check(&left).unwrap();
    let (mount, _device) = mount(&left, Use::Reading).unwrap();
    assert_eq!(fs::read_to_string(upper(&mount).join("f")).unwrap(), "kept");
}

#[test]
fn a_disk_that_was_unmounted_is_not_touched() {
    let place = Place::new();
    let Disk { mount, device, image } = place.disk(DISK_BYTES);
    fs::write(upper(&mount).join("f"), "kept").unwrap();
    drop((mount, device));
    let superblock = || {
        let mut bytes = vec![0; 1024];
        File::open(&image).unwrap().read_exact_at(&mut bytes, 1024).unwrap();
        bytes
    };
    let before = superblock();
    filesystem::recover(&image).unwrap();
    assert_eq!(superblock(), before);
    filesystem::check(&image).unwrap();
}

#[test]
fn a_mounted_disk_is_mounted_again_only_as_such() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    let again = mount_ext4(&disk.device.path(), Use::Again).unwrap();
    fs::write(upper(&again).join("f"), "the same").unwrap();
    assert_eq!(fs::read_to_string(upper(&disk.mount).join("f")).unwrap(), "the same");
    is_bad(mount_ext4(&disk.device.path(), Use::Disk), "incompatible features 0x4");
}

#[test]
fn small_disks_and_those_of_earlier_versions_have_no_journal_and_are_copied_all_the_same() {
    for (bytes, is_older, wanted) in
        [(1 << 30, false, true), (64 << 20, false, true), (63 << 20, false, false), (1 << 30, true, false)]
    {
        let place = Place::new();
        let disk = if is_older { place.older_disk(bytes) } else { place.disk(bytes) };
        assert_eq!(has(&disk.image, HAS_JOURNAL), wanted, "{bytes} bytes");
        let stat = rustix::fs::statvfs(&*path_of(disk.mount.as_fd())).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        assert!(free > bytes / 5 * 4, "{free} of {bytes} bytes are free");
        fs::write(upper(&disk.mount).join("f"), "kept").unwrap();
        let to = place.artifact(&SnapshotId::from_parts(1, 1));
        place.storage.copy_mounted(&disk.mounted(), &disk.image, &to).unwrap().finish().unwrap();
        let (mount, _device) = mount(&to, Use::Reading).unwrap();
        assert_eq!(fs::read_to_string(upper(&mount).join("f")).unwrap(), "kept");
    }
}

/// A machine's kernel freezes its disk, which leaves a copy that needs nothing done to it.
#[test]
fn a_copy_of_a_frozen_disk_is_sound_as_it_is() {
    let place = Place::new();
    let disk = place.disk(DISK_BYTES);
    let stop = AtomicBool::new(true);
    let there = write(&upper(&disk.mount), &stop);
    let frozen = Frozen::freeze(disk.mount.as_fd()).unwrap();
    let to = place.artifact(&SnapshotId::from_parts(1, 1));
    drop(place.storage.duplicate(&disk.image, &to).unwrap());
    frozen.thaw().unwrap();
    assert!(has(&to, HAS_JOURNAL) && !has(&to, HAS_TO_BE_RECOVERED));
    filesystem::check(&to).unwrap();
    let (mount, _device) = mount(&to, Use::Reading).unwrap();
    assert_eq!(names(&upper(&mount)), there);
}

/// As a machine's kernel can leave it: read, the journal puts a link in the place of the directory that the host opens.
#[test]
fn a_journal_that_would_change_a_disk_after_it_was_checked_changes_nothing() {
    let place = Place::new();
    let Disk { mount: mounted, device, image } = place.disk(DISK_BYTES);
    fs::write(upper(&mounted).join("f"), "of the guest").unwrap();
    drop((mounted, device));
    let id = SnapshotId::from_parts(1, 1);
    let left = place.artifact(&id);
    drop(place.storage.duplicate(&image, &left).unwrap());
    let (number, mut block, offset) = inode_of(&left, "/upper");
    assert_eq!(block[offset + 1] >> 4, 4, "a directory");
    block[offset..offset + 2].copy_from_slice(&0o120_777_u16.to_le_bytes());
    journals::write(&left, number, &block);
    let layers = [place.dir.path().join("layer")];
    fs::create_dir(&layers[0]).unwrap();
    let why = "incompatible features 0x4";
    is_bad(mount(&left, Use::Reading), why);
    is_bad(filesystem::check(&left), why);
    is_bad(place.storage.compare(&layers, None, &id, true), why);
    // What the confined program makes of it is looked at anew.
    place.storage.seal_artifact(&id).unwrap();
    assert!(!has(&left, HAS_TO_BE_RECOVERED));
    for refused in [filesystem::check(&left), place.storage.compare(&layers, None, &id, true).map(drop)] {
        is_bad(refused, "its 'upper' is no directory");
    }
}
