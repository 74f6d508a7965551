//! Machines with what runs in them: they sleep, fork, and are kept in snapshots.

use super::confined;
use super::network::ASK;
use crate::common::machines::{SMALL, World, machine, world, world_with};
use crate::common::outside::{Outside, WEB, allow};
use crate::common::{argv, code};
use atoll_api::{CreateSandbox, CreateTemplate, ForkSandbox, PauseSandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::SnapshotKind;
use atoll_core::spec::{IsolationLevel, ResourcesDraft};

#[tokio::test(flavor = "multi_thread")]
async fn sleeps_with_its_memory_and_forks() {
    let World { _dir, mut server } = world().await;
    let sandbox = server.client.create_sandbox(&machine()).await.unwrap().id;
    server.sh(&sandbox, "echo kept > /root/disk; echo kept > /dev/shm/memory").await;
    let create = argv(&["sh", "-c", "while :; do date +%s >> /root/beats; sleep 0.2; done"]);
    let beating = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(&sandbox, &pause).await.unwrap();
    assert!(host::processes(&sandbox).is_empty());
    server.kill();
    server.restart();
    // It wakes when it is used, as it was: the clock is right, the memory is there, its processes run.
    let seen = server.sh(&sandbox, "cat /root/disk /dev/shm/memory; date +%s").await;
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines[..2], ["kept", "kept"], "{seen:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(lines[2].parse().unwrap()) < 60, "{seen:?} and it is {now}");
    assert_eq!(server.client.get_exec(&sandbox, &beating, 0).await.unwrap().state, ExecState::Running);
    let beats = "wc -l < /root/beats";
    let count: u64 = server.sh(&sandbox, beats).await.stdout.trim().parse().unwrap();
    wait_until("it beats on", || async {
        (server.sh(&sandbox, beats).await.stdout.trim().parse::<u64>().unwrap() > count).then_some(())
    })
    .await;
    // Forks go on from the disk.
    let fork = ForkSandbox { count: 2, ..ForkSandbox::default() };
    let forks = server.client.fork_sandbox(&sandbox, &fork).await.unwrap();
    let ids: Vec<String> = forks.results.into_iter().map(|made| made.sandbox.expect("a fork").id).collect();
    assert_eq!(ids.len(), 2);
    let mut random = Vec::new();
    for id in &ids {
        assert_eq!(server.sh(id, "cat /root/disk").await.stdout, "kept\n");
        random.push(server.sh(id, "head -c 16 /dev/urandom | od -An -tx1; cat /etc/machine-id").await.stdout);
    }
    assert_ne!(random[0], random[1], "two machines have the same randomness");
    server.finish().await;
}

/// Holds one connection out of the sandbox open and one inside, and says when the first ends and how the second goes.
const CONNECTED: &str = r#"
use IO::Socket::INET;
my $own = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
if (!fork) {
    my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $own->sockport) or die;
    for (my $i = 1; ; $i++) { syswrite $s, "$i\n" or exit; select undef, undef, undef, 0.1 }
}
if (!fork) {
    my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 80) or die;
    open my $f, ">", "/dev/shm/outer"; syswrite $f, "open\n";
    my $got = sysread $s, my $buffer, 1;
    syswrite $f, defined $got ? "got $got\n" : "$!\n"; exit;
}
my $s = $own->accept;
while (<$s>) { open my $f, ">", "/dev/shm/inner.new"; print $f $_; close $f; rename "/dev/shm/inner.new", "/dev/shm/inner" }
"#;
/// Counts in memory, and writes every number down.
const COUNTING: &str = "i=0; while :; do i=$((i+1)); echo $i >> /dev/shm/count; sleep 0.1; done";
/// How far it is, if no number is missing and none came twice.
const COUNTED: &str = "awk '$1 != NR { exit 1 } END { print NR }' /dev/shm/count";

async fn number(server: &Server, sandbox: &str, script: &str) -> u64 {
    let seen = server.sh(sandbox, script).await;
    seen.stdout.trim().parse().unwrap_or_else(|_| panic!("{sandbox}: {script}: {seen:?}"))
}

async fn goes_on(server: &Server, sandbox: &str) {
    for script in [COUNTED, "cat /dev/shm/inner"] {
        let before = number(server, sandbox, script).await;
        wait_until("it goes on", async || (number(server, sandbox, script).await > before).then_some(()))
            .await;
    }
}

/// Children that go on with the parent's processes: with another identity, through their own gateway, each by itself.
#[tokio::test(flavor = "multi_thread")]
async fn forks_go_on_with_what_ran() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let World { _dir, mut server } = world_with(&outside.args()).await;
    let template: CreateTemplate = serde_json::from_value(serde_json::json!({
        "name": "tool",
        "image": "debian",
        "isolation": "microvm",
        "resources": SMALL,
        "start": "echo started >> /root/starts; exec sleep 100000",
    }))
    .unwrap();
    server.client.create_template(&template).await.unwrap();
    let create = CreateSandbox {
        template: Some("tool".into()),
        egress: Some(allow(&["web.test:80"])),
        ..CreateSandbox::default()
    };
    let parent = server.client.create_sandbox(&create).await.unwrap().id;
    let address = server.sh(&parent, "getent ahostsv4 web.test | head -n1 | cut -d' ' -f1").await.stdout;
    server.shell(&parent, COUNTING).await;
    let connect = argv(&["perl", "-e", CONNECTED, address.trim()]);
    let connected = server.client.create_exec(&parent, &connect).await.unwrap().exec.id;
    wait_until("it is connected", async || {
        (server.sh(&parent, "cat /dev/shm/outer; test -s /dev/shm/inner").await.stdout == "open\n")
            .then_some(())
    })
    .await;
    server
        .sh(&parent, "echo kept > /root/disk; echo 0123456789abcdef0123456789abcdef > /etc/machine-id")
        .await;
    let before = number(&server, &parent, COUNTED).await;
    let forked = server.cli(&["fork", &parent, "-n", "2", "--memory"]).ok();
    let children: Vec<&str> = forked.stdout.lines().collect();
    assert_eq!(children.len(), 2, "{forked:?}");
    let mut drawn = std::collections::BTreeSet::new();
    for child in &children {
        confined(child);
        assert!(number(&server, child, COUNTED).await >= before);
        goes_on(&server, child).await;
        assert_eq!(
            server.sh(child, "cat /root/disk; uname -n; cat /etc/hostname").await.stdout,
            format!("kept\n{child}\n{child}\n")
        );
        let who = server.sh(child, "cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1").await.stdout;
        assert!(!who.starts_with("0123456789abcdef"), "{who}");
        drawn.extend(who.lines().map(str::to_owned));
        // The connection of its parent ends at once, and it can make others.
        wait_until("it is told", async || {
            (server.sh(child, "cat /dev/shm/outer").await.stdout == "open\nConnection reset by peer\n")
                .then_some(())
        })
        .await;
        let asked = server.run(child, argv(&["perl", "-e", ASK, "web.test", "80", "web.test"])).await.exec.id;
        let answer = crate::common::outputs(&server, child, &asked).await;
        assert!(String::from_utf8_lossy(&answer.0).contains("hello from"), "{answer:?}");
    }
    assert_eq!(drawn.len(), 4, "two of them are the same: {drawn:?}");
    assert_eq!(server.sh(&parent, "cat /dev/shm/outer").await.stdout, "open\n");
    goes_on(&server, &parent).await;
    // The template's start command went on with the rest: it is not started again, neither now nor by the next server.
    server.kill();
    server.restart();
    for child in &children {
        assert_eq!(server.sh(child, "cat /root/starts").await.stdout, "started\n");
    }
    assert_eq!(server.client.get_exec(&parent, &connected, 0).await.unwrap().state, ExecState::Running);
    // They sleep and wake like any other, and end by themselves.
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(children[0], &pause).await.unwrap();
    server.client.delete_sandbox(children[1]).await.unwrap();
    server.client.delete_sandbox(&parent).await.unwrap();
    goes_on(&server, children[0]).await;
    server.finish().await;
}

/// Snapshots with memory are kept, used, and taken elsewhere without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_keeps_what_ran() {
    let World { _dir, mut server } = world().await;
    let parent = server.client.create_sandbox(&machine()).await.unwrap().id;
    server.shell(&parent, COUNTING).await;
    server.sh(&parent, "echo kept > /root/disk; test -s /dev/shm/count || sleep 1").await;
    server.cli(&["snapshot", "create", &parent, "--memory", "-t", "warm"]).ok();
    server.cli(&["snapshot", "create", &parent, "-t", "cold"]).ok();
    server.client.delete_sandbox(&parent).await.unwrap();
    let shown = server.cli(&["snapshot", "show", "warm"]).ok().stdout;
    assert!(shown.contains(r#""kind": "memory""#), "{shown}");
    server.kill();
    server.restart();
    let from = |snapshot: &str, memory| CreateSandbox {
        snapshot: Some(snapshot.into()),
        isolation: Some(IsolationLevel::Microvm),
        memory,
        ..CreateSandbox::default()
    };
    let warm = server.client.create_sandbox(&from("warm", true)).await.unwrap().id;
    let before = number(&server, &warm, COUNTED).await;
    wait_until("it goes on", async || (number(&server, &warm, COUNTED).await > before).then_some(())).await;
    let cold = server.client.create_sandbox(&from("warm", false)).await.unwrap().id;
    assert_eq!(server.sh(&cold, "cat /root/disk; ls /dev/shm").await.stdout, "kept\n");
    assert_eq!(code(server.client.create_sandbox(&from("cold", true)).await), Code::InvalidArgument);
    let larger = CreateSandbox {
        resources: ResourcesDraft { memory_bytes: Some(1 << 30), ..ResourcesDraft::default() },
        ..from("warm", true)
    };
    assert_eq!(code(server.client.create_sandbox(&larger).await), Code::LimitUnenforceable);
    let at = ForkSandbox { at: Some("cold".into()), memory: true, ..ForkSandbox::default() };
    assert_eq!(code(server.client.fork_sandbox(&cold, &at).await), Code::InvalidArgument);
    // Only its disk leaves the host.
    let file = server.data().join("exported");
    server.cli(&["snapshot", "export", "warm", file.to_str().unwrap()]).ok();
    server.cli(&["snapshot", "import", file.to_str().unwrap(), "-t", "back"]).ok();
    let back = server.client.get_snapshot("back").await.unwrap();
    assert_eq!(back.kind, SnapshotKind::Disk);
    std::fs::remove_file(file).unwrap();
    let again = server.client.create_sandbox(&from("back", false)).await.unwrap().id;
    assert_eq!(server.sh(&again, "cat /root/disk").await.stdout, "kept\n");
    // At a level that keeps no memory.
    let container = server.sandbox().await.id;
    let fork = ForkSandbox { memory: true, ..ForkSandbox::default() };
    assert_eq!(code(server.client.fork_sandbox(&container, &fork).await), Code::IsolationUnavailable);
    server.finish().await;
}
