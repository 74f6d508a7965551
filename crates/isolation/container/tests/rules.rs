//! Rules about single programs of a container's image.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;
#[path = "common/locked.rs"]
mod locked;
#[path = "locked/origins.rs"]
mod origins;
#[path = "locked/senders.rs"]
mod senders;

use std::path::Path;
use std::time::Duration;

use atoll_core::execution::{ExecutionAction, ExecutionMode, ExecutionPolicy, ExecutionRule, Programs};
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Sandbox, plan};
use atoll_isolation::{DiskSource, Execution, IsolationError, Plan};
use common::Containers;
use locked::{KILLED, each, layered, make, policy, watched};

fn path(action: ExecutionAction, path: &str) -> ExecutionRule {
    ExecutionRule { action, path: Some(path.to_owned()), ..ExecutionRule::default() }
}

fn allow(what: &str) -> ExecutionRule {
    path(ExecutionAction::Allow, what)
}

fn deny(what: &str) -> ExecutionRule {
    path(ExecutionAction::Deny, what)
}

fn with(programs: Programs, rules: Vec<ExecutionRule>) -> ExecutionPolicy {
    ExecutionPolicy { programs, rules, mode: ExecutionMode::Enforce }
}

fn digest(file: &Path) -> String {
    format!("blake3:{}", blake3::hash(&std::fs::read(file).unwrap()).to_hex())
}

async fn codes(sandbox: &Sandbox, lines: &[&str]) -> Vec<i32> {
    each(sandbox, lines).await.into_iter().map(|(_, code)| code).collect()
}

async fn set(sandbox: &Sandbox, policy: ExecutionPolicy) -> Result<(), IsolationError> {
    let execution = Execution { policy, image_until_ms: None, ..Execution::default() };
    sandbox.driver.set_execution(&sandbox.id, &execution).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_about_files_of_the_image_whatever_they_are_called() {
    let (mut harness, sink, witness) = watched();
    layered(&mut harness);
    let denied = ExecutionRule { message: Some("ask the operator".to_owned()), ..deny("/bin/echo") };
    let sandbox = make(&harness, &policy(&harness, with(Programs::Image, vec![denied]))).await;
    let lines = [
        "/bin/above RAN",
        "/bin/true",
        "/bin/echo RAN",
        "ln -s /bin/echo /other; /other RAN",
        "cp /bin/echo /copy; /copy RAN",
        "mv /bin/echo /moved; /moved RAN",
    ];
    assert_eq!(codes(&sandbox, &lines).await, [0, 0, KILLED, KILLED, KILLED, KILLED]);
    let told = sink.decisions(&sandbox.id, 4).await;
    let rules: Vec<_> = told.iter().map(|decision| decision.rule.as_str()).collect();
    assert_eq!(rules[..2], ["rule 1 (deny /bin/echo: ask the operator)"; 2], "{rules:?}");
    assert!(rules[2..].iter().all(|rule| rule.contains("written or changed")), "{rules:?}");
    // What may run only because a rule says so, and no loader, whoever names it.
    set(&sandbox, with(Programs::Listed, vec![allow("/bin/sh"), allow("/bin/cp"), allow("/bin/above")]))
        .await
        .unwrap();
    let lines = ["/bin/above RAN", "/bin/true", "cp /bin/above /copy2; /copy2 RAN", "sh -c 'echo RAN'"];
    assert_eq!(codes(&sandbox, &lines).await, [0, KILLED, KILLED, 0]);
    // All in a directory, but for those that an earlier rule names.
    set(&sandbox, with(Programs::Listed, vec![deny("/bin/true"), allow("/bin/*")])).await.unwrap();
    assert_eq!(
        codes(&sandbox, &["/bin/above RAN", "/bin/true", "/bin/cat /etc/passwd"]).await,
        [0, KILLED, 0]
    );
    // Observed, and open again.
    let observed =
        ExecutionPolicy { mode: ExecutionMode::Observe, ..with(Programs::Any, vec![deny("/bin/true")]) };
    set(&sandbox, observed).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/true", "/copy RAN"]).await, [0, 0]);
    set(&sandbox, ExecutionPolicy::default()).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/true", "/copy RAN"]).await, [0, 0]);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_everything_may_run_a_denied_program_runs_only_as_another_file() {
    let (mut harness, _sink, witness) = watched();
    layered(&mut harness);
    let sandbox = make(&harness, &policy(&harness, with(Programs::Any, vec![deny("/bin/echo")]))).await;
    let lines = ["/bin/echo RAN", "ln -s /bin/echo /other; /other RAN", "/proc/self/root/bin/echo RAN"];
    assert_eq!(codes(&sandbox, &lines).await, [KILLED; 3]);
    // The documentation says so: such a rule does not stop a user who wants to run the program.
    assert_eq!(codes(&sandbox, &["cp /bin/echo /copy; /copy RAN"]).await, [0]);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_names_every_program_with_that_content() {
    let (mut harness, sink, witness) = watched();
    layered(&mut harness);
    let of_echo = digest(Path::new("/bin/echo"));
    let rule = |action, digest: &str, path: Option<&str>| ExecutionRule {
        action,
        path: path.map(str::to_owned),
        digest: Some(digest.to_owned()),
        ..ExecutionRule::default()
    };
    let both = with(Programs::Image, vec![rule(ExecutionAction::Deny, &of_echo, None)]);
    let sandbox = make(&harness, &policy(&harness, both)).await;
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/above RAN", "/bin/true"]).await, [KILLED, KILLED, 0]);
    assert_eq!(sink.decisions(&sandbox.id, 2).await[0].rule, format!("rule 1 (deny {of_echo})"));
    let one = with(Programs::Image, vec![rule(ExecutionAction::Deny, &of_echo, Some("/bin/above"))]);
    set(&sandbox, one).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/above RAN"]).await, [0, KILLED]);
    // The error says what is wrong, and the earlier policy stays in force.
    let other = digest(Path::new("/bin/true"));
    for (rule, why) in [
        (rule(ExecutionAction::Deny, &other, Some("/bin/above")), "'/bin/above' is blake3:"),
        (
            rule(ExecutionAction::Deny, &format!("sha256:{}", "0".repeat(64)), None),
            "no program with this digest",
        ),
        (deny("/bin/gti"), "execution.rules[0]: the image has no '/bin/gti'"),
        (deny("/bin"), "is a directory"),
        (deny("/bin/echo/*"), "no directory"),
        (deny("/etc/*"), "the image has no program '/etc/*'"),
    ] {
        let refused = set(&sandbox, with(Programs::Image, vec![rule])).await;
        let Err(IsolationError::BadPolicy(said)) = refused else { panic!("{why}: {refused:?}") };
        assert!(said.contains(why), "{said}");
    }
    let twice = vec![allow("/bin/*"), rule(ExecutionAction::Deny, &of_echo, None)];
    let refused = set(&sandbox, with(Programs::Image, twice)).await;
    let Err(IsolationError::BadPolicy(said)) = refused else { panic!("{refused:?}") };
    assert!(said.contains("rules[1]: contradicts execution.rules[0]"), "{said}");
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/above RAN"]).await, [0, KILLED]);
    sandbox.destroy().await;
    witness.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_the_image_are_followed_and_what_lies_above_hides_what_lies_below() {
    let (mut harness, _sink, witness) = watched();
    layered(&mut harness);
    let (low, high) = (harness.path.join("sha256-low"), harness.path.join("sha256-high"));
    std::os::unix::fs::symlink("../bin/../bin/true", high.join("bin/linked")).unwrap();
    std::os::unix::fs::symlink("/linked2", high.join("linked1")).unwrap();
    std::os::unix::fs::symlink("/linked1", high.join("linked2")).unwrap();
    // Out of the layer, were it followed on the host.
    std::os::unix::fs::symlink("../../../../../../../../bin/echo", high.join("out")).unwrap();
    std::fs::copy("/bin/echo", low.join("bin/hidden")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        high.join("bin/hidden"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::empty(),
        0,
    )
    .unwrap();
    let rules = with(Programs::Image, vec![deny("/bin/linked"), deny("/out")]);
    let sandbox = make(&harness, &policy(&harness, rules)).await;
    assert_eq!(codes(&sandbox, &["/bin/true", "/bin/echo RAN", "/bin/above RAN"]).await, [KILLED, KILLED, 0]);
    for (path, why) in [("/linked1", "in a circle"), ("/bin/hidden", "has no '/bin/hidden'")] {
        let refused = set(&sandbox, with(Programs::Image, vec![deny(path)])).await;
        let Err(IsolationError::BadPolicy(said)) = refused else { panic!("{path}: {refused:?}") };
        assert!(said.contains(why), "{said}");
    }
    sandbox.destroy().await;
    witness.close();
}

/// What a template put on its disk: two tools, one by another name.
async fn template(harness: &Containers) -> (atoll_core::id::SnapshotId, u64) {
    let first = Sandbox::create(harness, Resources::default()).await;
    first
        .see("mkdir /opt/t; cp /bin/echo /opt/t/tool; cp /bin/true /opt/t/other; ln -s t/tool /opt/tool")
        .await;
    let artifact = atoll_core::id::SnapshotId::from_parts(2, u64::from(std::process::id()));
    first.driver.snapshot(&first.id, &artifact).await.unwrap();
    first.destroy().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    (artifact, u64::try_from(now.as_millis()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_on_a_templates_disk_are_found_as_the_template_left_them() {
    let (harness, _sink, witness) = watched();
    let (artifact, until) = template(&harness).await;
    let image_until_ms = Some(until);
    let rules = with(Programs::Image, vec![deny("/opt/tool")]);
    let execution = Execution { policy: rules.clone(), image_until_ms, ..Execution::default() };
    let disk = DiskSource::Artifact(artifact.clone());
    let plan = Plan { execution, disk, ..plan(harness.root.clone(), Resources::default()) };
    let sandbox = make(&harness, &plan).await;
    let lines = ["/opt/t/tool RAN", "/opt/tool RAN", "/opt/t/other"];
    assert_eq!(codes(&sandbox, &lines).await, [KILLED, KILLED, 0]);
    // The sandbox puts its own link in the place of the template's, and moves the directory: the rule still names the
    // same program.
    sandbox.see("rm /opt/tool; ln -s t2/other /opt/tool; mv /opt/t /opt/t2").await;
    let Sandbox { driver, id, guest, .. } = sandbox;
    guest.close();
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
    driver.wake(&plan).await.unwrap();
    let sandbox = Sandbox::connect(driver, id).await;
    assert_eq!(codes(&sandbox, &["/opt/t2/tool RAN", "/opt/tool"]).await, [KILLED, 0]);
    // Rules with other paths come too late: the sandbox may have moved the programs that they meant.
    let other = |rule| Execution {
        policy: with(Programs::Image, vec![rule]),
        image_until_ms,
        ..Execution::default()
    };
    let refused = sandbox.driver.set_execution(&sandbox.id, &other(deny("/opt/t2/other"))).await;
    let Err(IsolationError::BadPolicy(said)) = refused else { panic!("{refused:?}") };
    assert!(said.contains("cannot be looked up any more"), "{said}");
    assert_eq!(codes(&sandbox, &["/opt/t2/tool RAN", "/opt/t2/other"]).await, [KILLED, 0]);
    // Content is content.
    let by_digest = ExecutionRule { path: None, digest: Some(digest(Path::new("/bin/true"))), ..deny("/") };
    sandbox.driver.set_execution(&sandbox.id, &other(by_digest)).await.unwrap();
    assert_eq!(
        codes(&sandbox, &["/opt/t2/tool RAN", "/opt/t2/other", "/bin/true"]).await,
        [0, KILLED, KILLED]
    );
    sandbox.driver.remove_artifact(&artifact).await.unwrap();
    sandbox.destroy().await;
    witness.close();
}
