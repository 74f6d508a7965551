//! The host's disk is full: nothing is lost that the server acknowledged, and calls that remove something work. The
//! data directory lies on a small file system of its own.

use std::path::Path;
use std::time::Duration;

use atoll_api::{CreateSandbox, Sandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::ListSandboxes;
use atoll_core::Code;
use atoll_core::spec::ResourcesDraft;

use crate::common::{SmallDisk, code, shell, until_full_for_good};

/// Writers of the first test, and how much each writes: pieces of so many MiB.
const WRITERS: usize = 4;
const PIECES: u32 = 20;
const PIECE_MIB: u32 = 32;
/// How long the writers may take altogether.
const WRITING: Duration = Duration::from_secs(300);

/// Until the guard has noticed that the disk is full, the database may be what finds no room.
async fn readiness(server: &Server) -> String {
    let answer = server.bare("GET", "/readyz").send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.json::<serde_json::Value>().await.unwrap()["status"].as_str().unwrap().to_owned();
    assert_eq!(status, if text == "store_unavailable" { 503 } else { 200 }, "{text}");
    text
}

async fn until_ready_says(server: &Server, what: &str) {
    wait_until(&format!("readyz to say {what}"), || async {
        (readiness(server).await == what).then_some(())
    })
    .await;
}

async fn create(server: &Server) -> Sandbox {
    let resources = ResourcesDraft { disk_bytes: Some(2 << 30), ..ResourcesDraft::default() };
    server.client.create_sandbox(&CreateSandbox { resources, ..CreateSandbox::default() }).await.unwrap()
}

/// Writes pieces that are told apart, each of them synced before the next.
fn writer() -> String {
    format!(
        "mkdir -p /root/w && cd /root/w && for i in $(seq 1 {PIECES}); do \
         yes \"$(hostname)-$i\" | head -c {PIECE_MIB}M > f$i && sync f$i || exit 9; done"
    )
}

/// Compares all of it with the content of the disk, not of the memory.
fn reader() -> String {
    format!(
        "cd /root/w && for i in $(seq 1 {PIECES}); do dd if=f$i iflag=nocache count=0 status=none; \
         yes \"$(hostname)-$i\" | head -c {PIECE_MIB}M | cmp - f$i || exit 9; done"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_and_synced_is_there_byte_by_byte() {
    let small = SmallDisk::new(2 << 30);
    let server = Server::on(&small.path().join("data"), &[]);
    let mut sandboxes = Vec::new();
    for _ in 0..WRITERS {
        let sandbox = create(&server).await;
        let exec = server.client.create_exec(&sandbox.id, &shell(&writer())).await.unwrap().exec;
        sandboxes.push((sandbox.id, exec.id));
    }
    // Together they want more than there is.
    until_full_for_good(&server, "host", 128 << 20).await;
    until_ready_says(&server, "host_disk_full").await;
    let refused = server.client.create_exec(&sandboxes[0].0, &shell("true")).await;
    assert_eq!(code(refused), Code::HostDiskFull);
    let refused = server.client.create_sandbox(&CreateSandbox::default()).await;
    assert_eq!(code(refused), Code::HostDiskFull);
    let seen = server.client.get_sandbox(&sandboxes[0].0).await.unwrap();
    assert!(seen.reason.as_deref().is_some_and(|why| why.contains("disk is full")), "{seen:?}");
    let doctor = server.client.doctor().await.unwrap();
    let check = doctor.checks.iter().find(|check| check.name == "host_disk").unwrap();
    assert!(check.detail.contains("stands still"), "{check:?}");
    // Deleting sandboxes makes room, and the other ones go on by themselves.
    for (sandbox, _) in sandboxes.drain(..WRITERS / 2) {
        server.client.delete_sandbox(&sandbox).await.unwrap();
    }
    until_ready_says(&server, "ok").await;
    let start = std::time::Instant::now();
    for (sandbox, exec) in &sandboxes {
        let exit = loop {
            let seen = server.client.get_exec(sandbox, exec, 20_000).await.unwrap();
            if let Some(exit) = seen.exit {
                break exit;
            }
            assert!(start.elapsed() < WRITING, "{}", server.log());
        };
        assert_eq!(exit.code, Some(0), "{exit:?}");
    }
    // Those that went on may have been stopped once more, until all that was freed was given back.
    until_ready_says(&server, "ok").await;
    for (sandbox, _) in &sandboxes {
        let compared = server.run(sandbox, shell(&reader())).await;
        assert_eq!(compared.exec.exit.as_ref().and_then(|exit| exit.code), Some(0), "{compared:?}");
    }
    end(server, &small.path().join("data")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_on_a_full_disk_and_removes_what_it_is_told_to() {
    let small = SmallDisk::new(1 << 30);
    let mut server = Server::on(&small.path().join("data"), &[]);
    let [goes, stays] = [create(&server).await.id, create(&server).await.id];
    let counts = shell("i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done");
    let exec = server.client.create_exec(&stays, &counts).await.unwrap().exec;
    let filler = small.fill(0);
    until_ready_says(&server, "host_disk_full").await;
    server.kill();
    // The room that the reserve gave is taken by another program, too.
    server.restart();
    assert_eq!(readiness(&server).await, "host_disk_full");
    assert_eq!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.len(), 2);
    assert_eq!(code(server.client.create_exec(&stays, &shell("true")).await), Code::HostDiskFull);
    server.client.delete_sandbox(&goes).await.unwrap();
    std::fs::remove_file(filler).unwrap();
    until_ready_says(&server, "ok").await;
    // It has gone on where it was.
    server.sh(&stays, "true").await.ok();
    let seen = server.client.get_exec(&stays, &exec.id, 0).await.unwrap();
    assert!(seen.exit.is_none(), "{seen:?}");
    end(server, &small.path().join("data")).await;
}

/// A sandbox that is being made cannot stand still: the client that asked for it would wait for as long as that
/// lasts.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_made_when_it_gets_full_ends_at_once() {
    // Long enough for the disk to be filled meanwhile: before there is a process, and when the process is there.
    for point in ["container::create::socket", "engine.create.networked"] {
        let small = SmallDisk::new(1 << 30);
        let data = small.path().join("data");
        let mut server = Server::on(&data, &[]);
        server.stop();
        server.restart_with(&format!("{point}=sleep(6000)"));
        let client = server.client.clone();
        let making = tokio::spawn(async move { client.create_sandbox(&CreateSandbox::default()).await });
        let client = server.client.clone();
        let trying = tokio::spawn(async move { client.doctor().await });
        wait_until("a sandbox that is being made", || async {
            let all = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
            (!all.items.is_empty()).then_some(())
        })
        .await;
        let filler = small.fill(0);
        until_ready_says(&server, "host_disk_full").await;
        assert_eq!(code(making.await.unwrap()), Code::HostDiskFull, "{point}");
        trying.await.unwrap().unwrap();
        // The answer does not wait until the half-made sandbox is taken away.
        wait_until("what was begun to be gone", || async {
            let left = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
            left.items.is_empty().then_some(())
        })
        .await;
        assert!(server.client.list_leaks().await.unwrap().items.is_empty(), "{point}");
        std::fs::remove_file(filler).unwrap();
        until_ready_says(&server, "ok").await;
        let made = create(&server).await;
        assert_eq!(server.sh(&made.id, "echo it works").await.stdout, "it works\n");
        end(server, &data).await;
    }
}

/// Everything is removed while the small file system is still there.
async fn end(mut server: Server, data: &Path) {
    let installation = server.installation();
    server.stop();
    server.cli(&["purge", "--yes", "--data-dir", data.to_str().unwrap()]).ok();
    assert_eq!(host::remains(&installation, data), Vec::<String>::new());
}
