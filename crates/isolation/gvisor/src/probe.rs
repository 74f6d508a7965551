//! What `atoll doctor` says about gVisor, and which of its platforms this host can run: found out by making a sandbox.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::{Check, DiskSource, Execution, IsolationError, Plan, RootFs, Status};

use crate::Inner;
use crate::runsc::Platform;
use crate::step::{Step, chain};

/// Size of the sandbox that is tried.
const SMALL: u64 = 64 << 20;
/// A platform that does not work may hang instead of failing.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Inner {
    /// The platform to run sandboxes on: the first that works. Tried once in the life of the driver, unless none does.
    pub(crate) async fn platform(self: &Arc<Self>) -> Result<Platform, IsolationError> {
        self.platform.get_or_try_init(|| self.choose()).await.copied()
    }

    async fn choose(self: &Arc<Self>) -> Result<Platform, IsolationError> {
        let mut refusals = Vec::new();
        for platform in self.config.runsc.platforms() {
            match self.attempt(*platform).await {
                Ok(()) => return Ok(*platform),
                Err(error) => refusals.push(format!("platform {}: {}", platform.as_str(), chain(&error))),
            }
        }
        Err(IsolationError::Unavailable(format!(
            "gVisor ({}) does not run here: {}",
            self.config.runsc.version,
            refusals.join("; ")
        )))
    }

    /// Makes a sandbox with nothing in it, and removes it.
    async fn attempt(self: &Arc<Self>, platform: Platform) -> Result<(), IsolationError> {
        let root = self.config.dir.join("probe-root");
        DirBuilder::new().mode(0o755).recursive(true).create(&root).step("make a directory")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id =
            SandboxId::from_parts(u64::try_from(now.as_millis()).unwrap_or(0), u64::from(now.subsec_nanos()));
        let plan = Plan {
            id: id.clone(),
            root: RootFs::Layers(vec![root]),
            resources: Resources { disk_bytes: SMALL, ..Resources::default() },
            hostname: "probe".to_owned(),
            disk: DiskSource::Empty,
            volumes: Vec::new(),
            layers: Vec::new(),
            execution: Execution::default(),
        };
        self.probing().insert(id.clone());
        let made = async {
            let making = self.config.storage.begin_making(&id)?;
            let disk = self.claim_disk(&plan).await?;
            making.end(self.create_on(&plan, disk, platform).await)
        };
        let made = tokio::time::timeout(TIMEOUT, made).await.unwrap_or_else(|_late| {
            Err(IsolationError::Unavailable(format!("it did not start in {TIMEOUT:?}")))
        });
        let removed = self.destroy(&id).await;
        self.probing().remove(&id);
        made.and(removed)
    }

    /// Makes a sandbox and throws it away.
    pub(crate) async fn checks(self: &Arc<Self>) -> Vec<Check> {
        let since = Instant::now();
        let tried = self.choose().await;
        let version = &self.config.runsc.version;
        let check = match tried {
            Err(error) => Check::new("gvisor", Status::Missing, chain(&error))
                .hint("sandboxes of the level 'gvisor' are refused"),
            Ok(platform) => {
                let took = since.elapsed();
                let seen =
                    format!("{version}: made a sandbox on platform {} in {took:.1?}", platform.as_str());
                match (platform, self.config.runsc.set_user_id) {
                    (Platform::Systrap, true) => Check::new("gvisor", Status::Ok, seen),
                    (Platform::Systrap, false) => Check::new("gvisor", Status::Limited, seen)
                        .hint("this version ignores set-user-id bits: sudo and su do not work inside"),
                    (Platform::Ptrace, _) => Check::new("gvisor", Status::Limited, seen).hint(
                        "ptrace makes every system call slow; a runsc with systrap is in bookworm-backports",
                    ),
                }
            }
        };
        vec![check]
    }
}
