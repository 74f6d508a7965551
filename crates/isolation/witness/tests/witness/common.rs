//! Cgroups that stand for sandboxes, and a sink that keeps what it is told.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_recorder::event::Event;
use atoll_witness::{Facts, Gate, Sink, Witness};

/// For waits that take longer on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Keeps events in memory; a test can make it take none (`blind`).
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) events: Mutex<Vec<(SandboxId, Event)>>,
    pub(crate) blind: AtomicBool,
}

impl Kept {
    pub(crate) fn of(&self, sandbox: &SandboxId) -> Vec<Event> {
        let events = self.events.lock().unwrap();
        events.iter().filter(|(id, _)| id == sandbox).map(|(_, event)| event.clone()).collect()
    }

    /// Waits until the events of a sandbox are as the test wants them.
    pub(crate) fn until(
        &self,
        sandbox: &SandboxId,
        what: &str,
        good: impl Fn(&[Event]) -> bool,
    ) -> Vec<Event> {
        let end = Instant::now() + DEADLINE;
        loop {
            let events = self.of(sandbox);
            if good(&events) {
                return events;
            }
            assert!(Instant::now() < end, "{what} did not come in {events:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Sink for Kept {
    fn takes(&self, _: &SandboxId) -> bool {
        !self.blind.load(Ordering::Acquire)
    }

    fn record(&self, sandbox: &SandboxId, event: Event) {
        self.events.lock().unwrap().push((sandbox.clone(), event));
    }

    fn written(&self, _: &SandboxId) {}

    fn last(&self, sandbox: &SandboxId, max: usize) -> Vec<Event> {
        let events = self.of(sandbox);
        events[events.len().saturating_sub(max)..].to_vec()
    }
}

/// A cgroup with others below that stand for sandboxes. Removed at the end.
#[derive(Debug)]
pub(crate) struct Parent(pub(crate) PathBuf);

/// Where version 2 is mounted.
fn unified() -> PathBuf {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line =
        table.lines().find(|line| line.contains(" - cgroup2 ")).expect("a host with cgroups of version 2");
    PathBuf::from(line.split(' ').nth(4).unwrap())
}

impl Parent {
    pub(crate) fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = unified().join(format!("atoll-witness-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn open(&self) -> OwnedFd {
        std::fs::File::open(&self.0).unwrap().into()
    }

    pub(crate) fn sandbox(&self) -> Sandbox {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let id = SandboxId::from_parts(1, u64::try_from(since.as_nanos()).unwrap());
        let path = self.0.join(id.as_str());
        std::fs::create_dir(&path).unwrap();
        let cgroup = std::fs::metadata(&path).unwrap().ino();
        Sandbox { id, path, cgroup }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            if entry.path().is_dir() {
                drop(std::fs::write(entry.path().join("cgroup.kill"), "1"));
                remove(&entry.path());
            }
        }
        remove(&self.0);
    }
}

/// The kernel lets go of a cgroup once its last process is.
fn remove(path: &Path) {
    let end = Instant::now() + DEADLINE;
    while std::fs::remove_dir(path).is_err() && path.try_exists().unwrap() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) path: PathBuf,
    pub(crate) cgroup: u64,
}

impl Sandbox {
    pub(crate) fn watch(&self, witness: &Witness) {
        // What is bound from the host, as in a sandbox without an image.
        let bound = vec![std::fs::metadata("/usr").unwrap().dev()];
        let facts = Facts { bound, ..Facts::default() };
        witness.watch(&self.id, self.cgroup, facts, Gate::default()).unwrap();
    }

    /// Starts a shell script as the first process of a pid namespace, in the sandbox's cgroup.
    pub(crate) fn start(&self, script: &str) -> Child {
        let enter = format!("echo 0 > {}/cgroup.procs && exec sh -c \"$0\"", self.path.display());
        Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--net", "sh", "-c", &enter, script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The same, to its end; gives what it printed.
    pub(crate) fn run(&self, script: &str) -> String {
        let output = self.start(script).wait_with_output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A data directory with a witness on it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) parent: Parent,
    pub(crate) sink: Arc<Kept>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-witness-test-").tempdir().unwrap();
        Self { dir, parent: Parent::new(), sink: Arc::default() }
    }

    pub(crate) fn place(&self) -> PathBuf {
        self.dir.path().join("witness")
    }

    pub(crate) fn witness(&self) -> Witness {
        let witness = Witness::open(&self.place(), self.sink.clone()).unwrap();
        witness.hook(self.parent.open().as_fd()).unwrap();
        witness
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A test that failed left its mount.
        atoll_witness::close_pins(&self.place());
    }
}
