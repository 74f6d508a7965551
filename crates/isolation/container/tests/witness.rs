//! What the host's kernel tells of a container, compared with what `strace` saw inside of the same job.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::id::{ExecId, SandboxId};
use atoll_core::spec::Resources;
use atoll_guest_protocol::client::ExecEvent;
use atoll_isolation::conformance::{DEADLINE, Sandbox};
use atoll_recorder::event::{Event, Origin, Process, ProcessStarted, What};
use atoll_witness::{Sink, Witness};
use common::{Containers, containers};

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<(SandboxId, Event)>>);

impl Sink for Kept {
    fn takes(&self, _: &SandboxId) -> bool {
        true
    }

    fn record(&self, sandbox: &SandboxId, event: Event) {
        self.0.lock().unwrap().push((sandbox.clone(), event));
    }

    fn written(&self, _: &SandboxId) {}

    fn last(&self, _: &SandboxId, _: usize) -> Vec<Event> {
        Vec::new()
    }
}

impl Kept {
    fn of(&self, sandbox: &SandboxId) -> Vec<Event> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(id, _)| id == sandbox)
            .map(|(_, event)| event.clone())
            .collect()
    }
}

/// Harness, sink, and the witness between them.
fn watched() -> (Containers, Arc<Kept>, Arc<Witness>) {
    let mut harness = containers();
    let sink = Arc::new(Kept::default());
    let witness = Arc::new(Witness::open(&harness.path.join("witness"), sink.clone()).unwrap());
    harness.witness = Some(Arc::clone(&witness));
    (harness, sink, witness)
}

/// Runs a script as an exec, and waits until the kernel told of all its ends. Gives what it printed, and its events.
async fn exec(sandbox: &Sandbox, sink: &Kept, script: &str) -> (String, Vec<Event>) {
    let exec = ExecId::from_parts(7, u64::try_from(sink.0.lock().unwrap().len()).unwrap());
    let mut stream = sandbox.start(exec.as_str(), "root", script).await;
    let mut printed = Vec::new();
    let exited = loop {
        match tokio::time::timeout(3 * DEADLINE, stream.next()).await.unwrap().unwrap().unwrap() {
            ExecEvent::Output { stderr: false, bytes } => printed.extend_from_slice(&bytes),
            ExecEvent::Output { stderr: true, .. } => {}
            ExecEvent::Exited(exited) => break exited,
        }
        drop(stream.ack(stream.offset).await);
    };
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert_eq!(exited.code, Some(0), "{printed}");
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        let all = sink.of(&sandbox.id).into_iter();
        let events: Vec<_> = all.filter(|event| event.exec.as_ref() == Some(&exec)).collect();
        let count = |wanted: fn(&What) -> bool| events.iter().filter(|event| wanted(&event.what)).count();
        let forked = count(|what| matches!(what, What::ProcessForked { .. }));
        let ended = count(|what| matches!(what, What::ProcessExited(_)));
        if forked > 0 && forked == ended {
            return (printed, events);
        }
        assert!(tokio::time::Instant::now() < end, "{forked} processes and {ended} ends: {events:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn starts(events: &[Event]) -> Vec<(Process, &ProcessStarted)> {
    events
        .iter()
        .filter_map(|event| match &event.what {
            What::ProcessStarted(started) => Some((event.process.unwrap(), started)),
            _ => None,
        })
        .collect()
}

/// How often each.
type Counts = BTreeMap<String, usize>;

/// What a job did, as the witness or as `strace` tells it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    programs: Counts,
    forks: usize,
    ends: Counts,
    connects: Counts,
    listens: usize,
    accepts: usize,
}

fn add(counts: &mut Counts, what: String) {
    *counts.entry(what).or_default() += 1;
}

impl Seen {
    fn by_kernel(events: &[Event]) -> Self {
        let mut seen = Self::default();
        for event in events {
            match &event.what {
                What::ProcessStarted(started) => {
                    assert!(!started.cut, "{started:?}");
                    add(&mut seen.programs, format!("{:?}", started.argv));
                }
                What::ProcessForked { .. } => seen.forks += 1,
                What::ProcessExited(end) => add(&mut seen.ends, format!("{:?} {:?}", end.code, end.signal)),
                What::Connect(socket) => add(&mut seen.connects, socket.peer.unwrap().to_string()),
                What::Listen(_) => seen.listens += 1,
                What::Accept(_) => seen.accepts += 1,
                other => panic!("{other:?}"),
            }
        }
        seen
    }

    /// From the output of `strace -f -s 4096 -e trace=process,network`.
    fn by_strace(text: &str) -> Self {
        let mut seen = Self::default();
        let mut begun: BTreeMap<&str, String> = BTreeMap::new();
        for line in text.lines() {
            let (pid, rest) = line.split_once(' ').unwrap();
            let rest = rest.trim_start();
            if let Some(start) = rest.strip_suffix(" <unfinished ...>") {
                begun.insert(pid, start.to_owned());
                continue;
            }
            let whole = match rest.split_once(" resumed>") {
                Some((_, end)) => format!("{}{end}", begun.remove(pid).unwrap_or_default()),
                None => rest.to_owned(),
            };
            seen.line(&whole);
        }
        seen
    }

    fn line(&mut self, line: &str) {
        let result = line.rsplit_once(" = ").map_or("", |(_, result)| result);
        let number = |text: &str| text.split([' ', ')']).next().unwrap().parse::<i64>().ok();
        let good = number(result).is_some_and(|result| result >= 0);
        let call = line.split('(').next().unwrap_or_default();
        match call {
            "execve" if good => {
                let from = line.find(", [").unwrap() + 2;
                let to = line.find("], 0x").unwrap() + 1;
                add(&mut self.programs, line[from..to].to_owned());
            }
            "clone" | "clone3" | "fork" | "vfork" if good && !line.contains("CLONE_THREAD") => {
                self.forks += 1;
            }
            "listen" if good => self.listens += 1,
            "accept" | "accept4" if good => self.accepts += 1,
            "connect" if line.contains("sa_family=AF_INET") => {
                let between = |start: &str, end: &str| {
                    let rest = &line[line.find(start).unwrap() + start.len()..];
                    rest[..rest.find(end).unwrap()].to_owned()
                };
                let ip = if line.contains("AF_INET6") {
                    between("inet_pton(AF_INET6, \"", "\"")
                } else {
                    between("inet_addr(\"", "\"")
                };
                let port: u16 = between("htons(", ")").parse().unwrap();
                add(&mut self.connects, SocketAddr::new(ip.parse().unwrap(), port).to_string());
            }
            _ => {}
        }
        if let Some(code) = line.strip_prefix("+++ exited with ") {
            add(&mut self.ends, format!("{:?} None", number(code)));
        } else if let Some(name) = line.strip_prefix("+++ killed by ") {
            let signal = match name.split(' ').next().unwrap() {
                "SIGKILL" => 9,
                "SIGTERM" => 15,
                other => panic!("{other}"),
            };
            add(&mut self.ends, format!("None Some({signal})"));
        }
    }
}

/// A build of a hundred targets, a server and its clients, and processes that end badly.
const JOB: &str = r#"
cd /tmp
printf 'all:' > Makefile; for i in $(seq 100); do printf ' t%s' $i; done >> Makefile; echo >> Makefile
for i in $(seq 100); do printf 't%s:\n\t@cat /etc/hostname > /dev/null; expr %s + 1 > /dev/null; test -e /tmp\n' $i $i; done >> Makefile
make -s -j4
python3 -c 'import http.server; http.server.HTTPServer(("127.0.0.1", 8123), http.server.SimpleHTTPRequestHandler).serve_forever()' 2>/dev/null &
server=$!
until curl -s -o /dev/null http://127.0.0.1:8123/; do sleep 0.1; done
for i in 1 2 3 4 5; do curl -s -o /dev/null http://127.0.0.1:8123/Makefile; done
curl -s -m 2 -o /dev/null http://127.0.0.1:9/
kill -9 $server
wait $server
sh -c 'kill -TERM $$'
sh -c 'exit 42'
exit 0
"#;

#[tokio::test(flavor = "multi_thread")]
async fn every_process_and_connection_is_there_and_none_is_invented() {
    let (harness, sink, witness) = watched();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let quoted = JOB.replace('\'', r"'\''");
    let script = format!(
        "printf '%s' '{quoted}' > /tmp/job.sh; strace -f -s 4096 -e trace=process,network -o /tmp/seen sh /tmp/job.sh; cat /tmp/seen"
    );
    let (text, events) = exec(&sandbox, &sink, &script).await;
    let strace = Seen::by_strace(&text);
    assert!(strace.forks >= 300, "{} processes", strace.forks);
    // strace itself, the shell around it and `cat` it does not see; the shell of the job is forked and executed by it.
    let job = starts(&events).iter().find(|(_, s)| s.argv == ["sh", "/tmp/job.sh"]).unwrap().0;
    let mut family = BTreeSet::from([job]);
    let mut inside = Vec::new();
    for event in &events {
        if let What::ProcessForked { parent } = event.what
            && family.contains(&parent)
        {
            family.insert(event.process.unwrap());
        }
        let outside = matches!(event.what, What::ProcessForked { .. }) && event.process == Some(job);
        if family.contains(&event.process.unwrap()) && !outside {
            inside.push(event.clone());
        }
    }
    let kernel = Seen::by_kernel(&inside);
    assert_eq!(kernel, strace);
    println!(
        "{} programs, {} forks, {} connections",
        kernel.programs.values().sum::<usize>(),
        kernel.forks,
        kernel.connects.values().sum::<usize>()
    );
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_told_by_origin_and_the_exec_cannot_be_left() {
    let (harness, sink, witness) = watched();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let script = "cp /bin/true /tmp/copy; /bin/true; /tmp/copy; ln -s /bin/true /tmp/link; /tmp/link; \
        mkdir -p /sys/fs/cgroup/elsewhere 2>/dev/null; setsid sh -c 'exec /bin/true detached'; \
        python3 -c 'import os; fd = os.memfd_create(\"m\"); os.write(fd, open(\"/bin/true\", \"rb\").read()); os.execve(fd, [\"memory\"], {})'; exit 0";
    let (_, events) = exec(&sandbox, &sink, script).await;
    let starts = starts(&events);
    let origin = |word: &str| {
        let (_, started) = starts
            .iter()
            .find(|(_, s)| s.argv[0] == word || s.argv[1..] == [word])
            .unwrap_or_else(|| panic!("{word}: {starts:#?}"));
        let file = started.file.as_ref().unwrap();
        (file.origin, file.digest.clone())
    };
    let (of_image, digest) = origin("/bin/true");
    assert_eq!(of_image, Origin::Image);
    assert_eq!(digest, Some(format!("blake3:{}", blake3::hash(&std::fs::read("/bin/true").unwrap()))));
    assert_eq!(origin("/tmp/copy").0, Origin::Written);
    assert_eq!(origin("/tmp/link").0, Origin::Image);
    assert_eq!(origin("detached").0, Origin::Image);
    assert_eq!(origin("memory").0, Origin::Other);
    assert!(starts.iter().all(|(_, s)| s.uid == 0));
    // The agent is told, too, and belongs to no exec.
    let agent = sink.of(&sandbox.id).into_iter().find(|e| matches!(e.what, What::ProcessStarted(_))).unwrap();
    assert_eq!(agent.exec, None);
    sandbox.destroy().await;
    witness.close();
    assert!(!atoll_witness::is_mounted(&harness.path.join("witness")));
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_named_and_what_was_changed_is_written() {
    let (mut harness, sink, witness) = watched();
    let (low, high) = (harness.path.join("sha256-low"), harness.path.join("sha256-high"));
    // A shell, and what it is linked with.
    let linked = std::process::Command::new("ldd").arg("/bin/dash").output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    let files = libraries.map(|path| (&low, path)).chain([
        (&low, "/bin/dash"),
        (&low, "/bin/true"),
        (&high, "/bin/above"),
    ]);
    for (layer, path) in files {
        let place = layer.join(&path[1..]);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(if path == "/bin/above" { "/bin/dash" } else { path }, place).unwrap();
    }
    std::os::unix::fs::symlink("dash", low.join("bin/sh")).unwrap();
    std::fs::create_dir(low.join("etc")).unwrap();
    std::fs::write(low.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
    harness.root = atoll_isolation::RootFs::Layers(vec![low, high]);
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let (_, events) =
        exec(&sandbox, &sink, "/bin/above -c : one; : >> /bin/above; /bin/above -c : two; /bin/true three")
            .await;
    let starts = starts(&events);
    let file = |word: &str| {
        let (_, started) = starts
            .iter()
            .find(|(_, s)| s.argv.last().is_some_and(|a| a == word))
            .unwrap_or_else(|| panic!("{word}: {starts:#?}"));
        let file = started.file.clone().unwrap();
        (file.origin, file.layer)
    };
    assert_eq!(file("one"), (Origin::Image, Some("sha256-high".to_owned())));
    assert_eq!(file("two"), (Origin::Written, None));
    assert_eq!(file("three"), (Origin::Image, Some("sha256-low".to_owned())));
    sandbox.destroy().await;
    witness.close();
}
