//! Disks and trees that a guest made to harm whoever looks at them from outside.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

mod common;

use atoll_api::{CreateSandbox, CreateSnapshot};
use atoll_blackbox::Server;
use atoll_core::Code;
use common::code;
use common::machines::{World, machine, world};

/// Makes directories one in the other, deeper than any path.
const NEST: &str = "mkdir -p /home/user/deep && cd /home/user/deep && \
    perl -e 'for (1 .. 12000) { mkdir \"d\"; chdir \"d\" }'";

#[tokio::test(flavor = "multi_thread")]
async fn a_deep_tree_is_removed_and_the_sandbox_lives() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, NEST).await;
    let path = format!("/v1/sandboxes/{sandbox}/files?path=/home/user/deep&recursive=true");
    let removed = server.send(server.request("DELETE", &path)).await;
    assert!(removed.status < 300, "{removed:?}");
    assert_eq!(server.sh(&sandbox, "ls /home/user; echo alive").await.stdout, "alive\n");
    // The same in a snapshot, which the server compares.
    server.sh(&sandbox, NEST).await;
    let made = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap();
    let seen = server.client.diff_sandbox(&sandbox, None, Some(&made.id), true).await.unwrap();
    assert!(seen.truncated, "{} changes", seen.changes.len());
    server.client.delete_snapshot(&made.id).await.unwrap();
    server.finish().await;
}

/// Root in a machine has the disk itself, and puts a link to a directory of the host in the place of its layer.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_cannot_make_the_host_read_its_own_files() {
    let Some(World { _turn, _dir, server }) = world().await else { return };
    let hosts = tempfile::Builder::new().prefix("atoll-hosts-").tempdir_in("/var/tmp").unwrap();
    std::fs::write(hosts.path().join("secret"), "only the host knows\n").unwrap();
    let sandbox = server.client.create_sandbox(&machine()).await.unwrap().id;
    let before = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap();
    let attack = format!(
        "mkdir /tmp/d && mount /dev/vdb /tmp/d && mv /tmp/d/upper /tmp/d/real && ln -s {} /tmp/d/upper && sync && \
         umount /tmp/d && echo done",
        hosts.path().display()
    );
    assert_eq!(server.sh(&sandbox, &attack).await.stdout, "done\n");
    let after = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap();
    for from in [None, Some(before.id.as_str())] {
        let seen = server.client.diff_sandbox(&sandbox, from, Some(&after.id), true).await;
        assert_eq!(code(seen), Code::SnapshotInvalid);
    }
    // Nor does another machine start on it.
    let from = CreateSandbox { snapshot: Some(after.id.clone()), ..CreateSandbox::default() };
    assert!(server.client.create_sandbox(&from).await.is_err());
    for snapshot in [before.id, after.id] {
        server.client.delete_snapshot(&snapshot).await.unwrap();
    }
    server.finish().await;
}
