//! Several keys on one sandbox: roles, visibility, leases, and which key did what.

use std::collections::BTreeMap;

use atoll_api::{CreateKey, CreateSandbox, CreateSnapshot, CreateVolume, ForkSandbox, KeyFormat, TakeLease};
use atoll_blackbox::Server;
use atoll_client::{Client, GetUsage, ListSandboxes, ListSnapshots, WriteFile};
use atoll_core::Code;
use atoll_core::key::Scope;
use atoll_core::sharing::{Role, Visibility};
use atoll_core::volume::VolumeMountDraft;

use crate::common::{argv, code};

/// A key with a name of its own, and a client that uses it.
async fn key(server: &Server, name: &str, scope: Scope) -> (String, Client) {
    let create =
        CreateKey { name: name.into(), scope, ttl_ms: None, format: KeyFormat::Atoll, project: None };
    let made = server.client.create_key(&create).await.unwrap();
    (made.key.id, Client::new(&server.url, &made.secret).unwrap())
}

async fn ids(client: &Client) -> Vec<String> {
    let page = client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    page.items.into_iter().map(|sandbox| sandbox.id).collect()
}

fn lease(ttl_ms: u64, holder: Option<&str>) -> TakeLease {
    TakeLease { ttl_ms, holder: holder.map(str::to_owned) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_sandbox_does_not_exist_for_others() {
    let mut server = Server::with(&["--visibility", "private"]);
    let (owner_id, owner) = key(&server, "owner", Scope::Manage).await;
    let (friend_id, friend) = key(&server, "friend", Scope::Manage).await;
    let (_, other) = key(&server, "other", Scope::Manage).await;
    let sandbox = owner.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let id = sandbox.id.as_str();
    assert_eq!(sandbox.owner.as_deref(), Some(owner_id.as_str()));
    assert_eq!(
        (ids(&owner).await.len(), ids(&other).await.len(), ids(&server.client).await.len()),
        (1, 0, 1)
    );

    // Every call of the other key gets the answer for a sandbox that is not there.
    assert_eq!(code(other.get_sandbox(id).await), Code::SandboxNotFound);
    assert_eq!(code(other.create_exec(id, &argv(&["true"])).await), Code::SandboxNotFound);
    assert_eq!(code(other.delete_sandbox(id).await), Code::SandboxNotFound);
    assert_eq!(code(other.sandbox_access(id).await), Code::SandboxNotFound);
    let hidden = other.get_sandbox(id).await.unwrap_err().to_string();
    let absent = other.get_sandbox("sb00000000000000000000").await.unwrap_err().to_string();
    assert_eq!(hidden.replace(id, "X"), absent.replace("sb00000000000000000000", "X"));

    // A role is as much as it says, and no more than the key's scope.
    owner.grant(id, &friend_id, Role::Read).await.unwrap();
    assert_eq!(friend.get_sandbox(id).await.unwrap().id, id);
    assert_eq!(ids(&friend).await, [id]);
    assert_eq!(code(friend.create_exec(id, &argv(&["true"])).await), Code::Forbidden);
    let access = owner.grant(id, &friend_id, Role::Exec).await.unwrap();
    assert_eq!((access.grants.len(), access.visibility, access.is_default), (1, Visibility::Private, true));
    let exec = friend.create_exec(id, &argv(&["true"])).await.unwrap().exec;
    assert_eq!(exec.started_by.as_deref(), Some(friend_id.as_str()), "who did what");
    assert_eq!(code(friend.delete_sandbox(id).await), Code::Forbidden);
    assert_eq!(code(friend.grant(id, &friend_id, Role::Manage).await), Code::Forbidden);
    let (reader_id, reader) = key(&server, "reader", Scope::Read).await;
    owner.grant(id, &reader_id, Role::Manage).await.unwrap();
    assert_eq!(code(reader.create_exec(id, &argv(&["true"])).await), Code::Forbidden);
    assert_eq!(code(owner.grant(id, "ky00000000000000000000", Role::Read).await), Code::KeyNotFound);

    // All of it outlives the server.
    server.kill();
    server.restart();
    assert_eq!(friend.get_sandbox(id).await.unwrap().id, id);
    assert_eq!(code(other.get_sandbox(id).await), Code::SandboxNotFound);
    owner.revoke(id, &friend_id).await.unwrap();
    assert_eq!(code(friend.get_sandbox(id).await), Code::SandboxNotFound);
    assert_eq!(code(owner.revoke(id, &friend_id).await), Code::KeyNotFound);
    owner.set_visibility(id, Some(Visibility::Shared)).await.unwrap();
    assert_eq!(ids(&other).await, [id]);
    assert_eq!(other.create_exec(id, &argv(&["true"])).await.unwrap().exec.sandbox, id);

    let shown = server.cli(&["access", "show", id]).ok().stdout;
    assert!(shown.contains(&owner_id) && shown.contains("other keys: shared"), "{shown}");
    server.cli(&["access", "grant", id, &friend_id, "manage"]).ok();
    server.cli(&["access", "set", id, "private"]).ok();
    friend.delete_sandbox(id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_keys_share_what_there_is() {
    let server = Server::with(&[]);
    let (_, one) = key(&server, "one", Scope::Manage).await;
    let (_, two) = key(&server, "two", Scope::Exec).await;
    let sandbox = one.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    assert!(two.create_exec(&sandbox, &argv(&["true"])).await.is_ok());
    one.set_visibility(&sandbox, Some(Visibility::Private)).await.unwrap();
    assert_eq!(code(two.create_exec(&sandbox, &argv(&["true"])).await), Code::SandboxNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_of_what_is_private_are_private() {
    let mut server = Server::with(&[]);
    let (_, one) = key(&server, "one", Scope::Manage).await;
    let (_, two) = key(&server, "two", Scope::Manage).await;
    let sandbox = one.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    one.set_visibility(&sandbox, Some(Visibility::Private)).await.unwrap();
    let fork = ForkSandbox {
        count: 2,
        memory: false,
        at: None,
        name: None,
        labels: BTreeMap::new(),
        env: BTreeMap::new(),
        ttl_ms: None,
    };
    let children = one.fork_sandbox(&sandbox, &fork).await.unwrap().results;
    assert_eq!(children.iter().filter(|child| child.sandbox.is_some()).count(), 2, "{children:?}");
    assert!(ids(&two).await.is_empty());
    server.kill();
    server.restart();
    let (_, three) = key(&server, "three", Scope::Manage).await;
    assert_eq!((ids(&server.client).await.len(), ids(&three).await.len()), (3, 0));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_across_sandboxes_show_what_one_may_see() {
    let server = Server::with(&[]);
    let (owner_id, owner) = key(&server, "owner", Scope::Manage).await;
    let (friend_id, friend) = key(&server, "friend", Scope::Manage).await;
    let (_, other) = key(&server, "other", Scope::Manage).await;
    let sandbox = owner.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    owner.create_exec(&sandbox, &argv(&["true"])).await.unwrap();
    let named = |tag: &str| CreateSnapshot { tags: vec![tag.into()], ..CreateSnapshot::default() };
    let early = owner.create_snapshot(&sandbox, &named("early")).await.unwrap().id;
    let snapshots = async |client: &Client| -> Vec<String> {
        let page = client.list_snapshots(&ListSnapshots::default()).await.unwrap();
        page.items.into_iter().map(|snapshot| snapshot.id).collect()
    };
    let used = async |client: &Client| -> Vec<String> {
        let list = client.usage(&GetUsage::default()).await.unwrap();
        list.items.into_iter().filter_map(|item| item.sandbox).collect()
    };
    assert_eq!((snapshots(&other).await, used(&other).await), (vec![early.clone()], vec![sandbox.clone()]));

    // When a sandbox becomes private so do its snapshots, those from before too.
    owner.set_visibility(&sandbox, Some(Visibility::Private)).await.unwrap();
    let late = owner.create_snapshot(&sandbox, &named("late")).await.unwrap().id;
    assert_eq!((snapshots(&other).await, used(&other).await), (vec![], vec![]));
    assert_eq!(snapshots(&server.client).await, [late.clone(), early.clone()]);
    for text in [early.as_str(), "early", "late:latest"] {
        assert_eq!(code(other.get_snapshot(text).await), Code::SnapshotNotFound, "{text}");
        assert_eq!(code(other.delete_snapshot(text).await), Code::SnapshotNotFound, "{text}");
        let create = CreateSandbox { snapshot: Some(text.into()), ..CreateSandbox::default() };
        assert_eq!(code(other.create_sandbox(&create).await), Code::SnapshotNotFound, "{text}");
    }
    owner.grant(&sandbox, &friend_id, Role::Read).await.unwrap();
    assert_eq!((snapshots(&friend).await.len(), used(&friend).await.len()), (2, 1));

    // And they stay so when it is gone.
    owner.delete_sandbox(&sandbox).await.unwrap();
    assert_eq!((snapshots(&other).await, snapshots(&owner).await.len()), (vec![], 2));
    assert_eq!((used(&other).await, used(&owner).await), (vec![], vec![sandbox]));
    let list = owner.usage(&GetUsage { key: Some(owner_id), ..GetUsage::default() }).await.unwrap();
    assert_eq!(list.items.len(), 1);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_others_from_changing_anything() {
    let mut server = Server::with(&[]);
    let (first_id, first) = key(&server, "first", Scope::Manage).await;
    let (_, second) = key(&server, "second", Scope::Exec).await;
    let sandbox = first.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    let id = sandbox.as_str();
    let taken = first.take_lease(id, &lease(600_000, Some("agent 1"))).await.unwrap();
    assert_eq!((taken.key.as_str(), taken.holder.as_str()), (first_id.as_str(), "agent 1"));

    let refused = second.create_exec(id, &argv(&["true"])).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::SandboxLeased));
    assert!(refused.to_string().contains("agent 1"), "{refused}");
    let content = futures::stream::iter([Ok("x".into())]);
    let written = second.write_file(id, "/tmp/x", &WriteFile::default(), content).await;
    assert_eq!(code(written), Code::SandboxLeased);
    assert_eq!(code(second.take_lease(id, &lease(1000, None)).await), Code::SandboxLeased);
    assert_eq!(code(second.release_lease(id, false).await), Code::SandboxLeased);
    assert_eq!(code(second.release_lease(id, true).await), Code::Forbidden);
    assert_eq!(code(server.client.delete_sandbox(id).await), Code::SandboxLeased);
    assert_eq!(second.lease(id).await.unwrap().lease.unwrap().holder, "agent 1");
    assert!(second.get_sandbox(id).await.is_ok(), "looking is free");

    // The holder goes on, renews, and is told from others with its key by name.
    first.create_exec(id, &argv(&["true"])).await.unwrap();
    let renewed = first.take_lease(id, &lease(700_000, None)).await.unwrap();
    assert_eq!((renewed.holder.as_str(), renewed.taken_at_ms), ("agent 1", taken.taken_at_ms));
    let as_other = first.take_lease(id, &lease(1000, Some("agent 2"))).await;
    assert_eq!(code(as_other), Code::SandboxLeased);

    server.kill();
    server.restart();
    assert_eq!(
        code(second.create_exec(id, &argv(&["true"])).await),
        Code::SandboxLeased,
        "it outlives the server"
    );
    let shown = server.cli(&["lease", "show", id]).ok().stdout;
    assert!(shown.contains("agent 1"), "{shown}");
    // A key that manages the sandbox can end the lease.
    server.cli(&["lease", "release", "--force", id]).ok();
    second.create_exec(id, &argv(&["true"])).await.unwrap();
    // And it ends by itself.
    second.take_lease(id, &lease(1, None)).await.unwrap();
    atoll_blackbox::wait_until("the lease ends", async || {
        first.create_exec(id, &argv(&["true"])).await.is_ok().then_some(())
    })
    .await;
    server.finish().await;
}

/// A child may not be called what another sandbox's id is, and no name hides an id.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_takes_the_place_of_an_id() {
    let server = Server::start();
    let victim = server.client.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let parent = server.client.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let fork = ForkSandbox { count: 1, name: Some(victim.id.clone()), ..ForkSandbox::default() };
    assert_eq!(code(server.client.fork_sandbox(&parent.id, &fork).await), Code::InvalidArgument);
    assert_eq!(server.client.get_sandbox(&victim.id).await.unwrap().id, victim.id);
    server.finish().await;
}

/// Also by LangSmith's protocol: a private sandbox's snapshots are its owner's.
#[tokio::test(flavor = "multi_thread")]
async fn private_snapshots_do_not_exist_for_others_in_any_protocol() {
    let server = Server::with(&["--visibility", "private"]);
    let (_, owner) = key(&server, "owner", Scope::Manage).await;
    let other = CreateKey {
        name: "other".into(),
        scope: Scope::Manage,
        ttl_ms: None,
        format: KeyFormat::Atoll,
        project: None,
    };
    let other = server.client.create_key(&other).await.unwrap();
    let sandbox = owner.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let order = CreateSnapshot { tags: vec!["secret:1".into()], ..CreateSnapshot::default() };
    let snapshot = owner.create_snapshot(&sandbox.id, &order).await.unwrap();
    let http = reqwest::Client::new();
    let ask = async |method: reqwest::Method, path: &str| {
        let url = format!("{}/langsmith/v2/sandboxes{path}", server.url);
        let answer =
            http.request(method, url).header("x-api-key", other.secret.reveal()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let listed = ask(reqwest::Method::GET, "/snapshots").await;
    assert!(listed.0 == 200 && !listed.1.contains("secret"), "{listed:?}");
    for path in ["/snapshots/secret", "/snapshots/secret:1", "/snapshots-by-name/secret"] {
        assert_eq!(ask(reqwest::Method::GET, path).await.0, 404, "{path}");
    }
    for path in ["/snapshots/secret", "/snapshots/secret:1"] {
        assert_eq!(ask(reqwest::Method::DELETE, path).await.0, 404, "{path}");
    }
    assert_eq!(owner.get_snapshot(&snapshot.id).await.unwrap().id, snapshot.id);
    server.finish().await;
}

/// A volume names only those of its sandboxes that the caller may see, also where they keep it from being deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_names_no_sandbox_that_is_hidden() {
    let server = Server::with(&["--visibility", "private"]);
    let (_, owner) = key(&server, "owner", Scope::Manage).await;
    let (_, other) = key(&server, "other", Scope::Manage).await;
    let volume =
        CreateVolume { name: "shared".into(), size_bytes: Some(64 << 20), ..CreateVolume::default() };
    owner.create_volume(&volume).await.unwrap();
    let volumes = vec![VolumeMountDraft {
        volume: "shared".into(),
        path: "/data".into(),
        read_only: false,
        subpath: None,
    }];
    let id = owner.create_sandbox(&CreateSandbox { volumes, ..CreateSandbox::default() }).await.unwrap().id;
    assert_eq!(owner.get_volume("shared").await.unwrap().used_by, [id.as_str()]);
    let seen = format!("{:?} {:?}", other.get_volume("shared").await, other.list_volumes().await);
    assert!(seen.contains("shared") && !seen.contains(&id), "{seen}");
    let busy = other.delete_volume("shared").await.unwrap_err().to_string();
    assert!(busy.contains("1 that you may not see") && !busy.contains(&id), "{busy}");
    server.finish().await;
}

/// Input on a socket of LangSmith's protocol does nothing while another key has the lease, also when the socket was
/// there first.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_comes_meanwhile_silences_an_open_socket() {
    use futures::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};
    let server = Server::start();
    let create = CreateKey {
        name: "first".into(),
        scope: Scope::Exec,
        ttl_ms: None,
        format: KeyFormat::Atoll,
        project: None,
    };
    let first = server.client.create_key(&create).await.unwrap();
    let (_, second) = key(&server, "second", Scope::Exec).await;
    let id = server.sandbox().await.id;
    let url = format!("{}/langsmith/v2/sandboxes/{id}/execute/ws", server.url.replace("http", "ws"));
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("x-api-key", first.secret.reveal().parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let say = |value: serde_json::Value| Message::text(value.to_string());
    let line = |text: &str| say(serde_json::json!({"type": "input", "data": format!("{text}\n")}));
    socket.send(say(serde_json::json!({"type": "execute", "command": "cat"}))).await.unwrap();
    socket.send(line("one")).await.unwrap();
    let mut said = String::new();
    while !said.contains("one") {
        said += socket.next().await.unwrap().unwrap().to_text().unwrap();
    }
    second.take_lease(&id, &lease(60_000, None)).await.unwrap();
    socket.send(line("two")).await.unwrap();
    // The answer to the ping comes when the server has read the messages before it.
    socket.send(Message::Ping("here".into())).await.unwrap();
    while !matches!(socket.next().await.unwrap().unwrap(), Message::Pong(_)) {}
    second.release_lease(&id, false).await.unwrap();
    socket.send(line("three")).await.unwrap();
    while !said.contains("three") {
        said += socket.next().await.unwrap().unwrap().to_text().unwrap_or_default();
    }
    assert!(!said.contains("two"), "{said}");
    server.finish().await;
}

/// An address for an upload of E2B's protocol is as good as the key that asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_for_an_upload_ends_with_its_key() {
    let server = Server::start();
    let create = CreateKey {
        name: "k".into(),
        scope: Scope::Manage,
        ttl_ms: None,
        format: KeyFormat::E2b,
        project: None,
    };
    let made = server.client.create_key(&create).await.unwrap();
    let http = reqwest::Client::new();
    let address = async |hash: char| {
        let url = format!("{}/e2b/templates/any/files/{}", server.url, hash.to_string().repeat(64));
        let answer = http.get(url).header("x-api-key", made.secret.reveal()).send().await.unwrap();
        let answer: serde_json::Value = answer.json().await.unwrap();
        answer["url"].as_str().expect("an address").to_owned()
    };
    let (used, kept) = (address('a').await, address('b').await);
    let put = async |url: &str| http.put(url).body("an archive").send().await.unwrap().status().as_u16();
    assert_eq!(put(&used).await, 200);
    assert_eq!(put(&used).await, 403, "good once");
    server.client.delete_key(&made.key.id).await.unwrap();
    assert_eq!(put(&kept).await, 401);
    server.finish().await;
}
