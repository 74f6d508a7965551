//! Sandboxes with kernels of their own: set-up, life, network, pausing, forks, survival. Two tests at a time, because
//! where there is no KVM machines are emulated.

use crate::common::machines::{SMALL, World, machine, world, world_with};
use crate::common::outside::{OTHER, Outside, WEB, allow};
use crate::common::{argv, code};
use atoll_api::{CreateSandbox, CreateTemplate, ForkSandbox, PauseSandbox};
use atoll_blackbox::{Server, command, host, machines, program, set_up_machines, wait_until};
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::snapshot::SnapshotKind;
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_core::volume::VolumeMountDraft;

/// The VMM of a sandbox.
fn vmm(sandbox: &str) -> i32 {
    let found = host::processes(sandbox);
    let of = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    *found.iter().find(|pid| of(pid).starts_with("qemu")).unwrap_or_else(|| panic!("{found:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_a_kernel_of_its_own() {
    let World { _dir, server } = world().await;
    let info = server.cli(&["info"]).ok();
    assert!(info.stdout.contains(" microvm\n"), "{info:?}");
    let made = server.cli(&[
        "create",
        "--image",
        "debian",
        "--isolation",
        "microvm",
        "--name",
        "box",
        "--memory",
        "128MiB",
        "--cpu",
        "1",
        "--disk",
        "1GiB",
    ]);
    made.ok();
    let sandbox = server.client.get_sandbox("box").await.unwrap();
    assert_eq!(sandbox.isolation, IsolationLevel::Microvm);
    assert_eq!(sandbox.accelerator, server.client.server_info().await.unwrap().accelerator);
    assert!(sandbox.accelerator.is_some(), "nothing says what executes it");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let seen = server.sh("box", "cat /proc/sys/kernel/random/boot_id; uname -n; id -u; nproc").await;
    let seen: Vec<&str> = seen.stdout.lines().collect();
    assert!(seen[0] != boot.trim() && seen[1..] == ["box", "0", "1"], "{seen:?}");
    // Files and a terminal, over the same connection as with every level.
    let cp = server.cli_with(&["cp", "-", "box:/root/file"], b"content");
    if cp.code == Some(0) {
        assert_eq!(server.sh("box", "cat /root/file").await.stdout, "content");
    }
    let metrics = server.client.sandbox_metrics("box").await.unwrap();
    assert!(metrics.pids >= 1, "{metrics:?}");
    confined(&sandbox.id);
    // Requests that the level cannot fulfil are refused, not ignored.
    let host_image = CreateSandbox { image: Some("host".to_owned()), ..machine() };
    assert_eq!(code(server.client.create_sandbox(&host_image).await), Code::ImageInvalid);
    server.cli(&["volume", "create", "data"]).ok();
    let mounted =
        server.cli(&["create", "--image", "debian", "--isolation", "microvm", "--volume", "data:/data"]);
    assert!(mounted.code != Some(0) && mounted.stderr.contains("volumes cannot be mounted"), "{mounted:?}");
    let part = VolumeMountDraft {
        volume: "data".to_owned(),
        path: "/data".to_owned(),
        read_only: false,
        subpath: Some("users/ann".to_owned()),
    };
    let mounted = CreateSandbox { volumes: vec![part], ..machine() };
    let refused = server.client.create_sandbox(&mounted).await.unwrap_err().to_string();
    assert!(refused.contains("volumes cannot be mounted"), "{refused}");
    let made = server.client.list_volume_files("data", "/").await.unwrap();
    assert!(made.items.is_empty(), "a refusal leaves nothing behind: {made:?}");
    server.cli(&["volume", "rm", "data"]).ok();
    server.client.delete_sandbox("box").await.unwrap();
    server.finish().await;
}

/// The VMM runs with a user id of its own and no capabilities, and sees only the files of the host that it needs.
fn confined(sandbox: &str) {
    let pid = vmm(sandbox);
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
    let status = read("status");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let uids = field("Uid:");
    assert!(uids.split_whitespace().all(|uid| uid.parse::<u32>().unwrap() >= 0x6fff_0000), "{uids}");
    assert_eq!(
        (field("CapEff:"), field("CapBnd:")),
        ("0000000000000000".to_owned(), "0000000000000000".to_owned())
    );
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(field("Seccomp_filters:"), "2", "the launcher's, and QEMU's own");
    for name in ["mnt", "pid", "net", "ipc", "uts"] {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
        assert_ne!(namespace(&pid.to_string()), namespace("self"), "{name}");
    }
    let mut root: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/root"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    root.retain(|name| !["bin", "lib", "lib64", "sbin"].contains(&name.as_str()));
    root.sort();
    // A VMM that goes on from memory sees its own open files, too.
    root.retain(|name| name != "fds");
    assert_eq!(root, ["dev", "usr", "vm"]);
    for mount in read("mounts").lines().filter(|mount| !mount.contains(" /dev/")) {
        let options = mount.split(' ').nth(3).unwrap();
        assert!(options.split(',').any(|option| option == "ro"), "it can write to {mount}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outlives_the_server_and_dies_with_its_vmm() {
    let World { _dir, mut server } = world().await;
    let sandbox = server.client.create_sandbox(&machine()).await.unwrap().id;
    let exec = server.shell(&sandbox, "for i in 1 2 3 4; do echo $i; sleep 1; done").await;
    let endless = server.shell(&sandbox, "sleep 100000").await;
    let before = vmm(&sandbox);
    server.kill();
    server.restart();
    assert_eq!(vmm(&sandbox), before);
    assert_eq!(crate::common::outputs(&server, &sandbox, &exec).await.0, b"1\n2\n3\n4\n");
    assert_eq!(server.sh(&sandbox, "echo on").await.stdout, "on\n");
    host::kill(before);
    let failed = wait_until("it has failed", || async {
        let seen = server.client.get_sandbox(&sandbox).await.unwrap();
        (seen.state == SandboxState::Failed).then_some(seen)
    })
    .await;
    assert!(failed.reason.is_some(), "{failed:?}");
    wait_until("what ran in it has ended", || async {
        let lost = server.client.get_exec(&sandbox, &endless, 0).await.unwrap();
        (lost.state != ExecState::Running).then_some(())
    })
    .await;
    server.finish().await;
}

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

/// Asks for a page: host, port, what to call the server, address to ask from.
const ASK: &str = r#"
use IO::Socket::INET;
my ($host, $port, $name, $from) = @ARGV;
$SIG{ALRM} = sub { print "late"; exit };
alarm 20;
my @from = $from ? (LocalAddr => $from) : ();
my $s = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5, @from) or do { print "no: $@"; exit };
print $s "GET / HTTP/1.1\r\nHost: $name\r\nConnection: close\r\n\r\n";
print while <$s>;
"#;
/// Gives the card a second address, which root of its own kernel can.
const ALIAS: &str = r#"
use Socket;
socket(my $s, AF_INET, SOCK_DGRAM, 0) or die;
my $wish = pack("a16 S n a4 x8", "eth0:1", AF_INET, 0, inet_aton("10.0.2.99"));
ioctl($s, 0x8916, $wish) or die "ioctl: $!";
print "set";
"#;
/// Sends a datagram to a resolver outside, and a ping; prints every answer.
const DATAGRAMS: &str = r#"
use Socket;
$SIG{ALRM} = sub { print "silence"; exit };
alarm 3;
socket(my $u, AF_INET, SOCK_DGRAM, 0) or die;
send($u, "x" x 64, 0, pack_sockaddr_in(53, inet_aton("9.9.9.9")));
socket(my $p, AF_INET, SOCK_RAW, 1) or die;
send($p, pack("CCnnna8", 8, 0, 0xf7ff - 1, 1, 0, ""), 0, pack_sockaddr_in(0, inet_aton("9.9.9.9")));
defined recv($u, my $got, 100, 0) and print "ANSWERED";
print "refused";
"#;

/// The same policy as at every level, even if root in the machine sends any packets through its network card.
#[tokio::test(flavor = "multi_thread")]
async fn everything_it_sends_arrives_at_the_gateway() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    let World { _dir, mut server } = world_with(&outside.args()).await;
    let sandbox = CreateSandbox { egress: Some(allow(&["web.test:80"])), ..machine() };
    let id = server.client.create_sandbox(&sandbox).await.unwrap().id;
    let perl = async |server: &Server, script: &str, args: &[&str]| {
        let command = argv(&[&["perl", "-e", script], args].concat());
        let exec = server.run(&id, command).await.exec.id;
        let (out, err) = crate::common::outputs(server, &id, &exec).await;
        format!("{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err))
    };
    let allowed = perl(&server, ASK, &["web.test", "80", "web.test"]).await;
    assert!(allowed.contains(&format!("hello from {WEB}")), "{allowed}");
    let own = server.url.rsplit(':').next().unwrap().to_owned();
    for (host, port, name) in [
        ("other.test", "80", "other.test"),
        // Another name at an address that is reached for a name that is allowed.
        (WEB, "80", "other.test"),
        ("169.254.169.254", "80", "x"),
        ("192.168.77.1", "80", "x"),
        // The host's own server, by the addresses that it could have.
        ("10.0.2.2", own.as_str(), "x"),
        ("10.0.2.1", own.as_str(), "x"),
    ] {
        let answer = perl(&server, ASK, &[host, port, name]).await;
        assert!(!answer.contains("hello") && !answer.contains("200 OK"), "{host} {name}: {answer}");
    }
    assert_eq!(perl(&server, ALIAS, &[]).await, "set");
    let forged = perl(&server, ASK, &["web.test", "80", "web.test", "10.0.2.99"]).await;
    assert!(forged.starts_with("no:"), "a source that is not its own: {forged}");
    assert!(!perl(&server, DATAGRAMS, &[]).await.contains("ANSWERED"));
    let dials = outside.dials();
    assert!(dials.iter().all(|dialled| dialled.starts_with(WEB)), "{dials:?}");
    assert_eq!(seen.lock().unwrap().len(), 1, "{seen:?}");
    // Without a server nothing passes; the next server takes the network up.
    server.kill();
    server.restart();
    wait_until("the network is taken up", async || {
        perl(&server, ASK, &["web.test", "80", "web.test"]).await.contains("hello from").then_some(())
    })
    .await;
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

/// A warm machine is claimed: renamed, limited, and the very one that was waiting.
#[tokio::test(flavor = "multi_thread")]
async fn waits_in_a_warm_pool() {
    let World { _dir, server } = world().await;
    let template: CreateTemplate = serde_json::from_value(serde_json::json!({
        "name": "tool",
        "image": "debian",
        "isolation": "microvm",
        "resources": SMALL,
        "pool": PoolSpec::fixed(1),
    }))
    .unwrap();
    server.client.create_template(&template).await.unwrap();
    wait_until("one is ready", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.into_iter().find(|pool| pool.ready == 1 && pool.making == 0)
    })
    .await;
    let waiting = host::remains(&server.installation(), server.data());
    let create = CreateSandbox {
        template: Some("tool".into()),
        name: Some("mine".into()),
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    let line = format!("directory machines/sandboxes/{}", sandbox.id);
    assert!(waiting.contains(&line), "{} was not waiting: {waiting:?}", sandbox.id);
    assert_eq!(sandbox.isolation, IsolationLevel::Microvm);
    assert_eq!(server.sh("mine", "uname -n; cat /etc/hostname").await.stdout, "mine\nmine\n");
    server.client.delete_template("tool", None).await.unwrap();
    server.finish().await;
}

/// Writes three MiB past every cache. With four in a second, a tenth of that at once, that takes its time; a slow host can
/// only take longer.
async fn is_slow(server: &Server, sandbox: &str) {
    let start = std::time::Instant::now();
    let written = server.sh(sandbox, "dd if=/dev/zero of=/root/x bs=64k count=48 oflag=direct").await;
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds >= 0.6, "{sandbox}: 3 MiB in {seconds} s: {written:?}");
}

/// A limit of disk I/O comes with the template, holds in the member of its pool, in every copy, after a restart of the
/// server and of the machine, and changes while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn its_disks_are_no_faster_than_allowed() {
    let World { _dir, mut server } = world().await;
    let args = "template create slow --image debian --isolation microvm --cpu 1 --memory 128MiB --disk 1GiB \
                --io-bytes 4M/s --pool 1";
    server.cli(&args.split_whitespace().collect::<Vec<_>>()).ok();
    wait_until("one is ready", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.into_iter().find(|pool| pool.ready == 1 && pool.making == 0)
    })
    .await;
    let create = CreateSandbox { template: Some("slow".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(sandbox.resources.io_bytes_per_second, Some(4 << 20));
    server.client.delete_template("slow", None).await.unwrap();
    let id = sandbox.id;
    let counted = async || server.client.sandbox_metrics(&id).await.unwrap().disk_io.unwrap();
    let before = counted().await;
    is_slow(&server, &id).await;
    let after = counted().await;
    assert!(after.written_bytes >= before.written_bytes + (3 << 20), "{before:?} {after:?}");
    assert!(after.writes >= before.writes + 48 && after.read_bytes > 0, "{before:?} {after:?}");
    // Data that is only in the machine's memory is written out at once when the disk is copied: at this rate no caller
    // would wait for it.
    server.cli(&["update", &id, "--io-bytes", "1M/s"]).ok();
    let cached = "cd /proc/sys/vm; echo 95 > dirty_ratio; echo 90 > dirty_background_ratio; head -c 40M /dev/zero > /root/cached";
    server.sh(&id, cached).await;
    server.cli(&["snapshot", "create", &id]).ok();
    server.cli(&["update", &id, "--io-bytes", "4M/s"]).ok();
    let forked = server.cli(&["fork", &id, "--memory"]).ok();
    is_slow(&server, forked.stdout.trim()).await;
    server.client.delete_sandbox(forked.stdout.trim()).await.unwrap();
    server.kill();
    server.restart();
    is_slow(&server, &id).await;
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(&id, &pause).await.unwrap();
    is_slow(&server, &id).await;
    let updated = server.cli(&["update", &id, "--io-bytes", "none", "--io-operations", "50"]).ok();
    assert!(updated.stdout.contains("50 operations/s\n"), "{updated:?}");
    let start = std::time::Instant::now();
    server.sh(&id, "dd if=/dev/zero of=/root/x bs=4k count=60 oflag=direct conv=notrunc").await;
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds >= 1.0, "60 operations in {seconds} s");
    server.finish().await;
}

#[test]
fn what_is_no_kernel_is_refused() {
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
    let output = command(program())
        .args(["setup", "microvm", "--json", "--package", "/dev/null", "--microvm-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("dpkg-deb"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_beside_a_server_changes_nothing_of_its_machines() {
    let World { _dir, server } = world().await;
    let first = server.client.create_sandbox(&machine()).await.unwrap().id;
    let dir = machines();
    let saved = || {
        let entries = std::fs::read_dir(dir.join("templates")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = saved();
    set_up_machines(&dir);
    assert!(saved().is_superset(&before));
    let tree = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
    for place in ["boot", "lib/modules/6.99/kernel"] {
        std::fs::create_dir_all(tree.path().join(place)).unwrap();
    }
    std::fs::write(tree.path().join("boot/vmlinuz-6.99"), b"\x7fELF of another").unwrap();
    let other = command(program())
        .args(["setup", "microvm", "--json", "--microvm-dir"])
        .arg(&dir)
        .arg("--tree")
        .arg(tree.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains("stop the server"), "{said}");
    let second = server.client.create_sandbox(&machine()).await.unwrap().id;
    for sandbox in [&first, &second] {
        assert_eq!(server.sh(sandbox, "echo here").await.stdout, "here\n");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_nothing_gets_what_the_server_gives() {
    let args = ["--default-isolation", "microvm", "--default-image", "debian"].map(str::to_owned);
    let World { _dir, server } = world_with(&args).await;
    let plain = CreateSandbox { resources: SMALL, ..CreateSandbox::default() };
    let made = server.client.create_sandbox(&plain).await.unwrap();
    assert_eq!((made.isolation, made.image.as_str()), (IsolationLevel::Microvm, "debian"));
    assert_eq!(server.sh(&made.id, "test -e /dev/vda && echo machine").await.stdout, "machine\n");
    // A request that names image and level gets these.
    let asked = CreateSandbox {
        image: Some("host".to_owned()),
        isolation: Some(IsolationLevel::Container),
        ..CreateSandbox::default()
    };
    let other = server.client.create_sandbox(&asked).await.unwrap();
    assert_eq!((other.isolation, other.image.as_str()), (IsolationLevel::Container, "host"));
    for id in [made.id, other.id] {
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}
