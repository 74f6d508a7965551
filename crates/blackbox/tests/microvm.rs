//! Sandboxes with kernels of their own: set-up, life, network, pausing, forks, survival. One machine at a time, because
//! where there is no KVM they are emulated.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use atoll_api::{CreateSandbox, ForkSandbox, PauseSandbox};
use atoll_blackbox::{Server, command, host, program, wait_until};
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_testing::machines::{debian, kernel_package};
use atoll_testing::run;
use common::{argv, code};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// Small machines of one kind: booted once for all tests.
const SMALL: ResourcesDraft = ResourcesDraft {
    cpu_millis: Some(1000),
    memory_bytes: Some(128 << 20),
    pids: None,
    disk_bytes: Some(1 << 30),
};

/// What the tests share: the directory that `atoll setup` made, and the image as an archive.
struct Shared {
    _dir: TempDir,
    microvm: PathBuf,
    image: PathBuf,
}

fn shared() -> Option<&'static Shared> {
    static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
    let make = || {
        let package = kernel_package()?;
        let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
        let (microvm, image) = (dir.path().join("microvm"), dir.path().join("image.tar"));
        let output = command(program())
            .args(["setup", "microvm", "--json", "--package"])
            .arg(package)
            .arg("--microvm-dir")
            .arg(&microvm)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(["kvm", "emulated"].contains(&told["accelerator"].as_str().unwrap()), "{told}");
        run(Command::new("tar").arg("-C").arg(debian()).arg("-cf").arg(&image).arg("."));
        Some(Shared { _dir: dir, microvm, image })
    };
    SHARED.get_or_init(make).as_ref()
}

/// A server with machines and the image, while no other test has one.
struct World {
    server: Server,
    _dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

async fn world() -> Option<World> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let shared = tokio::task::spawn_blocking(shared).await.unwrap()?;
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // So that `atoll doctor --data-dir` finds it, too.
    std::os::unix::fs::symlink(&shared.microvm, data.join("microvm")).unwrap();
    let server = Server::on(&data, &[]);
    server.cli(&["image", "import", shared.image.to_str().unwrap(), "debian"]).ok();
    Some(World { server, _dir: dir, _turn: turn })
}

fn machine() -> CreateSandbox {
    CreateSandbox {
        image: Some("debian".to_owned()),
        isolation: Some(IsolationLevel::Microvm),
        resources: SMALL,
        ..CreateSandbox::default()
    }
}

/// The VMM of a sandbox.
fn vmm(sandbox: &str) -> i32 {
    let found = host::processes(sandbox);
    let of = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    *found.iter().find(|pid| of(pid).starts_with("qemu")).unwrap_or_else(|| panic!("{found:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_a_kernel_of_its_own() {
    let Some(World { server, _dir, _turn }) = world().await else { return };
    let info = server.cli(&["info"]).ok();
    assert!(info.stdout.contains("container microvm"), "{info:?}");
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
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let seen = server.sh("box", "cat /proc/sys/kernel/random/boot_id; uname -n; id -u; nproc").await;
    let seen: Vec<&str> = seen.stdout.lines().collect();
    assert!(seen[0] != boot.trim() && seen[1..] == ["box", "0", "1"], "{seen:?}");
    // Files and a terminal, over the same connection as with every level.
    let cp = server.cli_with(&["cp", "-", "box:/root/file"], b"content");
    if cp.code == Some(0) {
        assert_eq!(server.sh("box", "cat /root/file").await.stdout, "content");
    }
    // Nothing is to be reached: what it connects to arrives at the gateway, which refuses.
    let out = "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \"192.0.2.1:80\", Timeout => 20) \
               or exit 3; print $s \"GET / HTTP/1.0\\r\\nHost: x.example\\r\\n\\r\\n\"; print <$s>'";
    let refused = server.sh("box", out).await;
    assert!(!refused.stdout.contains("200"), "{refused:?}");
    let metrics = server.client.sandbox_metrics("box").await.unwrap();
    assert!(metrics.pids >= 1, "{metrics:?}");
    confined(&sandbox.id);
    // What the level cannot do is refused, not ignored.
    let host_image = CreateSandbox { image: Some("host".to_owned()), ..machine() };
    assert_eq!(code(server.client.create_sandbox(&host_image).await), Code::ImageInvalid);
    server.client.delete_sandbox("box").await.unwrap();
    server.finish().await;
}

/// The VMM runs as nobody, with nothing, and sees nothing of the host but what it needs.
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
    assert_eq!(root, ["dev", "usr", "vm"]);
    for mount in read("mounts").lines().filter(|mount| !mount.contains(" /dev/")) {
        let options = mount.split(' ').nth(3).unwrap();
        assert!(options.split(',').any(|option| option == "ro"), "it can write to {mount}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outlives_the_server_and_dies_with_its_vmm() {
    let Some(World { mut server, _dir, _turn }) = world().await else { return };
    let sandbox = server.client.create_sandbox(&machine()).await.unwrap().id;
    let exec = server.shell(&sandbox, "for i in 1 2 3 4; do echo $i; sleep 1; done").await;
    let endless = server.shell(&sandbox, "sleep 100000").await;
    let before = vmm(&sandbox);
    server.kill();
    server.restart();
    assert_eq!(vmm(&sandbox), before);
    assert_eq!(common::outputs(&server, &sandbox, &exec).await.0, b"1\n2\n3\n4\n");
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
    let Some(World { mut server, _dir, _turn }) = world().await else { return };
    let sandbox = server.client.create_sandbox(&machine()).await.unwrap().id;
    server.sh(&sandbox, "echo kept > /root/disk; echo kept > /dev/shm/memory").await;
    let create = argv(&["sh", "-c", "while :; do date +%s >> /root/beats; sleep 0.2; done"]);
    let beating = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(&sandbox, &pause).await.unwrap();
    assert!(host::processes(&sandbox).is_empty());
    server.kill();
    server.restart();
    // It wakes when it is used, as it was: the clock is right, the memory is there, what ran runs.
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
