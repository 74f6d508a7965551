//! Servers and sandboxes for tests of the level `microvm`. Two tests of a file at a time, because where there is no KVM
//! machines are emulated.

use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use atoll_api::CreateSandbox;
use atoll_blackbox::{Server, command, program};
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_testing::machines::{debian, kernel_package};
use atoll_testing::run;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Small machines of one kind: booted once for all tests.
pub(crate) const SMALL: ResourcesDraft = ResourcesDraft {
    cpu_millis: Some(1000),
    memory_bytes: Some(128 << 20),
    pids: None,
    disk_bytes: Some(1 << 30),
    io_bytes_per_second: None,
    io_operations_per_second: None,
};

/// What the tests share: the directory that `atoll setup` made, and the image as an archive.
struct Shared {
    _end: ChildStdin,
    microvm: PathBuf,
    image: PathBuf,
}

/// A directory that goes when this process has ended, however it does: nothing static is dropped.
fn removed_at_the_end(dir: &Path) -> ChildStdin {
    let script = "cat > /dev/null; rm -rf \"$0\"";
    let waiting = Command::new("sh").args(["-c", script]).arg(dir).stdin(Stdio::piped()).spawn();
    waiting.unwrap().stdin.unwrap()
}

fn shared() -> Option<&'static Shared> {
    static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
    let make = || {
        let package = kernel_package()?;
        let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap().keep();
        let end = removed_at_the_end(&dir);
        let (microvm, image) = (dir.join("microvm"), dir.join("image.tar"));
        let output = command(program())
            .args(["setup", "microvm", "--json", "--package"])
            .arg(package)
            .arg("--microvm-dir")
            .arg(&microvm)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(["kvm", "emulated"].contains(&told["accelerator"].as_str().unwrap()), "{told}");
        run(Command::new("tar").arg("-C").arg(debian()).arg("-cf").arg(&image).arg("."));
        Some(Shared { _end: end, microvm, image })
    };
    SHARED.get_or_init(make).as_ref()
}

/// A server with machines and the image; few tests have one at a time. Taken apart as `_turn, _dir, server`: the last is
/// dropped first, and a server whose test failed needs its directory to find what is to be removed.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) _dir: TempDir,
    pub(crate) _turn: SemaphorePermit<'static>,
}

pub(crate) async fn world() -> Option<World> {
    world_with(&[]).await
}

pub(crate) async fn world_with(args: &[String]) -> Option<World> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    let turn = TURNS.acquire().await.unwrap();
    let shared = tokio::task::spawn_blocking(shared).await.unwrap()?;
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir_in("/var/tmp").unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // So that `atoll doctor --data-dir` finds it, too.
    std::os::unix::fs::symlink(&shared.microvm, data.join("microvm")).unwrap();
    let server = Server::on(&data, &args.iter().map(String::as_str).collect::<Vec<_>>());
    server.cli(&["image", "import", shared.image.to_str().unwrap(), "debian"]).ok();
    Some(World { server, _dir: dir, _turn: turn })
}

pub(crate) fn machine() -> CreateSandbox {
    CreateSandbox {
        image: Some("debian".to_owned()),
        isolation: Some(IsolationLevel::Microvm),
        resources: SMALL,
        ..CreateSandbox::default()
    }
}
