use std::sync::mpsc;

use super::*;
use crate::{PoolSize, StorageConfig};

/// How long a write may take that nothing keeps waiting; only a test that fails waits so long.
const HANGS: Duration = Duration::from_secs(20);

fn volumes(dir: &Path) -> StoredVolumes {
    let instance = format!("{:08x}", std::process::id());
    let config = StorageConfig { dir: dir.to_owned(), instance, pool: PoolSize::Bytes(0) };
    StoredVolumes::new(Arc::new(Storage::open(&config).unwrap()))
}

/// Writes to a mount, as a sandbox would.
fn can_be_written(mount: &OwnedFd) -> bool {
    let root = crate::freeze::root(mount.as_fd()).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let file = rustix::fs::openat(&root, "file", flags, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        rustix::io::write(&file, b"content").unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(HANGS).is_ok()
}

/// A volume that a sandbox has mounted and that stands still, as a server leaves it that is killed while it copies it.
fn left_standing_still(dir: &Path) -> (VolumeId, OwnedFd) {
    let volumes = volumes(dir);
    let id = VolumeId::from_parts(1, 2);
    volumes.inner.create(&id, 32 << 20).unwrap();
    let whole =
        PlannedVolume { id: id.clone(), path: "/v".into(), read_only: false, subpath: None, make: false };
    let mount = volumes.mount(&whole).unwrap();
    std::mem::forget(Frozen::freeze(mount.as_fd()).unwrap());
    (id, mount)
}

#[tokio::test]
async fn a_volume_left_standing_still_goes_on_at_the_next_start() {
    let dir = tempfile::Builder::new().prefix("atoll-volumes-").tempdir().unwrap();
    let (_id, mount) = left_standing_still(dir.path());
    let volumes = volumes(dir.path());
    volumes.recover().await.unwrap();
    let written = can_be_written(&mount);
    // Whether the test passes or fails, nothing may stay frozen.
    Frozen::thaw_left_over(mount.as_fd()).unwrap();
    assert!(written);
}

#[tokio::test]
async fn removing_a_volume_that_was_left_standing_still_leaves_no_device() {
    let dir = tempfile::Builder::new().prefix("atoll-volumes-").tempdir().unwrap();
    let (id, mount) = left_standing_still(dir.path());
    let volumes = volumes(dir.path());
    volumes.remove(&id).await.unwrap();
    let written = can_be_written(&mount);
    Frozen::thaw_left_over(mount.as_fd()).unwrap();
    assert!(written);
}
