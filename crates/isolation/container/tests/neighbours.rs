//! What a sandbox cannot take from its neighbours and the host, although the kernel counts it for no cgroup; and what root
//! inside cannot do to the agent.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll_core::spec::Resources;
use atoll_guest_protocol::messages::StartExec;
use atoll_isolation::RootFs;
use atoll_isolation::conformance::{Harness as _, Sandbox, eventually, plan};
use common::{Containers, containers};

/// Two sandboxes of one installation.
async fn pair(harness: &Containers, resources: Resources) -> (Sandbox, Sandbox) {
    let one = Sandbox::create(harness, resources).await;
    let second = plan(RootFs::Host, resources);
    one.driver.create(&second).await.unwrap();
    let other = Sandbox::connect(one.driver.clone(), second.id).await;
    (one, other)
}

/// Has `taker` take all that it can get of something and keep it; gives how much that was. `take` is Perl that is true
/// as long as it gets one more.
async fn takes_all(taker: &Sandbox, take: &str) -> u64 {
    let script = format!(
        "exec perl -e 'use POSIX; my ($n, @kept) = (0); while ({take}) {{ $n++ }} \
         open(F, q(>), q(/tmp/taken.new)); print F qq($n\\n); close F; rename q(/tmp/taken.new), q(/tmp/taken); sleep 1000'"
    );
    drop(taker.start("ex-taker", "root", &script).await);
    let taken = eventually("it has all", || async {
        let output = taker.run("cat /tmp/taken 2>/dev/null").await;
        output.stdout.trim().parse().ok()
    });
    taken.await
}

/// Whether a sandbox gets one.
async fn gets_one(sandbox: &Sandbox, take: &str) -> bool {
    sandbox.see(&format!("perl -e 'use POSIX; my ($n, @kept) = ($$); print(({take}) ? 1 : 0)'")).await == "1"
}

/// What the kernel has a total of, as Perl that takes one more, and how many at most a sandbox may have.
const POOLS: &[(&str, &str, u64)] = &[
    ("terminals", "open($kept[$n], q(+<), q(/dev/ptmx))", 64),
    ("inotify instances", "syscall(294, 0) >= 0", 100_000),
    ("message queues", "syscall(240, qq(q$n), 0x42, 0600, 0) >= 0", 10_000),
    ("timers", "$n < 200000 && syscall(222, 0, 0, my $id = q(12345678)) >= 0", 199_999),
];

#[tokio::test]
async fn what_a_sandbox_takes_is_not_its_neighbours() {
    let harness = containers();
    for (what, take, most) in POOLS {
        let (one, other) = pair(&harness, Resources::default()).await;
        let taken = takes_all(&one, take).await;
        assert!((1..=*most).contains(&taken), "{what}: {taken}");
        assert!(gets_one(&other, take).await, "{what}: nothing is left for a neighbour after {taken}");
        let mut host = std::process::Command::new("perl");
        let host = host.args(["-e", &format!("use POSIX; my ($n, @kept) = (0); exit(({take}) ? 0 : 1)")]);
        if *what != "message queues" {
            assert!(host.status().unwrap().success(), "{what}: nothing is left for the host after {taken}");
        }
        one.destroy().await;
        other.destroy().await;
    }
}

/// Fills a connection inside the sandbox that nobody reads; true if that took 64 KiB. Counts such parts, up to 512 MiB.
const FILL_TCP: &str = "$n < 8192 && do { use Socket; \
    $kept[0] //= do { socket(my $l, PF_INET, SOCK_STREAM, 0); bind($l, sockaddr_in(0, INADDR_LOOPBACK)); listen($l, 9); $l }; \
    socket(my $c, PF_INET, SOCK_STREAM, 0); connect($c, getsockname($kept[0])); accept(my $s, $kept[0]); \
    push(@kept, $c, $s); fcntl($c, 4, 2048); my $w = 0; my $x = q(x) x 65536; \
    while (my $k = syswrite($c, $x)) { $w += $k } $n += $w >> 16; $w >= 65536 }";

#[tokio::test]
async fn the_buffers_of_tcp_are_part_of_a_sandboxs_memory() {
    let harness = containers();
    let memory_bytes = 256 << 20;
    let (one, other) = pair(&harness, Resources { memory_bytes, ..Resources::default() }).await;
    let taken = takes_all(&one, FILL_TCP).await;
    // A connection is counted once more than its parts.
    assert!((16..=2 * (memory_bytes >> 16)).contains(&taken), "{taken} times 64 KiB");
    assert!(taken < 8192, "there is no limit");
    assert!(gets_one(&other, FILL_TCP).await, "nothing is left for a neighbour after {taken}");
    let mut host = std::process::Command::new("perl");
    let host = host.args(["-e", &format!("use POSIX; my ($n, @kept) = (0); exit(({FILL_TCP}) ? 0 : 1)")]);
    assert!(host.status().unwrap().success(), "nothing is left for the host after {taken}");
    one.destroy().await;
    other.destroy().await;
}

#[tokio::test]
async fn inodes_of_a_sandbox_are_its_own() {
    let harness = containers();
    let (one, other) = pair(&harness, Resources { disk_bytes: 64 << 20, ..Resources::default() }).await;
    let has: u64 = one.see("stat -f -c %c /var/tmp").await.parse().unwrap();
    let all = "perl -e 'my $n = 0; $n++ while open(F, q(>), qq(/var/tmp/t$n)); print $n'";
    let taken: u64 = one.see(all).await.parse().unwrap();
    assert!((1000..=has).contains(&taken), "{taken} of {has} inodes");
    other.see("touch /var/tmp/mine").await;
    one.destroy().await;
    other.destroy().await;
}

#[tokio::test]
async fn what_is_counted_for_nobody_is_not_to_be_had() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let answer = |call: &str| format!("perl -e 'use POSIX; syscall({call}) >= 0 ? print 0 : print $!+0'");
    let asynchronous = sandbox.see(&answer("206, 128, my $c = qq(\\0) x 8")).await;
    assert_eq!(asynchronous, libc::ENOSYS.to_string(), "asynchronous I/O");
    let huge = sandbox.see(&answer("9, 0, 2097152, 3, 0x40022, -1, 0")).await;
    assert_eq!(huge, libc::ENOMEM.to_string(), "huge pages");
    // With the limit 1, and no other, no helper outside reads what crashes here.
    let core = "grep core /proc/self/limits | tr -s ' '";
    assert!(sandbox.see(core).await.starts_with("Max core file size 1 1 bytes"));
    assert!(sandbox.see(&format!("ulimit -c 0; {core}")).await.starts_with("Max core file size 1 1 bytes"));
    sandbox.destroy().await;
}

#[tokio::test]
async fn the_disks_of_others_are_not_to_be_seen() {
    let harness = containers();
    let (one, other) = pair(&harness, Resources::default()).await;
    let look = "cat /proc/diskstats /proc/partitions; ls -A /sys/block /sys/class/block /sys/dev/block \
                /sys/devices/virtual/block /sys/class/bdi | grep -v :; \
                find /sys -name backing_file -o -name 'loop[0-9]*' 2>/dev/null";
    for sandbox in [one, other] {
        assert_eq!(sandbox.run(look).await.stdout.trim(), "");
        sandbox.destroy().await;
    }
}

/// Each is an attack of root inside on the agent, the first process: it ends with 0 when it succeeds.
const ATTACKS: &[(&str, &str)] = &[
    ("read its memory", "perl -e 'open(F, q(<), q(/proc/1/mem)) or exit 1'"),
    ("write its memory", "perl -e 'open(F, q(+<), q(/proc/1/mem)) or exit 1'"),
    ("see its mappings", "perl -e 'open(F, q(<), q(/proc/1/maps)) or exit 1; my $l = <F>; exit !defined $l'"),
    ("read its environment", "test -n \"$(cat /proc/1/environ)\""),
    ("see its descriptors", "test -n \"$(ls /proc/1/fd)\""),
    ("use its cgroup", "mkdir /proc/1/fd/4/mine"),
    ("trace it", "perl -e 'exit(syscall(101, 16, 1, 0, 0) < 0)'"),
    ("trace it otherwise", "perl -e 'exit(syscall(101, 0x4206, 1, 0, 0) < 0)'"),
    ("take its files", "perl -e 'exit(syscall(302, 1, 7, pack(q(Q2), 3, 3), 0) < 0)'"),
    ("take its memory", "perl -e 'exit(syscall(302, 1, 9, pack(q(Q2), 1 << 20, 1 << 20), 0) < 0)'"),
    ("make it die first", "echo 1000 > /proc/1/oom_score_adj"),
    ("take a descriptor of it", "perl -e 'my $p = syscall(434, 1, 0); exit(syscall(438, $p, 4, 0) < 0)'"),
    ("read its program", "head -c 1 /proc/1/exe"),
];

#[tokio::test]
async fn root_inside_has_no_power_over_the_agent() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let mut possible = Vec::new();
    for (what, line) in ATTACKS {
        // In a shell of its own: some of these end it.
        if sandbox.run(&format!("( {line} ) > /dev/null 2>&1")).await.code == 0 {
            possible.push(what);
        }
    }
    assert!(possible.is_empty(), "root inside can: {possible:?}");
    // It may do all that to its own, or the list above proves nothing; and so it may limit itself.
    let own = "sleep 100 & perl -e 'exit(syscall(101, 16, shift() + 0, 0, 0) < 0)' $! && head -c 0 /proc/$!/mem && ls /proc/$!/fd > /dev/null \
               && echo 1000 > /proc/$!/oom_score_adj && prlimit --pid $! --nofile=64:64 && ulimit -n 99 && kill -9 $! && echo all";
    assert_eq!(sandbox.see(own).await, "all");
    sandbox.destroy().await;
}

#[tokio::test]
async fn commands_go_before_the_agent_when_memory_runs_out() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    eventually("the score is raised", || async {
        (sandbox.see("cat /proc/self/oom_score_adj").await == "500").then_some(())
    })
    .await;
    assert_eq!(sandbox.see("cat /proc/1/oom_score_adj").await, "100");
    sandbox.destroy().await;
}

/// The sandbox's cgroup of version 2, on the host.
fn cgroup(harness: &Containers, sandbox: &Sandbox) -> PathBuf {
    let below = Path::new(&format!("atoll-{}", harness.instance)).join(sandbox.id.as_str());
    let places = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(|root| Path::new(root).join(&below));
    places.into_iter().find(|place| place.join("cgroup.procs").is_file()).unwrap()
}

#[tokio::test]
async fn cgroups_with_names_that_are_no_text_are_removed_too() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let cgroup = cgroup(&harness, &sandbox);
    let strange = cgroup.join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir(&strange).unwrap();
    std::fs::create_dir(strange.join(std::ffi::OsStr::from_bytes(b"\xc3\x28"))).unwrap();
    sandbox.destroy().await;
    assert!(!cgroup.try_exists().unwrap());
}

/// A server that could not read in which cgroup the agent is would take a sandbox that lives for a dead one.
#[tokio::test]
async fn a_sandbox_whose_agent_is_in_a_cgroup_with_such_a_name_is_taken_up() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let found = sandbox.driver.scan().await.unwrap();
    let agent = found.iter().find(|part| part.sandbox == sandbox.id && part.kind == "process").unwrap();
    let strange = cgroup(&harness, &sandbox).join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("cgroup.procs"), &agent.name).unwrap();
    harness.open().await.adopt(&sandbox.id).await.unwrap();
    sandbox.destroy().await;
}

#[tokio::test]
async fn without_a_cgroup_no_command_starts() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    assert_eq!(sandbox.see("echo first").await, "first");
    // As if there were as many as there can be.
    std::fs::write(cgroup(&harness, &sandbox).join("cgroup.max.descendants"), "0").unwrap();
    let request = StartExec {
        exec_id: "ex-second".to_owned(),
        argv: vec!["/usr/bin/true".to_owned()],
        env: BTreeMap::new(),
        cwd: "/".to_owned(),
        user: "root".to_owned(),
        tty: None,
        stdin: false,
        profiles: Vec::new(),
        end_tree: false,
    };
    let refused = match sandbox.guest.start_exec(request).await {
        Ok(mut stream) => !matches!(stream.next().await, Ok(Some(_))),
        Err(_) => true,
    };
    assert!(refused, "it ran outside of every cgroup of an exec");
    std::fs::write(cgroup(&harness, &sandbox).join("cgroup.max.descendants"), "2048").unwrap();
    assert_eq!(sandbox.see("echo third").await, "third");
    sandbox.destroy().await;
}
