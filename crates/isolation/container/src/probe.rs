//! What `atoll doctor` tries. Every check does the thing and undoes it; none trusts a version number or
//! the existence of a file.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::Path;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::{Check, DiskSource, Execution, IsolationError, Plan, RootFs, Status};
use atoll_isolation_host::Controller;
use atoll_network::Steering;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::Inner;
use crate::{host_files, modules, seccomp, sys, totals, userns};

/// Files that are named at most.
const KEPT_SHOWN_MAX: usize = 8;
/// Disk of the probing sandbox, bytes.
const DISK_BYTES: u64 = 16 << 20;

/// All checks.
pub(crate) fn checks(inner: &Inner) -> Vec<Check> {
    let mut checks = vec![
        tried("user_namespaces", user_namespace(inner), "set the sysctl user.max_user_namespaces above 0"),
        tried(
            "ids",
            ids(userns::LAST_ID),
            "sandboxes cannot have a terminal on this kernel: please report its version",
        ),
        tried("mount_api", mount_api(), "Linux 5.19 or newer is needed, and the right to mount"),
        tried(
            "network",
            network(inner),
            "the server needs CAP_SYS_ADMIN and CAP_NET_ADMIN, and either the right to load BPF programs or 'nft'",
        ),
        tried("pidfd", pidfd(), "Linux 5.4 or newer is needed"),
        tried("disk_limit", disk_limit(inner), "load the module 'loop' and install e2fsprogs"),
        tried("seccomp", seccomp_filter(), "a kernel with CONFIG_SECCOMP_FILTER is needed"),
        modules::check(),
        totals::open_files(),
        totals::check(&inner.cgroups),
        inner.storage.check(),
        cgroups(inner),
    ];
    checks.extend(limits(inner));
    checks.push(tried(
        "overlay",
        whole(inner),
        "Linux 5.19 or newer with overlayfs on idmapped mounts is needed",
    ));
    checks.push(trace_host(inner));
    checks.push(host_image());
    checks.push(memory_pause());
    checks.push(kvm());
    checks
}

/// What was seen, or why not.
type Tried = Result<String, IsolationError>;

fn tried(name: &str, result: Tried, hint: &str) -> Check {
    match result {
        Ok(detail) => Check::new(name, Status::Ok, detail),
        Err(error) => Check::new(name, Status::Missing, with_cause(&error)).hint(hint),
    }
}

fn with_cause(error: &IsolationError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn kernel(step: &str, error: impl Into<std::io::Error>) -> IsolationError {
    IsolationError::Kernel { step: step.to_owned(), source: error.into() }
}

/// Whether the host's kernel is a witness of what happens in sandboxes, which locks and profiles depend on.
fn trace_host(inner: &Inner) -> Check {
    let name = "trace_host";
    match &inner.witness {
        Ok(witness) if witness.knows_overlays() => {
            Check::new(name, Status::Ok, "the host's kernel records processes and connections of containers")
        }
        Ok(_) => Check::new(
            name,
            Status::Limited,
            "the host's kernel records processes and connections of containers, but not which programs are the image's",
        )
        .hint("locks and profiles need Linux 6.5 or newer, with types of overlayfs"),
        Err(why) => Check::new(name, Status::Missing, why)
            .hint("journals have what the gateway and the server saw; locks and profiles are refused"),
    }
}

fn user_namespace(inner: &Inner) -> Tried {
    let made = userns::make(&inner.ranges)?;
    Ok(format!("made one that maps {} ids from {}", userns::IDS_PER_SANDBOX, made.first_id()))
}

/// Mounts terminals that belong to the highest id that any sandbox of any installation gets: kernels differ in how large
/// an id in a mount option may be, and a sandbox that is made for trying has one of the lower ones.
fn ids(last: u32) -> Tried {
    let step = "mount terminals of the highest id of a sandbox";
    let mount = || {
        let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "gid", last.to_string())?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)
    };
    mount().map_err(|error| kernel(step, error))?;
    Ok(format!("mounted terminals that belong to {last}, the highest id of a sandbox"))
}

fn mount_api() -> Tried {
    let step = "mount a tmpfs nowhere";
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| kernel(step, error))?;
    fsconfig_create(&context).map_err(|error| kernel(step, error))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    let mount =
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|error| kernel(step, error))?;
    sys::mount_setattr(mount.as_fd(), sys::ATTR_RDONLY, None)
        .map_err(|error| kernel("change a mount", error))?;
    Ok("mounted a tmpfs nowhere and made it read-only".to_owned())
}

fn network(inner: &Inner) -> Tried {
    match inner.slots.claim() {
        Ok(slot) => Ok(match slot.gate.steering {
            Steering::Bpf(_) => {
                "made a network namespace, steered to the gateway by BPF (sk_lookup)".to_owned()
            }
            Steering::Redirect => "made a network namespace, steered to the gateway by nft".to_owned(),
        }),
        Err(error) => Err(IsolationError::Kernel { step: error.step.to_owned(), source: error.source }),
    }
}

fn pidfd() -> Tried {
    let own = rustix::process::getpid();
    pidfd_open(own, PidfdFlags::empty())
        .map_err(|error| kernel("open this process as a descriptor", error))?;
    Ok("opened a process as a descriptor".to_owned())
}

fn disk_limit(inner: &Inner) -> Tried {
    let made = inner.disks.make(DISK_BYTES)?;
    let stat = rustix::fs::fstatvfs(&made.mount).map_err(|error| kernel("measure a disk", error))?;
    let size = stat.f_blocks * stat.f_frsize;
    if size > DISK_BYTES {
        return Err(IsolationError::Unenforceable(format!("a disk of {DISK_BYTES} bytes holds {size}")));
    }
    Ok("mounted an ext4 image on a loop device".to_owned())
}

fn seccomp_filter() -> Tried {
    let filter = seccomp::compile()?;
    Ok(format!("compiled a filter of {} instructions; every sandbox runs under it", filter.len()))
}

fn cgroups(inner: &Inner) -> Check {
    let layout = inner.cgroups.layout();
    Check::new("cgroups", Status::Ok, format!("layout: {}", layout.name()))
}

/// Makes cgroups, sets every limit to a known value, and reads it back.
fn limits(inner: &Inner) -> Vec<Check> {
    let id = probe_id();
    let resources = Resources { disk_bytes: DISK_BYTES, ..Resources::default() };
    let made = inner.cgroups.create(&id, &resources, userns::FIRST_ID).map(drop);
    let checks = [Controller::Cpu, Controller::Memory, Controller::Pids].map(|controller| {
        let name = format!("limit_{}", controller.name());
        let seen =
            inner.cgroups.read_limit(&id, controller).map(|value| format!("set one and read back {value}"));
        let hint = format!("the cgroup controller '{}' is not available to this server", controller.name());
        tried(&name, seen, &hint)
    });
    let mut checks = Vec::from(checks);
    let gone = inner.cgroups.remove(&id);
    if let Err(error) = made.and(gone) {
        checks.push(Check::new("cgroup_control", Status::Missing, with_cause(&error)));
    }
    checks
}

/// Makes a whole sandbox of the host's files and destroys it.
fn whole(inner: &Inner) -> Tried {
    let plan = Plan {
        id: probe_id(),
        root: RootFs::Host,
        resources: Resources { disk_bytes: DISK_BYTES, ..Resources::default() },
        hostname: "doctor".to_owned(),
        disk: DiskSource::Empty,
        volumes: Vec::new(),
        layers: Vec::new(),
        execution: Execution::default(),
    };
    let made = inner.create(&plan);
    let removed = inner.destroy(&plan.id);
    made?;
    removed?;
    Ok("made a sandbox on an idmapped overlay and destroyed it".to_owned())
}

/// Whether the image `host` shows files that the host's root keeps from its users.
fn host_image() -> Check {
    let kept = host_files::kept(Path::new("/usr/local"), KEPT_SHOWN_MAX);
    let names: Vec<_> = kept.files.iter().map(|path| path.display().to_string()).collect();
    match (names.is_empty(), kept.is_whole) {
        (true, true) => Check::new("host_image", Status::Ok, "everybody may read all files in /usr/local"),
        (true, false) => {
            Check::new("host_image", Status::Limited, "/usr/local has too many files to look at")
        }
        (false, _) => Check::new(
            "host_image",
            Status::Limited,
            format!(
                "root in a sandbox of the image 'host' can read what only root may outside: {}",
                names.join(", ")
            ),
        )
        .hint("move secrets out of /usr/local, or use an OCI image"),
    }
}

fn probe_id() -> SandboxId {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one("doctor");
    SandboxId::from_parts(0, random)
}

/// Whether processes can be written to disk: never at this level, and why is said here as it is when asked for it.
fn memory_pause() -> Check {
    Check::new("memory_pause", Status::Missing, crate::hibernate::no_memory())
        .hint("pausing as 'frozen' keeps memory in the host's, as 'filesystem' keeps the disk")
}

/// Whether microVMs would run on hardware. A device alone says nothing: it can belong to a hypervisor in
/// software, which ordinary guest kernels cannot boot on.
fn kvm() -> Check {
    let device = CString::from(c"/dev/kvm");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(device, flags, rustix::fs::Mode::empty());
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let hardware = text.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    let arm = cfg!(target_arch = "aarch64");
    match (opened, hardware || arm) {
        (Ok(_), true) => Check::new("kvm", Status::Ok, "/dev/kvm opens and the processor virtualizes"),
        (Ok(_), false) => Check::new(
            "kvm",
            Status::Limited,
            "/dev/kvm opens, but the processor shows neither vmx nor svm: it is a software hypervisor",
        )
        .hint("micro virtual machines will be emulated here, which is slow and no security boundary"),
        (Err(error), _) => Check::new("kvm", Status::Missing, format!("/dev/kvm does not open: {error}"))
            .hint("containers do not need it"),
    }
}
