//! QEMU: its command line, starting it in its jail, saving and restoring a machine.
//!
//! The same command line boots a machine that is to be saved and restores one: QEMU demands that. What differs
//! is what the jail shows under the same names, and whether the memory file is shared or copied on write.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use atoll_isolation::IsolationError;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::launch::{Jail, Shown};
use crate::qmp::{Qmp, QmpError};
use crate::step::{Step, failed};

/// Where things are inside a jail.
const VMLINUX: &str = "/vm/vmlinux";
const INITRD: &str = "/vm/initrd";
const IMAGE: &str = "/vm/image";
const DISK: &str = "/vm/disk";
const MEMORY: &str = "/vm/saved/memory";
const STATE: &str = "/vm/saved/state";
const SAVED: &str = "/vm/saved";
const RUN: &str = "/run/vm";
/// Sockets in the directory that is [`RUN`] inside.
pub(crate) const GUEST_SOCKET: &str = "guest.sock";
pub(crate) const QMP_SOCKET: &str = "qmp.sock";
/// Names of what a saved machine consists of.
pub(crate) const MEMORY_FILE: &str = "memory";
pub(crate) const STATE_FILE: &str = "state";
/// Pause between two looks at something that is about to be there.
const LOOK: Duration = Duration::from_millis(1);
/// How long QEMU may take to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a machine may take to boot: seconds under emulation, many on a busy host.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor, in a virtual machine.
    Kvm,
    /// By software. QEMU's project does not call that a security boundary.
    Tcg,
}

impl Accelerator {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "emulated",
        }
    }
}

/// What every machine of one kind has in common.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) qemu: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) vmlinux: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) image: PathBuf,
    pub(crate) memory_mib: u64,
    pub(crate) cpus: u32,
    /// The host's time stamp counter, kHz: the guest cannot measure it under emulation.
    pub(crate) tsc_khz: u64,
}

/// Where one machine's things are on the host.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) disk: PathBuf,
    /// Directory of the memory and the state.
    pub(crate) saved: PathBuf,
    /// Directory of the sockets.
    pub(crate) run: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) pid_file: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) uid: u32,
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) netns: Option<PathBuf>,
}

/// Whether a machine is booted, to be saved, or restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Boot,
    Restore,
}

impl Model {
    fn command_line(&self, start: Start) -> Vec<String> {
        let memory = self.memory_mib;
        let (accel, cpu, clock) = match self.accelerator {
            Accelerator::Kvm => ("kvm".to_owned(), "host", String::new()),
            Accelerator::Tcg => (
                "tcg,thread=multi,tb-size=64".to_owned(),
                "max",
                format!(" tsc_early_khz={} tsc=reliable no_timer_check noreplace-smp", self.tsc_khz),
            ),
        };
        let sharing = match start {
            Start::Boot => "share=on",
            Start::Restore => "share=off,readonly=on,rom=off",
        };
        let kernel = format!("console=ttyS0 quiet panic=-1 reboot=t{clock}");
        let mut line = vec![self.qemu.display().to_string()];
        let mut add = |option: &str, value: &str| line.extend([option.to_owned(), value.to_owned()]);
        add("-accel", &accel);
        add("-cpu", cpu);
        add("-smp", &self.cpus.to_string());
        add("-m", &memory.to_string());
        add("-object", &format!("memory-backend-file,id=memory,size={memory}M,mem-path={MEMORY},{sharing}"));
        add("-M", "microvm,pic=off,pit=off,memory-backend=memory");
        add("-kernel", VMLINUX);
        add("-initrd", INITRD);
        add("-append", &kernel);
        add("-display", "none");
        // The guest's console, the newest 64 KiB of it: for when it does not boot.
        add("-chardev", "ringbuf,id=console,size=65536");
        add("-serial", "chardev:console");
        add("-device", "virtio-serial-device");
        add("-chardev", &format!("socket,id=port,path={RUN}/{GUEST_SOCKET},server=on,wait=off"));
        add("-device", "virtserialport,chardev=port,name=atoll");
        for (name, path, options) in [("image", IMAGE, "readonly=on"), ("disk", DISK, "cache=unsafe,discard=unmap")] {
            add("-drive", &format!("if=none,id={name},file={path},format=raw,file.locking=off,{options}"));
            add("-device", &format!("virtio-blk-device,drive={name},serial={name}"));
        }
        add("-qmp", &format!("unix:{RUN}/{QMP_SOCKET},server=on,wait=off"));
        add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        if start == Start::Restore {
            add("-incoming", "defer");
        }
        line.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
        line
    }

    fn jail(&self, place: &Place, start: Start) -> Jail {
        let shown = |from: &Path, to: &str, writable| Shown { from: from.to_owned(), to: to.into(), writable };
        let mut show = vec![
            shown(Path::new("/usr"), "/usr", false),
            shown(Path::new("/dev/null"), "/dev/null", true),
            shown(Path::new("/dev/urandom"), "/dev/urandom", false),
            shown(&self.vmlinux, VMLINUX, false),
            shown(&self.initrd, INITRD, false),
            shown(&self.image, IMAGE, false),
            shown(&place.disk, DISK, true),
            shown(&place.saved, SAVED, start == Start::Boot),
            shown(&place.run, RUN, true),
        ];
        if self.accelerator == Accelerator::Kvm {
            show.push(shown(Path::new("/dev/kvm"), "/dev/kvm", true));
        }
        Jail {
            argv: self.command_line(start),
            uid: place.uid,
            scratch: place.scratch.clone(),
            show,
            cgroups: place.cgroups.clone(),
            netns: place.netns.clone(),
            pid_file: place.pid_file.clone(),
            log: place.log.clone(),
        }
    }

    /// What a saved machine depends on: another of any of it cannot be restored from it.
    pub(crate) fn key(&self, kernel: &str, version: &str, disk_bytes: u64) -> String {
        let mut text = format!("{version}\n{kernel}\n{}\n{disk_bytes}\n", self.image.display());
        let _ = write!(text, "{:?}", self.command_line(Start::Boot));
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}

/// Starts a VMM in its jail; gives its process id.
pub(crate) async fn start(
    launcher: &[PathBuf],
    model: &Model,
    place: &Place,
    start: Start,
) -> Result<i32, IsolationError> {
    let jail = serde_json::to_string(&model.jail(place, start)).map_err(std::io::Error::other);
    let jail = jail.step("describe a jail")?;
    let (program, arguments) =
        launcher.split_first().ok_or_else(|| IsolationError::Unavailable("no launcher of VMMs".to_owned()))?;
    let output = Command::new(program)
        .args(arguments)
        .arg(jail)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .await
        .step("start the launcher of a VMM")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
        return Err(failed("start a VMM".to_owned(), std::io::Error::other(said)));
    }
    let pid = std::fs::read_to_string(&place.pid_file).step("read the process id of a VMM")?;
    pid.trim().parse().map_err(std::io::Error::other).step("read the process id of a VMM")
}

/// Connects to a VMM that has just been started.
pub(crate) async fn monitor(place: &Place) -> Result<Qmp, IsolationError> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match Qmp::connect(&place.run.join(QMP_SOCKET)).await {
            Ok(qmp) => return Ok(qmp),
            Err(error) if Instant::now() > deadline => {
                let said = std::fs::read_to_string(&place.log).unwrap_or_default();
                let said: String = said.trim().chars().take(300).collect();
                return Err(refused(&format!("{error}; it said: {said}")));
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Waits until the guest agent of a booting machine is at its port.
pub(crate) async fn booted(qmp: &mut Qmp) -> Result<(), IsolationError> {
    let deadline = Instant::now() + BOOT_TIMEOUT;
    loop {
        let chardevs = qmp.run("query-chardev", json!({})).await.map_err(vmm)?;
        let port = chardevs.as_array().into_iter().flatten().find(|dev| dev["label"] == "port");
        if port.is_some_and(|port| port["frontend-open"] == Value::Bool(true)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let console = qmp.run("ringbuf-read", json!({ "device": "console", "size": 4096 })).await;
            let console = console.ok().and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
            let tail: String = console.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
            return Err(refused(&format!("the guest does not boot; its console says: {tail}")));
        }
        tokio::time::sleep(LOOK * 20).await;
    }
}

/// Saves a machine that waits for its host, and ends it. Its memory is in its file already.
pub(crate) async fn save(qmp: &mut Qmp) -> Result<(), IsolationError> {
    ignore_shared(qmp).await?;
    qmp.run("migrate", json!({ "uri": format!("file:{STATE}") })).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)?;
    // It may be gone before it has answered.
    drop(qmp.run("quit", json!({})).await);
    Ok(())
}

/// Restores a machine into a VMM that waits for one. It runs at once.
pub(crate) async fn restore(qmp: &mut Qmp) -> Result<(), IsolationError> {
    ignore_shared(qmp).await?;
    qmp.run("migrate-incoming", json!({ "uri": format!("file:{STATE}") })).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)
}

async fn ignore_shared(qmp: &mut Qmp) -> Result<(), IsolationError> {
    let capability = json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": true }] });
    qmp.run("migrate-set-capabilities", capability).await.map(drop).map_err(vmm)
}

fn vmm(error: QmpError) -> IsolationError {
    refused(&crate::chain(&error))
}

fn refused(said: &str) -> IsolationError {
    failed("run a virtual machine".to_owned(), std::io::Error::other(said.to_owned()))
}
