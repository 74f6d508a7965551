//! What the host's kernel lets run in a container, and what it tells of the rest.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;
#[path = "common/locked.rs"]
mod locked;

use std::time::Duration;

use atoll_core::execution::{ExecutionMode, ExecutionPolicy};
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Harness as _, Sandbox, plan};
use atoll_isolation::{Execution, IsolationError, Plan};
use common::{Containers, containers};
use locked::{KILLED, each, layered, make, policy, watched};

async fn locked(harness: &Containers) -> Sandbox {
    make(harness, &policy(harness, ExecutionPolicy::image())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_image_brought_and_nobody_changed_runs() {
    let (mut harness, sink, witness) = watched();
    layered(&mut harness);
    let sandbox = locked(&harness).await;
    let runs = [
        "/bin/echo RAN",
        "/bin/above RAN",
        "ln -s /bin/echo /link; /link RAN",
        "exec /proc/self/exe -c 'echo RAN'",
        "PATH=/nowhere:/bin; echo RAN",
        "echo 'echo RAN' > /script; /bin/sh /script",
        "printf '#!/bin/sh\\necho RAN\\n' > /script; chmod 755 /script; /script",
    ];
    for ((said, code), line) in each(&sandbox, &runs).await.into_iter().zip(runs) {
        assert_eq!((said.as_str(), code), ("RAN", 0), "{line}");
    }
    let loader = std::fs::canonicalize("/lib64/ld-linux-x86-64.so.2").unwrap();
    let (loader, name) = (loader.display().to_string(), loader.file_name().unwrap().to_str().unwrap());
    // In the layer it has the place that programs ask for.
    let loader = if harness.path.join("sha256-low").join(&loader[1..]).try_exists().unwrap() {
        loader.clone()
    } else {
        format!("/lib64/{name}")
    };
    let refused = [
        "cp /bin/echo /copy; /copy RAN".to_owned(),
        "cp /bin/echo /dev/shm/copy; /dev/shm/copy RAN".to_owned(),
        "ln -s /copy /link2; /link2 RAN".to_owned(),
        "/proc/self/root/copy RAN".to_owned(),
        "ln /bin/above /bin/linked; /bin/linked RAN".to_owned(),
        "/bin/above RAN".to_owned(),
        "mv /bin/true /bin/moved; /bin/moved RAN".to_owned(),
        "cat /copy > /bin/ln; /bin/ln RAN".to_owned(),
        "chmod 755 /bin/cat; /bin/cat /etc/passwd".to_owned(),
        "printf '#!/copy\\n' > /script; chmod 755 /script; /script RAN".to_owned(),
        format!("{loader} /copy RAN"),
        format!("{loader} /bin/echo RAN"),
        format!("printf '#!{loader} /copy\\n' > /script; /script RAN"),
        format!("cp {loader} /loader; /loader /copy RAN"),
    ];
    let lines: Vec<_> = refused.iter().map(String::as_str).collect();
    for ((said, code), line) in each(&sandbox, &lines).await.into_iter().zip(&lines) {
        assert!(code == KILLED && !said.contains("RAN"), "{line}: {code} {said}");
    }
    let told = sink.decisions(&sandbox.id, refused.len()).await;
    assert_eq!(told.len(), refused.len(), "{told:#?}");
    assert!(told.iter().all(|decision| !decision.allowed && decision.stage == "exec"));
    let rule = |subject: &str| {
        let found = told.iter().find(|decision| decision.subject == subject);
        found.unwrap_or_else(|| panic!("{subject}: {told:#?}")).rule.clone()
    };
    assert!(rule("/copy").contains("written or changed"), "{}", rule("/copy"));
    assert!(rule("/dev/shm/copy").contains("another file system") || rule("/copy").contains("written"));
    assert!(rule("/bin/cat").contains("written or changed"));
    assert!(rule(&loader).contains("dynamic loader"), "{}", rule(&loader));
    sandbox.destroy().await;
    witness.close();
}

const MEMORY: &str = "import os, sys\n\
    data = open('/bin/echo', 'rb').read()\n\
    def memory():\n    fd = os.memfd_create('m'); os.write(fd, data); return fd\n\
    def nameless():\n    fd = os.open('/tmp', os.O_TMPFILE | os.O_RDWR, 0o755); os.write(fd, data); new = os.open(f'/proc/self/fd/{fd}', os.O_RDONLY); os.close(fd); return new\n\
    def run(fd, path):\n    pid = os.fork()\n    if not pid:\n        os.execve(f'/proc/self/fd/{fd}' if path else fd, ['x', 'RAN'], {})\n    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n\
    print([run(memory(), True), run(memory(), False), run(nameless(), True), run(nameless(), False), run(os.open('/bin/echo', os.O_RDONLY), False)])\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_name_does_not_run_and_the_hosts_programs_do() {
    let (harness, sink, witness) = watched();
    let sandbox = locked(&harness).await;
    let printed = sandbox.see(&format!("python3 -c \"{MEMORY}\"")).await;
    assert_eq!(printed, "RAN\n[-9, -9, -9, -9, 0]");
    assert_eq!(sink.decisions(&sandbox.id, 4).await.len(), 4);
    // A command of its own, not a shell's.
    let output = sandbox.run("cp /bin/echo /tmp/x; exec /tmp/x RAN").await;
    assert_eq!((output.code, output.stdout.as_str()), (KILLED, ""));
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_observed_runs_and_what_is_changed_counts_at_once() {
    let (harness, sink, witness) = watched();
    let observe = ExecutionPolicy { mode: ExecutionMode::Observe, ..ExecutionPolicy::image() };
    let sandbox = make(&harness, &policy(&harness, observe)).await;
    let copy = "cp /bin/echo /tmp/x; /tmp/x RAN";
    assert_eq!(sandbox.see(copy).await, "RAN");
    let told = sink.decisions(&sandbox.id, 1).await;
    assert!(told[0].allowed && told[0].rule.starts_with("would be refused: "), "{told:?}");
    let set = async |policy| {
        let execution = Execution { policy, image_until_ms: None, ..Execution::default() };
        sandbox.driver.set_execution(&sandbox.id, &execution).await.unwrap();
    };
    set(ExecutionPolicy::image()).await;
    assert_eq!(sandbox.run(copy).await.code, KILLED);
    set(ExecutionPolicy::default()).await;
    assert_eq!(sandbox.see(copy).await, "RAN");
    assert_eq!(sink.decisions(&sandbox.id, 2).await.len(), 2, "what may run is not told");
    // Also of one that was made without a policy.
    let open = Sandbox::create(&harness, Resources::default()).await;
    let execution =
        Execution { policy: ExecutionPolicy::image(), image_until_ms: None, ..Execution::default() };
    open.driver.set_execution(&open.id, &execution).await.unwrap();
    assert_eq!(open.run(copy).await.code, KILLED);
    open.destroy().await;
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_template_put_on_the_disk_is_of_the_image_until_it_is_changed() {
    let (harness, _sink, witness) = watched();
    let first = Sandbox::create(&harness, Resources::default()).await;
    first.see("cp /bin/echo /opt/tool; cp /bin/echo /opt/other").await;
    let artifact = atoll_core::id::SnapshotId::from_parts(1, u64::from(std::process::id()));
    first.driver.snapshot(&first.id, &artifact).await.unwrap();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let until = Some(u64::try_from(since.as_millis()).unwrap());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let disk = atoll_isolation::DiskSource::Artifact(artifact.clone());
    for (image_until_ms, tool) in [(until, 0), (None, KILLED)] {
        let execution =
            Execution { policy: ExecutionPolicy::image(), image_until_ms, ..Execution::default() };
        let plan = Plan { execution, disk: disk.clone(), ..plan(harness.root.clone(), Resources::default()) };
        let sandbox = make(&harness, &plan).await;
        let lines = [
            "/opt/tool RAN",
            "touch -d 1999-01-01 /opt/other; /opt/other RAN",
            "cp /opt/tool /opt/copy; /opt/copy RAN",
            "mv /opt/tool /opt/moved; /opt/moved RAN",
        ];
        let codes: Vec<_> = each(&sandbox, &lines).await.into_iter().map(|(_, code)| code).collect();
        assert_eq!(codes, [tool, KILLED, KILLED, KILLED], "{image_until_ms:?}");
        sandbox.destroy().await;
    }
    first.driver.remove_artifact(&artifact).await.unwrap();
    first.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stays_in_force_over_servers_and_sleep() {
    let (harness, _sink, witness) = watched();
    let plan = policy(&harness, ExecutionPolicy::image());
    let sandbox = make(&harness, &plan).await;
    let copy = "cp /bin/echo /var/x; /var/x RAN";
    assert_eq!(sandbox.run(copy).await.code, KILLED);
    let Sandbox { driver, id, guest, .. } = sandbox;
    guest.close();
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
    driver.wake(&plan).await.unwrap();
    let sandbox = Sandbox::connect(driver, id).await;
    assert_eq!(sandbox.run("/var/x RAN").await.code, KILLED);
    // Another driver, which is told nothing.
    let Sandbox { driver, id, guest, .. } = sandbox;
    guest.close();
    drop(driver);
    let driver = harness.open().await;
    driver.adopt(&id).await.unwrap();
    let sandbox = Sandbox::connect(driver, id).await;
    assert_eq!(sandbox.run("/var/x RAN").await.code, KILLED);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_hold_it_refuses() {
    let harness = containers();
    let driver = harness.open().await;
    let plan = policy(&harness, ExecutionPolicy::image());
    let refused = driver.create(&plan).await;
    assert!(matches!(refused, Err(IsolationError::UnenforceablePolicy(_))), "{refused:?}");
    driver.destroy(&plan.id).await.unwrap();
    assert!(driver.check_execution(&plan.execution).is_err());
    driver.check_execution(&Execution::default()).unwrap();
    // The driver refuses a policy that it cannot enforce, instead of accepting it silently.
    let open = Sandbox::create(&harness, Resources::default()).await;
    let execution =
        Execution { policy: ExecutionPolicy::image(), image_until_ms: None, ..Execution::default() };
    let refused = open.driver.set_execution(&open.id, &execution).await;
    assert!(matches!(refused, Err(IsolationError::UnenforceablePolicy(_))), "{refused:?}");
    open.destroy().await;
}
