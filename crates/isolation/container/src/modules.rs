//! Whether the host's kernel looks for modules on its own. It does so for any process that names one, and starts a
//! program of the host's root for that. The filter ([`crate::seccomp`]) keeps most ways to name one from a container, but
//! sees no names that stand in a file or in a message.

use std::io;
use std::path::Path;

use atoll_isolation::{Check, Status};

/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys/kernel";
const NAME: &str = "module_loading";

/// The check of `atoll doctor`.
pub(crate) fn check() -> Check {
    check_in(Path::new(SETTINGS))
}

fn check_in(settings: &Path) -> Check {
    let read = |name: &str| std::fs::read_to_string(settings.join(name)).map(|value| value.trim().to_owned());
    let fine = |why: &str| Check::new(NAME, Status::Ok, why);
    let helper = match read("modprobe") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fine("the host's kernel was built without loadable modules");
        }
        Err(error) => return Check::new(NAME, Status::Limited, format!("kernel.modprobe: {error}")),
        Ok(helper) if helper.is_empty() => return fine("the host's kernel looks for no modules on its own"),
        Ok(helper) => helper,
    };
    if read("modules_disabled").is_ok_and(|value| value == "1") {
        return fine("the host's kernel loads no more modules");
    }
    let seen = format!(
        "a program in a container can have the host's kernel run {helper} for some names of modules (formats of \
         programs until Linux 6.13, traffic classifiers)"
    );
    Check::new(NAME, Status::Limited, seen).hint(
        "when everything is loaded that the host needs ('loop', 'overlay', 'kvm', …): 'sysctl -w kernel.modprobe=', or \
         for good until the next boot 'sysctl -w kernel.modules_disabled=1'",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_looks_for_modules_is_told_of() {
        let place = tempfile::tempdir().unwrap();
        let seen = |modprobe: Option<&str>, disabled: &str| {
            drop(std::fs::remove_file(place.path().join("modprobe")));
            if let Some(helper) = modprobe {
                std::fs::write(place.path().join("modprobe"), helper).unwrap();
            }
            std::fs::write(place.path().join("modules_disabled"), disabled).unwrap();
            check_in(place.path())
        };
        for (modprobe, disabled) in [(None, "0\n"), (Some("\n"), "0\n"), (Some("/sbin/modprobe\n"), "1\n")] {
            assert_eq!(seen(modprobe, disabled).status, Status::Ok, "{modprobe:?} {disabled}");
        }
        let told = seen(Some("/sbin/modprobe\n"), "0\n");
        assert_eq!(told.status, Status::Limited);
        assert!(
            told.detail.contains("/sbin/modprobe")
                && told.hint.is_some_and(|hint| hint.contains("kernel.modprobe="))
        );
    }
}
