//! A driver on a directory of its own, with a kernel and a Debian root file system.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use atoll_core::spec::Accelerator;
use atoll_isolation::conformance::Harness;
use atoll_isolation::{Isolation, Lifecycle as _, RootFs};
use atoll_isolation_microvm::kernel::Kernel;
use atoll_isolation_microvm::{MicrovmConfig, MicrovmIsolation, OVERHEAD_MAX_BYTES};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;
use atoll_testing::machines::{cache, debian, exclusive, kernel_package};

/// A driver's directory.
#[derive(Debug)]
pub(crate) struct Machines {
    /// Removed with it; `None` when another process owns the directory.
    _dir: Option<tempfile::TempDir>,
    pub(crate) path: PathBuf,
    cache: PathBuf,
    layer: PathBuf,
    pub(crate) instance: String,
    storage: OnceLock<Arc<Storage>>,
    pub(crate) prepares: bool,
}

/// Kernel and saved machines, which all tests share.
fn shared() -> PathBuf {
    let package = kernel_package();
    let cache = cache().join("microvm").join(package.file_stem().unwrap());
    // Tests are processes of their own; the first sets up while the others wait.
    let _turn = exclusive("microvm");
    if !cache.join("kernel").try_exists().unwrap() {
        std::fs::create_dir_all(&cache).unwrap();
        Kernel::set_up_from_package(&cache, &package).unwrap();
    }
    cache
}

/// A driver for one test.
pub(crate) fn machines() -> Machines {
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir().unwrap();
    let instance = format!("{:08x}", RandomState::new().hash_one("instance") & 0xffff_ffff);
    Machines::of(dir.path().to_owned(), instance, Some(dir))
}

impl Drop for Machines {
    /// A test that fails leaves sandboxes; they go with its installation.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let config = self.config();
        let clean = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let driver = MicrovmIsolation::open(config).await.unwrap();
                for resource in driver.scan().await.unwrap() {
                    driver.destroy(&resource.sandbox).await.unwrap();
                }
            });
        };
        // A thread of its own, because this one may be running a runtime already.
        drop(std::thread::spawn(clean).join());
    }
}

impl Machines {
    /// The installation of this name, wherever it was made.
    pub(crate) fn of(path: PathBuf, instance: String, dir: Option<tempfile::TempDir>) -> Self {
        Self {
            _dir: dir,
            path,
            cache: shared(),
            layer: debian(),
            instance,
            storage: OnceLock::new(),
            prepares: false,
        }
    }

    /// Where its disks lie.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        self.storage.get_or_init(|| {
            let dir = self.path.join("storage");
            let config = StorageConfig { dir, instance: self.instance.clone(), pool: PoolSize::Host };
            Arc::new(Storage::open(&config).unwrap())
        })
    }

    fn config(&self) -> MicrovmConfig {
        let storage = self.storage();
        let launcher = PathBuf::from(env!("CARGO_BIN_EXE_atoll-vmm-launcher"));
        MicrovmConfig {
            dir: self.path.join("microvm"),
            cache: self.cache.clone(),
            instance: self.instance.clone(),
            agent: atoll_guest_binary::GUEST,
            launcher: vec![launcher],
            qemu: PathBuf::from("/usr/bin/qemu-system-x86_64"),
            accelerator: Some(Accelerator::Emulated),
            storage: Arc::clone(storage),
            slots: Arc::new(SlotPool::start(0).unwrap()),
            prepares: self.prepares,
        }
    }
}

#[async_trait]
impl Harness for Machines {
    async fn open(&self) -> Arc<dyn Isolation> {
        Arc::new(MicrovmIsolation::open(self.config()).await.unwrap())
    }

    fn root(&self) -> RootFs {
        RootFs::Layers(vec![self.layer.clone()])
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_MAX_BYTES
    }
}
