//! What `atoll doctor` says about machines, and how it is found out whether the processor runs them: by booting one.
//! That `/dev/kvm` opens proves nothing: it can belong to a hypervisor in software, on which ordinary kernels die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::spec::Accelerator;
use atoll_isolation::{Check, IsolationError, Status};

use crate::record::Size;
use crate::step::Step;
use crate::stream::random;
use crate::template::{PROBE, remove_dir};
use crate::vmm::{self, Model};
use crate::{Inner, chain};

/// How machines are run.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) accelerator: Accelerator,
    /// Why machines are emulated, when they are although the configuration did not ask for it.
    pub(crate) emulated: Option<String>,
    /// Whether this host's processor can run machines: then it is a fault that they are emulated. `false` when the
    /// configuration names the accelerator.
    pub(crate) expected: bool,
}

/// The smallest machine, for trying.
const SMALL: Size = Size { memory_mib: 192, cpus: 1 };
/// How long a machine on a real processor may take to boot.
const KVM_BOOT_TIMEOUT: Duration = Duration::from_secs(20);
/// The oldest QEMU whose command line is as we write it: `-M microvm` with files by descriptor, `file:` migration
/// into an open descriptor and `mapped-ram`.
const QEMU_MIN: (u32, u32) = (9, 1);

/// Refuses a QEMU that is too old.
pub(crate) fn check_version(said: &str) -> Result<(), IsolationError> {
    let version = said.split_whitespace().find_map(|word| {
        let (major, rest) = word.split_once('.')?;
        let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    if version.is_some_and(|version| version >= QEMU_MIN) {
        return Ok(());
    }
    Err(IsolationError::Unavailable(format!(
        "QEMU {}.{} or newer is needed (Debian 12 has it in bookworm-backports), and this is: {said}",
        QEMU_MIN.0, QEMU_MIN.1
    )))
}

/// What can be told without trying: whether machines should run on the processor here, and why they cannot.
struct Hardware {
    expected: bool,
    missing: Option<String>,
}

/// Looks at the processor, and opens the device as a VMM gets it: this process and the launcher, which opens it for the
/// VMM, are the same user.
fn hardware() -> Hardware {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let virtualizes = text.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    let opened = std::fs::File::options().read(true).write(true).open(vmm::KVM);
    let missing = match opened {
        Err(error) => Some(format!("{} does not open: {error}", vmm::KVM)),
        Ok(_) if !virtualizes => Some("the processor shows neither vmx nor svm".to_owned()),
        Ok(_) => None,
    };
    Hardware { expected: virtualizes, missing }
}

impl Inner {
    /// Decides how machines are run on this host: tries KVM where there is hope, else emulates.
    pub(crate) async fn choose(self: &Arc<Self>) -> Choice {
        let Hardware { expected, missing } = hardware();
        let why = match missing {
            Some(why) => why,
            None => match self.saved_with(Accelerator::Kvm).await {
                Ok(()) => return Choice { accelerator: Accelerator::Kvm, emulated: None, expected },
                Err(error) => format!("a machine does not boot on KVM: {}", chain(&error)),
            },
        };
        if expected {
            tracing::warn!(
                why,
                "virtual machines are EMULATED although this processor can run them: ten to twenty times slower, and no \
                 security boundary; 'atoll doctor' says more"
            );
        } else {
            tracing::info!(why, "virtual machines are emulated");
        }
        Choice { accelerator: Accelerator::Emulated, emulated: Some(why), expected }
    }

    /// Boots the smallest machine, unless one was saved already.
    async fn saved_with(self: &Arc<Self>, accelerator: Accelerator) -> Result<(), IsolationError> {
        let model = Model { accelerator, ..self.model(SMALL) };
        let saved = self.config.cache.join("templates").join(self.key(&model));
        self.save_once(&model, &saved, Some(KVM_BOOT_TIMEOUT)).await
    }

    /// Boots a machine and throws it away.
    pub(crate) async fn checks(self: &Arc<Self>) -> Vec<Check> {
        let since = Instant::now();
        let booted = self.boot_once().await;
        let what = format!("{}, guest kernel {}", self.qemu_version, self.kernel.release);
        let accelerator = match (self.accelerator(), self.emulated()) {
            (Accelerator::Kvm, _) => "on the processor (KVM)".to_owned(),
            (Accelerator::Emulated, None) => "emulated".to_owned(),
            (Accelerator::Emulated, Some(why)) => format!("emulated ({why})"),
        };
        let check = match (booted, self.accelerator()) {
            (Err(error), _) => Check::new("microvm", Status::Missing, format!("{what}: {}", chain(&error)))
                .hint("machines do not boot here; sandboxes of the level 'microvm' are refused"),
            (Ok(()), Accelerator::Kvm) => Check::new(
                "microvm",
                Status::Ok,
                format!("{what}: booted one {accelerator} in {:.1?}", since.elapsed()),
            ),
            (Ok(()), Accelerator::Emulated) => {
                let fault =
                    if self.expects_kvm() { ", although this processor can run machines" } else { "" };
                let seen = format!("{what}: booted one, {accelerator}{fault}, in {:.1?}", since.elapsed());
                Check::new("microvm", Status::Limited, seen).hint(
                    "every sandbox has a kernel of its own, but QEMU's project calls its emulation no security boundary: \
                     what stands behind it is the confinement of the VMM's process. It is also ten to twenty times slower",
                )
            }
        };
        vec![check]
    }

    async fn boot_once(self: &Arc<Self>) -> Result<(), IsolationError> {
        let name = format!("{PROBE}{:016x}", random().step("choose a name")?);
        let saved = self.config.cache.join("templates").join(name);
        let booted = self.save_machine(&self.model(SMALL), &saved, None).await;
        booted.and(remove_dir(&saved).step("remove a probe"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        check_version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)").unwrap();
        check_version("QEMU emulator version 9.1.0").unwrap();
        for old in [
            "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)",
            "QEMU emulator version 9.0.4",
            "?",
        ] {
            assert!(check_version(old).is_err(), "{old}");
        }
    }
}
