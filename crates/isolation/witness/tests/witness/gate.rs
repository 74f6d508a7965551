//! Programs that may not run, in cgroups that stand for sandboxes: the shell that begins there stands for the agent.

use std::path::PathBuf;

use crate::common::{Host, Sandbox};
use atoll_recorder::event::{Event, PolicyDecision, What};
use atoll_witness::{Facts, Gate, Profile, Programs, Witness};

fn image() -> Gate {
    Gate { programs: Programs::Image, ..Gate::default() }
}

fn hold(sandbox: &Sandbox, witness: &Witness, gate: Gate) {
    // Nothing here is an image's: everything is refused.
    witness.watch(&sandbox.id, sandbox.cgroup, Facts::default(), gate).unwrap();
}

fn decisions(events: &[Event]) -> Vec<PolicyDecision> {
    let found = events.iter().filter_map(|event| match &event.what {
        What::Policy(decision) => Some(decision.clone()),
        _ => None,
    });
    found.collect()
}

#[test]
fn what_may_not_run_is_killed_and_told_after_its_start() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    hold(&sandbox, &witness, image());
    assert!(!witness.saw_a_start(&sandbox.id).unwrap());
    let printed = sandbox.run("/bin/true; echo $?; /bin/echo RAN; echo $?; exit 0");
    assert_eq!(printed, "137\n137\n");
    assert!(witness.saw_a_start(&sandbox.id).unwrap());
    let events = host.sink.until(&sandbox.id, "two refusals", |events| decisions(events).len() == 2);
    let at = events.iter().position(|event| matches!(event.what, What::Policy(_))).unwrap();
    assert!(matches!(events[at - 1].what, What::ProcessStarted(_)), "{events:#?}");
    assert_eq!(events[at - 1].process, events[at].process);
    let decision = &decisions(&events)[0];
    assert!(
        !decision.allowed && decision.stage == "exec" && decision.subject.ends_with("/true"),
        "{decision:?}"
    );
    // A neighbour is its own.
    let other = host.parent.sandbox();
    hold(&other, &witness, Gate::default());
    assert_eq!(other.run("/bin/echo RAN"), "RAN\n");
    // Changed while it runs.
    witness.change_gate(&sandbox.id, &Gate { observe: true, ..image() }).unwrap();
    let other_shell = sandbox.run("exec /bin/echo RAN");
    assert_eq!(other_shell, "RAN\n");
    for sandbox in [&sandbox, &other] {
        witness.forget(&sandbox.id).unwrap();
    }
    witness.close();
    assert!(!atoll_witness::is_mounted(&host.place()), "the mount is left");
}

#[test]
fn a_change_that_cannot_be_written_down_changes_nothing() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    let held = Gate { revision: "held".to_owned(), ..image() };
    let open = Gate { revision: "open".to_owned(), ..Gate::default() };
    hold(&sandbox, &witness, held.clone());
    // A directory, where the next server finds what may run.
    let kept = host.place().with_extension("d").join(format!("{}.gate", sandbox.id));
    std::fs::remove_file(&kept).unwrap();
    std::fs::create_dir(&kept).unwrap();
    witness.change_gate(&sandbox.id, &open).unwrap_err();
    assert_eq!(sandbox.run("/bin/echo RAN; exit 0"), "");
    assert_eq!(witness.gate(&sandbox.id), Some(held));
    std::fs::remove_dir(&kept).unwrap();
    witness.change_gate(&sandbox.id, &open).unwrap();
    assert_eq!(sandbox.run("/bin/echo RAN; exit 0"), "RAN\n");
    assert_eq!(witness.gate(&sandbox.id), Some(open));
    witness.forget(&sandbox.id).unwrap();
    witness.close();
}

#[test]
fn a_change_that_broke_off_is_taken_for_neither_gate() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    hold(&sandbox, &witness, Gate { revision: "held".to_owned(), ..image() });
    // Somebody else takes the sandbox out of the kernel's table: the rules are changed by then, when that is found.
    let other = host.witness();
    other.forget(&sandbox.id).unwrap();
    let open = Gate { revision: "open".to_owned(), ..Gate::default() };
    witness.change_gate(&sandbox.id, &open).unwrap_err();
    assert_eq!(witness.gate(&sandbox.id).unwrap().revision, "");
    witness.forget(&sandbox.id).unwrap();
    for one in [witness, other] {
        one.close();
    }
}

fn sets(host: &Host) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(host.place()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("set-")).collect()
}

#[test]
fn programs_of_another_version_take_over_without_a_moment_between() {
    let host = Host::new();
    let (witness, sandbox, open) = (host.witness(), host.parent.sandbox(), host.parent.sandbox());
    hold(&sandbox, &witness, image());
    hold(&open, &witness, Gate::default());
    let job = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); /bin/echo RAN; done; exit 0";
    let job = sandbox.start(job);
    host.sink.until(&sandbox.id, "it works", |events| decisions(events).len() > 5);
    for version in ["1111111111111111", "2222222222222222"] {
        witness.close();
        // The pinned programs are now of another version.
        let old = sets(&host).pop().unwrap();
        std::fs::rename(&old, host.place().join(format!("set-{version}"))).unwrap();
        let next = host.witness();
        assert_eq!(sets(&host).len(), 1);
        assert_eq!(next.gate(&sandbox.id), Some(image()));
        assert!(!next.watches(&open.id), "what is not held is for its driver to tell");
        next.close();
    }
    let witness = host.witness();
    let output = job.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    // Nothing that is not refused can begin there any more: its agent has begun.
    let output = sandbox.start("echo RAN").wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    witness.forget(&sandbox.id).unwrap();
    witness.close();
}

#[test]
fn a_sandbox_has_a_share_of_the_execs_that_start() {
    let profile =
        |name: &str| Profile { name: name.to_owned(), steps: Vec::new(), others: None, asks: Vec::new() };
    let gate = Gate { profiles: vec![profile("tool")], ..Gate::default() };
    let host = Host::new();
    let (hostile, other) = (host.parent.sandbox(), host.parent.sandbox());
    let witness = host.witness();
    for sandbox in [&hostile, &other] {
        hold(sandbox, &witness, gate.clone());
    }
    let fill = |witness: &Witness| {
        let told =
            (0..1000).take_while(|n| witness.exec_starts(&hostile.id, &format!("exec-{n}"), "tool").is_ok());
        told.count()
    };
    let share = fill(&witness);
    assert!((1..1000).contains(&share), "{share}");
    let refused = witness.exec_starts(&hostile.id, "exec-more", "tool").unwrap_err().to_string();
    assert!(refused.contains(&share.to_string()), "{refused}");
    assert!(witness.exec_starts(&other.id, "exec-0", "tool").unwrap());
    // Saying it again of one is no more; one that has started makes room for one.
    assert!(witness.exec_starts(&hostile.id, "exec-0", "tool").unwrap());
    witness.exec_started(&hostile.id, "exec-0").unwrap();
    assert!(witness.exec_starts(&hostile.id, "exec-more", "tool").unwrap());
    // The next server counts them, too; what is forgotten leaves nothing.
    drop(witness);
    let witness = host.witness();
    assert!(witness.exec_starts(&hostile.id, "exec-one-more", "tool").is_err());
    witness.forget(&hostile.id).unwrap();
    hold(&hostile, &witness, gate);
    drop(witness);
    assert_eq!(fill(&host.witness()), share);
}
