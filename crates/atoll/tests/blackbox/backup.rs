//! An installation as one file, and back: what is there afterwards, which calls are refused, and what a crash leaves.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use atoll_api::{
    CreateKey, CreateSandbox, CreateSnapshot, CreateTemplate, CreateVolume, KeyFormat, PauseSandbox,
    PutSecret, VolumeMountDraft,
};
use atoll_blackbox::{Output, Server, command, host, program, wait_until};
use atoll_client::Client;
use atoll_core::key::Scope;
use atoll_core::policy::{EgressPolicy, Internet};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_testing::{Entry, Layout};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::gvisor;
use crate::common::world::{SECRET, World};

/// Bytes that must fit into a pipe while no process reads from it, and then some.
const PIPE_BYTES: usize = 64 << 10;

fn dir() -> TempDir {
    tempfile::Builder::new().prefix("atoll-backup-").tempdir_in("/var/tmp").unwrap()
}

/// The program, to its end.
fn atoll(failpoints: &str, args: &[&str]) -> Output {
    let mut command = command(program());
    let output =
        command.args(args).env("ATOLL_FAILPOINTS", failpoints).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn backup(file: &Path, data: &Path) -> Output {
    atoll("", &["backup", file.to_str().unwrap(), "--data-dir", data.to_str().unwrap(), "--json"])
}

fn restore(file: &Path, data: &Path) -> Output {
    atoll("", &["restore", file.to_str().unwrap(), "--data-dir", data.to_str().unwrap(), "--json"])
}

fn purge(data: &Path) {
    atoll("", &["purge", "--yes", "--data-dir", data.to_str().unwrap()]).ok();
}

/// The text of the error; fails if it is none.
fn refused(output: Output) -> String {
    assert_eq!(output.code, Some(125), "{output:?}");
    output.stderr
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A sandbox with a volume at `/data` that may reach the world with a secret.
fn with_all() -> CreateSandbox {
    let inject = serde_json::from_value(
        serde_json::json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:API_KEY}"}),
    );
    let egress =
        EgressPolicy { internet: Internet::On, inject: vec![inject.unwrap()], ..EgressPolicy::default() };
    let mount =
        VolumeMountDraft { volume: "data".into(), path: "/data".into(), read_only: false, subpath: None };
    CreateSandbox { egress: Some(egress), volumes: vec![mount], ..CreateSandbox::default() }
}

/// A sandbox that sleeps, of an image with everything that only layers may have.
async fn of_an_image(server: &Server) -> String {
    let second = vec![
        Entry::file("opt/own", b"linked\n"),
        Entry::symlink("opt/link", "/etc/passwd"),
        Entry::hardlink("opt/passwd", "opt/own"),
        Entry::file("etc/.wh.group", b""),
        Entry::file("opt/app/.wh..wh..opq", b""),
        Entry::file("opt/app/attributes", b"").xattr("user.a", b"line\nbreak"),
    ];
    let layout = Layout::new(&[crate::common::base_layer(), second]);
    let progress = server.cli(&["image", "load", &layout.path()]).ok().stdout;
    let digest = server.client.list_images().await.unwrap().items.pop().expect(&progress).digest;
    let create = CreateSandbox { image: Some(digest), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&id, "echo changed >> /opt/own").await.ok();
    server.client.pause_sandbox(&id, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    id
}

/// Everything that the test makes, and looks for again.
struct Made {
    of_image: String,
    asleep: String,
    awake: String,
    key: Secret,
}

async fn fill(server: &Server) -> Made {
    let client = &server.client;
    let scope = serde_json::from_value(serde_json::json!({"hosts": ["*.example.com"]})).unwrap();
    let put = PutSecret { value: Some(Secret::new(SECRET)), scope: Some(scope), note: None };
    client.put_secret(None, "API_KEY", &put).await.unwrap();
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    client.create_volume(&volume).await.unwrap();
    let asleep = client.create_sandbox(&with_all()).await.unwrap().id;
    server.sh(&asleep, "echo kept > /root/file; echo shared > /data/file; sync /data/file").await.ok();
    let tagged = CreateSnapshot { tags: vec!["tools:1".into()], ..CreateSnapshot::default() };
    client.create_snapshot(&asleep, &tagged).await.unwrap();
    let template = CreateTemplate {
        name: "tools".into(),
        snapshot: Some("tools:1".into()),
        ..serde_json::from_value(serde_json::json!({"name": "tools"})).unwrap()
    };
    client.create_template(&template).await.unwrap();
    client.pause_sandbox(&asleep, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    let awake = client.create_sandbox(&with_all()).await.unwrap().id;
    server.shell(&awake, "while :; do date > /data/clock; sleep 0.05; done").await;
    let create = CreateKey {
        name: "other".into(),
        scope: Scope::Manage,
        ttl_ms: None,
        format: KeyFormat::Atoll,
        project: None,
    };
    let key = client.create_key(&create).await.unwrap().secret;
    let of_image = of_an_image(server).await;
    Made { of_image, asleep, awake, key }
}

async fn is_all_there(server: &Server, made: &Made) {
    let other = Client::new(&server.url, &made.key).unwrap();
    let awake = other.get_sandbox(&made.awake).await.unwrap();
    assert_eq!(awake.state, SandboxState::Failed, "as after the host's power cut: {awake:?}");
    server.client.resume_sandbox(&made.asleep).await.unwrap();
    let files = server.sh(&made.asleep, "cat /root/file /data/file; ls /data").await.ok().stdout;
    assert_eq!(files, "kept\nshared\nclock\nfile\nlost+found\n".replace("lost+found\n", ""));
    let seen = server.sh(&made.asleep, "curl -sS https://api.example.com/echo").await.ok().stdout;
    assert!(seen.contains("Bearer <SECRET>"), "{seen}");
    let create = CreateSandbox { template: Some("tools".into()), ..CreateSandbox::default() };
    let new = server.client.create_sandbox(&create).await.unwrap().id;
    assert_eq!(server.sh(&new, "cat /root/file").await.ok().stdout, "kept\n");
    server.client.resume_sandbox(&made.of_image).await.unwrap();
    let seen = server.sh(&made.of_image, "cat /opt/own /opt/link; ls /etc /opt/app").await.ok().stdout;
    assert!(seen.starts_with("linked\nchanged\nroot:x:0:0") && !seen.contains("group"), "{seen}");
    let report = server.client.verify_events(&made.asleep).await.unwrap();
    assert!(report.findings.is_empty() && report.last > 5, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_after_it_was_restored_elsewhere() {
    let (world, dir) = (World::new().await, dir());
    let (data, file) = (dir.path().join("data"), dir.path().join("backup"));
    let mut server = Server::on(&data, &world.args());
    let made = fill(&server).await;
    let said = refused(backup(&file, &data));
    assert!(said.contains("a server runs on") && said.contains("systemctl stop"), "{said}");
    assert!(server.stop().success());
    // The running sandbox stands still meanwhile, and goes on.
    let agent = host::processes(&made.awake)[0];
    let told = backup(&file, &data).ok().json();
    assert_eq!(told["backup"]["of"]["installation"], server.installation(), "{told}");
    assert_eq!(host::processes(&made.awake)[0], agent);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(dir.path()), ["backup", "data"]);
    let inside = refused(backup(&data.join("backup"), &data));
    assert!(inside.contains("in what it is a backup of"), "{inside}");
    server.restart();
    let clock = server.sh(&made.awake, "cat /data/clock").await.ok().stdout;
    wait_until("the sandbox goes on", async || {
        let now = server.sh(&made.awake, "rm -f /data/clock; sleep 0.3; cat /data/clock").await.stdout;
        (!now.is_empty() && now != clock).then_some(())
    })
    .await;
    // Also after a crash: everything that the server acknowledged is in the database's log.
    server.kill();
    backup(&file, &data).ok();
    // A restored copy would take running sandboxes of the same installation for its own.
    let (other, verified) =
        (dir.path().join("other"), ["restore", file.to_str().unwrap(), "--verify", "--json"]);
    assert!(refused(restore(&file, &other)).contains("run on this host"));
    assert!(!other.try_exists().unwrap());
    purge(&data);
    assert_eq!(atoll("", &verified).ok().json()["verified"], true);
    restore(&file, &other).ok();
    assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o700);
    server.set_data(&other);
    server.restart();
    is_all_there(&server, &made).await;
    server.client.delete_sandbox(&made.awake).await.unwrap();
    server.finish().await;
}

/// A backup of an installation in which nothing was done but to make an image, and where it was restored from.
async fn small() -> (TempDir, PathBuf) {
    let dir = dir();
    let (data, file) = (dir.path().join("data"), dir.path().join("backup"));
    let mut server = Server::on(&data, &[]);
    let id = server.sandbox().await.id;
    server.client.delete_sandbox(&id).await.unwrap();
    assert!(server.stop().success());
    backup(&file, &data).ok();
    server.restart();
    server.finish().await;
    purge(&data);
    (dir, file)
}

/// A server on a directory that is not whole does not start.
fn no_server_starts_on(data: &Path) {
    let started = atoll("", &["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    assert!(refused(started).contains("not restored to its end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_or_hostile_is_refused_and_leaves_nothing() {
    let (dir, file) = small().await;
    let whole = fs::read(&file).unwrap();
    let (bad, data) = (dir.path().join("bad"), dir.path().join("restored"));
    let refuse = |bytes: &[u8], why: &str| {
        fs::write(&bad, bytes).unwrap();
        for output in [restore(&bad, &data), atoll("", &["restore", bad.to_str().unwrap(), "--verify"])] {
            let said = refused(output);
            assert!(said.contains(why), "{why}: {said}");
        }
        assert_eq!(names(dir.path()), ["backup", "bad"]);
        // A data directory that is there and empty stays, and stays empty.
        fs::create_dir(&data).unwrap();
        refused(restore(&bad, &data));
        assert_eq!(names(&data), [""; 0]);
        fs::remove_dir(&data).unwrap();
    };
    refuse(&whole[..whole.len() / 2], "ends in the middle");
    refuse(&whole[..whole.len() - 1], "ends in the middle");
    refuse(b"", "does not begin as one");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 0xff;
    refuse(&changed, "not a whole backup");
    // Changed by an attacker who knows the format.
    let mut tar = zstd::decode_all(whole.as_slice()).unwrap();
    let at = tar.windows(17).position(|window| window == b"data/installation").unwrap() + 512;
    tar[at] ^= 1;
    refuse(&zstd::encode_all(tar.as_slice(), 1).unwrap(), "does not have the digest");
    tar[at] ^= 1;
    for (name, why) in [("/outside", "foreign name"), ("data/../../outside", "leads elsewhere")] {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
        // Behind the first member, which is the header and its block.
        let block = &builder.get_ref()[..512];
        let hostile = [&tar[..1024], block, &tar[1024..]].concat();
        refuse(&zstd::encode_all(hostile.as_slice(), 1).unwrap(), why);
    }
    // Nor does it touch files that are there already.
    fs::create_dir(&data).unwrap();
    fs::write(data.join("mine"), "precious").unwrap();
    assert!(refused(restore(&file, &data)).contains("is not empty"));
    assert_eq!(names(&data), ["mine"]);
    // There is only one way for it onto a screen or into JSON.
    let piped = atoll("", &["backup", "-", "--json", "--data-dir", dir.path().to_str().unwrap()]);
    assert_eq!(piped.code, Some(2), "{piped:?}");
    assert!(refused(backup(&bad, dir.path())).contains("is no data directory"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restoration_that_was_killed_begins_anew() {
    let (dir, file) = small().await;
    let (whole, data) = (fs::read(&file).unwrap(), dir.path().join("restored"));
    let args = ["restore", "-", "--data-dir", data.to_str().unwrap()];
    // While it unpacks: it has half of the file, and waits for more.
    let mut child = command(program()).args(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&whole[..whole.len() - PIPE_BYTES.min(whole.len() / 2)]).unwrap();
    wait_until("something is unpacked", async || {
        data.join(".restoring/data").read_dir().is_ok_and(|mut dir| dir.next().is_some()).then_some(())
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!data.join("installation").try_exists().unwrap());
    no_server_starts_on(&data);
    // While it puts things in their place.
    let moving = atoll(
        "backup.restore.moved=kill@3",
        &["restore", file.to_str().unwrap(), "--data-dir", data.to_str().unwrap()],
    );
    assert_eq!(moving.code, None, "{moving:?}");
    assert!(names(&data).len() > 3, "{:?}", names(&data));
    no_server_starts_on(&data);
    // From a pipe to its end.
    let mut child =
        command(program()).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&whole).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!data.join(".restoring").try_exists().unwrap());
    let args = ["backup", "-", "--data-dir", data.to_str().unwrap()];
    let again = command(program()).args(args).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    assert!(again.stdout.len() > whole.len() / 2, "the same once more, through a pipe");
    purge(&data);
}

/// Says 0 once the loop that writes the clock has written it again, however busy the host is.
const IT_GOES_ON: &str = "rm /data/clock; sync; \
     for n in $(seq 200); do test -s /data/clock && break; sleep 0.1; done; test -s /data/clock; echo $?";

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_killed_leaves_nothing_standing_still() {
    let dir = dir();
    let (data, file) = (dir.path().join("data"), dir.path().join("backup"));
    let mut server = Server::on(&data, &[]);
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    server.client.create_volume(&volume).await.unwrap();
    let create = CreateSandbox { egress: None, ..with_all() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.shell(&id, "while :; do date > /data/clock; sync /data/clock; sleep 0.05; done").await;
    let killed = |data: &Path| {
        let args = ["backup", file.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
        assert_eq!(atoll("backup.held=kill", &args).code, None);
    };
    assert!(server.stop().success());
    killed(&data);
    // The next server lets everything go on.
    server.restart();
    assert_eq!(server.sh(&id, IT_GOES_ON).await.stdout, "0\n");
    // Another backup in between changes nothing of that, nor do its remains hinder the purge.
    assert!(server.stop().success());
    killed(&data);
    backup(&file, &data).ok();
    server.restart();
    assert_eq!(server.sh(&id, IT_GOES_ON).await.stdout, "0\n");
    assert!(server.stop().success());
    killed(&data);
    let installation = server.installation();
    purge(&data);
    wait_until("nothing to be left", async || host::remains(&installation, &data).is_empty().then_some(()))
        .await;
    // Only a backup that was begun is left: a file without its name.
    assert!(names(dir.path()).iter().all(|name| name.starts_with(".backup.") || name == "backup"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_in_gvisor_stand_still_meanwhile_too() {
    let dir = dir();
    let (data, file) = (dir.path().join("data"), dir.path().join("backup"));
    let mut server = gvisor::server(|| Server::on(&data, &[]));
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    server.client.create_volume(&volume).await.unwrap();
    let create = CreateSandbox { volumes: with_all().volumes, ..gvisor::sandboxed() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&id, "echo kept > /data/file").await.ok();
    assert!(server.stop().success());
    backup(&file, &data).ok();
    server.restart();
    assert_eq!(server.sh(&id, "cat /data/file").await.ok().stdout, "kept\n");
    server.finish().await;
}

/// A copy of a data directory, however it was made, is not used beside its original.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_the_same_installation_are_not_in_use_at_once() {
    let dir = dir();
    let (data, file, copy) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("copy"));
    let mut server = Server::on(&data, &[]);
    let id = server.sandbox().await.id;
    server.client.delete_sandbox(&id).await.unwrap();
    assert!(server.stop().success());
    backup(&file, &data).ok();
    restore(&file, &copy).ok();
    server.restart();
    let started = atoll("", &["serve", "--listen", "127.0.0.1:0", "--data-dir", copy.to_str().unwrap()]);
    let said = refused(started);
    assert!(said.contains("is the same installation as") && said.contains("purge"), "{said}");
    let id = server.sandbox().await.id;
    assert!(server.stop().success());
    let started = atoll("", &["serve", "--listen", "127.0.0.1:0", "--data-dir", copy.to_str().unwrap()]);
    assert!(refused(started).contains("is the same installation as"), "its sandboxes run");
    // The end of a copy is not that of the original.
    purge(&copy);
    server.restart();
    assert_eq!(server.sh(&id, "echo here").await.ok().stdout, "here\n");
    server.finish().await;
}

/// Its exit code after SIGTERM.
fn terminated(mut child: Child) -> Option<i32> {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    child.wait().unwrap().code()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_either_and_leaves_nothing() {
    let dir = dir();
    let (data, file, other) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("other"));
    let mut server = Server::on(&data, &[]);
    let id = server.sandbox().await.id;
    assert!(server.stop().success());
    // No process reads the rest of the backup.
    let mut child = command(program());
    let mut child = child
        .args(["backup", "-", "--data-dir", data.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(terminated(child), Some(143));
    server.restart();
    assert_eq!(server.sh(&id, "echo goes on").await.ok().stdout, "goes on\n");
    server.client.delete_sandbox(&id).await.unwrap();
    assert!(server.stop().success());
    backup(&file, &data).ok();
    let whole = fs::read(&file).unwrap();
    let mut child = command(program());
    let mut child = child
        .args(["restore", "-", "--data-dir", other.to_str().unwrap()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&whole[..whole.len() / 2]).unwrap();
    wait_until("it has begun", async || other.join(".restoring").try_exists().unwrap().then_some(())).await;
    assert_eq!(terminated(child), Some(143));
    assert!(!other.try_exists().unwrap());
    server.restart();
    server.finish().await;
}
