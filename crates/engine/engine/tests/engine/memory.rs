//! Templates with memory: sandboxes that go on from the saved memory of a ready one, and all the cases in which they
//! boot instead.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::Code;
use atoll_core::build::{CommandText, Ready};
use atoll_core::exec::ExecState;
use atoll_core::id::SandboxId;
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_core::spec::{ResourcesDraft, SandboxDraft, TemplateSpec};
use atoll_engine::{
    Caller, ExecQuery, ExecView, PoolConfig, SnapshotQuery, TemplateMemory, TemplateMemoryState,
};
use atoll_isolation::Artifacts as _;
use atoll_store::SandboxRecord;

use crate::support::{Server, World, ms, named, until};

static CALLER: Caller = Caller::system();

/// A template whose start command prints another text each time it is started.
fn recipe() -> TemplateSpec {
    let list = |word: &str| CommandText::Argv(vec![word.to_owned()]);
    TemplateSpec {
        start: Some(list("serve")),
        ready: Some(Ready {
            command: Some(list("true")),
            port: None,
            timeout_ms: Some(2000),
            interval_ms: Some(10),
        }),
        memory: true,
        ..TemplateSpec::new("host")
    }
}

fn put(server: &Server, recipe: TemplateSpec) -> u32 {
    server.run(server.engine.create_template("web", recipe, &CALLER)).unwrap().version
}

fn memory(server: &Server, version: Option<u32>) -> TemplateMemory {
    let record = server.run(server.engine.template("web", version)).unwrap();
    server.run(server.engine.template_memory(&record)).unwrap().expect("it wants memory")
}

#[track_caller]
fn until_saved(server: &Server) -> TemplateMemory {
    until("its memory is saved", || memory(server, None).state == TemplateMemoryState::Saved);
    memory(server, None)
}

fn web() -> SandboxDraft {
    SandboxDraft { template: Some("web".to_owned()), ..SandboxDraft::default() }
}

/// The start command of a sandbox, which runs and was begun once.
#[track_caller]
fn started(server: &Server, sandbox: &SandboxId) -> ExecView {
    let mut execs = server.run(server.engine.execs(sandbox, &ExecQuery::default())).unwrap().0;
    execs.retain(|exec| exec.record.spec.argv == ["serve"]);
    assert!(matches!(&execs[..], [exec] if exec.record.state == ExecState::Running), "{execs:?}");
    execs.remove(0)
}

/// What the start command of a sandbox has said: all of it once it was killed.
#[track_caller]
fn said(server: &Server, sandbox: &SandboxRecord) -> String {
    let exec = started(server, &sandbox.id);
    until("it has said something", || {
        let view = server.run(server.engine.exec(&sandbox.id, exec.record.id.as_str())).unwrap();
        view.extent.end > 0
    });
    server.kill_exec(&exec);
    let text = String::from_utf8(server.output(&server.wait(&exec)).stdout).unwrap();
    assert!(text.starts_with("serving ") && text.lines().count() == 1, "{text:?}");
    text
}

/// Artifacts on the host, and directories beside them.
fn kept(world: &World) -> (usize, usize) {
    let artifacts = world.run(async { world.host.driver().artifacts().await.unwrap() });
    let dirs = std::fs::read_dir(world.dir.path().join("memories")).map_or(0, Iterator::count);
    (artifacts.len(), dirs)
}

/// Removes everything, and sees that nothing is left.
fn clean_up(world: &World, server: &Server) {
    server.run(server.engine.delete_template("web", None, &Caller::system())).unwrap();
    for id in server.run(server.store.sandbox_ids()).unwrap() {
        server.delete(&id);
    }
    until("nothing is kept", || kept(world) == (0, 0));
    until("nothing runs", || world.on_host().is_empty() && world.with_logs().is_empty());
    world.assert_empty(server);
    assert!(server.run(server.engine.leaked_artifacts()).unwrap().is_empty());
}

#[test]
fn sandboxes_go_on_from_one_that_was_ready() {
    let world = World::new();
    let server = world.start();
    put(&server, recipe());
    // A creation before the memory is saved waits only for its own start command.
    let first = server.create(web()).unwrap();
    let own = said(&server, &first);
    let saved = until_saved(&server);
    assert!(saved.stored_bytes.is_some_and(|bytes| bytes > 0) && saved.saved_ms.is_some(), "{saved:?}");
    until("what it was made of is gone", || world.on_host() == BTreeSet::from([first.id.clone()]));

    let draft = SandboxDraft { labels: BTreeMap::from([("a".into(), "1".into())]), ..named("one") };
    let one = server.create(SandboxDraft { template: Some("web".into()), ..draft }).unwrap();
    let two = server.create(web()).unwrap();
    assert_eq!(world.host.plan(&one.id).unwrap().hostname, "one");
    assert_eq!(
        (one.state, one.spec.snapshot.as_ref(), one.labels["a"].as_str()),
        (SandboxState::Running, None, "1")
    );
    let execs = [started(&server, &one.id), started(&server, &two.id)];
    assert_ne!(execs[0].record.id, execs[1].record.id);
    assert!(execs[0].record.pid.is_some() && execs[0].record.pid == execs[1].record.pid);
    // Both sandboxes go on from the same process and have the same output; killing one leaves the other alone.
    let text = said(&server, &one);
    assert_ne!(text, own, "it is no copy of a sandbox that somebody has");
    assert_eq!(said(&server, &two), text);
    // The saved copy belongs to the template, and is not in the list of snapshots.
    assert!(
        server
            .run(server.engine.snapshots(&SnapshotQuery::default(), &Caller::system()))
            .unwrap()
            .items
            .is_empty()
    );
    assert_eq!(kept(&world), (1, 1));
    clean_up(&world, &server);
}

#[test]
fn what_asks_for_something_else_boots() {
    let world = World::new();
    let server = world.start();
    put(&server, recipe());
    until_saved(&server);
    let text = said(&server, &server.create(web()).unwrap());
    let smaller = ResourcesDraft { memory_bytes: Some(64 << 20), ..ResourcesDraft::default() };
    let larger = ResourcesDraft { disk_bytes: Some(20 << 30), ..ResourcesDraft::default() };
    let mut texts = BTreeSet::from([text]);
    for draft in [
        SandboxDraft { env: BTreeMap::from([("E".into(), "1".into())]), ..web() },
        SandboxDraft { user: Some("1000".into()), ..web() },
        SandboxDraft { workdir: Some("/srv".into()), ..web() },
        SandboxDraft { egress: Some(EgressPolicy::open()), ..web() },
        SandboxDraft { resources: smaller, ..web() },
        SandboxDraft { resources: larger, ..web() },
    ] {
        let made = server.create(draft.clone()).unwrap();
        assert!(texts.insert(said(&server, &made)), "it goes on from what it did not ask for: {draft:?}");
    }
    clean_up(&world, &server);
}

#[test]
fn a_kill_loses_neither_the_memory_nor_what_goes_on_from_it() {
    let world = World::new();
    let server = world.start();
    put(&server, recipe());
    let saved = until_saved(&server);
    let one = server.create(web()).unwrap();
    let before = started(&server, &one.id);
    server.kill();
    let server = world.start();
    assert_eq!(memory(&server, None), saved, "it is not made again");
    assert_eq!(started(&server, &one.id).record.id, before.record.id, "it is not started again");
    let two = server.create(web()).unwrap();
    let text = said(&server, &two);
    assert_eq!(said(&server, &one), text);
    // A new boot begins with a start of its own.
    let pause = server.engine.pause_sandbox(&two.id, PauseMode::Filesystem);
    server.run(pause).unwrap();
    server.run(server.engine.resume_sandbox(&two.id)).unwrap();
    until("it is started anew", || {
        let execs = server.run(server.engine.execs(&two.id, &ExecQuery::default())).unwrap().0;
        execs.iter().any(|exec| exec.record.state == ExecState::Running)
    });
    clean_up(&world, &server);
}

#[test]
fn killed_while_it_is_saved() {
    let world = World::new();
    for _ in 0..8 {
        let server = world.start();
        put(&server, recipe());
        server.kill();
    }
    let server = world.start();
    until_saved(&server);
    until("one copy is left", || kept(&world) == (1, 1) && world.on_host().is_empty());
    clean_up(&world, &server);
}

#[test]
fn only_the_newest_version_has_one() {
    let world = World::new();
    let server = world.start();
    put(&server, recipe());
    until_saved(&server);
    let text = said(&server, &server.create(web()).unwrap());
    put(&server, recipe());
    assert_eq!(memory(&server, Some(1)).state, TemplateMemoryState::Superseded);
    until_saved(&server);
    until("the older one is gone", || kept(&world) == (1, 1));
    let newer = said(&server, &server.create(web()).unwrap());
    assert_eq!(said(&server, &server.create(web()).unwrap()), newer);
    let pinned = SandboxDraft { template: Some("web:1".into()), ..web() };
    let pinned = said(&server, &server.create(pinned).unwrap());
    assert!(text != newer && pinned != text && pinned != newer);
    // When the newest version wants no memory, the copy that was kept is removed.
    put(&server, TemplateSpec { memory: false, ..recipe() });
    until("nothing is kept", || kept(&world) == (0, 0));
    clean_up(&world, &server);
}

#[test]
fn what_cannot_be_used_is_told_and_made_anew() {
    let world = World::new();
    let server = world.start();
    put(&server, recipe());
    until_saved(&server);
    let text = said(&server, &server.create(web()).unwrap());
    // As after an update of the programs that wrote the memory.
    world.host.spoil_memory();
    let secrets = BTreeMap::from([("KEY".to_owned(), Secret::new("hidden"))]);
    let booted = server.create(SandboxDraft { secrets, ..web() }).unwrap();
    assert_ne!(said(&server, &booted), text);
    // The secrets that were given with the request are there although the sandbox booted.
    let kept_secrets = server.run(server.store.list_secrets()).unwrap();
    assert!(
        kept_secrets.iter().any(|secret| secret.sandbox.as_ref() == Some(&booted.id)),
        "{kept_secrets:?}"
    );
    let told = memory(&server, None);
    assert!(told.state == TemplateMemoryState::Failed && told.problem.is_some(), "{told:?}");
    until("the bad one is gone", || kept(&world) == (0, 0));
    server.stop();
    let server = world.start();
    until_saved(&server);
    assert_ne!(said(&server, &server.create(web()).unwrap()), text);
    clean_up(&world, &server);
}

#[test]
fn what_cannot_be_saved_is_told_and_leaves_nothing() {
    let (world, clock) = World::by_hand();
    world.host.fail_snapshot(1);
    let server = world.start();
    put(&server, recipe());
    until("it failed", || memory(&server, None).state == TemplateMemoryState::Failed);
    let told = memory(&server, None);
    assert!(told.problem.unwrap().contains("make a snapshot"));
    assert_eq!(kept(&world), (0, 0));
    said(&server, &server.create(web()).unwrap());
    // It is tried again after a rest.
    clock.advance(ms(4999));
    assert_eq!(memory(&server, None).state, TemplateMemoryState::Failed);
    clock.advance(ms(1));
    until_saved(&server);
    clean_up(&world, &server);
}

#[test]
fn members_of_pools_go_on_from_it() {
    let mut world = World::new();
    world.pools = PoolConfig { memory_bytes: 1 << 30, fillers: 2, ..PoolConfig::default() };
    let server = world.start();
    put(&server, TemplateSpec { pool: Some(PoolSpec::fixed(1)), ..recipe() });
    until_saved(&server);
    // The first member may have booted; those after it go on.
    let mut texts = Vec::new();
    for number in 0..3 {
        until("one waits", || {
            let pools = server.engine.pools().pools;
            pools.first().is_some_and(|pool| pool.ready == 1 && pool.making == 0)
        });
        let waiting = world.on_host();
        let draft = SandboxDraft { template: Some("web".into()), ..named(&format!("n{number}")) };
        let made = server.create(draft).unwrap();
        assert!(waiting.contains(&made.id), "it waited");
        texts.push((made.clone(), said(&server, &made)));
    }
    assert_eq!(texts[1].1, texts[2].1);
    // A creation that finds the pool empty goes on from the memory, too.
    let none = server.engine.put_pool(atoll_engine::PoolName::Template("web".into()), PoolSpec::fixed(0));
    server.run(none).unwrap();
    until("none waits", || {
        server.engine.pools().pools.first().is_some_and(|pool| pool.ready + pool.making == 0)
    });
    assert_eq!(said(&server, &server.create(web()).unwrap()), texts[2].1);
    server.run(server.engine.delete_pool(&atoll_engine::PoolName::Template("web".into()))).unwrap();
    clean_up(&world, &server);
}

#[test]
fn a_template_that_could_never_have_one_is_refused() {
    let world = World::new();
    let server = world.start();
    for bad in [TemplateSpec { start: None, ..recipe() }, TemplateSpec { ready: None, ..recipe() }] {
        let refused = server.run(server.engine.create_template("web", bad, &CALLER)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with("memory: ") && refused.hint.is_some(), "{refused:?}");
    }
    server.stop();
}
