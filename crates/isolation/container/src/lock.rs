//! Which programs may run in a container: the driver tells the kernel's programs before its first process runs, and
//! keeps them up to date.
//!
//! On a host whose kernel cannot hold programs back the driver refuses containers with such a policy, and one that an
//! earlier server made stands still until a server starts that can hold its programs back.

mod files;
mod places;
mod profiles;
mod rules;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_core::execution::{ExecutionMode, Programs};
use atoll_core::id::SandboxId;
use atoll_core::policy::Origin;
use atoll_isolation::{Execution, IsolationError, Plan, RootFs};
use atoll_isolation_storage::open_upper;
use atoll_witness::{Gate, Missing, Sender};

use crate::step::Step;
use crate::{Inner, doors, sys, watch};
use files::Image;
pub(crate) use rules::Digests;
use rules::{Lookup, Places};

/// File systems on which `stat` reports the same numbers of files as the kernel uses. The kernel's program knows the
/// number of the directory that a sandbox has instead of an image.
const PLAIN: [u64; 6] = [0xef53, 0x5846_5342, 0x0102_1994, 0xe0f5_e1e2, 0xf2f5_2010, OVERLAY];
/// An overlay; the kernel's program knows a file shown through one by the file below it.
const OVERLAY: u64 = 0x794c_7630;

/// The version of Landlock that keeps signals and abstract sockets inside a domain.
const LANDLOCK_SCOPES: i64 = 6;

/// How long it may take until the kernel's programs have seen the first program of a sandbox, and the pause between two
/// looks.
const SEEN_DEADLINE: Duration = Duration::from_secs(10);
const SEEN_PAUSE: Duration = Duration::from_micros(200);

impl Inner {
    /// Whether this host can hold programs back and tell them apart.
    pub(crate) fn check_execution(&self, execution: &Execution) -> Result<(), IsolationError> {
        if execution.is_open() {
            return Ok(());
        }
        let witness = self.witness.as_ref().map_err(|why| {
            cannot(&format!(
                "the host's kernel does not tell of programs ('atoll doctor', trace_host): {why}"
            ))
        })?;
        if !witness.knows_overlays() {
            return Err(cannot(
                "the host's kernel does not say what is the image's; it needs Linux 6.5 or later, with types of overlayfs",
            ));
        }
        if !execution.profiles.is_empty() && sys::landlock_version() < LANDLOCK_SCOPES {
            return Err(cannot(
                "profiles need Landlock with scopes (Linux 6.12 or later), so that one cannot speak for another",
            ));
        }
        Ok(())
    }

    /// The gate that the kernel gets for a plan. Refuses a policy that it could not enforce. `disk` is the sandbox's,
    /// `is_new` when none of its processes has run on it.
    pub(crate) fn gate_for(
        &self,
        plan: &Plan,
        disk: BorrowedFd<'_>,
        is_new: bool,
    ) -> Result<Gate, IsolationError> {
        self.check_execution(&plan.execution)?;
        let host = plan.root == RootFs::Host;
        if !plan.execution.is_open() && host && !is_plain(Path::new("/usr")) {
            return Err(cannot(
                "the host's /usr lies on a file system that numbers files for itself: use an image",
            ));
        }
        let layers = match &plan.root {
            RootFs::Host => vec![self.skeleton.dir().to_owned()],
            RootFs::Layers(layers) => layers.clone(),
        };
        let mut gate = self.make_gate(&plan.execution, &layers, host, Some(disk), is_new)?;
        let doors = self.doors.dir(&plan.execution.profiles)?;
        put_doors(&mut gate, &plan.execution, doors.as_deref())?;
        Ok(gate)
    }

    /// Makes sure that the kernel's programs saw the first process of a sandbox start, and so will see all others.
    pub(crate) fn check_gate(&self, plan: &Plan) -> Result<(), IsolationError> {
        if plan.execution.is_open() {
            return Ok(());
        }
        let witness = self.witness.as_ref().map_err(|why| cannot(why))?;
        let deadline = Instant::now() + SEEN_DEADLINE;
        // The first process starts its program a moment after this thread goes on.
        while !witness.saw_a_start(&plan.id).map_err(|error| cannot_because(&error))? {
            if Instant::now() >= deadline {
                return Err(cannot(
                    "the kernel's programs do not see what starts in this sandbox: they were unloaded, or its cgroup lies too deep",
                ));
            }
            std::thread::sleep(SEEN_PAUSE);
        }
        Ok(())
    }

    /// Whether the kernel enforces this policy already in a sandbox that lives.
    pub(crate) fn has_execution(
        &self,
        id: &SandboxId,
        execution: &Execution,
    ) -> Result<bool, IsolationError> {
        self.living(id)?;
        self.check_execution(execution)?;
        let Ok(witness) = &self.witness else { return Ok(true) };
        Ok(match witness.gate(id) {
            Some(now) => now.revision == revision(execution),
            // The witness does not watch it: enough where no program is to be held back.
            None => execution.is_open(),
        })
    }

    /// Sees to it that the kernel enforces this policy in a sandbox that lives.
    pub(crate) fn set_execution(&self, id: &SandboxId, execution: &Execution) -> Result<(), IsolationError> {
        if self.has_execution(id, execution)? {
            return Ok(());
        }
        let Ok(witness) = &self.witness else { return Ok(()) };
        let instance = self.living(id)?;
        let facts = witness.facts(id).unwrap_or_default();
        let layers: Vec<_> = facts.layers.into_iter().map(|layer| layer.dir).collect();
        let disk = match instance.disk_mount().step("copy a file descriptor")? {
            None if execution.names_programs() => self.mount_again(id)?,
            disk => disk,
        };
        let disk = disk.as_ref().map(AsFd::as_fd);
        let mut gate = self.make_gate(execution, &layers, facts.bound_root.is_some(), disk, false)?;
        put_doors(&mut gate, execution, facts.doors.as_deref())?;
        witness.change_gate(id, &gate).map_err(|error| cannot_because(&error))
    }

    fn make_gate(
        &self,
        execution: &Execution,
        layers: &[PathBuf],
        with_usr: bool,
        disk: Option<BorrowedFd<'_>>,
        is_new: bool,
    ) -> Result<Gate, IsolationError> {
        let Execution { policy, image_until_ms, origins, profiles } = execution;
        let disk = disk.zip(*image_until_ms);
        let kept = disk.map_or(Ok(None), |(disk, until_ms)| places::read(disk, until_ms))?;
        let fresh = is_new && kept.is_none();
        let mut places = kept.unwrap_or_else(|| Places::of(image_until_ms.unwrap_or_default()));
        let mut gate = Gate {
            programs: match policy.programs {
                Programs::Any => atoll_witness::Programs::Any,
                Programs::Image => atoll_witness::Programs::Image,
                Programs::Listed => atoll_witness::Programs::Listed,
            },
            observe: policy.mode == ExecutionMode::Observe,
            rules: Vec::new(),
            revision: revision(execution),
            ..Gate::default()
        };
        if execution.names_programs() {
            check_layers(layers)?;
            let unread = |error| cannot(&format!("the image cannot be read: {error}"));
            let upper =
                disk.map(|(disk, until)| Ok::<_, IsolationError>((open_upper(disk)?, until))).transpose()?;
            let device = upper.as_ref().map(|(upper, _)| rustix::fs::fstat(upper).map(|stat| stat.st_dev));
            let device = device.transpose().step("look at a disk")?;
            let with_disk = Image::open(layers, upper, with_usr).map_err(unread)?;
            let without = Image::open(layers, None, with_usr).map_err(unread)?;
            let mut lookup = Lookup {
                image: &with_disk,
                layers: &without,
                named_layers: layers.iter().map(|dir| (watch::layer_name(dir), dir.clone())).collect(),
                disk: device,
                fresh,
                places: &mut places,
                digests: &self.digests,
            };
            gate.rules = rules::resolve(&policy.rules, &mut lookup).map_err(IsolationError::BadPolicy)?;
            gate.senders = rules::senders(origins, &mut lookup).map_err(IsolationError::BadPolicy)?;
            gate.profiles =
                profiles::resolve(profiles, Some(&mut lookup)).map_err(IsolationError::BadPolicy)?;
        } else {
            let unnamed = |origin: &Origin| Sender { origin: origin.clone(), files: Vec::new() };
            gate.senders = origins.iter().map(unnamed).collect();
            gate.profiles = profiles::resolve(profiles, None).map_err(IsolationError::BadPolicy)?;
        }
        if let (Some((disk, _)), true) = (disk, fresh) {
            places::write(disk, &places)?;
        }
        Ok(gate)
    }
}

/// Puts the doors that a sandbox is shown into its gate, so that the kernel knows them.
fn put_doors(gate: &mut Gate, execution: &Execution, dir: Option<&Path>) -> Result<(), IsolationError> {
    let Some(dir) = dir else { return Ok(()) };
    let files = doors::files(dir, &execution.profiles).step("look at the doors to profiles")?;
    (gate.own, gate.doors) = (files.own, files.doors);
    Ok(())
}

/// A digest by which a policy is recognised.
fn revision(Execution { policy, origins, profiles, .. }: &Execution) -> String {
    // They are trees of plain values, which always can be written.
    let text = serde_json::to_vec(&(policy, origins, profiles)).unwrap_or_default();
    blake3::hash(&text).to_hex().to_string()
}

/// Refuses layers whose files the kernel knows by other numbers than `stat` tells.
fn check_layers(layers: &[PathBuf]) -> Result<(), IsolationError> {
    if layers.is_empty() {
        return Err(cannot("nobody knows any more what this sandbox's image is"));
    }
    if let Some(layer) = layers.iter().find(|layer| !is_plain(layer)) {
        tracing::warn!(layer = %layer.display(), "layers lie on a file system that numbers files for itself");
        return Err(cannot(
            "the image lies on a file system that numbers files for itself: there are no rules about single programs",
        ));
    }
    Ok(())
}

/// Device and inode of the directory that stands in for an image.
pub(crate) fn bound_root(root: &RootFs) -> Option<(u64, u64)> {
    match root {
        RootFs::Host => std::fs::metadata("/usr").map(|meta| (meta.dev(), meta.ino())).ok(),
        RootFs::Layers(_) => None,
    }
}

fn is_plain(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| PLAIN.contains(&kind)))
}

/// Whether the kernel knows a file there by the numbers that `stat` tells, also where it is not a layer.
pub(crate) fn can_have_doors(path: &Path) -> bool {
    let overlay = |fs: rustix::fs::StatFs| u64::try_from(fs.f_type).is_ok_and(|kind| kind == OVERLAY);
    is_plain(path) && !rustix::fs::statfs(path).is_ok_and(overlay)
}

pub(crate) fn cannot(why: &str) -> IsolationError {
    IsolationError::UnenforceablePolicy(format!(
        "which programs run or connect cannot be decided on this host: {why}"
    ))
}

pub(crate) fn cannot_because(error: &Missing) -> IsolationError {
    cannot(&error.to_string())
}
