//! Servers and sandboxes for tests of the level `gvisor`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use atoll_api::CreateSandbox;
use atoll_blackbox::Server;
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_testing::gvisor::runsc;
use atoll_testing::machines::{cache, debian, exclusive};
use atoll_testing::run;

/// The image as an archive, without files that no test looks at. Made once, kept for the next run.
fn image() -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let image = cache().join("debian-minimal.gvisor.tar");
        let (root, _turn) = (debian(), exclusive("debian-minimal.gvisor"));
        if !image.try_exists().unwrap() {
            let new = cache().join("debian-minimal.gvisor.new");
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(root).args(["--exclude=./usr/share", "--exclude=./var/lib/dpkg"]);
            run(tar.arg("-cf").arg(&new).arg("."));
            std::fs::rename(&new, &image).unwrap();
        }
        image
    };
    IMAGE.get_or_init(make).clone()
}

/// A server with the image.
pub(crate) fn server(start: impl FnOnce() -> Server) -> Server {
    let _runsc = runsc();
    let server = start();
    server.cli(&["image", "import", image().to_str().unwrap(), "debian"]).ok();
    server
}

/// A small sandbox of this level.
pub(crate) fn sandboxed() -> CreateSandbox {
    CreateSandbox {
        image: Some("debian".to_owned()),
        isolation: Some(IsolationLevel::Gvisor),
        resources: ResourcesDraft {
            memory_bytes: Some(128 << 20),
            disk_bytes: Some(256 << 20),
            ..ResourcesDraft::default()
        },
        ..CreateSandbox::default()
    }
}
