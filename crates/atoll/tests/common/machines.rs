//! Servers and sandboxes for tests of the level `microvm`.

use atoll_api::CreateSandbox;
use atoll_blackbox::{Server, archive, machines};
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_testing::machines::debian;
use tempfile::TempDir;

/// Small machines of one kind: booted once for all tests.
pub(crate) const SMALL: ResourcesDraft = ResourcesDraft {
    cpu_millis: Some(1000),
    memory_bytes: Some(128 << 20),
    pids: None,
    disk_bytes: Some(1 << 30),
    io_bytes_per_second: None,
    io_operations_per_second: None,
};

/// A server with machines and the image. Taken apart as `_dir, server`: the last is dropped first, and a server whose
/// test failed needs its directory to find everything that is to be removed.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) _dir: TempDir,
}

pub(crate) async fn world() -> World {
    world_with(&[]).await
}

pub(crate) async fn world_with(args: &[String]) -> World {
    let shared = tokio::task::spawn_blocking(machines);
    let image = tokio::task::spawn_blocking(|| archive("debian-minimal.tar", &debian()));
    let (machines, image) = (shared.await.unwrap(), image.await.unwrap());
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // So that `atoll doctor --data-dir` finds it, too.
    std::os::unix::fs::symlink(&machines, data.join("microvm")).unwrap();
    let server = Server::on(&data, &args.iter().map(String::as_str).collect::<Vec<_>>());
    server.cli(&["image", "import", image.to_str().unwrap(), "debian"]).ok();
    World { server, _dir: dir }
}

pub(crate) fn machine() -> CreateSandbox {
    CreateSandbox {
        image: Some("debian".to_owned()),
        isolation: Some(IsolationLevel::Microvm),
        resources: SMALL,
        ..CreateSandbox::default()
    }
}
