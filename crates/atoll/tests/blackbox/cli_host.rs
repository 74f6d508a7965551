//! What the program does on the host itself: what only root may do, a run that brings its own server, and the doctor,
//! which finds and removes what killed servers left.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use atoll_blackbox::{Server, command, host, program, wait_until};
use serde_json::Value;

#[test]
fn what_only_root_can_do_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    for args in [
        &["serve", "--data-dir", &data][..],
        &["serve", "--ephemeral"],
        &["doctor"],
        &["doctor", "--leaks"],
        &["setup", "microvm", "--data-dir", &data],
        &["backup", "--data-dir", &data, "-"],
        &["run", "--", "true"],
    ] {
        // In a user namespace that maps nobody: this is root's process still, and may run the program, but has another id.
        let plain = command(program());
        let mut as_nobody = Command::new("unshare");
        as_nobody.arg("--user").arg(plain.get_program()).args(args).env_clear();
        as_nobody.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = as_nobody.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        assert!(said.contains("only root can") && said.contains("sudo"), "{args:?}: {said}");
    }
    assert!(!Path::new(&data).exists());
}

/// Directories of embedded servers.
const EMBEDDED: &str = "/var/lib/atoll/run";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_server_leaves_nothing_even_when_killed() {
    let run = |line: &str| {
        let output = command(program()).args(["run", "--", "sh", "-c", line]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = run("echo hello; exit 6");
    assert_eq!((code, out.as_str()), (Some(6), "hello\n"), "{err}");
    let mut child = command(program());
    child.args(["run", "--", "sh", "-c", "echo up; sleep 1000"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.stdin(Stdio::null()).spawn().unwrap();
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let dir = Path::new(EMBEDDED).join(child.id().to_string());
    let installation = fs::read_to_string(dir.join("installation")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!host::remains(&installation, &dir).is_empty(), "what would be swept?");
    // The next one sweeps.
    assert_eq!(run("true").0, Some(0));
    wait_until("the kernel to let go", async || host::remains(&installation, &dir).is_empty().then_some(()))
        .await;
    assert!(!crate::common::is_there(&dir));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_and_the_data_directory() {
    let mut server = Server::start();
    let checks = server.cli(&["doctor", "--json"]).ok().json();
    let names: Vec<&str> =
        checks["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 5, "{names:?}");
    assert!(
        names.contains(&"trace_host"),
        "a running server says whether the kernel is a witness: {names:?}"
    );
    assert!(
        checks["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["detail"].as_str().is_some_and(|text| !text.is_empty()))
    );
    // Two servers do not share a data directory.
    let second = command(program())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(server.data())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another server uses"), "{second:?}");
    // A sandbox whose row is gone is a leak, which is seen and removed.
    let sandbox = server.sandbox().await.id;
    server.kill();
    for name in ["atoll.db", "atoll.db-wal", "atoll.db-shm"] {
        drop(fs::remove_file(server.data().join(name)));
    }
    let doctor = |extra: &[&str]| {
        let mut doctor = command(program());
        doctor.args(["doctor", "--leaks", "--json", "--data-dir"]).arg(server.data()).args(extra);
        let output = doctor.output().unwrap();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    fn leaks(found: &Value) -> &Vec<Value> {
        found["items"].as_array().unwrap()
    }
    let (code, found) = doctor(&[]);
    assert_eq!(code, Some(1), "{found}");
    let kinds: std::collections::BTreeSet<&str> =
        leaks(&found).iter().map(|leak| leak["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["cgroup", "directory", "disk", "loop", "process", "witness"]
    );
    // The witness watches all sandboxes of the server.
    let mut sandboxes = leaks(&found).iter().filter(|leak| leak["kind"] != "witness");
    assert!(sandboxes.all(|leak| leak["sandbox"] == sandbox.as_str()), "{found}");
    let (_, removed) = doctor(&["--remove"]);
    assert!(leaks(&removed).iter().all(|leak| leak["removed"] == true), "{removed}");
    let (_, left) = doctor(&[]);
    assert!(leaks(&left).is_empty(), "{left}");
    assert!(host::processes(&sandbox).is_empty());
}
