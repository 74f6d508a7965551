//! Sandboxes with kernels of their own: set-up, life, survival; `network` is what they send, `memory` how they sleep, fork
//! and go on, `disks` how fast they write. Two tests at a time, because where there is no KVM machines are emulated.

mod disks;
mod memory;
mod network;

use crate::common::code;
use crate::common::machines::{SMALL, World, machine, world, world_with};
use atoll_api::{CreateSandbox, CreateTemplate};
use atoll_blackbox::{command, host, machines, program, set_up_machines, wait_until};
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::IsolationLevel;
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
