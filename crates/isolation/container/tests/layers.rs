//! Agent layers over the life of several servers.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Harness as _, Sandbox};
use atoll_isolation::{Isolation, PlannedLayer};
use common::{Containers, containers};

const READ: &str = "cat /opt/agents/bot/version";

/// A driver as the next server has it, told that the sandbox has these layers.
async fn next(harness: &Containers, id: &SandboxId, layers: &[PlannedLayer]) -> Sandbox {
    let driver: Arc<dyn Isolation> = harness.open().await;
    driver.adopt(id).await.unwrap();
    assert!(driver.set_layers(id, layers).await.unwrap());
    Sandbox::connect(driver, id.clone()).await
}

/// The server ends, as `kill -9` would end it.
async fn end(sandbox: Sandbox) {
    sandbox.guest.close();
    sandbox.guest.closed().await;
}

#[tokio::test]
async fn a_layer_that_no_record_names_is_taken_away_by_the_next_server() {
    let harness = containers();
    let image = tempfile::Builder::new().prefix("atoll-layer-").tempdir().unwrap();
    std::fs::write(image.path().join("version"), "one").unwrap();
    let layers = [PlannedLayer { name: "bot".to_owned(), dir: image.path().to_owned() }];

    let mut sandbox = Sandbox::create(&harness, Resources::default()).await;
    let id = sandbox.id.clone();
    // The second time it is one of which a server has found that it had none.
    for _ in 0..2 {
        assert_ne!(sandbox.run(READ).await.code, 0);
        assert!(sandbox.driver.set_layers(&id, &layers).await.unwrap());
        assert_eq!(sandbox.see(READ).await, "one");
        end(sandbox).await;
        sandbox = next(&harness, &id, &layers).await;
        assert_eq!(sandbox.see(READ).await, "one");
        end(sandbox).await;
        sandbox = next(&harness, &id, &[]).await;
    }
    assert_ne!(sandbox.run(READ).await.code, 0);
    sandbox.destroy().await;
}
