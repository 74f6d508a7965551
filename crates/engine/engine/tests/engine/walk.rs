//! A random walk: after any operations in any order, the engine's table, the store and the host agree.
//!
//! The seed is printed; put it into [`SEED`] to walk the same way again.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::Code;
use atoll_core::draw::Draw;
use atoll_core::exec::ExecState;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::ExecDraft;
use atoll_engine::{Caller, ExecView, SandboxQuery};
use atoll_isolation::Death;

use crate::support::{Server, World, argv, named, numbers, until};

const STEPS: u32 = 300;
/// A fixed walk instead of a new one each time.
const SEED: Option<u64> = None;
const SANDBOXES: usize = 6;

/// The sandboxes and execs that there should be.
#[derive(Default)]
struct Model {
    sandboxes: BTreeMap<String, Sandbox>,
}

struct Sandbox {
    id: SandboxId,
    failed: bool,
    paused: Option<PauseMode>,
    /// Execs, what they write, and whether they have ended by now.
    execs: Vec<(ExecView, Vec<u8>, bool)>,
}

impl Model {
    fn names(&self, failed: bool) -> Vec<String> {
        let some = self.sandboxes.iter().filter(|(_, sandbox)| sandbox.failed == failed);
        some.map(|(name, _)| name.clone()).collect()
    }
}

fn step(world: &World, server: Server, model: &mut Model, random: &mut Draw) -> Server {
    let choice = random.below(100);
    let alive = random.pick(&model.names(false)).cloned();
    match (choice, alive) {
        (0..20, _) => {
            let name = format!("n{}", random.below(SANDBOXES));
            match (random.below(8) == 0, model.sandboxes.contains_key(&name)) {
                (_, true) => assert_eq!(server.create(named(&name)).unwrap_err().code, Code::NameTaken),
                (true, false) => {
                    world.host.fail_create(1, random.below(2) == 0);
                    assert_eq!(server.create(named(&name)).unwrap_err().code, Code::Internal);
                }
                (false, false) => {
                    let id = server.create(named(&name)).unwrap().id;
                    model
                        .sandboxes
                        .insert(name, Sandbox { id, failed: false, paused: None, execs: Vec::new() });
                }
            }
        }
        (20..30, _) => {
            let names: Vec<_> = model.sandboxes.keys().cloned().collect();
            if let Some(name) = random.pick(&names) {
                world.host.fail_destroy(u32::try_from(random.below(3)).unwrap());
                server.delete(&model.sandboxes.remove(name).unwrap().id);
                world.host.fail_destroy(0);
            }
        }
        (30..55, Some(name)) => {
            let sandbox = model.sandboxes.get_mut(&name).unwrap();
            sandbox.paused = None;
            let last = random.below(3000) as u64;
            let (draft, writes, ends) = match random.below(4) {
                0 => (argv(&["sleep", "1000"]), Vec::new(), false),
                1 => (argv(&["no-such-command"]), Vec::new(), true),
                2 => (ExecDraft { timeout_ms: Some(1), ..argv(&["sleep", "1000"]) }, Vec::new(), true),
                _ => (argv(&["seq", &last.to_string()]), numbers(last), true),
            };
            let exec = server.exec(&sandbox.id, draft).unwrap();
            sandbox.execs.push((exec, writes, ends));
        }
        (55..66, Some(name)) => {
            pause_or_resume(world, &server, model.sandboxes.get_mut(&name).unwrap(), random);
        }
        (66..72, Some(name)) => {
            let sandbox = model.sandboxes.get_mut(&name).unwrap();
            if let Some((exec, _, ended)) = sandbox.execs.iter_mut().rev().find(|(_, _, ended)| !ended) {
                sandbox.paused = None;
                assert_eq!(server.kill_exec(exec).record.state, ExecState::Exited);
                *ended = true;
            }
        }
        (72..80, Some(name)) => world.host.cut_connections(&model.sandboxes[&name].id),
        (80..85, Some(name)) => {
            let sandbox = model.sandboxes.get_mut(&name).unwrap();
            if sandbox.paused.take().is_some() {
                server.run(server.engine.resume_sandbox(&sandbox.id)).unwrap();
            }
            // The output of an exec that still writes when its sandbox dies may be cut short: let the exec end first.
            for (exec, _, _) in sandbox.execs.iter().filter(|(_, _, ends)| *ends) {
                server.wait(exec);
            }
            world.host.die(&sandbox.id, Death::Exited);
            server.until_state(&sandbox.id, Some(SandboxState::Failed));
            sandbox.failed = true;
        }
        (85..97, _) => {
            if random.below(4) == 0 {
                server.stop();
            } else {
                server.kill();
            }
            return world.start();
        }
        _ => {
            if let Some(name) = random.pick(&model.names(true)) {
                let refused = server.exec(&model.sandboxes[name].id, argv(&["true"])).unwrap_err();
                assert_eq!(refused.code, Code::SandboxFailed);
            }
        }
    }
    server
}

/// Pauses what runs, one way or the other; resumes what is paused.
fn pause_or_resume(world: &World, server: &Server, sandbox: &mut Sandbox, random: &mut Draw) {
    let name = &sandbox.id;
    if sandbox.paused.take().is_some() {
        if random.below(4) == 0 {
            world.host.fail_wake(1);
        }
        let mut resumed = server.run(server.engine.resume_sandbox(name));
        world.host.fail_wake(0);
        if resumed.is_err() {
            assert_eq!(server.state(&sandbox.id), Some(SandboxState::Paused));
            resumed = server.run(server.engine.resume_sandbox(name));
        }
        assert_eq!(resumed.unwrap().state, SandboxState::Running);
        return;
    }
    let mode = if random.below(2) == 0 { PauseMode::Frozen } else { PauseMode::Filesystem };
    for (exec, _, ended) in &mut sandbox.execs {
        // The pause would cut short output that is compared later, or would keep the exec from ending: let it end
        // first.
        if *ended {
            server.wait(exec);
        }
        *ended |= mode == PauseMode::Filesystem;
    }
    let paused = server.run(server.engine.pause_sandbox(name, mode)).unwrap();
    assert_eq!((paused.state, paused.paused), (SandboxState::Paused, Some(mode)));
    sandbox.paused = Some(mode);
}

/// Table, store, host and model agree.
fn check(world: &World, server: &Server, model: &Model) {
    let page = server.run(server.engine.sandboxes(&SandboxQuery::default(), &Caller::system())).unwrap();
    let stored: BTreeMap<_, _> = page.items.into_iter().map(|record| (record.id, record.state)).collect();
    let expected: BTreeMap<_, _> = model
        .sandboxes
        .values()
        .map(|sandbox| {
            let state = match (sandbox.failed, sandbox.paused) {
                (true, _) => SandboxState::Failed,
                (false, None) => SandboxState::Running,
                (false, Some(mode)) => {
                    assert_eq!(world.host.is_frozen(&sandbox.id), mode == PauseMode::Frozen);
                    assert_eq!(world.host.is_hibernated(&sandbox.id), mode == PauseMode::Filesystem);
                    SandboxState::Paused
                }
            };
            (sandbox.id.clone(), state)
        })
        .collect();
    assert_eq!(stored, expected, "the store");
    for (name, sandbox) in &model.sandboxes {
        let record = server.engine.sandbox(&server.id(name)).unwrap();
        assert_eq!((&record.id, record.state), (&sandbox.id, expected[&sandbox.id]), "the table");
        for (exec, writes, ended) in &sandbox.execs {
            if *ended || sandbox.failed {
                let view = server.wait(exec);
                let state = if *ended { ExecState::Exited } else { ExecState::Lost };
                assert_eq!(view.record.state, state, "{view:?}");
                assert!(!ended || view.extent.end == writes.len() as u64, "{view:?}");
            } else {
                assert_eq!(server.exec_state(exec), ExecState::Running, "{exec:?}");
            }
        }
    }
    let alive: BTreeSet<_> = model
        .sandboxes
        .values()
        .filter(|sandbox| !sandbox.failed)
        .map(|sandbox| sandbox.id.clone())
        .collect();
    until("the host has the living and nobody else", || world.on_host() == alive);
    let known: BTreeSet<_> = expected.keys().cloned().collect();
    assert!(world.with_logs().is_subset(&known), "logs of the known only");
}

#[test]
fn whatever_happens_everything_agrees() {
    let seed = SEED.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap()
    });
    println!("seed {seed}");
    let mut random = Draw::new(seed);
    let world = World::new();
    let mut server = world.start();
    let mut model = Model::default();
    for _ in 0..STEPS {
        server = step(&world, server, &mut model, &mut random);
        check(&world, &server, &model);
    }
    for sandbox in model.sandboxes.values() {
        for (exec, writes, ended) in &sandbox.execs {
            assert!(!ended || server.output(exec).stdout == *writes, "{exec:?}");
        }
        server.delete(&sandbox.id);
    }
    world.assert_empty(&server);
}
