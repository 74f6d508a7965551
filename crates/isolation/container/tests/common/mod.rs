//! A container driver on a directory of its own, with the real guest agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use atoll_isolation::conformance::Harness;
use atoll_isolation::{Isolation, Lifecycle as _, RootFs};
use atoll_isolation_container::{ContainerConfig, ContainerIsolation, PoolSizes};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// One installation.
#[derive(Debug)]
pub(crate) struct Containers {
    /// Removed when the last handle goes; `None` when another process owns the directory.
    pub(crate) _dir: Option<tempfile::TempDir>,
    /// Its data directory.
    pub(crate) path: PathBuf,
    /// Its name.
    pub(crate) instance: String,
    /// What sandboxes stand on.
    pub(crate) root: RootFs,
    /// What the kernel tells of its sandboxes, where a test asks.
    pub(crate) witness: Option<Arc<atoll_witness::Witness>>,
    /// The network slots of all its drivers, where a test asks; else each driver has its own.
    pub(crate) slots: Option<Arc<SlotPool>>,
}

/// A fresh installation.
pub(crate) fn containers() -> Containers {
    let uid = std::fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    assert_eq!(uid.unwrap(), 0, "the tests of the container driver need root: they make real containers");
    let dir = tempfile::Builder::new().prefix("atoll-container-test-").tempdir().unwrap();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let instance = format!("{:05x}{number:03x}", std::process::id() & 0xf_ffff);
    Containers {
        path: dir.path().to_owned(),
        _dir: Some(dir),
        instance,
        root: RootFs::Host,
        witness: None,
        slots: None,
    }
}

impl Containers {
    /// A driver on it.
    pub(crate) fn driver(&self) -> ContainerIsolation {
        let storage = Storage::open(&StorageConfig {
            dir: self.path.join("storage"),
            instance: self.instance.clone(),
            pool: PoolSize::Bytes(4 << 30),
        });
        let config = ContainerConfig {
            storage: Arc::new(storage.unwrap()),
            dir: self.path.clone(),
            instance: self.instance.clone(),
            agent: atoll_guest_binary::GUEST,
            run: atoll_guest_binary::RUN,
            slots: self.slots.clone().unwrap_or_else(|| Arc::new(SlotPool::start(1).unwrap())),
            witness: self.witness.clone().ok_or_else(|| "not asked for".to_owned()),
            pools: PoolSizes { disks: 1, user_namespaces: 1 },
        };
        ContainerIsolation::open(config).unwrap()
    }
}

impl Drop for Containers {
    /// A test that fails leaves sandboxes; they go with its installation.
    fn drop(&mut self) {
        if self._dir.is_none() || !std::thread::panicking() {
            return;
        }
        let driver = self.driver();
        let clean = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for resource in driver.scan().await.unwrap() {
                    driver.destroy(&resource.sandbox).await.unwrap();
                }
            });
        };
        // A thread of its own, because this one may be running a runtime already.
        drop(std::thread::spawn(clean).join());
    }
}

#[async_trait]
impl Harness for Containers {
    async fn open(&self) -> Arc<dyn Isolation> {
        Arc::new(self.driver())
    }

    fn root(&self) -> RootFs {
        self.root.clone()
    }
}
