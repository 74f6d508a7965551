//! Containers that a witness holds, on images made here.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::execution::ExecutionPolicy;
use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{DEADLINE, Harness as _, Sandbox, chain, plan};
use atoll_isolation::{Execution, Plan, RootFs};
use atoll_recorder::event::{Event, PolicyDecision, What};
use atoll_witness::{Sink, Witness};

use crate::common::{Containers, containers};

#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Vec<(SandboxId, Event)>>);

impl Sink for Kept {
    fn takes(&self, _: &SandboxId) -> bool {
        true
    }

    fn record(&self, sandbox: &SandboxId, event: Event) {
        self.0.lock().unwrap().push((sandbox.clone(), event));
    }

    fn written(&self, _: &SandboxId) {}

    fn last(&self, _: &SandboxId, _: usize) -> Vec<Event> {
        Vec::new()
    }
}

impl Kept {
    fn told(&self, sandbox: &SandboxId) -> Vec<PolicyDecision> {
        let all = self.0.lock().unwrap();
        let of = all.iter().filter(|(id, _)| id == sandbox);
        of.filter_map(|(_, event)| match &event.what {
            What::Policy(decision) => Some(decision.clone()),
            _ => None,
        })
        .collect()
    }

    /// Waits until so many decisions about programs are told.
    pub(crate) async fn decisions(&self, sandbox: &SandboxId, count: usize) -> Vec<PolicyDecision> {
        let end = tokio::time::Instant::now() + DEADLINE;
        loop {
            let found = self.told(sandbox);
            if found.len() >= count {
                return found;
            }
            assert!(tokio::time::Instant::now() < end, "{count} decisions did not come: {found:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) fn watched() -> (Containers, Arc<Kept>, Arc<Witness>) {
    let mut harness = containers();
    let sink = Arc::new(Kept::default());
    let witness = Arc::new(Witness::open(&harness.path.join("witness"), sink.clone()).unwrap());
    harness.witness = Some(Arc::clone(&witness));
    (harness, sink, witness)
}

/// Puts programs of the host, with what they are linked with, into a layer.
pub(crate) fn fill(layer: &Path, programs: &[&str]) {
    for program in programs {
        let linked = std::process::Command::new("ldd").arg(program).output().unwrap();
        let linked = String::from_utf8(linked.stdout).unwrap();
        let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
        for path in libraries.chain([*program]) {
            let place = layer.join(&path[1..]);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::copy(path, place).unwrap();
        }
    }
    std::fs::create_dir_all(layer.join("etc")).unwrap();
    std::fs::write(layer.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
    std::os::unix::fs::symlink("dash", layer.join("bin/sh")).unwrap();
}

/// An image of two layers, with a shell and a few programs.
pub(crate) fn layered(harness: &mut Containers) {
    let (low, high) = (harness.path.join("sha256-low"), harness.path.join("sha256-high"));
    fill(
        &low,
        &["/bin/dash", "/bin/echo", "/bin/true", "/bin/cp", "/bin/ln", "/bin/mv", "/bin/chmod", "/bin/cat"],
    );
    std::fs::create_dir_all(high.join("bin")).unwrap();
    std::fs::copy("/bin/echo", high.join("bin/above")).unwrap();
    harness.root = RootFs::Layers(vec![low, high]);
}

pub(crate) fn policy(harness: &Containers, policy: ExecutionPolicy) -> Plan {
    let execution = Execution { policy, image_until_ms: None, ..Execution::default() };
    Plan { execution, ..plan(harness.root.clone(), Resources::default()) }
}

pub(crate) async fn make(harness: &Containers, plan: &Plan) -> Sandbox {
    let driver = harness.open().await;
    if let Err(error) = driver.create(plan).await {
        panic!("cannot create a sandbox: {}", chain(&error));
    }
    Sandbox::connect(driver, plan.id.clone()).await
}

/// Runs commands, one a line; gives how each ended, and what it said. None may keep the others from running.
pub(crate) async fn each(sandbox: &Sandbox, lines: &[&str]) -> Vec<(String, i32)> {
    let script: String = lines.iter().map(|line| format!("({line}) 2>&1; echo \"|$?\"\n")).collect();
    let printed = sandbox.run(&script).await.stdout;
    let mut ended = Vec::new();
    let mut said = String::new();
    for line in printed.lines() {
        match line.rsplit_once('|') {
            Some((end, code)) if code.parse::<i32>().is_ok() => {
                ended.push((std::mem::take(&mut said) + end, code.parse().unwrap()));
            }
            _ => said.push_str(line),
        }
    }
    assert_eq!(ended.len(), lines.len(), "{printed}");
    ended
}

pub(crate) const KILLED: i32 = 137;
