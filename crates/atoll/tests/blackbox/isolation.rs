//! What code in a sandbox cannot do, as root of the sandbox. The threat model, sentence by sentence.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::shell;
use atoll_blackbox::{Server, command, host, program};

/// Lines of shell that must not succeed, each on its own.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("mount a tmpfs", "mount -t tmpfs none /mnt"),
    ("mount proc", "mount -t proc none /mnt"),
    ("bind a directory", "mkdir -p /tmp/b && mount --bind /tmp /tmp/b"),
    ("remount the root", "mount -o remount,rw /usr"),
    ("unmount /proc", "umount /proc"),
    ("unmount /sys", "umount -l /sys"),
    ("make a user namespace", "unshare -U true"),
    ("make a mount namespace", "unshare -m true"),
    ("make a network namespace", "unshare -n true"),
    ("change the host name", "hostname other"),
    ("set the clock", "date -s 2001-01-01"),
    ("load a module", "modprobe dummy || insmod /tmp/x.ko"),
    ("write a sysctl", "echo 1 > /proc/sys/kernel/panic"),
    ("write a sysctl of the network", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
    ("write core_pattern", "echo '|/bin/x' > /proc/sys/kernel/core_pattern"),
    // Where the kernel has these two files they are hidden: behind `/dev/null`, which takes everything and gives nothing.
    ("press a key", "test ! -c /proc/sysrq-trigger && echo b > /proc/sysrq-trigger"),
    ("write to /sys", "echo 1 > /sys/kernel/profiling || touch /sys/x || mkdir /sys/fs/cgroup/x"),
    ("write to the system's programs", "echo x > /usr/bin/true"),
    ("make a disk", "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk"),
    ("make a memory device", "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem"),
    ("replace the agent", "echo x > /proc/1/exe"),
    ("read the agent's memory", "head -c 1 /proc/1/mem"),
    ("read the kernel's memory", "head -c 1 /proc/kcore | grep -q ."),
    ("read kernel messages", "dmesg || head -c 1 /dev/kmsg"),
    ("bring up an interface", "ip link add d0 type dummy"),
    ("raise a priority", "nice -n -10 sh -c 'test $(nice) -lt 0'"),
    (
        "reach a root outside by chroot",
        "perl -e 'mkdir q(/tmp/c); chroot q(/tmp/c); chdir q(..) for 1..50; chroot q(.); exit !(-e q(/var/lib/dpkg) || -e q(/boot))'",
    ),
    ("reach past the root", "test -e /../../../var/lib/dpkg"),
    ("open a raw socket", "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_RAW, 1) or exit 1'"),
    ("open a packet socket", "perl -e 'socket(my $s, 17, 3, 768) or exit 1'"),
    ("use bpf", "perl -e 'exit 1 if syscall(321, 0, 0, 0) < 0'"),
    ("use io_uring", "perl -e 'exit 1 if syscall(425, 1, my $p = \"\\0\" x 120) < 0'"),
    ("use userfaultfd", "perl -e 'exit 1 if syscall(323, 0) < 0'"),
    ("use keyrings", "perl -e 'exit 1 if syscall(250, 0, -3, 0) < 0'"),
    (
        "watch with perf",
        "perl -e 'my $a = pack(q(L2Q14), 0, 112, (0) x 14); exit 1 if syscall(298, $a, 0, -1, -1, 0) < 0'",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_cannot() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let mut possible = Vec::new();
    for (what, line) in IMPOSSIBLE {
        let output = server.sh(&sandbox, &format!("( {line} ) 2>&1")).await;
        if output.code == Some(0) {
            possible.push((what, output));
        }
    }
    assert!(possible.is_empty(), "root inside can: {possible:#?}");
    // It still is a computer: these must work, or the list above proves nothing.
    let usual = "id -u | grep -qx 0 && touch /tmp/x && chown 1000:1000 /tmp/x && head -c1 /dev/urandom >/dev/null \
                 && su user -c 'id -u' && kill -0 1 && perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 6) or exit 1'";
    let output = server.sh(&sandbox, usual).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_host_is_to_be_seen() {
    // A secret that is worth stealing, in places where it might show.
    let secret = format!("atoll-secret-{}", std::process::id());
    let dir = tempfile::Builder::new().prefix("atoll-bait-").tempdir_in("/var/tmp").unwrap();
    fs::write(dir.path().join("bait"), &secret).unwrap();
    let bait = dir.path().join("bait").display().to_string();
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let found = server.sh(&sandbox, &format!("cat {bait} /root/.bashrc /root/.ssh/* 2>/dev/null; ls -A /root /var/lib /var/tmp /home /boot /srv /opt 2>&1")).await;
    let text = format!("{}{}", found.stdout, found.stderr);
    assert!(!text.contains(&secret) && !text.contains("atoll-bait") && !text.contains("dpkg"), "{text}");
    let home: Vec<&str> = server.sh(&sandbox, "ls -A /home").await.stdout.leak().split_whitespace().collect();
    assert_eq!(home, ["user"]);
    // Its users are its own: no password of the host's, no key, no user that only the host has.
    let shadow = server.sh(&sandbox, "cat /etc/shadow 2>/dev/null; cat /etc/passwd").await.stdout;
    let host_shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    for hash in host_shadow.lines().filter_map(|line| line.split(':').nth(1)).filter(|hash| hash.len() > 4) {
        assert!(!shadow.contains(hash), "a password of the host is inside");
    }
    let etc = server.sh(&sandbox, "find /etc -type f").await.stdout;
    assert!(etc.contains("/etc/passwd") && !etc.contains("_key") && !etc.contains("machine-id"), "{etc}");
    // Processes, mounts, environment and network are its own.
    let processes = server.sh(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.stdout;
    assert!(!processes.contains("atoll serve") && !processes.contains("--ready-json"), "{processes}");
    let mounts = server.sh(&sandbox, "cat /proc/self/mountinfo").await.stdout;
    assert!(!mounts.contains("/var/tmp") && !mounts.contains("atoll-blackbox"), "{mounts}");
    let environment = server.sh(&sandbox, "env; cat /proc/1/environ | tr '\\0' '\\n'").await.stdout;
    assert!(!environment.contains("atl_") && !environment.contains("/nonexistent"), "{environment}");
    let links = server.sh(&sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await.stdout;
    assert_eq!(links, "lo\n");
    let disks =
        server.sh(&sandbox, "find /dev -type b; find /dev -type c | sort | tr '\\n' ' '").await.stdout;
    let mut devices: Vec<&str> =
        disks.split_whitespace().filter(|name| !name.starts_with("/dev/pts/")).collect();
    devices.sort_unstable();
    assert_eq!(devices, ["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"]);
    server.finish().await;
}

/// Connects, asks, and prints what comes back. The gateway takes every connection, if only to say why it goes no further.
const ASK: &str = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => shift, Timeout => 2) or exit 1; \
                   alarm 20; print $s qq(GET / HTTP/1.0\\r\\n\\r\\n); print while <$s>'";

/// Addresses of this host that are not its loopback. Nothing is sent to find them.
fn own_addresses() -> Vec<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let address = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    address.map(|address| address.ip().to_string()).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_network_but_its_own() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reached = std::sync::Arc::new(AtomicBool::new(false));
    let flag = std::sync::Arc::clone(&reached);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            flag.store(true, Ordering::SeqCst);
            drop((&stream).write_all(b"REACHED"));
        }
    });
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let other = server.sandbox().await.id;
    let server_port = server.url.rsplit(':').next().unwrap();
    for loopback in [format!("127.0.0.1:{port}"), format!("127.0.0.1:{server_port}")] {
        assert_eq!(server.sh(&sandbox, &format!("{ASK} {loopback}")).await.code, Some(1), "{loopback}");
    }
    let mut outside = own_addresses();
    outside.extend(["10.0.0.1", "169.254.169.254", "1.1.1.1"].map(str::to_owned));
    for address in outside {
        for port in [port, server_port.parse().unwrap()] {
            let said = server.sh(&sandbox, &format!("{ASK} {address}:{port}")).await.stdout;
            assert!(said.is_empty() || said.starts_with("HTTP/1.0 403 "), "{address}:{port} says {said}");
        }
    }
    assert!(!reached.load(Ordering::SeqCst));
    // Its own loopback works, and is not its neighbour's. Abstract sockets are not shared either.
    let listen = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalPort => 80, LocalAddr => q(127.0.0.1)) or die $!; $| = 1; print qq(up\\n); \
                  while ($c = $s->accept) { print $c qq(mine\\n); close $c }'";
    let exec = server.shell(&sandbox, listen).await;
    crate::common::follow(&server, &sandbox, &exec, 3).await;
    assert_eq!(server.sh(&sandbox, &format!("{ASK} 127.0.0.1:80")).await.stdout, "mine\n");
    assert_eq!(server.sh(&other, &format!("{ASK} 127.0.0.1:80")).await.code, Some(1));
    let ports = server.client.sandbox_ports(&sandbox).await.unwrap().items;
    assert_eq!(ports.iter().map(|item| item.port).collect::<Vec<_>>(), [80]);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_is_nobody_outside() {
    let server = Server::start();
    let (one, two) = (server.sandbox().await.id, server.sandbox().await.id);
    let mut owners = Vec::new();
    for sandbox in [&one, &two] {
        let exec = server.shell(sandbox, "echo up; exec sleep 1000").await;
        crate::common::follow(&server, sandbox, &exec, 3).await;
        for pid in host::processes(sandbox) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let field =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
            let uid: u32 = field("Uid:").split_whitespace().next().unwrap().parse().unwrap();
            assert!(uid > 65535, "{status}");
            assert_eq!(field("Seccomp:").trim(), "2", "{status}");
            assert_eq!(field("CapBnd:").trim().len(), 16);
            owners.push((sandbox, uid));
            // Its open files lead nowhere outside.
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
                let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
                assert!(!target.to_string_lossy().contains("atoll-blackbox"), "{target:?}");
            }
        }
    }
    let uids: std::collections::BTreeSet<u32> = owners.iter().map(|(_, uid)| *uid).collect();
    assert_eq!(uids.len(), 2, "{owners:?}");
    // A suid file made inside belongs to a user without rights outside, and is below a directory that only root may
    // enter.
    let done = server
        .run(
            &one,
            shell("cp /bin/sh /home/user/sh && chmod 4755 /home/user/sh && stat -c %u:%a /home/user/sh"),
        )
        .await;
    assert_eq!(done.exec.exit.unwrap().code, Some(0));
    let mode = fs::metadata(server.data()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    let agent = host::processes(&one)[0];
    let file = fs::metadata(format!("/proc/{agent}/root/home/user/sh")).unwrap();
    assert!(std::os::unix::fs::MetadataExt::uid(&file) > 65535);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_lead_out_do_not() {
    let dir = tempfile::Builder::new().prefix("atoll-bait-").tempdir_in("/var/tmp").unwrap();
    let bait = dir.path().join("bait");
    fs::write(&bait, "of the host").unwrap();
    let bait = bait.display().to_string();
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let out = dir.path().display();
    let links = format!(
        "ln -s {out} /tmp/out; ln -s {bait} /tmp/file; ln -s /proc/1/root/../.. /tmp/root; ln -s / /tmp/slash"
    );
    server.sh(&sandbox, &links).await;
    let files = format!("/v1/sandboxes/{sandbox}/files?path=");
    for path in [
        bait.clone(),
        "/tmp/file".to_owned(),
        "/tmp/out/bait".to_owned(),
        format!("/../../../..{bait}"),
        format!("/proc/1/root{bait}"),
        format!("/proc/self/root{bait}"),
        format!("/tmp/root{bait}"),
        format!("/tmp/slash{bait}"),
    ] {
        let answer = server.send(server.request("GET", &format!("{files}{path}"))).await;
        assert_ne!(answer.status, 200, "{path}: {}", answer.text());
        let answer = server.send(server.request("PUT", &format!("{files}{path}")).body("changed")).await;
        assert!(answer.status < 500, "{path}: {}", answer.text());
        let _removed = server.send(server.request("DELETE", &format!("{files}{path}&recursive=true"))).await;
        let archive = format!("/v1/sandboxes/{sandbox}/archive?path={path}");
        let answer = server.send(server.request("GET", &archive)).await;
        assert!(!answer.text().contains("of the host"), "{path}");
    }
    assert_eq!(fs::read_to_string(&bait).unwrap(), "of the host");
    // Tar members that lead out.
    for name in ["../../../../../var/tmp/atoll-escape", "/var/tmp/atoll-escape", "tmp/out/atoll-escape"] {
        let tar = atoll_testing::tar_of(&[atoll_testing::Entry::file(name, b"escaped")]);
        let archive = format!("/v1/sandboxes/{sandbox}/archive?path=/tmp");
        let _answer = server.send(server.request("PUT", &archive).body(tar)).await;
        assert!(!crate::common::is_there("/var/tmp/atoll-escape".as_ref()), "{name}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn symbolic_links_swapped_under_uploads_never_lead_out() {
    let dir = tempfile::Builder::new().prefix("atoll-bait-").tempdir_in("/var/tmp").unwrap();
    fs::write(dir.path().join("f"), "of the host").unwrap();
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let swap = format!(
        "mkdir -p /tmp/d; echo inside > /tmp/d/f; ln -s {} /tmp/l; echo up; \
         exec perl -e 'while (1) {{ rename q(/tmp/d), q(/tmp/x); rename q(/tmp/l), q(/tmp/d); rename q(/tmp/d), q(/tmp/l); rename q(/tmp/x), q(/tmp/d); }}'",
        dir.path().display()
    );
    let exec = server.shell(&sandbox, &swap).await;
    crate::common::follow(&server, &sandbox, &exec, 3).await;
    let path = format!("/v1/sandboxes/{sandbox}/files?path=/tmp/d/f");
    let archive = format!("/v1/sandboxes/{sandbox}/archive?path=/tmp/d");
    let tar = atoll_testing::tar_of(&[
        atoll_testing::Entry::file("f", b"unpacked"),
        atoll_testing::Entry::dir("s"),
    ]);
    let mut good = 0;
    for _ in 0..100 {
        let answer = server.send(server.request("PUT", &path).body("uploaded")).await;
        good += u32::from(answer.status == 200);
        let answer = server.send(server.request("GET", &path)).await;
        assert!(!answer.text().contains("of the host"));
        server.send(server.request("PUT", &archive).body(tar.clone())).await;
        let answer = server.send(server.request("GET", &archive)).await;
        assert!(!answer.text().contains("of the host"));
        server.send(server.request("DELETE", &path)).await;
    }
    assert!(good > 0, "no upload ever met the directory: this shows nothing");
    assert_eq!(fs::read_to_string(dir.path().join("f")).unwrap(), "of the host");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    server.finish().await;
}

#[test]
fn a_server_that_cannot_give_its_default_does_not_start() {
    let dir = tempfile::Builder::new().prefix("atoll-blackbox-").tempdir_in("/var/tmp").unwrap();
    let mut server = command(program());
    server.args(["serve", "--listen", "127.0.0.1:0", "--default-isolation", "microvm", "--data-dir"]);
    let mut server = server.arg(dir.path().join("data")).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = server.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            server.kill().unwrap();
            panic!("it serves");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!status.success() && said.contains("microvm") && said.contains("atoll setup microvm"), "{said}");
}

/// The doctor of a server tells of the levels that the host does not have, too, and what to do about it.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_of_a_server_says_which_level_is_missing() {
    let empty = tempfile::Builder::new().prefix("atoll-nothing-").tempdir_in("/var/tmp").unwrap();
    let server = Server::with(&["--microvm-dir", empty.path().to_str().unwrap()]);
    let doctor = server.cli(&["doctor", "--json"]).ok().json();
    let checks = doctor["checks"].as_array().unwrap();
    let machines: Vec<_> = checks.iter().filter(|check| check["name"] == "microvm").collect();
    assert_eq!(machines.len(), 1, "{doctor}");
    assert_eq!(machines[0]["status"], "missing", "{doctor}");
    assert!(machines[0]["hint"].as_str().unwrap().contains("atoll setup microvm"), "{doctor}");
    server.finish().await;
}
