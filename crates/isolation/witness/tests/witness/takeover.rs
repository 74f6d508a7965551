//! The server is killed again and again while a sandbox works: the next one loses nothing and repeats nothing.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Host};
use atoll_core::id::SandboxId;
use atoll_recorder::event::{Event, What};
use atoll_witness::{Facts, Gate, Sink, Witness};

/// What a server is told: its data directory, the parent of cgroups, the sandbox and the number of its cgroup.
const ROLE: &str = "ATOLL_WITNESS_TEST_SERVER";
const PROGRAMS: usize = 600;

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

fn read(file: &Path) -> Vec<Event> {
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
    witness.watch(&id, cgroup, Facts::default(), Gate::default()).unwrap();
    std::fs::write(dir.join("ready"), "").unwrap();
    loop {
        std::thread::park();
    }
}

fn start(role: &str, dir: &Path) -> Child {
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
    let role = format!("{}|{}|{}|{}", dir.display(), host.parent.0.display(), sandbox.id, sandbox.cgroup);
    let mut server = start(&role, dir);
    let job = format!("i=0; while [ $i -lt {PROGRAMS} ]; do i=$((i+1)); /bin/true n$i; done; exit 0");
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
        if ends > PROGRAMS {
            // One more look: what is repeated would come now.
            std::thread::sleep(Duration::from_millis(200));
            break read(&dir.join("events"));
        }
        assert!(Instant::now() < end, "after {kills} kills {} events, {ends} ends", events.len());
        std::thread::sleep(Duration::from_millis(20));
    };
    server.kill().unwrap();
    server.wait().unwrap();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let (mut forks, mut ends) = (0, 0);
    for event in &events {
        match &event.what {
            What::ProcessStarted(started) => {
                let word = started.argv.get(1).filter(|word| word.starts_with('n'));
                *seen.entry(word.cloned().unwrap_or_default()).or_default() += 1;
            }
            What::ProcessForked { .. } => forks += 1,
            What::ProcessExited(_) => ends += 1,
            other => panic!("{other:?}"),
        }
    }
    let wanted = (1..=PROGRAMS).map(|number| (format!("n{number}"), 1)).chain([(String::new(), 1)]).collect();
    assert_eq!(seen, wanted, "after {kills} kills");
    assert_eq!((forks, ends), (PROGRAMS, PROGRAMS + 1), "after {kills} kills");
}
