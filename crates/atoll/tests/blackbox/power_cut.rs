//! The power goes away: everything that was acknowledged as kept is found again, whatever the disk forgot.
//!
//! The data directory lies in an ext4 file system on a disk that forgets blocks that were not flushed. Right after each
//! answer the test takes a copy of that disk as a power cut would leave it, once with none of the unflushed blocks and
//! once with any of them, and later starts a server on each of these.

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_api::{
    CreateKey, CreateSandbox, CreateSnapshot, CreateTemplate, CreateVolume, KeyFormat, PauseSandbox,
    PutSecret, Sandbox, Scope, VolumeMountDraft,
};
use atoll_blackbox::Server;
use atoll_client::{Client, ListSandboxes};
use atoll_core::Code;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_testing::{Unflushed, VolatileDisk, run};
use tempfile::TempDir;

use crate::common::code;

/// Sparse; large enough that the server does not take the host for full.
const DISK_BYTES: u64 = 48 << 30;
const SNAPSHOTTED: &str = "in the snapshot";
const HIBERNATED: &str = "in what sleeps";
const IN_VOLUME: &str = "in the volume";

/// A loop device with a file system that is mounted; both end with it.
struct Mounted {
    device: String,
    place: PathBuf,
}

impl Mounted {
    fn new(image: &Path, place: &Path) -> Self {
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(image));
        let device = String::from_utf8(device).unwrap().trim().to_owned();
        let mounted = Self { device, place: place.to_owned() };
        run(Command::new("mount").args(["-t", "ext4", "-o", "noatime"]).arg(&mounted.device).arg(place));
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.place).status());
        drop(Command::new("losetup").arg("--detach").arg(&self.device).status());
    }
}

/// Everything that the server has acknowledged.
#[derive(Debug, Clone, Default)]
struct Kept {
    revoked: Option<Secret>,
    secret: bool,
    snapshot: Option<String>,
    removed_snapshot: Option<String>,
    template: bool,
    volume: bool,
    sleeping: Option<String>,
    removed_sandbox: Option<String>,
}

/// The copy of the disk right after an answer, and what it must hold.
struct Found {
    when: String,
    image: PathBuf,
    kept: Kept,
}

struct Cuts {
    disk: VolatileDisk,
    dir: TempDir,
    found: Vec<Found>,
}

impl Cuts {
    fn take(&mut self, when: &str, kept: &Kept) {
        let seed = self.found.len() as u64;
        for (how, unflushed) in [("lost", Unflushed::Lost), ("torn", Unflushed::Torn(seed))] {
            let when = format!("{when}, {how} (seed {seed})");
            let image = self.dir.path().join(format!("found-{}", self.found.len()));
            self.disk.cut(&image, unflushed);
            self.found.push(Found { when, image, kept: kept.clone() });
        }
    }
}

async fn with_file(server: &Server, text: &str) -> Sandbox {
    let sandbox = server.sandbox().await;
    let written = server.sh(&sandbox.id, &format!("echo '{text}' >/root/file")).await;
    assert_eq!(written.code, Some(0), "{written:?}");
    sandbox
}

async fn revoked_key(server: &Server) -> Secret {
    let create = CreateKey {
        name: "guest".into(),
        scope: Scope::Manage,
        ttl_ms: None,
        format: KeyFormat::Atoll,
        project: None,
    };
    let made = server.client.create_key(&create).await.unwrap();
    let theirs = Client::new(&server.url, &made.secret).unwrap();
    theirs.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    server.client.delete_key(&made.key.id).await.unwrap();
    made.secret
}

/// Makes things of every kind, and takes copies of the disk after each answer.
async fn use_it(server: &Server, cuts: &mut Cuts) {
    let mut kept = Kept { revoked: Some(revoked_key(server).await), ..Kept::default() };
    cuts.take("a key is revoked", &kept);

    let put = PutSecret {
        value: Some(Secret::new("sesame")),
        scope: Some(serde_json::from_value(serde_json::json!({ "hosts": ["api.example.com"] })).unwrap()),
        note: None,
    };
    server.client.put_secret(None, "token", &put).await.unwrap();
    kept.secret = true;
    cuts.take("a secret is put", &kept);

    let sandbox = with_file(server, SNAPSHOTTED).await.id;
    let snapshot = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap();
    kept.snapshot = Some(snapshot.id.clone());
    cuts.take("a snapshot is made", &kept);

    let create = serde_json::json!({ "name": "kept", "snapshot": snapshot.id });
    let create: CreateTemplate = serde_json::from_value(create).unwrap();
    server.client.create_template(&create).await.unwrap();
    kept.template = true;
    cuts.take("a template is saved", &kept);

    let other = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap().id;
    server.client.delete_snapshot(&other).await.unwrap();
    kept.removed_snapshot = Some(other);
    cuts.take("a snapshot is removed", &kept);

    let create = CreateVolume { name: "data".into(), size_bytes: Some(64 << 20), ..CreateVolume::default() };
    server.client.create_volume(&create).await.unwrap();
    let mount =
        VolumeMountDraft { volume: "data".into(), path: "/srv".into(), read_only: false, subpath: None };
    let create = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
    let writer = server.client.create_sandbox(&create).await.unwrap().id;
    let line = format!("echo '{IN_VOLUME}' >/srv/file && sync /srv/file /srv");
    assert_eq!(server.sh(&writer, &line).await.code, Some(0));
    kept.volume = true;
    cuts.take("a file of a volume is synced", &kept);

    let sleeping = with_file(server, HIBERNATED).await.id;
    let mode = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&sleeping, &mode).await.unwrap();
    kept.sleeping = Some(sleeping);
    cuts.take("a sandbox is paused to disk", &kept);

    server.client.delete_sandbox(&sandbox).await.unwrap();
    kept.removed_sandbox = Some(sandbox);
    cuts.take("a sandbox is deleted", &kept);
}

/// Everything that was acknowledged is there, and works.
async fn check(server: &Server, kept: &Kept, when: &str) {
    let client = &server.client;
    if let Some(key) = &kept.revoked {
        let theirs = Client::new(&server.url, key).unwrap();
        let answer = theirs.list_sandboxes(&ListSandboxes::default()).await;
        assert_eq!(code(answer), Code::Unauthorized, "{when}: a revoked key");
    }
    if kept.secret {
        client.get_secret(None, "token").await.unwrap_or_else(|error| panic!("{when}: the secret: {error}"));
    }
    if let Some(snapshot) = &kept.snapshot {
        let create = CreateSandbox { snapshot: Some(snapshot.clone()), ..CreateSandbox::default() };
        reads(server, &create, "/root/file", SNAPSHOTTED, when).await;
    }
    if kept.template {
        let create = CreateSandbox { template: Some("kept".into()), ..CreateSandbox::default() };
        reads(server, &create, "/root/file", SNAPSHOTTED, when).await;
    }
    if let Some(snapshot) = &kept.removed_snapshot {
        assert_eq!(code(client.get_snapshot(snapshot).await), Code::SnapshotNotFound, "{when}: is back");
    }
    if kept.volume {
        let mount =
            VolumeMountDraft { volume: "data".into(), path: "/srv".into(), read_only: true, subpath: None };
        let create = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
        reads(server, &create, "/srv/file", IN_VOLUME, when).await;
    }
    if let Some(sleeping) = &kept.sleeping {
        let woken = client.resume_sandbox(sleeping).await;
        woken.unwrap_or_else(|error| panic!("{when}: it does not wake: {error}\n{}", server.log()));
        assert_eq!(server.sh(sleeping, "cat /root/file").await.stdout.trim(), HIBERNATED, "{when}");
    }
    if let Some(removed) = &kept.removed_sandbox {
        // The server does not wait until records of processes are durable: the removed sandbox may be told as one that
        // has failed, and no more.
        match client.get_sandbox(removed).await {
            Ok(found) => assert_eq!(found.state, SandboxState::Failed, "{when}: is back"),
            Err(error) => assert_eq!(error.code(), Some(Code::SandboxNotFound), "{when}: {error}"),
        }
    }
}

async fn reads(server: &Server, create: &CreateSandbox, file: &str, wanted: &str, when: &str) {
    let made = server.client.create_sandbox(create).await;
    let id = made.unwrap_or_else(|error| panic!("{when}: {create:?}: {error}\n{}", server.log())).id;
    assert_eq!(server.sh(&id, &format!("cat {file}")).await.stdout.trim(), wanted, "{when}");
}

/// Deletes all sandboxes, which hold resources on the host.
async fn delete_sandboxes(server: &Server) {
    for sandbox in server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items {
        server.client.delete_sandbox(&sandbox.id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_power_cut() {
    let dir = tempfile::Builder::new().prefix("atoll-power-cut-").tempdir_in("/var/tmp").unwrap();
    let place = dir.path().join("host");
    std::fs::create_dir(&place).unwrap();
    let mut cuts = Cuts { disk: VolatileDisk::new(DISK_BYTES), dir, found: Vec::new() };
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "nodiscard"]).arg(cuts.disk.path()));
    // Declared before the server: on every failure the server is dropped first, and leaves the file system.
    let mut mounted = Some(Mounted::new(&cuts.disk.path(), &place));
    let mut server = Server::on(&place.join("data"), &[]);

    use_it(&server, &mut cuts).await;
    // A file that was not flushed is forgotten: otherwise this test would show nothing.
    std::fs::write(place.join("unflushed"), "never flushed").unwrap();
    cuts.take("at the end", &Kept::default());
    delete_sandboxes(&server).await;
    assert!(server.stop().success(), "{}", server.log());
    drop(mounted.take());

    let last = cuts.found.len() - 2;
    for (number, found) in cuts.found.iter().enumerate() {
        mounted = Some(Mounted::new(&found.image, &place));
        if number == last {
            assert!(!place.join("unflushed").try_exists().unwrap(), "the disk forgets nothing");
        }
        server.restart();
        check(&server, &found.kept, &found.when).await;
        for sandbox in server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items {
            // Those of this time, those that slept, and those that the power cut ended: none that is half made.
            let known = [SandboxState::Running, SandboxState::Paused, SandboxState::Failed];
            assert!(known.contains(&sandbox.state), "{}: {sandbox:?}", found.when);
        }
        delete_sandboxes(&server).await;
        if number + 1 == cuts.found.len() {
            server.finish().await;
            break;
        }
        assert!(server.stop().success(), "{}: {}", found.when, server.log());
        drop(mounted.take());
        std::fs::remove_file(&found.image).unwrap();
    }
}
