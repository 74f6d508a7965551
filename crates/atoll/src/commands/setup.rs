//! `atoll setup`: what this host needs besides the program. Also `atoll vmm`, which starts virtual machines, and
//! `atoll sentry`, which starts sandboxes in gVisor.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_core::spec::Accelerator;
use atoll_core::{Code, Error};
use atoll_isolation::{Isolation as _, Status};
use atoll_isolation_microvm::kernel::{Kernel, KernelError};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::system;
use crate::cli::{SetupCommand, SetupMicrovmArgs};
use crate::daemon::{DataDir, Machines, open_slots, open_storage};
use crate::failure::{Failure, Result};
use crate::output::Printer;

/// The oldest kernel series of Debian that machines start with: older ones lack drivers that this one has built in.
const KERNEL_MIN: (u32, u32) = (6, 12);

/// Turns this process into a launcher of one VMM.
pub(super) fn vmm(jail: &str) -> ExitCode {
    launched(jail, atoll_isolation_microvm::launch::launch)
}

/// Turns this process into a launcher of one sandbox in gVisor.
pub(super) fn sentry(jail: &str) -> ExitCode {
    launched(jail, atoll_isolation_gvisor::launch::launch)
}

fn launched<T: DeserializeOwned>(jail: &str, launch: fn(&T) -> std::result::Result<(), String>) -> ExitCode {
    let read = serde_json::from_str(jail).map_err(|error| error.to_string());
    match read.and_then(|jail| launch(&jail)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(std::io::Write::write_all(&mut std::io::stderr(), error.as_bytes()));
            ExitCode::FAILURE
        }
    }
}

pub(super) async fn setup(printer: Printer, command: SetupCommand) -> Result<()> {
    system::need_root("prepare this host")?;
    let SetupCommand::Microvm(args) = command;
    let machines = Machines::new(&args.data_dir, &args.microvm);
    let kernel = microvm(&machines, &args).await?;
    let booted = boot(&args, &machines).await?;
    let seen = serde_json::json!({
        "kernel": kernel.release,
        "directory": machines.cache,
        "accelerator": booted,
    });
    printer.result(&seen, || format!("{} boots ({booted})", kernel.release))
}

/// Prepares the kernel.
async fn microvm(machines: &Machines, args: &SetupMicrovmArgs) -> Result<Kernel> {
    let made =
        |error: std::io::Error| Failure::io(format!("cannot make {}", machines.cache.display()), error);
    std::fs::create_dir_all(&machines.cache).map_err(made)?;
    let scratch = machines.cache.join("download");
    let package = match (&args.package, &args.tree) {
        (None, None) => Some(download(&scratch).await?),
        (package, _) => package.clone(),
    };
    let (cache, tree) = (machines.cache.clone(), args.tree.clone());
    let prepare = move || match (package, tree) {
        (Some(package), _) => Kernel::set_up_from_package(&cache, &package),
        (None, Some(tree)) => Kernel::set_up_from_tree(&cache, &tree),
        (None, None) => Err(KernelError::NotSetUp),
    };
    let prepared = tokio::task::spawn_blocking(prepare).await;
    remove(&scratch)?;
    let kernel = prepared.map_err(|error| Failure::plain(Code::Internal, error.to_string()))?;
    kernel.map_err(|error| match error {
        KernelError::InUse(_) => Failure::plain(Code::InvalidState, error.to_string()),
        error => Failure::Plain(
            Error::new(Code::InvalidArgument, crate::failure::chain(&error))
                .hint("Debian's linux-image-*-cloud-amd64, 6.12 or newer, is what this is made for"),
        ),
    })
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io(format!("cannot remove {}", dir.display()), error))
        }
        _ => Ok(()),
    }
}

/// Downloads the newest cloud kernel that the host's package sources have; gives the package.
async fn download(scratch: &Path) -> Result<PathBuf> {
    remove(scratch)?;
    std::fs::create_dir_all(scratch)
        .map_err(|error| Failure::io(format!("cannot make {}", scratch.display()), error))?;
    let pattern = "^linux-image-[0-9].*-cloud-amd64$";
    let found = run(Command::new("apt-cache").args(["search", "--names-only", pattern])).await?;
    let newest = found
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|name| Some((version(name)?, name)))
        .max()
        .filter(|(version, _)| version >= &vec![KERNEL_MIN.0, KERNEL_MIN.1]);
    let Some((_, name)) = newest else {
        return Err(Failure::Plain(
            Error::new(
                Code::InvalidArgument,
                "the package sources of this host have no cloud kernel of 6.12 or newer",
            )
            .hint("on Debian 12 add bookworm-backports to the sources; elsewhere give --package or --tree"),
        ));
    };
    run(Command::new("apt-get").args(["download", "-q", name]).current_dir(scratch)).await?;
    let file = std::fs::read_dir(scratch).ok().and_then(|mut entries| entries.next()?.ok());
    file.map(|entry| entry.path()).ok_or_else(|| Failure::plain(Code::Internal, "apt-get downloaded nothing"))
}

/// The numbers in the name of a kernel's package, to compare.
fn version(name: &str) -> Option<Vec<u32>> {
    let numbers = name.strip_prefix("linux-image-")?;
    let numbers =
        numbers.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok()).collect::<Vec<_>>();
    (numbers.len() >= 2).then_some(numbers)
}

async fn run(command: &mut Command) -> Result<String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let output = command.stdin(std::process::Stdio::null()).output().await;
    let output = output.map_err(|error| {
        let hint = "give --package or --tree where there is no apt";
        Failure::Plain(Error::new(Code::InvalidArgument, format!("cannot run {program}: {error}")).hint(hint))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(Failure::plain(Code::Internal, format!("{program} failed: {said}")))
}

/// Boots one; says how.
async fn boot(args: &SetupMicrovmArgs, machines: &Machines) -> Result<Accelerator> {
    let scratch = machines.cache.join("setup");
    remove(&scratch)?;
    let booted = async {
        let dir = DataDir::open(&scratch)?;
        let storage = open_storage(&dir, atoll_isolation_storage::PoolSize::None)?;
        let machines = Machines::new(&args.data_dir, &args.microvm);
        let Some(driver) = machines.open(&dir, storage, open_slots(0)?).await? else {
            return Err(Failure::plain(Code::Internal, "the kernel that was set up is not there"));
        };
        match driver.doctor().await.into_iter().find(|check| check.status == Status::Missing) {
            Some(check) => Err(Failure::plain(Code::IsolationUnavailable, check.detail)),
            None => driver.accelerator().ok_or_else(|| Failure::plain(Code::Internal, "no machines")),
        }
    }
    .await;
    remove(&scratch)?;
    booted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_kernels_compare_as_newer() {
        let of = |name: &str| version(name).unwrap();
        assert!(of("linux-image-6.12.95+deb12-cloud-amd64") > of("linux-image-6.12.9+deb12-cloud-amd64"));
        assert!(of("linux-image-6.12.9+deb12-cloud-amd64") > of("linux-image-6.1.0-44-cloud-amd64"));
        assert!(of("linux-image-6.1.0-44-cloud-amd64") < vec![KERNEL_MIN.0, KERNEL_MIN.1]);
        assert_eq!(version("linux-image-cloud-amd64"), None);
    }
}
