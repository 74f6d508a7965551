//! SSH as editors and people with long-lived connections use it: many things over one connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::pty::Terminal;
use crate::common::ssh::{Setup, ok, text};
use atoll_blackbox::wait_until;
use atoll_client::ListExecs;

/// A port that is free at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A client in the background, ended with the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts a client whose input and output the test has.
fn piped(command: &mut Command) -> Background {
    Background(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_installs_its_server_and_talks_to_it() {
    let setup = Setup::start().await;
    let socks = free_port();
    // As VS Code does: a script on standard input, and a dynamic forward for everything after that.
    let mut editor =
        piped(setup.command("ssh").args(["-T", "-D", &socks.to_string(), "web@127.0.0.1", "bash"]));
    let script = "set -e\nmkdir -p ~/.editor/bin && cd ~/.editor\n\
         printf 'import http.server, sys\\n\
         class S(http.server.ThreadingHTTPServer): pass\\n\
         s = S((\"127.0.0.1\", 0), http.server.SimpleHTTPRequestHandler)\\n\
         print(s.server_port, flush=True)\\ns.serve_forever()\\n' > bin/server.py\n\
         echo it lives > page\n\
         nohup python3 bin/server.py > log 2>/dev/null < /dev/null &\n\
         while ! [ -s log ]; do sleep 0.05; done\n\
         echo listening on $(head -1 log) as $(uname -s)\n";
    let mut stdin = editor.0.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).unwrap();
    let mut lines = BufReader::new(editor.0.stdout.take().unwrap()).lines();
    let said = lines.next().unwrap().unwrap();
    let port = said.split(' ').nth(2).unwrap().to_owned();
    assert_eq!(said, format!("listening on {port} as Linux"));
    let fetch = |to: &str| {
        let through = format!("socks5h://127.0.0.1:{socks}");
        let args = ["-sS", "--noproxy", "", "--max-time", "20", "-x", &through, to];
        Command::new("curl").env_clear().args(args).output().unwrap()
    };
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(ok(fetch(&format!("http://{host}:{port}/page"))), "it lives\n");
    }
    // Nothing listens there; for addresses beyond the sandbox there is its own policy.
    for to in ["http://127.0.0.1:1/", "http://10.0.0.1/", "http://example.com/", "http://10.0.2.2:3128/"] {
        assert!(!fetch(to).status.success(), "{to}");
    }
    // The connection is still good, and its end leaves the editor's server where it is.
    assert_eq!(ok(fetch(&format!("http://localhost:{port}/page"))), "it lives\n");
    drop(stdin);
    assert!(editor.0.wait().unwrap().success());
    assert_eq!(ok(setup.ssh(&[&format!("curl -s localhost:{port}/page")])), "it lives\n");
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_share_one_connection() {
    let setup = Setup::start().await;
    let socket = setup.path("mux").to_str().unwrap().to_owned();
    let shared = || {
        let mut command = setup.command("ssh");
        command.args(["-S", &socket, "web@127.0.0.1"]);
        command
    };
    let mut first = setup.command("ssh");
    first.args(["-M", "-S", &socket, "-N", "web@127.0.0.1"]);
    let _master = Background(first.spawn().unwrap());
    wait_until("the first connection", async || crate::common::is_there(&setup.path("mux")).then_some(()))
        .await;
    let logins = || setup.server.log().matches("an SSH login").count();
    let before = logins();
    // One command does not read its input: the other ones do not wait for it.
    let mut stuck = piped(shared().args(["sleep 600"]));
    let mut sink = stuck.0.stdin.take().unwrap();
    let flood = std::thread::spawn(move || while sink.write_all(&[7; 65536]).is_ok() {});
    let running: Vec<_> =
        (0..30).map(|n| (n, piped(shared().arg(format!("cat; echo end {n}; exit {n}"))))).collect();
    for (n, mut session) in running {
        session.0.stdin.take().unwrap().write_all(format!("{n}\n").repeat(1000).as_bytes()).unwrap();
        let mut out = String::new();
        session.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(out, format!("{n}\n").repeat(1000) + &format!("end {n}\n"));
        assert_eq!(session.0.wait().unwrap().code(), Some(n));
    }
    // Files and forwards go over the same connection.
    let mut copy = setup.command("scp");
    copy.args(["-o", &format!("ControlPath={socket}"), "web@127.0.0.1:/etc/hostname"])
        .arg(setup.path("name"));
    ok(copy.output().unwrap());
    assert_eq!(std::fs::read(setup.path("name")).unwrap(), setup.ssh(&["cat /etc/hostname"]).stdout);
    let local = free_port();
    setup.server.shell(&setup.sandbox.id, "exec python3 -m http.server --bind 127.0.0.1 7000").await;
    let forward = format!("{local}:localhost:7000");
    ok(setup.command("ssh").args(["-S", &socket, "-O", "forward", "-L", &forward, "x"]).output().unwrap());
    wait_until("a forward that was added later", async || {
        let url = format!("http://127.0.0.1:{local}/");
        let get = Command::new("curl").env_clear().args(["-sf", "--max-time", "5", &url]).output().unwrap();
        get.status.success().then_some(())
    })
    .await;
    assert_eq!(logins(), before + 1, "all of it was one login, but for the one that was not shared");
    drop(stuck);
    flood.join().unwrap();
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_and_archives_go_by_standard_input_and_output() {
    let setup = Setup::start().await;
    // Longer than any buffer on the way; the shell must see it as it comes.
    let mut script = "n=0\n".to_owned();
    for _ in 0..20_000 {
        script.push_str("n=$((n + 1)) # a line of a long script\n");
    }
    script.push_str("echo $n $1\nexit 5\n");
    let mut bash = piped(setup.command("ssh").args(["web@127.0.0.1", "bash -s -- argument"]));
    let mut stdin = bash.0.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(script.as_bytes()).unwrap());
    let mut out = String::new();
    bash.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    writing.join().unwrap();
    assert_eq!((out.as_str(), bash.0.wait().unwrap().code()), ("20000 argument\n", Some(5)));

    std::fs::create_dir_all(setup.path("tree/deep")).unwrap();
    for n in 0..40_u8 {
        std::fs::write(setup.path(&format!("tree/deep/{n}")), vec![n; 100_000 + usize::from(n)]).unwrap();
    }
    let pipe = |line: &str| {
        let ssh = setup.command("ssh");
        let words: Vec<_> = std::iter::once(ssh.get_program())
            .chain(ssh.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let line = format!(
            "set -o pipefail; {}",
            line.replace("SSH", &format!("{} web@127.0.0.1", words.join(" ")))
        );
        ok(Command::new("bash").args(["-c", &line]).current_dir(setup.dir.path()).output().unwrap())
    };
    pipe("tar czf - tree | SSH 'mkdir -p /srv/in && tar xzf - -C /srv/in'");
    pipe("mkdir back && SSH 'tar cf - -C /srv/in tree' | tar xf - -C back && diff -r tree back/tree");
    // Standard error keeps out of it.
    assert_eq!(pipe("SSH 'echo noise >&2; echo out' 2>/dev/null"), "out\n");
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_changes_its_size_and_signals_arrive() {
    let setup = Setup::start().await;
    let (key, known) = (setup.path("key"), setup.path("known_hosts"));
    let args = [
        "-tt".to_owned(),
        "-F".to_owned(),
        "none".to_owned(),
        "-p".to_owned(),
        setup.port().to_owned(),
        "-i".to_owned(),
        key.display().to_string(),
        "-o".to_owned(),
        format!("UserKnownHostsFile={}", known.display()),
        "-o".to_owned(),
        "StrictHostKeyChecking=accept-new".to_owned(),
        "web@127.0.0.1".to_owned(),
        "trap 'echo now $(stty size)' WINCH; trap 'echo interrupted' INT; echo first $(stty size); \
         while ! [ -e /tmp/end ]; do sleep 0.1; done; exit 4"
            .to_owned(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut terminal = Terminal::of("ssh", &args, 101, 33);
    terminal.expect("first 33 101");
    terminal.resize(77, 22);
    terminal.expect("now 22 77");
    // A key, not a signal to the client: the far terminal makes it one.
    terminal.write("\x03");
    terminal.expect("interrupted");
    ok(setup.ssh(&["touch /tmp/end"]));
    assert_eq!(terminal.wait(), Some(4));

    // Ended by a signal: said to the client, which has one status for all of them.
    let killed = setup.command("ssh").args(["-v", "web@127.0.0.1", "kill -TERM $$"]).output().unwrap();
    assert_eq!(killed.status.code(), Some(255));
    assert!(text(&killed.stderr).contains("exit-signal"), "{killed:?}");
    for code in [0, 1, 127, 255] {
        assert_eq!(setup.ssh(&[&format!("exit {code}")]).status.code(), Some(code));
    }
    assert_eq!(setup.ssh(&["no-such-program"]).status.code(), Some(127));
    // The client goes away: its command gets a signal, and is gone.
    let mut left = piped(setup.command("ssh").args(["web@127.0.0.1", "echo $$; exec sleep 4321"]));
    let mut line = String::new();
    BufReader::new(left.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(left);
    wait_until("a command to end with its client", async || {
        (!setup.ssh(&[&format!("kill -0 {}", line.trim())]).status.success()).then_some(())
    })
    .await;
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_pass_and_agents_and_displays_do_not() {
    let setup = Setup::start().await;
    let ssh = |options: &[&str], line: &str| {
        let mut command = setup.command("ssh");
        command.env("LC_NAME", "de_DE.UTF-8").env("SECRET_HERE", "no");
        command.args(options).args(["web@127.0.0.1", line]).output().unwrap()
    };
    let show = "echo \"$LC_NAME|$MADE_UP|$SECRET_HERE|$HOME|$USER|$LOGNAME|$SHELL|$(pwd)|$PATH\"";
    let said = ok(ssh(&["-o", "SendEnv=LC_*", "-o", "SetEnv=MADE_UP=\"a b\""], show));
    let fields: Vec<_> = said.trim_end().split('|').collect();
    assert_eq!(fields[..6], ["de_DE.UTF-8", "a b", "", "/root", "root", "root"], "{said}");
    assert!(fields[6].starts_with('/') && fields[7] == "/root" && fields[8].contains("/usr/bin"), "{said}");

    // An agent that could be used is not.
    let agent = Command::new("ssh-agent").args(["-s"]).output().unwrap();
    let agent = text(&agent.stdout).to_owned();
    let value = |name: &str| {
        let at = agent.find(name).unwrap() + name.len() + 1;
        agent[at..].split(';').next().unwrap().to_owned()
    };
    let (path, pid) = (value("SSH_AUTH_SOCK"), value("SSH_AGENT_PID"));
    let mut forwarded = setup.command("ssh");
    forwarded.env("SSH_AUTH_SOCK", path).args(["-A", "web@127.0.0.1", "echo \"[$SSH_AUTH_SOCK]\""]);
    let said = forwarded.output().unwrap();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert_eq!(ok(said), "[]\n");
    let display = ssh(&["-o", "ForwardX11=yes", "-o", "LogLevel=INFO"], "echo \"[$DISPLAY]\"");
    assert_eq!(text(&display.stdout), "[]\n");
    // A socket of the sandbox is asked for and refused; the connection goes on.
    let local = setup.path("local.sock").display().to_string();
    let forward = format!("{local}:/run/some.sock");
    let script = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{local}'); print(len(s.recv(1)))"
    );
    let mut holding = piped(setup.command("ssh").args(["-L", &forward, "web@127.0.0.1", "cat"]));
    wait_until("a forwarded socket", async || {
        crate::common::is_there(&setup.path("local.sock")).then_some(())
    })
    .await;
    assert_eq!(ok(Command::new("/usr/bin/python3").args(["-c", &script]).output().unwrap()), "0\n");
    let mut stdin = holding.0.stdin.take().unwrap();
    stdin.write_all(b"still").unwrap();
    drop(stdin);
    let mut back = String::new();
    holding.0.stdout.take().unwrap().read_to_string(&mut back).unwrap();
    assert_eq!(back, "still");
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_waits_for_a_client_that_is_slow() {
    const BYTES: u64 = 400_000_000;
    let setup = Setup::start().await;
    let mut slow = piped(setup.command("ssh").args(["web@127.0.0.1", &format!("head -c {BYTES} /dev/zero")]));
    let said = async || {
        let list = setup.server.client.list_execs(&setup.sandbox.id, &ListExecs::default()).await.unwrap();
        list.items.first().map_or(0, |exec| exec.output_bytes)
    };
    let before = std::cell::Cell::new(0);
    let stopped = wait_until("the command to wait", async || {
        let now = said().await;
        let still = now > 0 && now == before.replace(now);
        tokio::time::sleep(Duration::from_millis(500)).await;
        still.then_some(now)
    });
    // Less than is kept of its output, so that nothing is lost and the host's disk is not filled.
    assert!(stopped.await < 256 << 20);
    let read = std::io::copy(&mut slow.0.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    assert_eq!((read, slow.0.wait().unwrap().code()), (BYTES, Some(0)));
    assert_eq!(said().await, BYTES);
    setup.server.finish().await;
}
