//! Snapshots: taken of running sandboxes, named, used, removed, through the real program.

use crate::common::{code, until_full_for_good};
use atoll_api::{CreateCheckpoint, CreateSandbox, CreateSnapshot, ForkSandbox, PullSnapshot, Snapshot};
use atoll_blackbox::{Server, wait_until};
use atoll_client::ListSnapshots;
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::snapshot::{CopyMethod, SnapshotState};
use atoll_core::spec::ResourcesDraft;
use atoll_testing::run;
use bytes::Bytes;

fn tagged(tags: &[&str]) -> CreateSnapshot {
    CreateSnapshot { tags: tags.iter().map(|&tag| tag.to_owned()).collect(), ..CreateSnapshot::default() }
}

fn from(snapshot: &str) -> CreateSandbox {
    CreateSandbox { snapshot: Some(snapshot.to_owned()), ..CreateSandbox::default() }
}

async fn with_digest(server: &Server, id: &str) -> Snapshot {
    wait_until("the digest", async || {
        let snapshot = server.client.get_snapshot(id).await.unwrap();
        snapshot.digest.is_some().then_some(snapshot)
    })
    .await
}

async fn remove_all(server: &Server) {
    for snapshot in server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items {
        server.client.delete_snapshot(&snapshot.id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_sandboxes_from_one() {
    let server = Server::start();
    let create = CreateSandbox {
        env: [("KEPT".into(), "yes".into())].into(),
        user: Some("user".into()),
        workdir: Some("/home/user/work".into()),
        resources: ResourcesDraft { pids: Some(99), ..ResourcesDraft::default() },
        ..CreateSandbox::default()
    };
    let parent = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&parent, "echo data > file; ln -s file link; mkdir deep; chmod 700 deep").await;
    let made = server.client.create_snapshot(&parent, &tagged(&["web", "web:v1"])).await.unwrap();
    assert_eq!((made.state, made.method), (SnapshotState::Ready, Some(CopyMethod::Clone)), "{made:?}");
    assert_eq!(made.tags, ["web:latest", "web:v1"]);
    assert!(
        made.paused_us.is_some() && made.stored_bytes > 0 && made.sandbox.as_deref() == Some(parent.as_str())
    );
    // The sandbox goes on, and its later changes are not in the snapshot.
    server.sh(&parent, "echo later > file; echo more > more").await;
    let look = "cat file link; stat -c '%U %a' deep; ls; echo $KEPT $(pwd) $(id -un)";
    let expected = "data\ndata\nuser 700\ndeep\nfile\nlink\nyes /home/user/work user\n";
    let mut children = Vec::new();
    for reference in [made.id.as_str(), "web", "web:v1"] {
        let child = server.client.create_sandbox(&from(reference)).await.unwrap();
        assert_eq!((child.snapshot.as_ref(), child.resources.pids), (Some(&made.id), 99));
        assert_eq!(server.sh(&child.id, look).await.stdout, expected);
        // Each is a computer of its own.
        assert_eq!(
            server.sh(&child.id, "hostname; echo mine > mine; ls mine").await.stdout,
            format!("{}\nmine\n", child.id)
        );
        children.push(child.id);
    }
    let over = CreateSandbox {
        env: [("KEPT".into(), "no".into())].into(),
        user: Some("root".into()),
        ..from("web")
    };
    let over = server.client.create_sandbox(&over).await.unwrap().id;
    assert_eq!(server.sh(&over, "echo $KEPT $(id -un)").await.stdout, "no root\n");
    // A sandbox that is made from a snapshot needs neither the snapshot nor the snapshot's sandbox.
    server.client.delete_sandbox(&parent).await.unwrap();
    let removed = server.client.delete_snapshot(&made.id).await.unwrap();
    assert_eq!((removed.snapshot, removed.tags.len()), (Some(made.id.clone()), 2));
    for child in &children {
        assert_eq!(server.sh(child, "cat file mine").await.stdout, "data\nmine\n");
    }
    assert_eq!(code(server.client.create_sandbox(&from(&made.id)).await), Code::SnapshotNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_move_and_snapshots_go_with_their_last_tag() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let cli = |args: &[&str]| server.cli(args);
    let first = cli(&["snapshot", "create", "-t", "app:v1", "-t", "app", "-c", "the first", &sandbox]).ok();
    let first = first.stdout.trim().to_owned();
    server.sh(&sandbox, "echo two > /home/user/two").await;
    let second = cli(&["snapshot", "create", "-t", "app", &sandbox]).ok().stdout.trim().to_owned();
    let app = |tag: &str| cli(&["snapshot", "show", tag]).ok().json();
    assert_eq!((&app("app")["id"], &app("app:v1")["id"]), (&second.as_str().into(), &first.as_str().into()));
    assert_eq!(app("app:v1")["comment"], "the first");
    let table = cli(&["snapshot", "ls"]).ok().stdout;
    assert!(table.contains("app:v1") && table.contains("the first") && table.contains(&sandbox), "{table}");
    assert_eq!(
        cli(&["snapshot", "ls", "--name", "other", "--json"]).ok().json()["items"],
        serde_json::json!([])
    );
    assert_eq!(cli(&["snapshot", "tag", &first, "other:x"]).ok().stdout, "app:v1\nother:x\n");
    // One of two references; then the last one and with it the snapshot.
    let removed = cli(&["snapshot", "rm", "app:v1", "--json"]).ok().json();
    assert_eq!(removed, serde_json::json!({ "items": [{ "tags": ["app:v1"] }] }));
    assert!(cli(&["snapshot", "rm", "other:x"]).ok().stdout.starts_with(&first));
    assert_eq!(code(server.client.get_snapshot(&first).await), Code::SnapshotNotFound);
    assert_eq!(server.client.get_snapshot("app").await.unwrap().id, second);
    // The same content has the same digest, another another.
    let again = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap().id;
    let digest = with_digest(&server, &second).await.digest.unwrap();
    assert!(digest.starts_with("blake3:") && digest.len() == 71, "{digest}");
    let other = with_digest(&server, &again).await.digest.unwrap();
    assert!(other.starts_with("blake3:"));
    remove_all(&server).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_stand_on_snapshots() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo installed > /opt/tool").await;
    let snapshot = server.client.create_snapshot(&sandbox, &tagged(&["base"])).await.unwrap();
    server.cli(&["template", "create", "tool", "--snapshot", "base", "-e", "V=1"]).ok();
    let template = server.client.get_template("tool", None).await.unwrap();
    assert_eq!((template.image.as_str(), template.snapshot.as_ref()), ("host", Some(&snapshot.id)));
    // The reference was looked up once: it does not matter where it points later.
    server.client.create_snapshot(&sandbox, &tagged(&["base", "base:two"])).await.unwrap();
    let create = CreateSandbox { template: Some("tool".into()), ..CreateSandbox::default() };
    let made = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(made.snapshot.as_ref(), Some(&snapshot.id));
    assert_eq!(server.sh(&made.id, "cat /opt/tool; echo $V").await.stdout, "installed\n1\n");
    let refusal = server.client.delete_snapshot(&snapshot.id).await.unwrap_err();
    assert_eq!(refusal.code(), Some(Code::SnapshotInUse));
    assert!(refusal.to_string().contains("tool:1"), "{refusal}");
    let both = serde_json::json!({ "name": "bad", "image": "other", "snapshot": "base" });
    let refusal = server.send(server.request("POST", "/v1/templates").json(&both)).await;
    assert_eq!((refusal.status, &refusal.json()["code"]), (400, &serde_json::json!("invalid_argument")));
    server.client.delete_template("tool", None).await.unwrap();
    remove_all(&server).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_grow_and_do_not_shrink() {
    let server = Server::start();
    let small = ResourcesDraft { disk_bytes: Some(64 << 20), ..ResourcesDraft::default() };
    let create = CreateSandbox { resources: small, ..CreateSandbox::default() };
    let parent = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&parent, "echo kept > /home/user/f").await;
    server.client.create_snapshot(&parent, &tagged(&["small"])).await.unwrap();
    let same = server.client.create_sandbox(&from("small")).await.unwrap();
    assert_eq!(same.resources.disk_bytes, 64 << 20);
    let full = server.sh(&same.id, "head -c 100M /dev/zero > /home/user/x").await;
    assert!(full.stderr.contains("No space left"), "{full:?}");
    let sized = |bytes| CreateSandbox {
        resources: ResourcesDraft { disk_bytes: Some(bytes), ..ResourcesDraft::default() },
        ..from("small")
    };
    let larger = server.client.create_sandbox(&sized(512 << 20)).await.unwrap().id;
    let fits = server.sh(&larger, "head -c 200M /dev/zero > /home/user/x; cat /home/user/f").await;
    assert_eq!((fits.stdout.as_str(), fits.stderr.as_str()), ("kept\n", ""));
    let metrics = server.client.sandbox_metrics(&larger).await.unwrap();
    assert!(metrics.disk_total_bytes > 400 << 20 && metrics.disk_total_bytes <= 512 << 20, "{metrics:?}");
    let refusal = server.client.create_sandbox(&sized(32 << 20)).await.unwrap_err();
    assert_eq!(refusal.code(), Some(Code::InvalidArgument));
    assert!(refusal.to_string().contains("resources.disk_bytes"), "{refusal}");
    remove_all(&server).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let none = CreateSnapshot::default();
    assert_eq!(code(server.client.create_snapshot("nobody", &none).await), Code::SandboxNotFound);
    for bad in ["Upper", "a:", "a:b:c", ":x", "a b", "sn000000000000000000zz"] {
        assert_eq!(
            code(server.client.create_snapshot(&sandbox, &tagged(&[bad])).await),
            Code::InvalidArgument,
            "{bad}"
        );
    }
    let comment = CreateSnapshot { comment: Some("x".repeat(257)), ..CreateSnapshot::default() };
    assert_eq!(code(server.client.create_snapshot(&sandbox, &comment).await), Code::InvalidArgument);
    for unknown in ["none", "none:v1", "sn000000000000000000zz"] {
        assert_eq!(code(server.client.get_snapshot(unknown).await), Code::SnapshotNotFound, "{unknown}");
        assert_eq!(code(server.client.delete_snapshot(unknown).await), Code::SnapshotNotFound, "{unknown}");
        assert_eq!(code(server.client.tag_snapshot(unknown, "x").await), Code::SnapshotNotFound, "{unknown}");
        assert_eq!(
            code(server.client.create_sandbox(&from(unknown)).await),
            Code::SnapshotNotFound,
            "{unknown}"
        );
    }
    let both = CreateSandbox { image: Some("host".into()), ..from("none") };
    assert_eq!(code(server.client.create_sandbox(&both).await), Code::InvalidArgument);
    assert!(server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.is_empty());
    // A sandbox that dies while its snapshot is taken: a snapshot or a refusal, and nothing half-made.
    let dying = server.sandbox().await.id;
    let (taken, deleted) =
        tokio::join!(server.client.create_snapshot(&dying, &none), server.client.delete_sandbox(&dying));
    deleted.unwrap();
    match &taken {
        Ok(snapshot) => assert_eq!(snapshot.state, SnapshotState::Ready),
        Err(error) => assert!(
            matches!(error.code(), Some(Code::SandboxNotFound | Code::InvalidState | Code::SandboxFailed)),
            "{error:?}"
        ),
    }
    let left = server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items;
    assert_eq!(left.len(), usize::from(taken.is_ok()));
    assert_eq!(code(server.client.create_snapshot(&dying, &none).await), Code::SandboxNotFound);
    remove_all(&server).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_survive_kill_9() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo kept > /home/user/f").await;
    let snapshot = server.client.create_snapshot(&sandbox, &tagged(&["kept"])).await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(with_digest(&server, "kept").await.id, snapshot.id);
    let child = server.client.create_sandbox(&from("kept")).await.unwrap().id;
    assert_eq!(server.sh(&child, "cat /home/user/f").await.stdout, "kept\n");
    // A sandbox that an earlier process made can be snapshotted as well.
    server.sh(&sandbox, "echo new > /home/user/f").await;
    server.client.create_snapshot(&sandbox, &tagged(&["new"])).await.unwrap();
    let child = server.client.create_sandbox(&from("new")).await.unwrap().id;
    assert_eq!(server.sh(&child, "cat /home/user/f").await.stdout, "new\n");
    // Also when nothing runs that would hold the pool.
    for gone in server.client.list_sandboxes(&atoll_client::ListSandboxes::default()).await.unwrap().items {
        server.client.delete_sandbox(&gone.id).await.unwrap();
    }
    assert!(server.stop().success());
    server.restart();
    let child = server.client.create_sandbox(&from("new")).await.unwrap().id;
    assert_eq!(server.sh(&child, "cat /home/user/f").await.stdout, "new\n");
    remove_all(&server).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_refuses_and_leaves_nothing() {
    let server = Server::with(&["--storage-size", "320MiB"]);
    let sandbox = server.sandbox().await.id;
    let before = server.client.create_snapshot(&sandbox, &tagged(&["before"])).await.unwrap();
    server.client.create_checkpoint(&sandbox, &CreateCheckpoint::default()).await.unwrap();
    // In pieces that are on disk before the next: little is unwritten when the sandboxes are stopped.
    let line = "cd /home/user; echo kept > kept; \
                for i in $(seq 600); do head -c 1M /dev/urandom > x$i; sync x$i; done";
    let exec = server.shell(&sandbox, line).await;
    until_full_for_good(&server, "pool", 32 << 20).await;
    let full = server.client.create_snapshot(&sandbox, &tagged(&["full"])).await;
    assert_eq!(code(full), Code::HostDiskFull);
    assert_eq!(code(server.client.create_sandbox(&from("before")).await), Code::HostDiskFull);
    let fork = ForkSandbox { count: 2, ..ForkSandbox::default() };
    assert_eq!(code(server.client.fork_sandbox(&sandbox, &fork).await), Code::HostDiskFull);
    // From a checkpoint nothing has to be taken; the children's disks have no room either.
    let fork = ForkSandbox { at: Some("1".into()), ..fork };
    match server.client.fork_sandbox(&sandbox, &fork).await {
        Ok(children) => {
            let errors = children.results.iter().filter_map(|child| Some(child.error.as_ref()?.code));
            assert_eq!(errors.collect::<Vec<_>>(), [Code::HostDiskFull; 2]);
        }
        refused => assert_eq!(code(refused), Code::HostDiskFull),
    }
    assert_eq!(code(server.client.rollback_sandbox(&sandbox, Some("1")).await), Code::HostDiskFull);
    // It stands still and has lost nothing: it would go on if there were room.
    assert_eq!(server.client.get_exec(&sandbox, &exec, 0).await.unwrap().state, ExecState::Running);
    let there = server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items;
    assert_eq!(there.iter().map(|snapshot| &snapshot.id).collect::<Vec<_>>(), [&before.id]);
    assert!(server.client.list_leaks().await.unwrap().items.is_empty());
    // There is room again when the sandbox that took it is gone.
    server.client.delete_sandbox(&sandbox).await.unwrap();
    wait_until("room", async || server.client.create_sandbox(&from("before")).await.ok()).await;
    remove_all(&server).await;
    server.finish().await;
}

/// An S3-compatible server on the loopback, with a bucket.
struct Bucket {
    child: std::process::Child,
    endpoint: String,
}

impl Bucket {
    async fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let moto = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/objects/moto");
        // Installs it the first time, which takes as long as it takes.
        run(std::process::Command::new(moto).arg("--help"));
        let child = std::process::Command::new(moto)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("start an S3-compatible server");
        let bucket = Self { child, endpoint: format!("http://127.0.0.1:{port}") };
        let http = reqwest::Client::new();
        wait_until("the bucket", async || {
            let made = http.put(format!("{}/atoll-test", bucket.endpoint)).send().await;
            made.ok().filter(|answer| answer.status().is_success()).map(drop)
        })
        .await;
        bucket
    }

    fn server(&self) -> Server {
        Server::with_env(
            &["--objects", "s3://atoll-test/snaps", "--objects-endpoint", &self.endpoint],
            &[("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")],
        )
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_travel_through_a_bucket() {
    let bucket = Bucket::start().await;
    let (here, there) = (bucket.server(), bucket.server());
    let sandbox = here.sandbox().await.id;
    // More than one part.
    here.sh(&sandbox, "head -c 40M /dev/urandom > /home/user/data").await;
    let sum = here.sh(&sandbox, "sha256sum < /home/user/data").await.stdout;
    here.client.create_snapshot(&sandbox, &tagged(&["app:v1"])).await.unwrap();
    let pushed = here.cli(&["snapshot", "push", "app:v1", "--json"]).ok().json();
    assert!(pushed["sent_bytes"].as_u64().unwrap() > 40 << 20, "{pushed}");
    assert_eq!(pushed["tags"], serde_json::json!(["app:v1"]));
    let again = here.cli(&["snapshot", "push", "app:v1", "-t", "app:stable"]).ok().stdout;
    assert!(again.contains("it was there already"), "{again}");
    there.cli(&["snapshot", "pull", "app:stable"]).ok();
    let pulled = there.client.get_snapshot("app:stable").await.unwrap();
    assert_eq!(pulled.digest.as_deref(), pushed["digest"].as_str());
    let child = there.client.create_sandbox(&from("app:stable")).await.unwrap().id;
    assert_eq!(there.sh(&child, "sha256sum < /home/user/data").await.stdout, sum);
    there.cli(&["snapshot", "pull", pushed["digest"].as_str().unwrap(), "-t", "by-digest"]).ok();
    let pull = |from: &str| PullSnapshot { from: from.into(), tags: Vec::new(), visibility: None };
    assert_eq!(code(there.client.pull_snapshot(&pull("none")).await), Code::SnapshotNotFound);
    assert_eq!(code(there.client.pull_snapshot(&pull("blake3:12")).await), Code::InvalidArgument);
    // Another client has put another object there.
    let digest = pushed["digest"].as_str().unwrap().trim_start_matches("blake3:");
    let object = format!("{}/atoll-test/snaps/snapshots/{digest}", bucket.endpoint);
    // Whole in itself, but not what its name says.
    let small = here.sandbox().await.id;
    here.client.create_snapshot(&small, &tagged(&["other"])).await.unwrap();
    let other = here.cli(&["snapshot", "push", "other", "--json"]).ok().json();
    let other = other["digest"].as_str().unwrap().trim_start_matches("blake3:");
    let http = reqwest::Client::new();
    let stored = |name: &str| format!("{}/atoll-test/snaps/snapshots/{name}", bucket.endpoint);
    let bytes = http.get(stored(other)).send().await.unwrap().bytes().await.unwrap();
    let kept = http.get(stored(digest)).send().await.unwrap().bytes().await.unwrap();
    // The store overwrites an owned object only for a named user, even this store, which takes any name.
    let put = async |body: Bytes| {
        let somebody = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let put = http.put(&object).header("authorization", somebody).body(body);
        assert!(put.send().await.unwrap().status().is_success());
    };
    put(bytes).await;
    let before = there.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.len();
    assert_eq!(code(there.client.pull_snapshot(&pull("app:v1")).await), Code::DigestMismatch);
    // The beginning of it.
    put(kept.slice(..100_000)).await;
    assert_eq!(code(there.client.pull_snapshot(&pull("app:v1")).await), Code::SnapshotInvalid);
    let after = there.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.len();
    assert_eq!((before, after), (2, 2), "something half-made is left");
    put(Bytes::from_static(b"not a snapshot")).await;
    assert_eq!(code(there.client.pull_snapshot(&pull("app:v1")).await), Code::SnapshotInvalid);
    drop(bucket);
    assert_eq!(code(there.client.pull_snapshot(&pull("app:v1")).await), Code::ObjectsUnavailable);
    let plain = Server::start();
    assert_eq!(code(plain.client.pull_snapshot(&pull("app:v1")).await), Code::InvalidState);
    plain.finish().await;
    for server in [here, there] {
        remove_all(&server).await;
        server.finish().await;
    }
}
