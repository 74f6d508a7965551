//! A driver on a directory of its own, with the installed `runsc` and a Debian root file system.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use atoll_isolation::conformance::Harness;
use atoll_isolation::{Isolation, Lifecycle as _, RootFs};
use atoll_isolation_gvisor::{GvisorConfig, GvisorIsolation, OVERHEAD_MAX_BYTES, Runsc};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig, StoredVolumes};
use atoll_network::SlotPool;
use atoll_testing::gvisor::runsc;
use atoll_testing::machines::debian;

/// A driver's directory.
#[derive(Debug)]
pub(crate) struct Sentries {
    /// Removed with it; `None` when another process owns the directory.
    _dir: Option<tempfile::TempDir>,
    pub(crate) path: PathBuf,
    runsc: PathBuf,
    pub(crate) launcher: Vec<PathBuf>,
    layer: PathBuf,
    pub(crate) instance: String,
    storage: OnceLock<Arc<Storage>>,
}

/// A driver for one test; none where gVisor is not installed, which has then been said.
pub(crate) fn sentries() -> Sentries {
    let dir = tempfile::Builder::new().prefix("atoll-gvisor-").tempdir().unwrap();
    let instance = format!("{:08x}", RandomState::new().hash_one("instance") & 0xffff_ffff);
    Sentries::of(dir.path().to_owned(), instance, Some(dir))
}

impl Drop for Sentries {
    /// A test that fails leaves sandboxes; they go with its installation.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let config = self.config();
        let clean = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let driver = GvisorIsolation::open(config).await.unwrap();
                for resource in driver.scan().await.unwrap() {
                    driver.destroy(&resource.sandbox).await.unwrap();
                }
            });
        };
        // A thread of its own, because this one may be running a runtime already.
        drop(std::thread::spawn(clean).join());
    }
}

impl Sentries {
    /// The installation of this name, wherever it was made.
    pub(crate) fn of(path: PathBuf, instance: String, dir: Option<tempfile::TempDir>) -> Self {
        let launcher = vec![PathBuf::from(env!("CARGO_BIN_EXE_atoll-sentry-launcher"))];
        Self {
            _dir: dir,
            path,
            runsc: runsc(),
            launcher,
            layer: debian(),
            instance,
            storage: OnceLock::new(),
        }
    }

    fn config(&self) -> GvisorConfig {
        let storage = self.storage.get_or_init(|| {
            let dir = self.path.join("storage");
            let config = StorageConfig { dir, instance: self.instance.clone(), pool: PoolSize::Host };
            Arc::new(Storage::open(&config).unwrap())
        });
        GvisorConfig {
            dir: self.path.join("gvisor"),
            instance: self.instance.clone(),
            agent: atoll_guest_binary::GUEST,
            launcher: self.launcher.clone(),
            runsc: Runsc::find(&self.runsc).unwrap(),
            storage: Arc::clone(storage),
            volumes: StoredVolumes::new(Arc::clone(storage)),
            slots: Arc::new(SlotPool::start(0).unwrap()),
        }
    }

    pub(crate) async fn driver(&self) -> GvisorIsolation {
        GvisorIsolation::open(self.config()).await.unwrap()
    }
}

#[async_trait]
impl Harness for Sentries {
    async fn open(&self) -> Arc<dyn Isolation> {
        Arc::new(self.driver().await)
    }

    fn root(&self) -> RootFs {
        RootFs::Layers(vec![self.layer.clone()])
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_MAX_BYTES
    }

    async fn set_user_id(&self) -> bool {
        self.driver().await.set_user_id()
    }
}
