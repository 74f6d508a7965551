//! Ending an installation as a whole.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_api::{CreateSandbox, CreateVolume, VolumeMountDraft};
use atoll_blackbox::{Server, command, host, program, wait_until};
use atoll_client::{Client, ListSandboxes};
use atoll_core::sandbox::SandboxState;
use atoll_core::secret::Secret;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::shell;

fn atoll(args: &[&str]) -> Command {
    let mut command = command(program());
    command.args(args);
    command
}

/// Makes a sandbox with a volume, in which a command runs.
async fn with_something_in_it(client: &Client) {
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    client.create_volume(&volume).await.unwrap();
    let mount =
        VolumeMountDraft { volume: "data".into(), path: "/data".into(), read_only: false, subpath: None };
    let create = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
    let sandbox = client.create_sandbox(&create).await.unwrap();
    client.create_exec(&sandbox.id, &shell("while :; do date > /data/file; sleep 0.1; done")).await.unwrap();
}

async fn until_nothing_remains(installation: &str, data: &Path) {
    wait_until("nothing to be left", || async { host::remains(installation, data).is_empty().then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purge_ends_everything_and_only_when_it_is_meant() {
    let dir = tempfile::Builder::new().prefix("atoll-purge-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    let mut server = Server::on(&data, &[]);
    with_something_in_it(&server.client).await;
    let installation = server.installation();
    let path = data.to_str().unwrap();
    let purge = |args: &[&str]| {
        let mut all = vec!["purge", "--data-dir", path];
        all.extend(args);
        atoll(&all).stdin(Stdio::null()).output().unwrap()
    };
    // Not while its server runs, and not by mistake.
    assert!(!purge(&["--yes"]).status.success());
    server.kill();
    let asked = purge(&[]);
    assert!(!asked.status.success() && String::from_utf8_lossy(&asked.stderr).contains("--yes"), "{asked:?}");
    assert!(!host::remains(&installation, &data).is_empty(), "it ended what it only asked about");
    let purged = purge(&["--yes"]);
    assert!(purged.status.success(), "{purged:?}");
    assert!(!data.try_exists().unwrap());
    until_nothing_remains(&installation, &data).await;
    // Any other directory is not removed.
    assert!(!atoll(&["purge", "--yes", "--data-dir", "/var/tmp"]).output().unwrap().status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_can_be_ended_without_what_is_kept() {
    let dir = tempfile::Builder::new().prefix("atoll-purge-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    let mut server = Server::on(&data, &[]);
    with_something_in_it(&server.client).await;
    server.kill();
    let kept =
        atoll(&["purge", "--yes", "--keep-data", "--data-dir", data.to_str().unwrap()]).output().unwrap();
    assert!(kept.status.success(), "{kept:?}");
    // Nothing in the kernel; files are there.
    let installation = server.installation();
    wait_until("nothing to run", || async {
        let left = host::remains(&installation, &data);
        left.iter().all(|one| one.starts_with("directory ")).then_some(())
    })
    .await;
    server.restart();
    let page = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    assert_eq!(page.items[0].state, SandboxState::Failed);
    let mount =
        VolumeMountDraft { volume: "data".into(), path: "/data".into(), read_only: true, subpath: None };
    let create = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(server.sh(&sandbox.id, "ls /data").await.ok().stdout, "file\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_ends_an_installation_whose_directory_is_gone() {
    let dir = tempfile::Builder::new().prefix("atoll-gone-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    let mut server = Server::on(&data, &[]);
    with_something_in_it(&server.client).await;
    let installation = server.installation();
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    let found = atoll(&["doctor", "--leaks"]).output().unwrap();
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(text.contains(&installation) && text.contains(data.to_str().unwrap()), "{text}");
    atoll(&["doctor", "--leaks", "--remove"]).output().unwrap();
    until_nothing_remains(&installation, &data).await;
    let found = atoll(&["doctor", "--leaks"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&found.stdout).contains(&installation), "{found:?}");
}

const SERVE: [&str; 6] = ["serve", "--listen", "127.0.0.1:0", "--ready", "1", "--ready-json"];

/// A server, how to talk to it, and its installation.
async fn serving(command: &mut Command) -> (Child, Client, String) {
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let key = Secret::new(ready["api_key"].as_str().unwrap());
    let client = Client::new(ready["url"].as_str().unwrap(), &key).unwrap();
    let installation = client.server_info().await.unwrap().installation;
    (server, client, installation)
}

/// A server to which systemd gives a `/tmp` of its own may have its data directory where no other process sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_only_its_server_sees_is_not_gone() {
    let dir = tempfile::Builder::new().prefix("atoll-own-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    let program = atoll(&[]).get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount -t tmpfs atoll-own \"$0\" && exec \"$@\"").arg(dir.path()).arg(program);
    command.args(SERVE).arg("--data-dir").arg(&data);
    let (mut server, client, installation) = serving(&mut command).await;
    with_something_in_it(&client).await;
    assert!(!data.try_exists().unwrap());
    let found = atoll(&["doctor", "--leaks", "--remove"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&found.stdout).contains(&installation), "{found:?}");
    let sandboxes = client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items;
    assert!(sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Running), "{sandboxes:?}");
    // With the server its mounts are gone.
    server.kill().unwrap();
    server.wait().unwrap();
    let found = atoll(&["doctor", "--leaks"]).output().unwrap();
    assert!(String::from_utf8_lossy(&found.stdout).contains(&installation), "{found:?}");
    atoll(&["doctor", "--leaks", "--remove"]).output().unwrap();
    until_nothing_remains(&installation, &data).await;
}

/// An ephemeral server, how to talk to it, its installation and its directory.
async fn ephemeral() -> (Child, Client, String, PathBuf) {
    let (server, client, installation) = serving(atoll(&SERVE).arg("--ephemeral")).await;
    let mut dirs = std::fs::read_dir("/var/tmp").unwrap().map(|entry| entry.unwrap().path());
    let ours = |path: &PathBuf| {
        std::fs::read_to_string(path.join("installation")).is_ok_and(|name| name.trim() == installation)
    };
    let dir = dirs.find(ours).expect("a directory below /var/tmp");
    (server, client, installation, dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_server_ends_everything_with_itself() {
    let (mut server, client, installation, dir) = ephemeral().await;
    with_something_in_it(&client).await;
    let pid = Pid::from_raw(server.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(!dir.try_exists().unwrap());
    until_nothing_remains(&installation, &dir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_ends_what_an_ephemeral_server_left_that_was_killed() {
    let (mut server, client, installation, dir) = ephemeral().await;
    with_something_in_it(&client).await;
    // While it runs it is not taken for one.
    let found = atoll(&["doctor", "--leaks"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&found.stdout).contains(&installation), "{found:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    atoll(&["doctor", "--leaks", "--remove"]).output().unwrap();
    assert!(!dir.try_exists().unwrap());
    until_nothing_remains(&installation, &dir).await;
}
