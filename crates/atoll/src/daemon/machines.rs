//! The driver of virtual machines: there once `atoll setup microvm` has put a kernel in its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::{Code, Error};
use atoll_isolation::{Check, Status};
use atoll_isolation_microvm::{MicrovmConfig, MicrovmIsolation};
use atoll_isolation_storage::Storage;
use atoll_network::SlotPool;

use super::DataDir;
use crate::cli::MicrovmArgs;
use crate::failure::{Failure, Result};

/// This program, even after a newer one has taken its place.
pub(super) const SELF: &str = "/proc/self/exe";
/// Its hidden command that turns into a VMM.
const LAUNCH: &str = "vmm";

/// Where machines come from.
#[derive(Debug, Clone)]
pub(crate) struct Machines {
    /// Kernel, images, saved machines.
    pub(crate) cache: PathBuf,
    qemu: PathBuf,
}

impl Machines {
    /// From the options of the command line, and the place of the data directory.
    pub(crate) fn new(data_dir: &Path, args: &MicrovmArgs) -> Self {
        let cache = args.microvm_dir.clone().unwrap_or_else(|| data_dir.join("microvm"));
        Self { cache, qemu: args.qemu.clone() }
    }

    /// What the doctor says of a host on which nothing was set up.
    pub(crate) fn missing() -> Check {
        Check::new("microvm", Status::Missing, "no kernel for virtual machines is set up").hint(
            "'atoll setup microvm' gets one from the distribution's packages; start the server again then",
        )
    }

    /// Opens the driver; `None` when nothing was set up.
    pub(crate) async fn open(
        &self,
        dir: &DataDir,
        storage: Arc<Storage>,
        slots: Arc<SlotPool>,
    ) -> Result<Option<MicrovmIsolation>> {
        let kernel = self.cache.join("kernel");
        let is_set_up = kernel.try_exists();
        if !is_set_up.map_err(|error| Failure::io(format!("cannot look at {}", kernel.display()), error))? {
            return Ok(None);
        }
        let config = MicrovmConfig {
            dir: dir.path().join("machines"),
            cache: self.cache.clone(),
            instance: dir.installation().to_owned(),
            agent: atoll_guest_binary::GUEST,
            launcher: vec![SELF.into(), LAUNCH.into()],
            qemu: self.qemu.clone(),
            accelerator: None,
            storage,
            slots,
            prepares: true,
        };
        let opened = MicrovmIsolation::open(config).await;
        opened.map(Some).map_err(|error| {
            let why = crate::failure::chain(&error);
            Failure::Plain(
                Error::new(
                    Code::IsolationUnavailable,
                    format!(
                        "virtual machines were set up in {}, and cannot be run: {why}",
                        self.cache.display()
                    ),
                )
                .hint("mend it, or remove that directory when no sandbox needs it any more"),
            )
        })
    }
}
