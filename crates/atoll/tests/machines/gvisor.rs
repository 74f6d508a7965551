//! Sandboxes in gVisor: life, files, terminals, network, limits, pools, forks, survival.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::gvisor::{sandboxed, server};
use crate::common::outside::{OTHER, Outside, WEB, allow};
use crate::common::pty::Terminal;
use crate::common::{argv, code};
use atoll_api::{CreateSandbox, CreateTemplate, ForkSandbox, PauseSandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::WatchEvent;
use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{IsolationLevel, ResourcesDraft};

/// The processes of a sandbox on the host whose command line has this.
fn processes(sandbox: &str, what: &str) -> Vec<i32> {
    let command = |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let of = |pid: &i32| String::from_utf8_lossy(&command(pid)).contains(what);
    host::processes(sandbox).into_iter().filter(of).collect()
}

/// The sentry of a sandbox.
fn sentry(sandbox: &str) -> i32 {
    let found = processes(sandbox, "runsc-sandbox");
    *found.first().unwrap_or_else(|| panic!("no sentry among {:?}", host::processes(sandbox)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_a_kernel_in_user_space() {
    let outside = Outside::new();
    let server = server(|| outside.server());
    reaches_what_its_policy_says(&server, &outside).await;
    let made = ["create", "--image", "debian", "--isolation", "gvisor", "--name", "box", "--disk", "256MiB"];
    server.cli(&made).ok();
    let sandbox = server.client.get_sandbox("box").await.unwrap();
    assert_eq!(sandbox.isolation, IsolationLevel::Gvisor);
    assert!(server.cli(&["info"]).ok().stdout.contains("gvisor"));
    let seen =
        server.sh("box", "dmesg | grep -c gVisor; uname -n; id -u; df -B1 --output=size / | tail -n 1").await;
    let seen: Vec<&str> = seen.stdout.lines().map(str::trim).collect();
    assert_eq!(seen[..3], ["1", "box", "0"], "{seen:?}");
    let size: u64 = seen[3].parse().unwrap();
    assert!((128 << 20..=256 << 20).contains(&size), "{seen:?}");
    // A tree goes in and comes out: unpacking does without a call that the sentry lacks.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("tree/below")).unwrap();
    std::fs::write(dir.path().join("tree/below/file"), "deep").unwrap();
    std::os::unix::fs::symlink("below/file", dir.path().join("tree/link")).unwrap();
    server.cli(&["cp", dir.path().join("tree").to_str().unwrap(), "box:/root/tree"]).ok();
    assert_eq!(server.sh("box", "cat /root/tree/link").await.stdout, "deep");
    let back = dir.path().join("back");
    server.cli(&["cp", "box:/root/tree", back.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read_to_string(back.join("link")).unwrap(), "deep");
    let mut terminal = Terminal::start(&server, &["exec", "-it", "box", "--", "/bin/bash", "--norc"], 91, 31);
    // In one line: while bash waits for a line to be edited, it may put the terminal back to the size that it knows.
    terminal.write(
        "stty size; tty; echo $((6*7)); \
         until [ \"$(stty size)\" = '22 77' ]; do sleep 0.1; done; echo sized-$((3*4)); exit 5\r",
    );
    terminal.expect("31 91");
    terminal.expect("/dev/pts/");
    terminal.expect("42");
    terminal.resize(77, 22);
    terminal.expect("sized-12");
    assert_eq!(terminal.wait(), Some(5));
    confined(&sandbox.id);
    // Requests that the level cannot fulfil are refused, not ignored.
    let host_image = CreateSandbox { image: Some("host".to_owned()), ..sandboxed() };
    assert_eq!(code(server.client.create_sandbox(&host_image).await), Code::ImageInvalid);
    let memory = PauseSandbox { mode: Some(PauseMode::Memory) };
    assert_eq!(code(server.client.pause_sandbox("box", &memory).await), Code::PauseUnavailable);
    server.client.delete_sandbox("box").await.unwrap();
    assert!(host::processes(&sandbox.id).is_empty());
    server.finish().await;
}

/// Every process of a sandbox has a user id without rights on the host, no capabilities there, and sees nothing of the
/// host.
fn confined(sandbox: &str) {
    let all = host::processes(sandbox);
    assert!(all.contains(&sentry(sandbox)) && !processes(sandbox, "runsc-gofer").is_empty(), "{all:?}");
    for pid in all {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let uids = field("Uid:");
        assert!(
            uids.split_whitespace().all(|uid| uid.parse::<u32>().unwrap() >= 0x7c00_0000),
            "{pid}: {uids}"
        );
        assert_eq!(field("NoNewPrivs:"), "1", "{pid}");
        assert_eq!(field("Seccomp:"), "2", "{pid}");
        // The jail's first process waits and has no capabilities; the others have gVisor's filters on top of the launcher's,
        // and their capabilities are those of a user namespace of their own.
        let filters: u32 = field("Seccomp_filters:").parse().unwrap();
        if host::inner_pid(pid) == Some(1) && filters == 1 {
            assert_eq!(field("CapEff:"), "0000000000000000", "{pid}");
        } else {
            assert!(filters >= 2, "{pid}: {filters}");
            let user = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
            assert_ne!(user(&pid.to_string()), user("self"), "{pid}");
        }
        for name in ["mnt", "pid", "net", "ipc", "uts"] {
            let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
            assert_ne!(namespace(&pid.to_string()), namespace("self"), "{pid}: {name}");
        }
        for path in ["home", "boot/grub", "var/lib/dpkg/lock"] {
            let outside = PathBuf::from(format!("/proc/{pid}/root/{path}"));
            let inside = processes(sandbox, "runsc-gofer").contains(&pid);
            assert!(inside || !outside.try_exists().unwrap(), "{} is seen", outside.display());
        }
    }
}

async fn reaches_what_its_policy_says(server: &Server, outside: &Outside) {
    outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    let create = CreateSandbox { egress: Some(allow(&["web.test:80"])), ..sandboxed() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    let get = |host: &str| {
        format!(
            "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \"{host}:80\", Timeout => 20) \
             or exit 3; print $s \"GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n\"; print <$s>'"
        )
    };
    let ok = server.sh(&id, &get("web.test")).await;
    assert!(ok.stdout.contains(&format!("hello from {WEB}:80")), "{ok:?}");
    let refused = server.sh(&id, &get(OTHER)).await;
    assert!(refused.stdout.contains("403") && refused.stdout.contains("no rule allows it"), "{refused:?}");
    for never in ["169.254.169.254", "192.168.77.1", "other.test"] {
        let refused = server.sh(&id, &get(never)).await;
        assert!(!refused.stdout.contains("200"), "{never}: {refused:?}");
    }
    assert_eq!(outside.dials(), [format!("{WEB}:80")]);
    // A server inside is reached from outside, and woken for it.
    let serve = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 5, LocalPort => 8080, ReuseAddr => 1); \
                 while ($c = $s->accept) { <$c>; print $c \"HTTP/1.0 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nhi\"; close $c }'";
    server.shell(&id, serve).await;
    let answer = wait_until("the port answers", || async {
        let answer = server.send(server.request("GET", &format!("/v1/sandboxes/{id}/ports/8080/"))).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(answer.text(), "hi");
    server.client.delete_sandbox(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn outlives_the_server_and_dies_with_its_sentry() {
    let mut server = server(Server::start);
    stands_still_sleeps_and_forks(&mut server).await;
    let sandbox = server.client.create_sandbox(&sandboxed()).await.unwrap().id;
    let exec = server.shell(&sandbox, "for i in 1 2 3 4; do echo $i; sleep 1; done").await;
    let endless = server.shell(&sandbox, "sleep 100000").await;
    let before = sentry(&sandbox);
    server.kill();
    server.restart();
    assert_eq!(sentry(&sandbox), before);
    assert_eq!(crate::common::outputs(&server, &sandbox, &exec).await.0, b"1\n2\n3\n4\n");
    // Too much memory ends a command, and not the sandbox.
    let greedy = server.run(&sandbox, argv(&["tail", "/dev/zero"])).await;
    let exit = greedy.exec.exit.unwrap();
    assert_eq!((exit.reason, exit.code), (ExitReason::OutOfMemory, Some(137)));
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
    wait_until("no process is left", || async { host::processes(&sandbox).is_empty().then_some(()) }).await;
    // A sandbox that dies while no server runs is found dead.
    let other = server.client.create_sandbox(&sandboxed()).await.unwrap().id;
    server.kill();
    host::kill(sentry(&other));
    server.restart();
    assert_eq!(server.client.get_sandbox(&other).await.unwrap().state, SandboxState::Failed);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_in_a_warm_pool_and_is_watched() {
    let server = server(Server::start);
    let kind = sandboxed();
    let template: CreateTemplate = serde_json::from_value(serde_json::json!({
        "name": "tool",
        "image": kind.image,
        "isolation": kind.isolation,
        "resources": kind.resources,
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
        env: BTreeMap::from([("COLOUR".into(), "blue".into())]),
        resources: ResourcesDraft { pids: Some(24), ..ResourcesDraft::default() },
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    let line = format!("directory gvisor/sandboxes/{}", sandbox.id);
    assert!(waiting.contains(&line), "{} was not waiting: {waiting:?}", sandbox.id);
    assert_eq!(sandbox.isolation, IsolationLevel::Gvisor);
    let seen = server.sh("mine", "uname -n; cat /etc/hostname; grep -c mine /etc/hosts; echo $COLOUR").await;
    assert_eq!(seen.stdout, "mine\nmine\n1\nblue\n");
    is_watched(&server, &sandbox.id).await;
    let crowd = server.sh("mine", "i=0; while [ $i -lt 64 ]; do sleep 1 & i=$((i+1)); done").await;
    assert_ne!(crowd.code, Some(0), "more processes than allowed: {crowd:?}");
    server.client.delete_template("tool", None).await.unwrap();
    server.finish().await;
}

async fn is_watched(server: &Server, sandbox: &str) {
    let mut watch = server.client.watch_files(sandbox, "/root", true).await.unwrap();
    let mut next = async || {
        let event = futures::StreamExt::next(&mut watch);
        tokio::time::timeout(Duration::from_secs(30), event).await.unwrap().unwrap().unwrap()
    };
    assert_eq!(next().await, WatchEvent::Ready);
    let change = "mkdir -p /root/new/deep; echo x > /root/new/deep/file; mv /root/new/deep/file /root/moved";
    server.sh(sandbox, change).await.ok();
    while !matches!(next().await, WatchEvent::Changed(change) if format!("{change:?}").contains("/root/moved"))
    {
    }
}

async fn stands_still_sleeps_and_forks(server: &mut Server) {
    let sandbox = server.client.create_sandbox(&sandboxed()).await.unwrap().id;
    server.sh(&sandbox, "echo kept > /root/disk; echo kept > /tmp/disk").await;
    let fork = ForkSandbox { count: 2, ..ForkSandbox::default() };
    let forks = server.client.fork_sandbox(&sandbox, &fork).await.unwrap();
    for made in forks.results {
        let id = made.sandbox.expect("a fork").id;
        assert_eq!(
            server.sh(&id, "cat /root/disk /tmp/disk; echo other > /root/disk").await.stdout,
            "kept\nkept\n"
        );
        server.client.delete_sandbox(&id).await.unwrap();
    }
    let frozen = PauseSandbox { mode: Some(PauseMode::Frozen) };
    server.client.pause_sandbox(&sandbox, &frozen).await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(server.sh(&sandbox, "cat /root/disk").await.stdout, "kept\n");
    let to_disk = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&sandbox, &to_disk).await.unwrap();
    assert!(host::processes(&sandbox).is_empty());
    assert_eq!(server.sh(&sandbox, "cat /root/disk /tmp/disk").await.stdout, "kept\nkept\n");
    server.client.delete_sandbox(&sandbox).await.unwrap();
}

#[test]
fn what_is_no_gvisor_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = atoll_blackbox::command(atoll_blackbox::program())
        .args(["serve", "--listen", "127.0.0.1:0", "--runsc", "/bin/true", "--data-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("does not know --network"), "{said}");
}
