//! Which program makes a connection, as the gate of a container is told, and that no program can pass for another.

use std::net::TcpStream;
use std::os::fd::AsFd as _;

use atoll_core::policy::{Origin, Sender};
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Harness as _, Sandbox, plan};
use atoll_isolation::{Execution, Gate, IsolationError, Plan};

use crate::common::{self, Containers};
use crate::locked::{make, watched};

fn python() -> Origin {
    Origin::Program("/usr/bin/python3".into())
}

fn bash() -> Origin {
    Origin::Program("/usr/bin/bash".into())
}

fn all() -> Origin {
    Origin::Program("/usr/bin/*".into())
}

fn asked(origins: Vec<Origin>) -> Execution {
    Execution { origins, ..Execution::default() }
}

fn asks(harness: &Containers, origins: Vec<Origin>) -> Plan {
    Plan { execution: asked(origins), ..plan(harness.root.clone(), Resources::default()) }
}

/// The connection that has come, if there is one.
fn accept(gate: &Gate) -> Option<TcpStream> {
    match gate.tcp.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            None
        }
    }
}

/// Which program makes the connection that a shell line makes. The connection is closed at once.
async fn sender(sandbox: &Sandbox, gate: &Gate, line: &str) -> Option<Sender> {
    let output = sandbox.run(&format!("({line}) 2>&1")).await;
    let stream = accept(gate).unwrap_or_else(|| panic!("{line} does not connect: {output:?}"));
    gate.attribution.as_ref().unwrap().sender(stream.as_fd())
}

const CONNECT: &str = "import socket; s = socket.socket(); s.settimeout(20); s.connect(('192.0.2.7', 80))";
const BASH: &str = "bash -c 'exec 3<>/dev/tcp/192.0.2.7/80'";
const FORK: &str = "import os; pid = os.fork()\nif pid: os.waitpid(pid, 0); os._exit(0)\n";
const THREAD: &str = "import threading\ndef go(): exec(open('/tmp/c.py').read())\nt = threading.Thread(target=go); t.start(); t.join()";
const MAPPED: &str = "import socket; s = socket.socket(socket.AF_INET6); s.settimeout(20); s.connect(('::ffff:192.0.2.7', 80))";
const FAST: &str =
    "import socket; s = socket.socket(); s.settimeout(20); s.sendto(b'x', 0x20000000, ('192.0.2.7', 80))";
const MARKED: &str = "import socket; s = socket.socket(); s.settimeout(20)\n\
    try: s.setsockopt(1, 36, bytes([1, 0, 0, 129]))\nexcept OSError: pass\ns.connect(('192.0.2.7', 80))";
const OTHER_EXE: &str =
    "import ctypes, os; ctypes.CDLL(None).prctl(35, 13, os.open('/usr/bin/python3', 0), 0, 0)\n";
const PASSED: &str = "import os, socket; s = socket.socket(); os.set_inheritable(s.fileno(), True)\n\
    os.execv('/tmp/copy', ['copy', '/tmp/given.py', str(s.fileno())])";
const GIVEN: &str = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.settimeout(20); s.connect(('192.0.2.7', 80))";

#[tokio::test(flavor = "multi_thread")]
async fn the_program_that_connects_is_told_and_no_other_passes_for_it() {
    let (harness, _sink, witness) = watched();
    let sandbox = make(&harness, &asks(&harness, vec![python()])).await;
    let gate = sandbox.driver.gate(&sandbox.id).await.unwrap();
    let fork = format!("{FORK}{CONNECT}");
    let exe = format!("{OTHER_EXE}{CONNECT}");
    let exec = "import os; os.execv('/bin/bash', ['python3', '-c', 'exec 3<>/dev/tcp/192.0.2.7/80'])";
    let child = "import subprocess; subprocess.run(['/tmp/copy', '/tmp/c.py'])";
    for (name, text) in [
        ("c", CONNECT),
        ("fork", &fork),
        ("thread", THREAD),
        ("mapped", MAPPED),
        ("fast", FAST),
        ("marked", MARKED),
        ("exe", &exe),
        ("passed", PASSED),
        ("given", GIVEN),
        ("exec", exec),
        ("child", child),
    ] {
        sandbox.see(&format!("cat > /tmp/{name}.py <<'END'\n{text}\nEND")).await;
    }
    sandbox.see("cp /usr/bin/python3 /tmp/copy; mkdir /tmp/d; cp /tmp/copy /tmp/d/python3; ln -s /usr/bin/python3 /tmp/link").await;
    let is_python =
        async |line: &str| sender(&sandbox, &gate, line).await.is_some_and(|who| who.is(&python()));
    for own in ["python3 /tmp/c.py", "/tmp/link /tmp/c.py", "python3 /tmp/fork.py", "python3 /tmp/thread.py"]
    {
        assert!(is_python(own).await, "{own}");
    }
    for own in ["python3 /tmp/mapped.py", "python3 /tmp/fast.py"] {
        assert!(is_python(own).await, "{own}");
    }
    // A connection counts for the program that connects, whatever that program sets and whichever program made the
    // socket.
    for other in [
        BASH,
        "/tmp/copy /tmp/c.py",
        "/tmp/copy /tmp/marked.py",
        "/tmp/copy /tmp/exe.py",
        "python3 /tmp/passed.py",
        "python3 /tmp/exec.py",
        "python3 /tmp/child.py",
        "PATH=/tmp/d:$PATH; python3 /tmp/c.py",
        "bash -c 'exec -a /usr/bin/python3 /tmp/copy /tmp/c.py'",
    ] {
        assert!(!is_python(other).await, "{other}");
    }
    drop(gate);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_apart_changes_at_once_and_stays_with_the_next_server() {
    let (harness, _sink, witness) = watched();
    let sandbox = make(&harness, &asks(&harness, vec![python()])).await;
    let gate = sandbox.driver.gate(&sandbox.id).await.unwrap();
    let connect = format!("python3 -c \"{CONNECT}\"");
    assert!(sender(&sandbox, &gate, &connect).await.unwrap().is(&python()));
    let set = async |origins| sandbox.driver.set_execution(&sandbox.id, &asked(origins)).await;
    set(vec![bash(), all()]).await.unwrap();
    let who = sender(&sandbox, &gate, BASH).await.unwrap();
    assert!(who.is(&bash()) && who.is(&all()) && !who.is(&python()));
    let who = sender(&sandbox, &gate, &connect).await.unwrap();
    assert!(!who.is(&bash()) && who.is(&all()));
    // A program that is not there is refused, and programs that were told apart still are.
    let refused = set(vec![Origin::Program("/usr/bin/gti".into())]).await;
    assert!(matches!(refused, Err(IsolationError::BadPolicy(_))), "{refused:?}");
    assert!(sender(&sandbox, &gate, BASH).await.unwrap().is(&bash()));
    // Another server, whose gate is a new one, tells them apart, too.
    drop(gate);
    let Sandbox { driver, id, guest, .. } = sandbox;
    guest.close();
    drop(driver);
    let driver = harness.open().await;
    driver.adopt(&id).await.unwrap();
    let gate = driver.gate(&id).await.unwrap();
    let sandbox = Sandbox::connect(driver, id).await;
    assert!(sender(&sandbox, &gate, BASH).await.unwrap().is(&bash()));
    // No program is told apart any more.
    sandbox.driver.set_execution(&sandbox.id, &Execution::default()).await.unwrap();
    assert!(sender(&sandbox, &gate, BASH).await.is_none());
    drop(gate);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_tell_refuses() {
    let harness = common::containers();
    let driver = harness.open().await;
    let plan = asks(&harness, vec![python()]);
    let refused = driver.create(&plan).await;
    assert!(matches!(refused, Err(IsolationError::UnenforceablePolicy(_))), "{refused:?}");
    driver.destroy(&plan.id).await.unwrap();
    assert!(driver.check_execution(&plan.execution).is_err());
}
