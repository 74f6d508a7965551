//! Trees that a guest made to harm the server that looks at them from outside.

use atoll_api::CreateSnapshot;
use atoll_blackbox::Server;

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
