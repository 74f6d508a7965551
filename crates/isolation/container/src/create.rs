//! Makes an instance, step by step. Every step leaves something that carries the sandbox's id, and [`crate::destroy`]
//! removes all of it that is there.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use atoll_core::profile::RUN_DIR;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_failpoint::fail_point;
use atoll_isolation::{IsolationError, Plan, PlannedVolume, RootFs};
use atoll_isolation_host::{Membership, Process, check_hostname};
use atoll_network::{RESOLVER_ADDRESS, Slot};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::Inner;
use crate::base;
use crate::child::{Attachment, Launch, Report};
use crate::disk::Disk;
use crate::gate::Home;
use crate::layers;
use crate::live::Instance;
use crate::rlimits;
use crate::spawn;
use crate::step::Step;
use crate::sys;
use crate::userns::UserNamespace;

/// Layers of one image: the kernel's own limit for overlays.
pub(crate) const LAYERS_MAX_COUNT: usize = 500;
/// Group of terminals inside, as on every Linux since the beginning.
const TTY_GROUP: u32 = 5;
/// Terminals of one sandbox. All sandboxes of a host have 3,072 of them between them (`kernel.pty.max`, less what is kept
/// for the host).
pub(crate) const TERMINALS_MAX: u32 = 64;

impl Inner {
    /// Makes an instance. Blocks for about two milliseconds.
    pub(crate) fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let making = self.storage.begin_making(&plan.id)?;
        making.end(self.build(plan, None))
    }

    /// The same, on a disk that is there already.
    pub(crate) fn create_on(&self, plan: &Plan, disk: Disk) -> Result<(), IsolationError> {
        self.build(plan, Some(disk))
    }

    fn build(&self, plan: &Plan, disk: Option<Disk>) -> Result<(), IsolationError> {
        check(plan)?;
        let record = self.records.of(&plan.id);
        fail_point!("container::create::start");
        record.create()?;
        fail_point!("container::create::directory");
        let mut userns = self.userns.claim()?;
        record.claim_ids(userns.first_id())?;
        userns.keep();
        fail_point!("container::create::ids");
        let mut disk = disk.map_or_else(|| self.claim_disk(plan), Ok)?;
        disk.move_image(&self.storage.sandbox_disk(&plan.id))?;
        fail_point!("container::create::disk");
        let membership = self.cgroups.create(&plan.id, &plan.resources, userns.first_id())?;
        self.watch(plan, userns.first_id(), disk.mount.as_fd(), true)?;
        fail_point!("container::create::cgroups");
        let listener = record.listen()?;
        fail_point!("container::create::socket");
        let pid = self.start(plan, &userns, disk, membership, listener)?;
        fail_point!("container::create::process");
        let process = Process::read(pid).step("read the start time of a process")?;
        record.write_process(process)?;
        fail_point!("container::create::record");
        Ok(())
    }

    /// Starts the first process and enters it among the living; gives its pid.
    pub(crate) fn start(
        &self,
        plan: &Plan,
        userns: &UserNamespace,
        disk: Disk,
        membership: Membership,
        listener: OwnedFd,
    ) -> Result<i32, IsolationError> {
        let record = self.records.of(&plan.id);
        let marked = if plan.layers.is_empty() { record.bare().set() } else { record.bare().clear() };
        marked?;
        let slot = self.claim_slot()?;
        let launch = self.launch(plan, userns, &disk, membership, listener, slot.netns)?;
        let child = spawn::spawn(&launch)?;
        // This comes first, so that `destroy` takes its exit status even if a later step fails.
        let home = Home::new(slot.gate, plan, &self.slots);
        let instance = Instance::new(child.pidfd, child.pid, Some(disk), home);
        self.live.insert(&plan.id, Arc::new(instance));
        self.check_gate(plan)?;
        Ok(child.pid)
    }

    fn claim_slot(&self) -> Result<Slot, IsolationError> {
        self.slots.claim().map_err(|error| IsolationError::Kernel {
            step: format!("make a network slot: {error}"),
            source: error.source,
        })
    }

    fn launch(
        &self,
        plan: &Plan,
        userns: &UserNamespace,
        disk: &Disk,
        membership: Membership,
        listener: OwnedFd,
        netns: OwnedFd,
    ) -> Result<Launch, IsolationError> {
        let first_id = userns.first_id();
        let layers = match &plan.root {
            RootFs::Host => vec![self.skeleton.dir().to_owned()],
            RootFs::Layers(layers) => layers.clone(),
        };
        let binds = match &plan.root {
            RootFs::Host => vec![(mapped_clone(Path::new("/usr"), 0, userns.fd())?, c"usr".to_owned())],
            RootFs::Layers(_) => Vec::new(),
        };
        // The kernel wants the topmost first.
        let layers: Vec<(OwnedFd, CString)> = layers
            .iter()
            .rev()
            .enumerate()
            .map(|(number, layer)| Ok((mapped_clone(layer, 0, userns.fd())?, text(base::layer(number))?)))
            .collect::<Result<_, IsolationError>>()?;
        sys::mount_setattr(disk.mount.as_fd(), sys::ATTR_NODEV, Some(userns.fd()))
            .step("map the ids of a disk")?;
        let volumes = plan
            .volumes
            .iter()
            .map(|volume| self.mapped_volume(volume, userns))
            .chain(plan.layers.iter().map(|layer| layers::attachment(layer, userns.fd())))
            .chain(self.doors.dir(&plan.execution.profiles)?.map(|dir| shown_doors(&dir, userns.fd())))
            .collect::<Result<_, IsolationError>>()?;
        let terminals = first_id + TTY_GROUP;
        let devpts = format!("newinstance,ptmxmode=0666,mode=0620,gid={terminals},max={TERMINALS_MAX}");
        Ok(Launch {
            v1_tasks: membership.v1_tasks,
            netns,
            base: Arc::clone(&self.base),
            overlay: overlay_options(layers.len())?,
            layers,
            disk: disk.mount.try_clone().step("copy a file descriptor")?,
            binds,
            volumes,
            files: host_files(&plan.hostname),
            machine_id: atoll_isolation_host::machine_id(&plan.id).into_bytes(),
            boot_id: boot_id()?,
            userns: userns.fd().try_clone_to_owned().step("copy a file descriptor")?,
            first_id,
            hostname: plan.hostname.clone().into_bytes(),
            devpts_options: text(devpts)?,
            memory_options: text(format!("mode=0755,size={}", plan.resources.memory_bytes / 2))?,
            seccomp: Arc::clone(&self.seccomp),
            listener,
            cgroup: membership.delegated,
            agent: Arc::clone(&self.agent),
            command: Command::new(&plan.id)?,
            limits: rlimits::limits(plan.resources.pids),
            report: Report::default(),
        })
    }
}

impl Inner {
    /// A mount of a volume that maps its ids to the sandbox's, and the names on the way to its place.
    fn mapped_volume(
        &self,
        volume: &PlannedVolume,
        userns: &UserNamespace,
    ) -> Result<Attachment, IsolationError> {
        let mount = self.volumes.mount(volume)?;
        let read_only = if volume.read_only { sys::ATTR_RDONLY } else { 0 };
        let attributes = sys::ATTR_NOSUID | sys::ATTR_NODEV | read_only;
        sys::mount_setattr(mount.as_fd(), attributes, Some(userns.fd())).step("map the ids of a volume")?;
        let names =
            atoll_core::volume::components(&volume.path).into_iter().map(|name| text(name.to_owned()));
        Ok(Attachment {
            mount,
            names: names.collect::<Result<_, _>>()?,
            part: volume.subpath.clone().map(text).transpose()?,
        })
    }
}

/// The doors to profiles, and where they are shown.
fn shown_doors(dir: &Path, userns: BorrowedFd<'_>) -> Result<Attachment, IsolationError> {
    let name = RUN_DIR.trim_start_matches('/').to_owned();
    let mount = mapped_clone(dir, sys::ATTR_NOSUID, userns)?;
    Ok(Attachment { mount, names: vec![text(name)?], part: None })
}

/// A random UUID as `/proc/sys/kernel/random/boot_id` has it.
fn boot_id() -> Result<Vec<u8>, IsolationError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(std::io::Error::from).step("choose a boot id")?;
    // Version 4, variant 1: see RFC 9562.
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(format!("{}\n", parts.join("-")).into_bytes())
}

pub(crate) fn check(plan: &Plan) -> Result<(), IsolationError> {
    check_hostname(&plan.hostname)?;
    check_limits(&plan.resources)?;
    match &plan.root {
        RootFs::Layers(layers) if layers.is_empty() || layers.len() > LAYERS_MAX_COUNT => {
            Err(IsolationError::BadRoot(format!("an image has 1 to {LAYERS_MAX_COUNT} layers")))
        }
        RootFs::Layers(_) | RootFs::Host => Ok(()),
    }
}

/// Refuses limits that cannot be enforced here.
pub(crate) fn check_limits(resources: &Resources) -> Result<(), IsolationError> {
    atoll_isolation::no_io_limits(resources, IsolationLevel::Container)
}

/// A read-only view of a directory in which the host's ids 0 to 65535 are the sandbox's own, with further attributes.
pub(crate) fn mapped_clone(
    path: &Path,
    attributes: u64,
    userns: BorrowedFd<'_>,
) -> Result<OwnedFd, IsolationError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let open = || open_tree(CWD, path, flags);
    let tree = open().step(format!("open the layer {}", path.display()))?;
    let attributes = attributes | sys::ATTR_RDONLY | sys::ATTR_NODEV;
    sys::mount_setattr(tree.as_fd(), attributes, Some(userns))
        .step(format!("map the ids of the layer {}", path.display()))?;
    Ok(tree)
}

fn overlay_options(layers: usize) -> Result<CString, IsolationError> {
    let mut options = "lowerdir=".to_owned();
    for number in 0..layers {
        let separator = if number == 0 { "" } else { ":" };
        // Writing to a string cannot fail.
        let _ = write!(options, "{separator}{}", base::layer(number));
    }
    // Volatile: as the disk does not survive the host, syncing it would be waiting for nothing.
    options.push_str(",upperdir=disk/upper,workdir=disk/work,volatile");
    text(options)
}

/// Files in `/etc` that depend on the sandbox.
fn host_files(hostname: &str) -> Vec<(&'static std::ffi::CStr, Vec<u8>)> {
    let hosts =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{hostname}\n");
    vec![
        (c"hostname", format!("{hostname}\n").into_bytes()),
        (c"hosts", hosts.into_bytes()),
        (c"resolv.conf", format!("nameserver {RESOLVER_ADDRESS}\n").into_bytes()),
    ]
}

pub(crate) fn text(value: String) -> Result<CString, IsolationError> {
    CString::new(value).map_err(std::io::Error::other).step("pass a text with a NUL to the kernel")
}

/// Arguments and environment of the agent, as `execve` wants them.
#[derive(Debug)]
pub(crate) struct Command {
    /// Keeps alive what the pointers point to.
    _texts: Vec<CString>,
    /// Ends with a null pointer.
    pub(crate) argv: [*const libc::c_char; 2],
    /// Ends with a null pointer.
    pub(crate) envp: [*const libc::c_char; 3],
}

impl Command {
    fn new(id: &atoll_core::id::SandboxId) -> Result<Self, IsolationError> {
        let texts = vec![
            c"atoll-guest".to_owned(),
            text(format!("ATOLL_SANDBOX_ID={id}"))?,
            c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ];
        let at = |index: usize| texts[index].as_ptr();
        let (argv, envp) = ([at(0), std::ptr::null()], [at(1), at(2), std::ptr::null()]);
        Ok(Self { _texts: texts, argv, envp })
    }
}
