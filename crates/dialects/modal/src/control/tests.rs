//! Calls of the control plane over a real socket, to a server with a fake of the isolation.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::spec::{RequestKey, SandboxDraft};
use atoll_core::{Code, Error};
use atoll_dialect_kit::sandboxes::{finish, make_once};
use atoll_walk::{Call, Key, World};
use prost::Message;

use super::list::PAGE;
use super::once::{self, Once};
use crate::extras::Extras;
use crate::ids;
use crate::task;
use crate::wire::sandboxes::{
    PortSpec, PortSpecs, Sandbox, SandboxCreateRequest, SandboxCreateResponse, SandboxCreateV2Request,
    SandboxCreateV2Response, SandboxInfo, SandboxListRequest, SandboxListResponse,
};

/// Bytes before a message: whether it is compressed, and its length.
const FRAME_HEAD_BYTES: usize = 5;

fn call_of(key: &Key, method: &str, request: &impl Message) -> Call {
    let mut headers = vec![("content-type", "application/grpc+proto".to_owned())];
    headers.extend(["x-modal-token-id", "x-modal-token-secret"].map(|name| (name, key.secret.clone())));
    let path = format!("/modal.client.ModalClient/{method}");
    let message = request.encode_to_vec();
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0], len.as_slice(), &message].concat();
    Call { method: "POST".to_owned(), path, headers, body }
}

async fn call<A: Message + Default>(world: &World, key: &Key, method: &str, request: &impl Message) -> A {
    let (status, body) = world.send(call_of(key, method, request)).await;
    assert!(status == 200 && body.len() >= FRAME_HEAD_BYTES, "{method}: {status}");
    A::decode(&body[FRAME_HEAD_BYTES..]).unwrap()
}

/// All sandboxes, page by page, as the vendor's clients ask for them; how many each page has, too.
async fn listed(world: &World, key: &Key) -> (Vec<SandboxInfo>, Vec<usize>) {
    let (mut all, mut pages) = (Vec::new(), Vec::new());
    loop {
        let before_timestamp = all.last().map_or(0.0, |last: &SandboxInfo| last.created_at);
        let request = SandboxListRequest { before_timestamp, ..SandboxListRequest::default() };
        let page: SandboxListResponse = call(world, key, "SandboxListV2", &request).await;
        if page.sandboxes.is_empty() {
            return (all, pages);
        }
        pages.push(page.sandboxes.len());
        all.extend(page.sandboxes);
    }
}

#[tokio::test]
async fn no_page_ends_among_sandboxes_of_one_millisecond() {
    let (world, clock) = World::by_hand(&[crate::DIALECT]).await;
    let key = world.key(Scope::Manage).await;
    let mut made = BTreeSet::new();
    for (count, after_ms) in [(3, 1), (PAGE + 2, 1), (1, 0)] {
        for _ in 0..count {
            let record = world.engine.create_sandbox(SandboxDraft::default(), &key.caller).await.unwrap();
            made.insert(ids::sandbox(&record.id, ids::Generation::V2));
        }
        clock.advance(Duration::from_millis(after_ms));
    }
    let (all, pages) = listed(&world, &key).await;
    assert_eq!(pages, [1 + PAGE + 2, 3]);
    assert_eq!(all.iter().map(|one| one.id.clone()).collect::<BTreeSet<_>>(), made);
}

async fn with_command(world: &World, key: &Key) -> SandboxId {
    let definition = Sandbox { entrypoint_args: vec!["sleep".into(), "1000".into()], ..Sandbox::default() };
    let request =
        SandboxCreateV2Request { definition: Some(definition), ..SandboxCreateV2Request::default() };
    let made: SandboxCreateV2Response = call(world, key, "SandboxCreateV2", &request).await;
    ids::parse_sandbox(&made.sandbox_id).unwrap().0
}

/// Ends the first command, and waits until the sandbox has an end, too.
async fn end(world: &World, id: &SandboxId) {
    assert_eq!(world.engine.sandbox(id).unwrap().expires_ms, None);
    let first = task::first(&world.engine, id).await.unwrap().record.id;
    world.engine.kill_exec(id, first.as_str()).await.unwrap();
    let given = async {
        while world.engine.sandbox(id).unwrap().expires_ms.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given).await.expect("the sandbox is given an end");
    assert!(Extras::of(&world.engine.sandbox(id).unwrap()).over);
}

#[tokio::test]
async fn a_sandbox_ends_with_its_first_command_also_under_the_next_server() {
    let world = World::new(&[crate::DIALECT]).await;
    let key = world.key(Scope::Manage).await;
    let (here, there) = (with_command(&world, &key).await, with_command(&world, &key).await);
    end(&world, &here).await;
    let world = world.restarted().await;
    end(&world, &there).await;
}

#[tokio::test]
async fn a_repeated_creation_changes_nothing_of_the_sandbox_that_it_finds() {
    let create = |key: &Key| {
        let ports = vec![PortSpec { port: 8080, unencrypted: false }];
        let definition = Sandbox { open_ports: Some(PortSpecs { ports }), ..Sandbox::default() };
        let request =
            SandboxCreateRequest { definition: Some(definition), ..SandboxCreateRequest::default() };
        let mut call = call_of(key, "SandboxCreate", &request);
        call.headers.push((once::HEADER, "once".to_owned()));
        call
    };
    let made = |body: &[u8]| {
        let answer = SandboxCreateResponse::decode(&body[FRAME_HEAD_BYTES..]).unwrap();
        ids::parse_sandbox(&answer.sandbox_id).unwrap().0
    };
    atoll_walk::repeated(World::new(&[crate::DIALECT]).await, false, create, made).await;
}

/// A repetition that comes while the first request is under way, and finds the sandbox: it takes what the first one
/// left, and does nothing of it a second time.
#[tokio::test]
async fn a_repetition_waits_until_the_first_request_has_finished_the_sandbox() {
    let world = World::new(&[crate::DIALECT]).await;
    let key = world.key(Scope::Manage).await;
    for fails in [false, true] {
        let request = RequestKey { key: format!("fails {fails}"), digest: "digest".to_owned() };
        let make = || make_once(&world.engine, SandboxDraft::default(), Some(request.clone()), &key.caller);
        let (first, again) = (make().await.unwrap(), make().await.unwrap());
        assert!(first.is_new() && !again.is_new());
        assert_eq!(first.record().id, again.record().id);
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let mut first = Box::pin(finish(&world.engine, &key.caller, first, |record| async move {
            gone.await.unwrap();
            if fails { Err(Error::new(Code::Internal, "a step failed")) } else { Ok(record) }
        }));
        assert!(futures::poll!(&mut first).is_pending());
        let ran = Cell::new(false);
        let mut again = Box::pin(finish(&world.engine, &key.caller, again, |record| {
            ran.set(true);
            async move { Ok::<_, Error>(record) }
        }));
        assert!(futures::poll!(&mut again).is_pending());
        go.send(()).unwrap();
        assert_eq!(first.await.is_err(), fails);
        match again.await {
            Ok(made) => assert!(!fails && !made.is_new()),
            Err(error) => assert!(fails && error.code == Code::SandboxNotFound, "{error:?}"),
        }
        assert!(!ran.get(), "the steps were done by the first request");
    }
}

/// As for `SandboxRestore`: with the key of another snapshot's sandbox a call gets no sandbox at all.
#[tokio::test]
async fn a_key_is_good_for_one_call() {
    let world = World::new(&[crate::DIALECT]).await;
    let once = Once::new(&world.engine);
    let owner = KeyId::from_parts(1, 1);
    let restore = |snapshot: &str| once::Call::with_key("restore", "k", &[snapshot.as_bytes()]);
    let make = async |snapshot: &str, id: &'static str| {
        once.make(&owner, &restore(snapshot), async move { Ok(id.to_owned()) }).await
    };
    assert_eq!(make("one", "first").await.unwrap(), "first");
    assert_eq!(make("one", "second").await.unwrap(), "first");
    assert!(make("other", "third").await.unwrap_err().message.contains("used before"));
    let promised = once.promise(&owner, &restore("one")).await.unwrap();
    assert_eq!(once.promise(&owner, &restore("one")).await.unwrap().snapshot(), promised.snapshot());
    assert!(once.promise(&owner, &restore("other")).await.is_err());
}
