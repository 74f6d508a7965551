//! What a VMM is told at its start: the machine as QEMU's command line has it, and the jail around it.
//!
//! The same command line boots a machine that is to be saved and restores one: QEMU demands that. What differs
//! is which disk is behind the same descriptor, and where the memory comes from ([`Memory`]).

use std::path::{Path, PathBuf};

use atoll_core::spec::Accelerator;
use atoll_guest_protocol::serial::{AGENT_PORT, CONTROL_PORT};

use super::{MEMORY_FILE, SAVED};
use crate::launch::{Jail, Opened, Shown};
use crate::record::{AGENT_SOCKET, CONTROL_SOCKET, QMP_SOCKET, Record, Size};

/// Where things are inside a jail.
const VMLINUX: &str = "/vm/vmlinux";
const INITRD: &str = "/vm/initrd";
/// The VMM's descriptors.
const AGENT_FD: i32 = 10;
const CONTROL_FD: i32 = 11;
const QMP_FD: i32 = 12;
const IMAGE_FD: i32 = 13;
const DISK_FD: i32 = 14;
const TAP_FD: i32 = 15;
const MEMORY_FD: i32 = 16;
const KVM_FD: i32 = 17;
/// The host kernel's device for virtualization.
pub(crate) const KVM: &str = "/dev/kvm";
/// Where its descriptors are files, inside its jail.
const OWN_FILES: &str = "/fds";
/// Switches off work that the guest's kernel need not do. Every copy would do it again, and under emulation what a
/// kernel does for the first time takes long: watch itself for standstill, measure pressure, wait for drivers, and ask
/// security modules that no program in the guest gives a policy (of the others Landlock stays, which programs use on
/// their own).
const KERNEL_WORK: &str = "nowatchdog psi=0 deferred_probe_timeout=0 lsm=landlock,yama";
/// The machine's end of its network cable.
const HARDWARE_ADDRESS: &str = "06:00:0a:00:02:0f";

/// What every machine of one kind has in common.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) qemu: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) vmlinux: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) size: Size,
    /// The host's time stamp counter, kHz: the guest cannot measure it under emulation.
    pub(crate) tsc_khz: u64,
    /// The host's processor: on KVM a machine has a virtual copy of it.
    pub(crate) processor: String,
}

/// What one VMM is given.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) record: &'a Record,
    pub(crate) uid: u32,
    /// The image's file, and the writable disk's.
    pub(crate) image: PathBuf,
    pub(crate) disk: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) netns: PathBuf,
}

/// Where a machine's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory<'a> {
    /// It is new, and is kept in this directory.
    Kept(&'a Path),
    /// It is a private copy, made page by page when written to, of what is in this directory.
    Copied(&'a Path),
    /// It is a private copy of what begins at a place of this file.
    Mapped { file: &'a Path, at: u64 },
}

impl Model {
    /// The arguments, but for those that concern the memory's origin: what a saved machine depends on.
    pub(crate) fn machine(&self) -> Vec<String> {
        let Size { memory_mib, cpus } = self.size;
        let (accel, cpu, clock) = match self.accelerator {
            // By descriptor, as everything: the VMM's user is in none of the groups that may open the device.
            // Without virtualisation inside, which is much code of the host's kernel.
            // There it has no clock of its own (RTC), for which its kernel would wait a second.
            Accelerator::Kvm => (
                format!("kvm,device=/dev/fdset/{KVM_FD}"),
                "host,-vmx,-svm",
                " initcall_blacklist=add_rtc_cmos".to_owned(),
            ),
            Accelerator::Emulated => (
                "tcg,thread=multi,tb-size=64".to_owned(),
                "max",
                format!(" tsc_early_khz={} tsc=reliable no_timer_check noreplace-smp", self.tsc_khz),
            ),
        };
        let mut line = vec![self.qemu.display().to_string()];
        let mut add = |option: &str, value: &str| line.extend([option.to_owned(), value.to_owned()]);
        if self.accelerator == Accelerator::Kvm {
            add("-add-fd", &format!("fd={KVM_FD},set={KVM_FD}"));
        }
        add("-accel", &accel);
        add("-cpu", cpu);
        add("-smp", &cpus.to_string());
        add("-m", &memory_mib.to_string());
        // Pages are not shared with other machines' (KSM), which would tell of their content by the time that a write takes.
        // With one interrupt controller it has 8 places for devices. With two, QEMU's default, it has 24, all of which QEMU
        // keeps for the 4 devices that there are.
        add(
            "-M",
            "microvm,pic=off,pit=off,ioapic2=off,memory-backend=memory,mem-merge=off,dump-guest-core=off",
        );
        // SeaBIOS, the default, lets kernel and ACPI tables overlap with some sets of devices.
        add("-bios", "qboot.rom");
        add("-kernel", VMLINUX);
        add("-initrd", INITRD);
        add("-append", &format!("console=ttyS0 quiet panic=-1 reboot=t {KERNEL_WORK}{clock}"));
        add("-display", "none");
        // The guest's console, the newest 64 KiB of it: for when it does not boot.
        add("-chardev", "ringbuf,id=console,size=65536");
        add("-serial", "chardev:console");
        // The agent's port and the control port; the first is a console's, which has none here. VMM and guest keep queues
        // for each that there may be: 31, unless told.
        add("-device", "virtio-serial-device,max_ports=3");
        for (id, fd, name) in [("agent", AGENT_FD, AGENT_PORT), ("control", CONTROL_FD, CONTROL_PORT)] {
            add("-chardev", &format!("socket,id={id},fd={fd},server=on,wait=off"));
            add("-device", &format!("virtserialport,chardev={id},name={name}"));
        }
        for (id, fd, options) in
            [("image", IMAGE_FD, "read-only=on"), ("disk", DISK_FD, "cache.no-flush=on,discard=unmap")]
        {
            add("-add-fd", &format!("fd={fd},set={fd}"));
            let file = format!("file.driver=file,file.filename=/dev/fdset/{fd},file.locking=off");
            add("-blockdev", &format!("driver=raw,node-name={id},{options},{file}"));
            add("-device", &format!("virtio-blk-device,id={id},drive={id},serial={id}"));
        }
        add("-netdev", &format!("tap,id=net,fd={TAP_FD}"));
        // Its only neighbour is the network slot, which asks for the machine's address when it needs it: a copy
        // announces nothing.
        add("-device", &format!("virtio-net-device,netdev=net,mac={HARDWARE_ADDRESS},guest_announce=off"));
        add("-chardev", &format!("socket,id=qmp,fd={QMP_FD},server=on,wait=off"));
        add("-mon", "chardev=qmp,mode=control");
        add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        line.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
        line
    }

    fn command_line(&self, memory: Memory<'_>) -> Vec<String> {
        let mut line = self.machine();
        let size = format!("id=memory,size={}M", self.size.memory_mib);
        let file = format!("memory-backend-file,{size},mem-path={SAVED}/{MEMORY_FILE}");
        let backend = match memory {
            Memory::Kept(_) => format!("{file},share=on"),
            Memory::Copied(_) => format!("{file},share=off,readonly=on,rom=off"),
            Memory::Mapped { at, .. } => format!(
                "memory-backend-file,{size},mem-path={OWN_FILES}/{MEMORY_FD},offset={at},share=off,readonly=on,rom=off"
            ),
        };
        line.extend(["-object".to_owned(), backend]);
        if !matches!(memory, Memory::Kept(_)) {
            line.extend(["-incoming", "defer"].map(str::to_owned));
        }
        line
    }

    pub(super) fn jail(&self, place: &Place<'_>, memory: Memory<'_>) -> Jail {
        let shown =
            |from: &Path, to: &str, writable| Shown { from: from.to_owned(), to: to.into(), writable };
        let mut show = vec![
            shown(Path::new("/usr"), "/usr", false),
            shown(Path::new("/dev/null"), "/dev/null", true),
            shown(Path::new("/dev/urandom"), "/dev/urandom", false),
            shown(&self.vmlinux, VMLINUX, false),
            shown(&self.initrd, INITRD, false),
        ];
        match memory {
            Memory::Kept(saved) => show.push(shown(saved, SAVED, true)),
            Memory::Copied(saved) => show.push(shown(saved, SAVED, false)),
            Memory::Mapped { .. } => {}
        }
        let mut files = vec![
            Opened { path: place.image.clone(), fd: IMAGE_FD, writable: false },
            Opened { path: place.disk.clone(), fd: DISK_FD, writable: true },
        ];
        if self.accelerator == Accelerator::Kvm {
            files.push(Opened { path: KVM.into(), fd: KVM_FD, writable: true });
        }
        let mut own_files = None;
        if let Memory::Mapped { file, .. } = memory {
            files.push(Opened { path: file.to_owned(), fd: MEMORY_FD, writable: false });
            own_files = Some(OWN_FILES.into());
        }
        let sockets = [(AGENT_SOCKET, AGENT_FD), (CONTROL_SOCKET, CONTROL_FD), (QMP_SOCKET, QMP_FD)];
        Jail {
            argv: self.command_line(memory),
            uid: place.uid,
            scratch: place.scratch.clone(),
            show,
            files,
            own_files,
            sockets_dir: place.record.dir.clone(),
            sockets: sockets.map(|(name, fd)| (name.to_owned(), fd)).into(),
            tap: TAP_FD,
            cgroups: place.cgroups.clone(),
            netns: place.netns.clone(),
            pid_file: place.record.pid_file(),
            log: place.record.log(),
        }
    }

    /// What a saved machine depends on: another of any of it cannot be restored from it.
    pub(crate) fn key(&self, software: &str) -> String {
        // An emulated machine has the same processor everywhere; what it was told of the clock is on its command line.
        let hardware = match self.accelerator {
            Accelerator::Kvm => format!("{}\n{}\n", self.processor, self.tsc_khz),
            Accelerator::Emulated => String::new(),
        };
        let text = format!("{software}\n{hardware}{:?}", self.machine());
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(accelerator: Accelerator) -> Model {
        Model {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            accelerator,
            vmlinux: "/cache/vmlinux".into(),
            initrd: "/cache/initrd".into(),
            size: Size { memory_mib: 192, cpus: 1 },
            tsc_khz: 2_600_000,
            processor: "a processor".to_owned(),
        }
    }

    fn jail(model: &Model) -> Jail {
        let record = Record { dir: "/sandboxes/one".into() };
        let place = Place {
            record: &record,
            uid: 0x6fff_0000,
            image: "/image".into(),
            disk: "/disk".into(),
            scratch: "/scratch".into(),
            cgroups: Vec::new(),
            netns: "/netns".into(),
        };
        model.jail(&place, Memory::Copied(Path::new("/saved")))
    }

    /// `/dev/kvm` belongs to root and a group, and a VMM is neither: its launcher, which is root, opens it.
    #[test]
    fn kvm_is_handed_over_open() {
        let jail = jail(&model(Accelerator::Kvm));
        let kvm = jail.files.iter().find(|file| file.path == Path::new(KVM)).expect("it is opened");
        assert!(kvm.writable);
        assert!(jail.show.iter().all(|shown| shown.from != Path::new(KVM)), "no name of it inside");
        let after = |option: &str| {
            let at = jail.argv.iter().enumerate().filter(move |(_, word)| *word == option);
            at.map(|(at, _)| jail.argv[at + 1].clone()).collect::<Vec<_>>()
        };
        let set = format!("fd={},set={}", kvm.fd, kvm.fd);
        assert!(after("-add-fd").contains(&set), "{:?}", jail.argv);
        assert_eq!(after("-accel"), [format!("kvm,device=/dev/fdset/{}", kvm.fd)]);
        let mut fds: Vec<_> = jail.files.iter().map(|file| file.fd).collect();
        fds.extend(jail.sockets.iter().map(|(_, fd)| *fd));
        fds.push(jail.tap);
        let count = fds.len();
        fds.sort_unstable();
        fds.dedup();
        assert_eq!(fds.len(), count, "every descriptor is one thing");
    }

    #[test]
    fn emulated_machines_do_without() {
        let jail = jail(&model(Accelerator::Emulated));
        assert!(jail.files.iter().all(|file| file.path != Path::new(KVM)));
        assert!(jail.argv.iter().all(|word| !word.contains("kvm")), "{:?}", jail.argv);
    }

    /// On KVM a saved machine remembers the processor and the clock that it booted on.
    #[test]
    fn a_machine_saved_on_another_processor_is_another_machine() {
        let key = |accelerator, processor: &str, tsc_khz| {
            Model { processor: processor.to_owned(), tsc_khz, ..model(accelerator) }.key("software")
        };
        let kvm = key(Accelerator::Kvm, "one", 2_600_000);
        assert_eq!(kvm, key(Accelerator::Kvm, "one", 2_600_000));
        assert_ne!(kvm, key(Accelerator::Kvm, "another", 2_600_000));
        assert_ne!(kvm, key(Accelerator::Kvm, "one", 1_000_000));
        let emulated = key(Accelerator::Emulated, "one", 2_600_000);
        assert_eq!(emulated, key(Accelerator::Emulated, "another", 2_600_000));
    }
}
