//! A driver on a directory of its own, with a kernel and a Debian root file system.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use atoll_isolation::conformance::Harness;
use atoll_isolation::{Isolation, RootFs};
use atoll_isolation_microvm::kernel::Kernel;
use atoll_isolation_microvm::{Accelerator, MicrovmConfig, MicrovmIsolation, OVERHEAD_MAX_BYTES};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;

/// Programs that the suite uses, on top of Debian's smallest set.
const PACKAGES: &str = "perl-base,bsdutils,util-linux,procps,hostname";

/// A driver's directory.
#[derive(Debug)]
pub(crate) struct Machines {
    dir: tempfile::TempDir,
    cache: PathBuf,
    layer: PathBuf,
    instance: String,
    storage: OnceLock<Arc<Storage>>,
}

/// What all tests share: made once, kept for the next run.
fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| PathBuf::from("/var/cache"), PathBuf::from);
    base.join("atoll-tests")
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

fn layer() -> &'static Path {
    static LAYER: OnceLock<PathBuf> = OnceLock::new();
    LAYER.get_or_init(|| {
        let root = cache().join("debian-minimal");
        if !root.exists() {
            let new = cache().join("debian-minimal.new");
            drop(std::fs::remove_dir_all(&new));
            std::fs::create_dir_all(cache()).unwrap();
            run(Command::new("mmdebstrap")
                .args(["--quiet", "--variant=minbase", "--mode=root", "--include", PACKAGES])
                .arg("--customize-hook=chroot \"$1\" useradd --create-home --uid 1000 user")
                .arg("bookworm")
                .arg(&new));
            std::fs::rename(&new, &root).unwrap();
        }
        root
    })
}

/// A driver for one test.
pub(crate) fn machines() -> Machines {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    let cache = CACHE.get_or_init(|| {
        let package = std::env::var_os("ATOLL_TEST_KERNEL_PACKAGE").map(PathBuf::from).unwrap();
        let cache = cache().join("microvm").join(package.file_stem().unwrap());
        if !cache.join("kernel").exists() {
            std::fs::create_dir_all(&cache).unwrap();
            Kernel::set_up_from_package(&cache.join("kernel"), &package).unwrap();
        }
        cache
    });
    let dir = tempfile::Builder::new().prefix("atoll-microvm-").tempdir().unwrap();
    let instance = format!("{:08x}", RandomState::new().hash_one("instance") & 0xffff_ffff);
    Machines { dir, cache: cache.clone(), layer: layer().to_owned(), instance, storage: OnceLock::new() }
}

#[async_trait]
impl Harness for Machines {
    async fn open(&self) -> Arc<dyn Isolation> {
        let storage = self.storage.get_or_init(|| {
            let dir = self.dir.path().join("storage");
            let config = StorageConfig { dir, instance: self.instance.clone(), pool: PoolSize::Host };
            Arc::new(Storage::open(&config).unwrap())
        });
        let launcher = PathBuf::from(env!("CARGO_BIN_EXE_atoll-vmm-launcher"));
        let config = MicrovmConfig {
            dir: self.dir.path().join("microvm"),
            cache: self.cache.clone(),
            instance: self.instance.clone(),
            agent: atoll_guest_binary::GUEST,
            launcher: vec![launcher],
            qemu: PathBuf::from("/usr/bin/qemu-system-x86_64"),
            accelerator: Some(Accelerator::Tcg),
            storage: Arc::clone(storage),
            slots: Arc::new(SlotPool::start(0).unwrap()),
        };
        Arc::new(MicrovmIsolation::open(config).await.unwrap())
    }

    fn root(&self) -> RootFs {
        RootFs::Layers(vec![self.layer.clone()])
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_MAX_BYTES
    }
}
