//! The guard with the real kernel: a disk that may be larger than the host's, and a process that fills it.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_isolation::HostDisk;
use atoll_isolation_host::{Cgroups, Controller, Halt, end_installation};
use atoll_isolation_storage::{Guard, PoolSize, Storage, StorageConfig, attach};

/// What the writer writes: pieces of so many MiB, together more than there is room for at first. With the room that is
/// given back, twice the margin must be left at the end, beside what pool and host need for themselves.
const PIECES: u32 = 22;
const PIECE_MIB: u32 = 64;
/// Everything that the test waits for happens within this, or it fails.
const DEADLINE: Duration = Duration::from_secs(120);
/// How long one that stands still is watched.
const SETTLES: Duration = Duration::from_secs(3);

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A directory with mounts that go with it.
struct Place {
    dir: tempfile::TempDir,
    mounts: Vec<PathBuf>,
}

impl Place {
    fn mount(&mut self, name: &str, source: &Path, options: &str) -> PathBuf {
        let at = self.dir.path().join(name);
        fs::create_dir_all(&at).unwrap();
        // A process of another test that is just being made may still have a copy of the mount that was here before, and the
        // kernel mounts nothing read-only that is mounted for writing.
        until("the kernel to let go of the device", || {
            let mut mount = Command::new("mount");
            mount.args(["-o", options]).arg(source).arg(&at).status().unwrap().success()
        });
        self.mounts.push(at.clone());
        at
    }

    fn unmount(&mut self) {
        let at = self.mounts.pop().unwrap();
        run(Command::new("umount").arg(at));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for at in self.mounts.iter().rev() {
            drop(Command::new("umount").arg("-l").arg(at).status());
        }
    }
}

fn make_file_system(image: &Path, bytes: u64) {
    File::create(image).unwrap().set_len(bytes).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image).stderr(Stdio::null()));
}

/// A process in a sandbox's cgroups that writes and syncs one piece after the other.
fn writer(instance: &str, disk: &Path) -> Child {
    let cgroups = Cgroups::open(&format!("atoll-{instance}")).unwrap();
    let layout = cgroups.layout();
    let of_memory = layout.with(Controller::Memory).unwrap();
    let mut joins = String::new();
    for hierarchy in [layout.unified(), of_memory] {
        let dir = hierarchy.path.join(format!("atoll-{instance}/writer"));
        fs::create_dir_all(&dir).unwrap();
        joins += "echo $$ > ";
        joins += dir.to_str().unwrap();
        joins += "/cgroup.procs && ";
    }
    let script = format!(
        "{joins} cd {} && for i in $(seq 1 {PIECES}); do yes piece-$i | head -c {PIECE_MIB}M > f$i && sync f$i \
         || exit 9; done",
        disk.display()
    );
    Command::new("sh").arg("-c").arg(script).spawn().unwrap()
}

/// Whether the kernel has stopped the writer.
fn stands_still(instance: &str) -> bool {
    let cgroups = Cgroups::open(&format!("atoll-{instance}")).unwrap();
    let dir = cgroups.layout().unified().path.join(format!("atoll-{instance}/writer"));
    fs::read_to_string(dir.join("cgroup.events")).unwrap().lines().any(|line| line == "frozen 1")
}

/// What a test made in the kernel: removed when this is dropped, whether the test passed or failed, and nothing that is
/// left stands still.
struct Installation(String);

impl Drop for Installation {
    fn drop(&mut self) {
        if let Ok(halt) = Halt::open(&self.0) {
            halt.hold(false);
        }
        drop(end_installation(&self.0));
    }
}

/// A file of another process that takes room on the host's file system.
fn fill(host: &Path, bytes: u64) -> PathBuf {
    let filler = host.join("filler");
    let file = File::create(&filler).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    filler
}

/// What the writer has written, bytes.
fn written(disk: &Path) -> u64 {
    (1..=PIECES)
        .filter_map(|piece| fs::metadata(disk.join(format!("f{piece}"))).ok())
        .map(|meta| meta.len())
        .sum()
}

/// A writer wants more than there is, until another process gives half of the host's disk back.
fn stops_and_goes_on(name: &str, taken_first: bool) {
    let dir = tempfile::Builder::new().prefix("atoll-guard-").tempdir_in("/var/tmp").unwrap();
    let mut place = Place { dir, mounts: Vec::new() };
    let image = place.dir.path().join("host.img");
    make_file_system(&image, 2 << 30);
    let host = place.mount("host", &image, "loop");
    let instance = format!("{name}{:06x}", std::process::id() & 0x00ff_ffff);
    // A pool is as large as what is free when it is made.
    let taken = taken_first.then(|| fill(&host, 1 << 30));
    let config =
        StorageConfig { dir: host.join("storage"), instance: instance.clone(), pool: PoolSize::default() };
    let storage = Arc::new(Storage::open(&config).unwrap());
    let filler = taken.unwrap_or_else(|| fill(&host, 1 << 30));
    let disk = storage.disks().join("disk.img");
    make_file_system(&disk, 2 << 30);
    let device = attach(&File::options().read(true).write(true).open(&disk).unwrap()).unwrap();
    let mounted = place.mount("disk", &device.path(), "discard");

    let guard = Guard::start(Arc::clone(&storage), &host, Halt::open(&instance).unwrap()).unwrap();
    let full = guard.full();
    assert!(!*full.borrow());
    let installation = Installation(instance);
    let mut writer = writer(&installation.0, &mounted);
    until("the guard to see that it is full", || *full.borrow());
    until("the writer to leave the system call that it is in", || stands_still(&installation.0));
    let before = written(&mounted);
    std::thread::sleep(SETTLES);
    assert_eq!(written(&mounted), before, "it goes on writing although there is no room");
    assert!(writer.try_wait().unwrap().is_none(), "it ended");
    let spaces = storage.spaces().unwrap();
    assert!(
        spaces.iter().all(|space| space.free_bytes > 0),
        "it was stopped when nothing was left: {spaces:?}"
    );
    fs::remove_file(filler).unwrap();
    until("it to go on", || !*full.borrow());
    let mut status = None;
    until("it to write the rest", || {
        status = writer.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{status:?}");
    // Read from the disk, not from memory.
    place.unmount();
    let mounted = place.mount("disk", &device.path(), "ro");
    for piece in 1..=PIECES {
        let compare =
            format!("yes piece-{piece} | head -c {PIECE_MIB}M | cmp - {}/f{piece}", mounted.display());
        run(Command::new("sh").arg("-c").arg(compare));
    }
    place.unmount();
}

#[test]
fn what_was_answered_is_kept_although_the_host_had_no_room() {
    stops_and_goes_on("0a", false);
}

#[test]
fn a_pool_that_is_full_grows_with_the_host_while_it_is_open() {
    stops_and_goes_on("0b", true);
}
