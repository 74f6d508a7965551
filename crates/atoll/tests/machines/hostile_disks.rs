//! Disks that root in a machine made to harm the server that looks at them from outside.

use crate::common::code;
use crate::common::machines::{World, machine, world};
use atoll_api::{CreateSandbox, CreateSnapshot};
use atoll_core::Code;

/// Root in a machine has the disk itself, and puts a link to a directory of the host in the place of its layer.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_cannot_make_the_host_read_its_own_files() {
    let World { _dir, server } = world().await;
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
