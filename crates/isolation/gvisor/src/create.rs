//! Makes a sandbox, and removes one. Every step leaves something that carries the sandbox's id, and [`Inner::destroy`]
//! removes all of it that is there.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::Question;
use atoll_isolation::{IsolationError, Plan, PlannedVolume, RootFs};
use atoll_isolation_host::check_hostname;
use atoll_isolation_storage::{DISK_FILE, Spare, attach};
use atoll_network::Slot;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use tokio::process::Command;
use tokio::time::Instant;

use crate::launch::{BAD_ROOT, Jail, Volume};
use crate::live::{ANSWER_TIMEOUT, Sentry, limits};
use crate::record::Record;
use crate::runsc::{self, Platform};
use crate::step::{Step, failed};
use crate::{Inner, host_limits};

/// Layers of one image: the kernel's own limit for overlays.
const LAYERS_MAX_COUNT: usize = 500;
/// How long the agent may take to listen after its sentry has started.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two looks for it.
const LOOK: Duration = Duration::from_millis(2);
/// How long the launcher may take.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Most of a launcher's words that is kept, characters.
const SAID_MAX: usize = 1000;

pub(crate) fn check(plan: &Plan) -> Result<(), IsolationError> {
    check_hostname(&plan.hostname)?;
    check_limits(&plan.resources)?;
    atoll_isolation::no_execution_policy(&plan.execution, IsolationLevel::Gvisor)?;
    layers(&plan.root)?;
    let own = |path: &str| atoll_core::volume::components(path).first() == Some(&runsc::OWN_DIRECTORY);
    match plan.volumes.iter().find(|volume| own(&volume.path)) {
        Some(volume) => Err(IsolationError::BadRoot(format!(
            "'{}' is not free: the level 'gvisor' keeps its own files there",
            volume.path
        ))),
        None => Ok(()),
    }
}

/// Refuses limits that cannot be enforced here: the host's kernel reads and writes the files.
pub(crate) fn check_limits(resources: &Resources) -> Result<(), IsolationError> {
    atoll_isolation::no_io_limits(resources, IsolationLevel::Gvisor)
}

fn layers(root: &RootFs) -> Result<&[PathBuf], IsolationError> {
    match root {
        RootFs::Layers(layers) if (1..=LAYERS_MAX_COUNT).contains(&layers.len()) => Ok(layers),
        RootFs::Layers(_) => {
            Err(IsolationError::BadRoot(format!("an image has 1 to {LAYERS_MAX_COUNT} layers")))
        }
        RootFs::Host => Err(IsolationError::BadRoot(
            "'host' is a view of the host's files, which the level 'gvisor' keeps away; use an OCI image"
                .to_owned(),
        )),
    }
}

/// A mount of an agent layer, attached nowhere.
fn clone_of(dir: &Path) -> Result<OwnedFd, IsolationError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, dir, flags).step("open an agent layer")
}

impl Inner {
    pub(crate) async fn create(self: &Arc<Self>, plan: &Plan) -> Result<(), IsolationError> {
        check(plan)?;
        let platform = self.platform().await?;
        let disk = self.claim_disk(plan).await?;
        fail_point!("gvisor::create::disk");
        self.create_on(plan, disk, platform).await
    }

    /// The same, on a disk that is there already.
    pub(crate) async fn create_on(
        self: &Arc<Self>,
        plan: &Plan,
        disk: Spare,
        platform: Platform,
    ) -> Result<(), IsolationError> {
        let record = self.record(&plan.id);
        record.create()?;
        fail_point!("gvisor::create::directory");
        self.claim_ids(&record)?;
        fail_point!("gvisor::create::ids");
        let dir = self.config.storage.sentry(&plan.id);
        DirBuilder::new().mode(0o700).create(&dir).step("make the directory of a sandbox's disk")?;
        let disk = disk.move_to(dir.join(DISK_FILE))?;
        fail_point!("gvisor::create::moved");
        self.start(plan, &record, &disk, platform).await
    }

    /// A disk with what the plan says.
    pub(crate) async fn claim_disk(self: &Arc<Self>, plan: &Plan) -> Result<Spare, IsolationError> {
        let (source, bytes) = (plan.disk.clone(), plan.resources.disk_bytes);
        self.blocking(move |inner| inner.config.storage.make_spare(&inner.disks, &source, bytes)).await
    }

    /// Starts a jail, enters it among the living, waits until its agent applies the limits, and then writes it down.
    pub(crate) async fn start(
        self: &Arc<Self>,
        plan: &Plan,
        record: &Record,
        disk: &Path,
        platform: Platform,
    ) -> Result<(), IsolationError> {
        let first_id = record.first_id().ok_or(IsolationError::Gone)?;
        let (id, host) = (plan.id.clone(), host_limits(&plan.resources));
        let (image, wanted, programs) = (disk.to_owned(), plan.volumes.clone(), plan.layers.clone());
        let prepared = self.blocking(move |inner| {
            let image =
                File::options().read(true).write(true).open(image).step("open the disk of a sandbox")?;
            let mount = |volume: &PlannedVolume| inner.config.volumes.mount(volume);
            let layers = programs.iter().map(|layer| clone_of(&layer.dir));
            let volumes = wanted.iter().map(mount).chain(layers).collect::<Result<Vec<_>, _>>()?;
            Ok((inner.claim_slot()?, inner.cgroups.create(&id, &host, first_id)?, attach(&image)?, volumes))
        });
        // Held until the jail has them itself.
        let (slot, membership, device, volumes) = prepared.await?;
        fail_point!("gvisor::start::cgroups");
        let ours = |fd: i32| PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let [files, replaced] = runsc::files(plan);
        let jail = Jail {
            runsc: self.config.runsc.path.clone(),
            options: runsc::options(platform),
            config: runsc::config(plan, first_id),
            first_id,
            layers: layers(&plan.root)?.to_vec(),
            disk: device.path(),
            volumes: volumes
                .iter()
                .zip(runsc::shared(plan))
                .map(|(mount, shared)| Volume {
                    mount: ours(mount.as_raw_fd()),
                    path: shared.path,
                    read_only: shared.read_only,
                    subpath: shared.subpath,
                })
                .collect(),
            files,
            replaced,
            agent: self.agent.clone(),
            scratch: self.config.dir.join("scratch"),
            cgroups: membership.files().map(|file| ours(file.as_raw_fd())).collect(),
            netns: ours(slot.netns.as_raw_fd()),
            pid_file: record.pid_file(),
        };
        let launched = self.launch(&jail).await;
        fail_point!("gvisor::start::jail");
        // Entered also when the launcher failed half-way: `destroy` then takes its exit status.
        if let Ok(process) = record.launched()
            && let Some(pidfd) = process.open()?
        {
            self.live.insert(&plan.id, Arc::new(Sentry::new(process, pidfd, Some(slot.gate))));
        }
        launched?;
        let sentry = self.living(&plan.id).map_err(|_gone| ended_at_once())?;
        self.settle(&sentry, plan).await?;
        fail_point!("gvisor::start::told");
        record.write_process(sentry.process())?;
        fail_point!("gvisor::start::written");
        Ok(())
    }

    async fn launch(&self, jail: &Jail) -> Result<(), IsolationError> {
        let step = || "start a sentry";
        let text = serde_json::to_string(jail).map_err(io::Error::from).step(step())?;
        let (program, arguments) =
            self.config.launcher.split_first().ok_or_else(|| {
                failed(step().to_owned(), io::Error::other("no program for it was configured"))
            })?;
        let mut command = Command::new(program);
        command.args(arguments).arg(text).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = tokio::time::timeout(LAUNCH_TIMEOUT, command.output()).await;
        let output = output.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into())).step(step())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
        if let Some(why) = said.strip_prefix(BAD_ROOT) {
            return Err(IsolationError::BadRoot(why.to_owned()));
        }
        Err(failed(step().to_owned(), io::Error::other(said)))
    }

    /// Waits for the agent, and tells it the limits.
    async fn settle(&self, sentry: &Sentry, plan: &Plan) -> Result<(), IsolationError> {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        loop {
            let asked = sentry.ask(Question::Limit(limits(&plan.resources)), ANSWER_TIMEOUT).await;
            match asked {
                Ok(_) => return Ok(()),
                Err(_) if sentry.is_dead() => return Err(ended_at_once()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn claim_slot(&self) -> Result<Slot, IsolationError> {
        self.config.slots.claim().map_err(|error| IsolationError::Kernel {
            step: format!("make a network slot: {error}"),
            source: error.source,
        })
    }

    /// Bytes that a sandbox's disk takes on the host.
    pub(crate) fn disk_bytes(&self, id: &SandboxId) -> u64 {
        fs::metadata(self.disk(id)).map_or(0, |meta| meta.blocks() * 512)
    }

    pub(crate) fn disk(&self, id: &SandboxId) -> PathBuf {
        self.config.storage.sentry(id).join(DISK_FILE)
    }

    pub(crate) async fn destroy(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        fail_point!("gvisor::destroy::start");
        self.end(id).await?;
        fail_point!("gvisor::destroy::ended");
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.remove(&id)?;
            fail_point!("gvisor::destroy::cgroups");
            inner.release_disk(&id)?;
            remove_dir(&inner.config.storage.sentry(&id))?;
            fail_point!("gvisor::destroy::disk");
            let record = inner.record(&id);
            let first_id = record.first_id();
            remove_dir(&record.dir)?;
            if let Some(first_id) = first_id {
                inner.ranges().remove(&first_id);
            }
            Ok(())
        })
        .await
    }

    /// Kills every process of a sandbox, and waits until they have ended.
    pub(crate) async fn end(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        // Waits for a snapshot that is being taken.
        let frozen = id.clone();
        self.blocking(move |inner| inner.thaw_disk(&frozen)).await?;
        if let Some(sentry) = self.live.remove(id) {
            // Killing the first process of a PID namespace ends all of it.
            atoll_isolation_host::end(sentry.pidfd()).await?;
            sentry.reap();
        }
        self.cgroups.end(id).await
    }
}

fn ended_at_once() -> IsolationError {
    failed("keep a sentry running".to_owned(), io::Error::other("its agent could not begin"))
}

fn remove_dir(dir: &Path) -> Result<(), IsolationError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).step("remove what a sandbox had"),
        _ => Ok(()),
    }
}
