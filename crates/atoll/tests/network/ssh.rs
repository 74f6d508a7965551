//! SSH with the clients that people have: ssh, scp, sftp, rsync.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::gvisor;
use crate::common::ssh::{Setup, ok, text};
use atoll_blackbox::{Server, wait_until};
use atoll_client::ListExecs;

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_and_are_recorded() {
    let setup = Setup::start().await;
    let output = setup.ssh(&["echo out; echo err >&2; exit 7"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout), text(&output.stderr)),
        (Some(7), "out\n", "err\n")
    );
    assert_eq!(ok(setup.ssh(&["id -un; echo $SSH_CONNECTION | wc -w"])), "root\n4\n");
    // Killed by a signal: as with every SSH server.
    assert_eq!(setup.ssh(&["kill -9 $$"]).status.code(), Some(255));
    let mut child = setup
        .command("ssh")
        .args(["web@127.0.0.1", "sha256sum"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = vec![0x5a; 5 << 20];
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let sum = ok(child.wait_with_output().unwrap());
    let here = {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(&bytes))
    };
    assert!(sum.starts_with(&here), "{sum}");
    let large = setup.ssh(&["head -c 30000000 /dev/zero | tr '\\0' x"]);
    assert!(large.stdout.len() == 30_000_000 && large.stdout.iter().all(|b| *b == b'x'));
    let list = setup.server.client.list_execs(&setup.sandbox.id, &ListExecs::default()).await.unwrap();
    assert!(list.items.len() >= 5 && list.items.iter().all(|exec| exec.started_by.is_some()), "{list:?}");
    let ps = setup.server.cli(&["ps", "web"]).ok().stdout;
    assert!(ps.contains("  echo out; echo err >&2; exit 7") && !ps.contains("nologin"), "{ps}");
    // Another user, by name and by number.
    assert_eq!(ok(setup.command("ssh").args(["web+user@127.0.0.1", "id -un"]).output().unwrap()), "user\n");
    assert_eq!(ok(setup.command("ssh").args(["web+1234@127.0.0.1", "id -u"]).output().unwrap()), "1234\n");
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_makes_the_sandbox_that_it_names() {
    let setup = Setup::start().await;
    let run = |login: &str, command: &str| {
        setup.command("ssh").args([&format!("{login}@127.0.0.1"), command]).output().unwrap()
    };
    assert_eq!(run("work", "true").status.code(), Some(255));
    ok(run("new+work", "echo kept > /root/file"));
    assert_eq!(ok(run("new+work", "cat /root/file")), "kept\n");
    assert_eq!(ok(run("work", "cat /root/file")), "kept\n");
    assert_eq!(ok(run("new+work+user", "id -un")), "user\n");
    let fresh = [ok(run("new", "hostname")), ok(run("new", "hostname"))];
    assert!(fresh[0].starts_with("sb") && fresh[0] != fresh[1], "{fresh:?}");
    for name in fresh.iter().map(|name| name.trim()).chain(["work"]) {
        setup.server.client.delete_sandbox(name).await.unwrap();
    }
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_and_a_login_shell() {
    let setup = Setup::start().await;
    let output = ok(setup
        .command("ssh")
        .args(["-tt", "web@127.0.0.1", "tty && stty size && echo $TERM"])
        .env("TERM", "xterm")
        .output()
        .unwrap());
    assert!(output.contains("/dev/pts/") && output.contains("xterm"), "{output}");
    let mut shell = setup
        .command("ssh")
        .args(["-tt", "web@127.0.0.1"])
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(b"echo a$((40+2))b\nexit 3\n").unwrap();
    let output = shell.wait_with_output().unwrap();
    assert!(
        output.status.code() == Some(3) && String::from_utf8_lossy(&output.stdout).contains("a42b"),
        "{output:?}"
    );
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_both_ways_without_a_server_inside() {
    let setup = Setup::start().await;
    files_go_both_ways(&setup).await;
    setup.server.finish().await;
}

/// Where the kernel is gVisor, which lacks some of the calls that the agent uses elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn also_in_gvisor() {
    let server = gvisor::server(Server::start);
    let setup = Setup::of(server, gvisor::sandboxed()).await;
    files_go_both_ways(&setup).await;
    setup.server.finish().await;
}

async fn files_go_both_ways(setup: &Setup) {
    let data: Vec<u8> = (0..6_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    std::fs::write(setup.path("data"), &data).unwrap();
    std::fs::create_dir_all(setup.path("tree/sub dir")).unwrap();
    std::fs::write(setup.path("tree/sub dir/ü"), "hello").unwrap();
    std::fs::write(setup.path("tree/run"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(setup.path("tree/run"), std::fs::Permissions::from_mode(0o751)).unwrap();
    let scp = |args: &[&str]| ok(setup.command("scp").arg("-rp").args(args).output().unwrap());
    let at = |name: &str| setup.path(name).to_str().unwrap().to_owned();
    scp(&[&at("data"), "web@127.0.0.1:/tmp/data"]);
    scp(&[&at("tree"), "web@127.0.0.1:/tmp/"]);
    scp(&["web@127.0.0.1:/tmp/data", &at("back")]);
    scp(&["web@127.0.0.1:/tmp/tree", &at("tree back")]);
    assert!(std::fs::read(setup.path("back")).unwrap() == data);
    assert_eq!(std::fs::read_to_string(setup.path("tree back/sub dir/ü")).unwrap(), "hello");
    assert_eq!(std::fs::metadata(setup.path("tree back/run")).unwrap().permissions().mode() & 0o777, 0o751);

    // The sftp program: directories, links, renaming, resuming.
    let batch = "mkdir /tmp/s\ncd /tmp/s\nput data\nln -s data link\nrename data moved\nls -la\nchmod 600 moved\n\
                 reget moved part\nmkdir d\nrmdir d\nrm link\nget moved again\n";
    std::fs::write(setup.path("part"), &data[..1000]).unwrap();
    std::fs::write(setup.path("batch"), batch).unwrap();
    let output = setup
        .command("sftp")
        .arg("-b")
        .arg(setup.path("batch"))
        .arg("web@127.0.0.1")
        .current_dir(setup.dir.path())
        .output()
        .unwrap();
    let listing = ok(output);
    assert!(listing.contains("moved") && listing.contains("link"), "{listing}");
    for name in ["part", "again"] {
        assert!(std::fs::read(setup.path(name)).unwrap() == data, "{name}");
    }
    assert_eq!(ok(setup.ssh(&["stat -c '%a %s' /tmp/s/moved; ls /tmp/s"])), "600 6000000\nmoved\n");
    // As a user who may not write there.
    let denied =
        setup.command("scp").arg(setup.path("data")).arg("web+user@127.0.0.1:/root/x").output().unwrap();
    assert!(!denied.status.success() && text(&denied.stderr).contains("ermission denied"), "{denied:?}");
    let allowed =
        setup.command("scp").arg(setup.path("data")).arg("web+user@127.0.0.1:/tmp/x").output().unwrap();
    ok(allowed);
    assert_eq!(ok(setup.ssh(&["stat -c %U /tmp/x"])), "user\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn rsync_works() {
    let setup = Setup::start().await;
    std::fs::create_dir(setup.path("from")).unwrap();
    for n in 0..50 {
        std::fs::write(setup.path(&format!("from/{n}")), vec![n; 10_000]).unwrap();
    }
    let shell = setup.command("ssh");
    let words: Vec<_> = std::iter::once(shell.get_program())
        .chain(shell.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let rsync = |from: &Path, to: &Path| {
        let mut command = Command::new("rsync");
        command.args(["-a", "-e", &words.join(" ")]).arg(from).arg(to);
        ok(command.env("HOME", setup.dir.path()).output().unwrap())
    };
    rsync(&setup.path("from/"), Path::new("web@127.0.0.1:/tmp/copy/"));
    rsync(Path::new("web@127.0.0.1:/tmp/copy/"), &setup.path("back/"));
    for n in 0..50_u8 {
        assert_eq!(std::fs::read(setup.path(&format!("back/{n}"))).unwrap(), vec![n; 10_000]);
    }
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_both_ways() {
    let setup = Setup::start().await;
    let serve = "python3 -c \"import socketserver as s\nclass H(s.StreamRequestHandler):\n    def handle(self): self.wfile.write(self.rfile.readline().upper())\ns.ThreadingTCPServer(('127.0.0.1',7000),H).serve_forever()\"";
    setup.server.shell(&setup.sandbox.id, serve).await;
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let reverse = format!("9000:127.0.0.1:{}", here.local_addr().unwrap().port());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut forwarding = setup
        .command("ssh")
        .args([
            "-N",
            "-o",
            "ExitOnForwardFailure=yes",
            "-L",
            &format!("{free}:localhost:7000"),
            "-R",
            &reverse,
            "web@127.0.0.1",
        ])
        .spawn()
        .unwrap();
    let back = wait_until("a forwarded port", async || {
        let mut stream = TcpStream::connect(("127.0.0.1", free)).ok()?;
        stream.write_all(b"hello\n").ok()?;
        let mut back = String::new();
        stream.read_to_string(&mut back).ok()?;
        (!back.is_empty()).then_some(back)
    })
    .await;
    assert_eq!(back, "HELLO\n");
    let greeting = std::thread::spawn(move || here.accept().unwrap().0.write_all(b"from outside\n").unwrap());
    let output = setup.server.sh(&setup.sandbox.id, "python3 -c \"import socket; print(socket.create_connection(('127.0.0.1',9000)).makefile().readline())\"").await.ok();
    assert_eq!(output.stdout.trim(), "from outside");
    greeting.join().unwrap();
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
    // Hosts beyond the sandbox are not reached through it.
    let beyond = setup.command("ssh").args(["-v", "-W", "10.0.0.1:80", "web@127.0.0.1"]).output().unwrap();
    assert!(
        !beyond.status.success() && text(&beyond.stderr).contains("administratively prohibited"),
        "{beyond:?}"
    );
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_goes_both_ways_at_once() {
    const BYTES: usize = 32_000_000;
    let setup = Setup::start().await;
    let serve = "python3 -c \"import socketserver as s\nclass H(s.BaseRequestHandler):\n    def handle(self):\n        while d := self.request.recv(65536): self.request.sendall(d)\ns.ThreadingTCPServer(('127.0.0.1',7000),H).serve_forever()\"";
    setup.server.shell(&setup.sandbox.id, serve).await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let forward = format!("{free}:localhost:7000");
    let mut forwarding = setup.command("ssh").args(["-N", "-L", &forward, "web@127.0.0.1"]).spawn().unwrap();
    let stream = wait_until("an echo through a forwarded port", async || {
        let mut stream = TcpStream::connect(("127.0.0.1", free)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        stream.write_all(b"x").ok()?;
        stream.read_exact(&mut [0]).ok()?;
        Some(stream)
    })
    .await;
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for _ in 0..BYTES / 32_000 {
            writer.write_all(&[b'x'; 32_000]).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).unwrap();
    sending.join().unwrap();
    assert!(back.len() == BYTES && back.iter().all(|byte| *byte == b'x'), "{} bytes", back.len());
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_and_leases_hold_here_too() {
    let setup = Setup::start().await;
    let cli = |args: &[&str]| setup.server.cli(args).ok();
    let made = cli(&["key", "create", "--scope", "exec", "other", "--json"]).json();
    let (id, secret) = (made["key"]["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    setup.make_key("other");
    let mut add = setup.server.cli_command();
    add.env("ATOLL_API_KEY", secret).args(["ssh-key", "add"]).arg(setup.path("other.pub"));
    ok(add.output().unwrap());
    // As with a second identity: the first that works is used.
    let other = |args: &[&str]| {
        let mut command = Command::new("ssh");
        for option in ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=no", "LogLevel=ERROR"] {
            command.args(["-o", option]);
        }
        command.args(["-o", "UserKnownHostsFile=/dev/null", "-F", "none", "-p", setup.port(), "-i"]);
        command.arg(setup.path("other")).arg("web@127.0.0.1").args(args).stdin(Stdio::null());
        command
    };
    let denied = |output: Output| {
        assert!(text(&output.stderr).contains("Permission denied"), "{output:?}");
    };
    assert_eq!(ok(other(&["echo shared"]).output().unwrap()), "shared\n");
    cli(&["access", "set", "web", "private"]);
    denied(other(&["true"]).output().unwrap());
    cli(&["access", "grant", "web", id, "read"]);
    denied(other(&["true"]).output().unwrap());
    cli(&["access", "grant", "web", id, "exec"]);
    // While another key has the lease on the sandbox, a login works and commands do not.
    cli(&["lease", "take", "--holder", "surgery", "web"]);
    let leased = other(&["true"]).output().unwrap();
    assert!(leased.status.code() == Some(255) && text(&leased.stderr).contains("surgery"), "{leased:?}");
    cli(&["lease", "release", "web"]);
    let mut session = other(&["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // `wait_with_output` closes the input of the process, and at its end the command would end by itself.
    let mut typing = session.stdin.take().unwrap();
    typing.write_all(b"x").unwrap();
    session.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    // The open session ends with the role.
    cli(&["access", "revoke", "web", id]);
    let ended = tokio::task::spawn_blocking(move || session.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(255), "{ended:?}");
    drop(typing);
    denied(other(&["true"]).output().unwrap());
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_gets_in() {
    let mut setup = Setup::start().await;
    let refused = |output: Output| {
        assert!(
            output.status.code() == Some(255) && text(&output.stderr).contains("Permission denied"),
            "{output:?}"
        );
    };
    refused(setup.command("ssh").args(["nowhere@127.0.0.1", "true"]).output().unwrap());
    setup.make_key("stranger");
    let with = |setup: &Setup, key: &str| {
        let mut command = Command::new("ssh");
        command.args([
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "LogLevel=ERROR",
        ]);
        command
            .args(["-o", "UserKnownHostsFile=/dev/null", "-F", "none", "-p", setup.port(), "-i"])
            .arg(setup.path(key));
        command.args(["web@127.0.0.1", "echo in"]).stdin(Stdio::null()).output().unwrap()
    };
    refused(with(&setup, "stranger"));
    // A key of an API key that may only look.
    let read = setup.server.cli(&["key", "create", "--scope", "read", "reader"]).ok().stdout;
    let exec = setup.server.cli(&["key", "create", "--scope", "exec", "worker", "--json"]).ok().json();
    let add = |key: &str| {
        let mut command = setup.server.cli_command();
        command
            .env("ATOLL_API_KEY", key)
            .args(["ssh-key", "add"])
            .arg(setup.path("stranger.pub"))
            .output()
            .unwrap()
    };
    assert!(!add(read.trim()).status.success());
    assert!(add(exec["secret"].as_str().unwrap()).status.success());
    assert_eq!(ok(with(&setup, "stranger")), "in\n");
    // The SSH key goes with its API key.
    setup.server.cli(&["key", "rm", exec["key"]["id"].as_str().unwrap()]).ok();
    refused(with(&setup, "stranger"));
    let listed = setup.server.client.list_ssh_keys().await.unwrap();
    assert_eq!(listed.items.len(), 1);
    // The API key is a password, too.
    let ask = setup.path("ask");
    std::fs::write(&ask, format!("#!/bin/sh\necho {}\n", setup.server.key)).unwrap();
    std::fs::set_permissions(&ask, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut by_password = Command::new("ssh");
    by_password.args([
        "-o",
        "PreferredAuthentications=password",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ]);
    by_password
        .args(["-o", "LogLevel=ERROR", "-F", "none", "-p", setup.port(), "web@127.0.0.1", "echo in"])
        .stdin(Stdio::null());
    let output = by_password.env("SSH_ASKPASS", &ask).env("SSH_ASKPASS_REQUIRE", "force").output().unwrap();
    assert_eq!(ok(output), "in\n");
    assert!(!setup.server.log().contains(&setup.server.key));
    // The host key stays the same: the first login noted it, and a change would be refused.
    ok(setup.ssh(&["true"]));
    setup.server.kill();
    setup.server.restart();
    ok(setup.ssh(&["true"]));
    let mut command = setup.command("ssh");
    command.args(["web@127.0.0.1", "cat"]);
    let mut session = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut typing = session.stdin.take().unwrap();
    typing.write_all(b"x").unwrap();
    session.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    setup.server.cli(&["ssh-key", "rm", &listed.items[0].id]).ok();
    // The open session ends with the key.
    let ended = tokio::task::spawn_blocking(move || session.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(255), "{ended:?}");
    drop(typing);
    refused(setup.ssh(&["true"]));
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn atoll_ssh_needs_no_set_up() {
    let setup = Setup::start().await;
    let run = |args: &[&str]| {
        let mut command = setup.server.cli_command();
        command.env("XDG_CONFIG_HOME", setup.path("config")).env("HOME", setup.dir.path());
        command.arg("ssh").args(args).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(ok(run(&["web", "--", "echo", "hello"])), "hello\n");
    assert_eq!(run(&["web", "--user", "user", "--", "id -un; exit 4"]).status.code(), Some(4));
    let missing = run(&["nowhere", "--", "true"]);
    assert!(missing.status.code() == Some(125) && text(&missing.stderr).contains("nowhere"), "{missing:?}");
    let config = ok(run(&["web", "--print-config"]));
    assert!(config.starts_with("Host web\n") && config.contains("ProxyCommand"), "{config}");
    std::fs::write(setup.path("ssh_config"), config).unwrap();
    let mut plain = Command::new("scp");
    plain.arg("-F").arg(setup.path("ssh_config")).arg("web:/etc/hostname").arg(setup.path("hostname"));
    plain.env("ATOLL_API_KEY", &setup.server.key).stdin(Stdio::null());
    ok(plain.output().unwrap());
    assert_eq!(
        std::fs::read_to_string(setup.path("hostname")).unwrap().trim(),
        ok(setup.ssh(&["cat /etc/hostname"])).trim()
    );
    setup.server.finish().await;
}
