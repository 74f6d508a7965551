//! Saved machines: booted once for each kernel, image and size, restored for each sandbox.
//!
//! ```text
//! <cache>/templates/<key>/memory   the guest's memory; sandboxes map it copy-on-write
//! <cache>/templates/<key>/state    the state of its devices
//! ```
//!
//! A template is complete when it has its name: it is made under another one.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_core::spec::Resources;
use atoll_isolation::IsolationError;
use rustix::process::{Signal, pidfd_send_signal};

use crate::record::Process;
use crate::step::Step;
use crate::vmm::{self, MEMORY_FILE, Model, Place, STATE_FILE, Start};
use crate::{END_TIMEOUT, Inner, KERNEL_BYTES, MIB, ended, files};

/// Waits until nobody else, in this process or another, makes what `path` is to be.
async fn turn(path: &Path) -> Result<fs::File, IsolationError> {
    let lock = path.with_extension("lock");
    let wait = move || {
        let file = fs::File::create(&lock)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        std::io::Result::Ok(file)
    };
    let waited = tokio::task::spawn_blocking(wait).await.map_err(std::io::Error::other).step("run a task")?;
    waited.step("wait for another who makes the same")
}

impl Inner {
    /// The saved machine for these layers and limits: its model and its directory. Boots it when there is none.
    pub(crate) async fn template(
        &self,
        layers: &[PathBuf],
        resources: &Resources,
    ) -> Result<(Model, PathBuf), IsolationError> {
        let image = self.image(layers).await?;
        let model = Model {
            qemu: self.config.qemu.clone(),
            accelerator: self.config.accelerator,
            vmlinux: self.kernel.vmlinux.clone(),
            initrd: self.initrd.clone(),
            image,
            memory_mib: (resources.memory_bytes + KERNEL_BYTES).div_ceil(MIB),
            cpus: resources.cpu_millis.div_ceil(1000).max(1),
            tsc_khz: self.tsc_khz,
        };
        let agent = blake3::hash(self.config.agent).to_hex().to_string();
        let key = model.key(&format!("{} {agent}", self.kernel.digest), &self.qemu_version, resources.disk_bytes);
        let saved = self.config.cache.join("templates").join(&key);
        if !saved.exists() {
            let _turn = turn(&saved).await?;
            if !saved.exists() {
                self.save_machine(&model, &saved, resources.disk_bytes).await?;
            }
        }
        Ok((model, saved))
    }

    async fn image(&self, layers: &[PathBuf]) -> Result<PathBuf, IsolationError> {
        let mut text = String::new();
        for layer in layers {
            text.push_str(&layer.display().to_string());
            text.push('\n');
        }
        let key = blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
        let dir = self.config.cache.join("images");
        let _turn = turn(&dir.join(&key)).await?;
        let layers = layers.to_vec();
        let made = tokio::task::spawn_blocking(move || files::image(&dir, &key, &layers)).await;
        made.map_err(std::io::Error::other).step("run a task")?
    }

    async fn save_machine(&self, model: &Model, saved: &Path, disk_bytes: u64) -> Result<(), IsolationError> {
        let new = saved.with_extension("new");
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).step("remove what an earlier attempt left");
            }
            _ => {}
        }
        let (run, content) = (new.join("run"), new.join("saved"));
        fs::create_dir_all(&run).step("make the directory of a template")?;
        fs::create_dir_all(&content).step("make the directory of a template")?;
        let disk = new.join("disk.img");
        files::disk(&self.config.cache.join("disks"), disk_bytes, &disk)?;
        let uid = self.claim_uid()?;
        for path in [&run, &content, &disk] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).step("give a file to a VMM")?;
        }
        let place = Place {
            disk,
            saved: content.clone(),
            run,
            scratch: self.config.dir.join("scratch"),
            pid_file: new.join("vmm.pid"),
            log: new.join("vmm.log"),
            uid,
            cgroups: Vec::new(),
            netns: None,
        };
        let made = self.boot_and_save(model, &place).await;
        self.uids().remove(&uid);
        made?;
        for name in [MEMORY_FILE, STATE_FILE] {
            // Sandboxes' VMMs run as other users, and read it through a read-only mount.
            let path = content.join(name);
            std::os::unix::fs::chown(&path, Some(0), Some(0)).step("take a file back")?;
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o444);
            fs::set_permissions(&path, readable).step("open a template to read")?;
        }
        std::os::unix::fs::chown(&content, Some(0), Some(0)).step("take a directory back")?;
        fs::rename(&content, saved).step("put a template in its place")?;
        fs::remove_dir_all(&new).step("remove what a template was made with")
    }

    async fn boot_and_save(&self, model: &Model, place: &Place) -> Result<(), IsolationError> {
        let pid = vmm::start(&self.config.launcher, model, place, Start::Boot).await?;
        let pidfd = Process::read(pid).ok().and_then(Process::open).ok_or(IsolationError::Gone)?;
        let saved = async {
            let mut qmp = vmm::monitor(place).await?;
            vmm::booted(&mut qmp).await?;
            vmm::save(&mut qmp).await
        }
        .await;
        if saved.is_err() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        tokio::time::timeout(END_TIMEOUT, ended(&pidfd))
            .await
            .map_err(|_late| std::io::Error::from(std::io::ErrorKind::TimedOut))
            .step("see a VMM end")??;
        saved
    }
}
