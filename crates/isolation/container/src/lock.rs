//! Which programs may run in a container: told to the kernel's programs before its first process runs, and looked after.
//!
//! A host whose kernel cannot hold programs back has no containers with such a policy: they are refused, and one that an earlier
//! server made stands still until a server comes that can.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_core::execution::{ExecutionMode, ExecutionPolicy, Programs};
use atoll_core::id::SandboxId;
use atoll_isolation::{Execution, IsolationError, Plan, RootFs};
use atoll_witness::{Gate, Missing, Witness};

use crate::Inner;

/// File systems whose numbers of files `stat` tells as the kernel has them. Of the directory that a sandbox has instead of an
/// image the kernel's program knows the number.
const PLAIN: [u64; 6] = [0xef53, 0x5846_5342, 0x0102_1994, 0xe0f5_e1e2, 0xf2f5_2010, 0x794c_7630];

/// How long the first program of a sandbox may take to be seen, and how often is looked.
const SEEN_DEADLINE: Duration = Duration::from_secs(10);
const SEEN_PAUSE: Duration = Duration::from_micros(200);

impl Inner {
    /// Whether this host can hold programs back.
    pub(crate) fn check_execution(&self, policy: &ExecutionPolicy) -> Result<(), IsolationError> {
        if policy.is_open() {
            return Ok(());
        }
        let Some(witness) = &self.witness else {
            return Err(cannot(
                "the host's kernel does not tell of programs: 'atoll doctor' says why (trace_host), unless the server was started with --trace off",
            ));
        };
        if !witness.knows_overlays() {
            return Err(cannot(
                "the host's kernel does not say what is the image's; it needs Linux 6.5 or later, with types of overlayfs",
            ));
        }
        Ok(())
    }

    /// What the kernel is told for a plan. Refuses what it could not hold.
    pub(crate) fn gate_for(&self, plan: &Plan) -> Result<Gate, IsolationError> {
        self.check_execution(&plan.execution.policy)?;
        if !plan.execution.policy.is_open() && plan.root == RootFs::Host && !is_plain(Path::new("/usr")) {
            return Err(cannot(
                "the host's /usr lies on a file system that numbers files for itself: use an image",
            ));
        }
        Ok(gate(&plan.execution.policy))
    }

    /// Makes sure that the kernel's programs saw the first process of a sandbox start, and so will see all others.
    pub(crate) fn check_gate(&self, plan: &Plan) -> Result<(), IsolationError> {
        if plan.execution.policy.is_open() {
            return Ok(());
        }
        let witness = self.witness.as_ref().ok_or_else(|| cannot("there is no witness"))?;
        let deadline = Instant::now() + SEEN_DEADLINE;
        // It starts its program a moment after this thread goes on.
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

    /// Sees to it that the kernel holds back what it should in a sandbox that lives.
    pub(crate) fn set_execution(&self, id: &SandboxId, execution: &Execution) -> Result<(), IsolationError> {
        self.living(id)?;
        self.check_execution(&execution.policy)?;
        match &self.witness {
            Some(witness) => change(witness, id, &gate(&execution.policy)),
            None => Ok(()),
        }
    }
}

fn change(witness: &Witness, id: &SandboxId, gate: &Gate) -> Result<(), IsolationError> {
    match witness.gate(id) {
        Some(now) if now == *gate => Ok(()),
        // Nobody watches it, and nothing is to be held back.
        None if !gate.is_closed() => Ok(()),
        _ => witness.change_gate(id, gate).map_err(|error| cannot_because(&error)),
    }
}

fn gate(policy: &ExecutionPolicy) -> Gate {
    let programs = match policy.programs {
        Programs::Any => atoll_witness::Programs::Any,
        Programs::Image => atoll_witness::Programs::Image,
    };
    Gate { programs, observe: policy.mode == ExecutionMode::Observe, rules: Vec::new() }
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

fn cannot(why: &str) -> IsolationError {
    IsolationError::UnenforceablePolicy(format!("which programs run cannot be decided on this host: {why}"))
}

pub(crate) fn cannot_because(error: &Missing) -> IsolationError {
    cannot(&error.to_string())
}
