//! The server is killed again and again while a sandbox works: the next one loses nothing and repeats nothing.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Host, Sandbox};
use atoll_core::id::SandboxId;
use atoll_recorder::event::{Event, What};
use atoll_witness::{Facts, Gate, Sink, Witness};

/// What a server is told: its data directory, the parent of cgroups, the sandbox and the number of its cgroup; and, if it is
/// to kill itself somewhere, where.
const ROLE: &str = "ATOLL_WITNESS_TEST_SERVER";
const PROGRAMS: usize = 300;

/// A journal of lines, slow to say that it has written.
#[derive(Debug)]
struct Lines {
    file: PathBuf,
    waiting: Mutex<Vec<u8>>,
}

impl Sink for Lines {
    fn takes(&self, _: &SandboxId) -> bool {
        true
    }

    fn record(&self, _: &SandboxId, event: Event) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.extend(serde_json::to_vec(&event).unwrap());
        waiting.push(b'\n');
    }

    fn written(&self, _: &SandboxId) {
        let bytes = std::mem::take(&mut *self.waiting.lock().unwrap());
        OpenOptions::new().create(true).append(true).open(&self.file).unwrap().write_all(&bytes).unwrap();
        // The kill often comes between writing and giving the room back.
        std::thread::sleep(Duration::from_millis(20));
    }

    fn last(&self, _: &SandboxId, max: usize) -> Vec<Event> {
        let events = read(&self.file);
        events[events.len().saturating_sub(max)..].to_vec()
    }
}

pub(crate) fn read(file: &Path) -> Vec<Event> {
    let Ok(file) = File::open(file) else { return Vec::new() };
    BufReader::new(file).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

fn serve(role: &str) -> ! {
    let parts: Vec<_> = role.split('|').collect();
    let dir = Path::new(parts[0]);
    let sink = Lines { file: dir.join("events"), waiting: Mutex::default() };
    let witness = Witness::open(&dir.join("witness"), Arc::new(sink)).unwrap();
    witness.hook(File::open(parts[1]).unwrap().as_fd()).unwrap();
    let (id, cgroup) = (parts[2].parse::<SandboxId>().unwrap(), parts[3].parse().unwrap());
    if let Some(failpoint) = parts.get(4) {
        let kill = || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        atoll_failpoint::cfg_callback(*failpoint, move || kill().unwrap()).unwrap();
    }
    witness.watch(&id, cgroup, Facts::default(), Gate::default()).unwrap();
    std::fs::write(dir.join("ready"), "").unwrap();
    loop {
        std::thread::park();
    }
}

/// The role of a server for this sandbox.
pub(crate) fn role(host: &Host, sandbox: &Sandbox) -> String {
    let dir = host.dir.path().display();
    format!("{dir}|{}|{}|{}", host.parent.0.display(), sandbox.id, sandbox.cgroup)
}

/// Starts a server, and waits until it watches. What it records is in the file `events` of `dir`.
pub(crate) fn start(role: &str, dir: &Path) -> Child {
    drop(std::fs::remove_file(dir.join("ready")));
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "takeover::a_server_that_is_killed_loses_nothing_and_repeats_nothing",
            "--nocapture",
        ])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + DEADLINE;
    while !dir.join("ready").try_exists().unwrap() {
        assert!(Instant::now() < end, "the server does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself again as the server")]
fn a_server_that_is_killed_loses_nothing_and_repeats_nothing() {
    if let Ok(role) = std::env::var(ROLE) {
        serve(&role);
    }
    let host = Host::new();
    let sandbox = host.parent.sandbox();
    let dir = host.dir.path();
    let role = role(&host, &sandbox);
    let mut server = start(&role, dir);
    // Slowly enough that what comes while no server is there goes into the ring.
    let job =
        format!("i=0; while [ $i -lt {PROGRAMS} ]; do i=$((i+1)); /bin/true n$i; sleep 0.01; done; exit 0");
    let mut job = sandbox.start(&job);
    let mut kills = 0;
    while job.try_wait().unwrap().is_none() || kills < 5 {
        std::thread::sleep(Duration::from_millis(40 + 13 * (kills % 7)));
        server.kill().unwrap();
        server.wait().unwrap();
        kills += 1;
        server = start(&role, dir);
    }
    let end = Instant::now() + DEADLINE;
    let events = loop {
        let events = read(&dir.join("events"));
        let ends = events.iter().filter(|e| matches!(e.what, What::ProcessExited(_))).count();
        if ends > 2 * PROGRAMS {
            // One more look: what is repeated would come now.
            std::thread::sleep(Duration::from_millis(200));
            break read(&dir.join("events"));
        }
        assert!(Instant::now() < end, "after {kills} kills {} events, {ends} ends", events.len());
        std::thread::sleep(Duration::from_millis(20));
    };
    server.kill().unwrap();
    server.wait().unwrap();
    // The shell itself is not forked in its cgroup.
    let wanted = Told { words: words(PROGRAMS), starts: 1 + 2 * PROGRAMS, forks: 2 * PROGRAMS };
    assert_eq!(Told::by(&events), wanted, "after {kills} kills");
}

/// What is told of a sandbox in which each program ends before the next one starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// First arguments of programs that begin with an `n`, in the order of their events.
    pub(crate) words: Vec<String>,
    /// Programs that were started. Each of their processes ended.
    pub(crate) starts: usize,
    pub(crate) forks: usize,
}

impl Told {
    /// Panics when anything else is told, or a process has not ended.
    pub(crate) fn by(events: &[Event]) -> Self {
        let (mut told, mut ends) = (Self::default(), 0);
        for event in events {
            match &event.what {
                What::ProcessStarted(started) => {
                    told.starts += 1;
                    told.words.extend(started.argv.get(1).filter(|word| word.starts_with('n')).cloned());
                }
                What::ProcessForked { .. } => told.forks += 1,
                What::ProcessExited(_) => ends += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ends, told.starts, "ends beside {told:?}");
        told
    }
}

/// `n1`, `n2` and so on, so many.
pub(crate) fn words(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("n{number}")).collect()
}
