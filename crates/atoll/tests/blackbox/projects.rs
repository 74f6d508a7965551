//! Projects: their keys and objects apart from those of other projects, quotas, defaults, usage.

use std::collections::BTreeMap;

use atoll_api::{
    CreateAgent, CreateKey, CreateProject, CreateSandbox, CreateSnapshot, CreateVolume, ForkSandbox,
    KeyFormat, PauseSandbox, PutSecret, Quota, UpdateProject, UpdateSandbox, UsageGroup, VolumeMountDraft,
};
use atoll_blackbox::Server;
use atoll_client::{Client, ClientError, GetUsage, ListSandboxes, ListSnapshots};
use atoll_core::Code;
use atoll_core::key::Scope;
use atoll_core::project::ProjectDefaults;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_core::sharing::{Role, Visibility};
use atoll_core::spec::ResourcesDraft;
use futures::future::join_all;

use crate::common::{argv, code};

async fn project(server: &Server, name: &str, quota: Quota) {
    let create = CreateProject { name: name.into(), quota, defaults: ProjectDefaults::default() };
    server.client.create_project(&create).await.unwrap();
}

/// A key of a project, or of none, and a client that uses it.
async fn key(server: &Server, project: Option<&str>, scope: Scope) -> (String, Client) {
    let create = CreateKey {
        name: "k".into(),
        scope,
        ttl_ms: None,
        format: KeyFormat::Atoll,
        project: project.map(str::to_owned),
    };
    let made = server.client.create_key(&create).await.unwrap();
    (made.key.id, Client::new(&server.url, &made.secret).unwrap())
}

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() }
}

async fn ids(client: &Client) -> Vec<String> {
    let page = client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    page.items.into_iter().map(|sandbox| sandbox.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_team_makes_does_not_exist_for_another() {
    let mut server = Server::start();
    for name in ["alpha", "beta"] {
        project(&server, name, Quota::default()).await;
    }
    let (_, alpha) = key(&server, Some("alpha"), Scope::Manage).await;
    let (_, colleague) = key(&server, Some("alpha"), Scope::Exec).await;
    let (beta_id, beta) = key(&server, Some("beta"), Scope::Manage).await;
    let (_, none) = key(&server, None, Scope::Manage).await;

    // One name in three places, each its own.
    let clients = [&alpha, &beta, &none];
    let mut web = Vec::new();
    for client in clients {
        web.push(client.create_sandbox(&named("web")).await.unwrap());
        assert_eq!(code(client.create_sandbox(&named("web")).await), Code::NameTaken);
    }
    for (client, own) in clients.into_iter().zip(&web) {
        assert_eq!(client.get_sandbox("web").await.unwrap().id, own.id);
        assert_eq!(ids(client).await.join(" "), own.id);
        for other in web.iter().filter(|other| other.id != own.id) {
            assert_eq!(code(client.get_sandbox(&other.id).await), Code::SandboxNotFound);
            assert_eq!(code(client.create_exec(&other.id, &argv(&["true"])).await), Code::SandboxNotFound);
            assert_eq!(code(client.delete_sandbox(&other.id).await), Code::SandboxNotFound);
        }
    }
    assert_eq!(colleague.get_sandbox("web").await.unwrap().id, web[0].id);
    colleague.create_exec("web", &argv(&["true"])).await.unwrap();
    // For an administrator a name means the sandbox of no project, and one of a project when no other sandbox has the
    // name.
    assert_eq!(server.client.get_sandbox("web").await.unwrap().id, web[2].id);
    none.delete_sandbox("web").await.unwrap();
    let several = server.client.get_sandbox("web").await.unwrap_err();
    assert_eq!(several.code(), Some(Code::InvalidArgument));
    assert!(several.to_string().contains(&web[0].id) && several.to_string().contains("beta"), "{several}");
    let of = ListSandboxes { project: Some("beta".into()), ..ListSandboxes::default() };
    let listed = server.client.list_sandboxes(&of).await.unwrap().items;
    assert_eq!((listed.len(), listed[0].id.as_str()), (1, web[1].id.as_str()));
    assert_eq!(code(alpha.list_sandboxes(&of).await), Code::ProjectNotFound);

    // Snapshots, volumes and agents go with it.
    let shot = CreateSnapshot { tags: vec!["base".into()], ..CreateSnapshot::default() };
    let shots = [
        alpha.create_snapshot("web", &shot).await.unwrap(),
        beta.create_snapshot("web", &shot).await.unwrap(),
    ];
    let from = |text: &str| CreateSandbox { snapshot: Some(text.into()), ..CreateSandbox::default() };
    assert_eq!(alpha.create_sandbox(&from("base")).await.unwrap().snapshot.as_ref(), Some(&shots[0].id));
    assert_eq!(code(alpha.create_sandbox(&from(&shots[1].id)).await), Code::SnapshotNotFound);
    assert_eq!(code(none.create_sandbox(&from("base")).await), Code::SnapshotNotFound);
    assert_eq!(none.list_snapshots(&ListSnapshots::default()).await.unwrap().items.len(), 0);
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(64 << 20), ..CreateVolume::default() };
    let own = alpha.create_volume(&volume).await.unwrap();
    let other = beta.create_volume(&volume).await.unwrap();
    assert_eq!(alpha.get_volume("data").await.unwrap().id, own.id);
    assert_eq!(code(alpha.get_volume(&other.id).await), Code::VolumeNotFound);
    assert_eq!(none.list_volumes().await.unwrap().items.len(), 0);
    let agent = CreateAgent {
        name: "bot".into(),
        sandbox: Some("web".into()),
        argv: Some(vec!["true".into()]),
        ..CreateAgent::default()
    };
    let bots = [alpha.create_agent(&agent).await.unwrap(), beta.create_agent(&agent).await.unwrap()];
    assert_eq!(beta.get_agent("bot").await.unwrap().id, bots[1].id);
    assert_eq!(code(beta.get_agent(&bots[0].id).await), Code::AgentNotFound);

    // A role on the sandbox lets a key of another project in, by the sandbox's id; a fork by that key is the key's own.
    alpha.grant(&web[0].id, &beta_id, Role::Manage).await.unwrap();
    assert_eq!(beta.get_sandbox(&web[0].id).await.unwrap().id, web[0].id);
    assert_eq!(beta.get_sandbox("web").await.unwrap().id, web[1].id);
    alpha.revoke(&web[0].id, &beta_id).await.unwrap();
    assert_eq!(code(beta.get_sandbox(&web[0].id).await), Code::SandboxNotFound);
    // A fork that an administrator makes of it stays in the project.
    let fork = ForkSandbox { count: 1, name: Some("child".into()), ..ForkSandbox::default() };
    let children = server.client.fork_sandbox(&web[0].id, &fork).await.unwrap();
    let child = children.results[0].sandbox.clone().unwrap();
    assert_eq!(child.project, web[0].project);
    assert_eq!(code(none.get_sandbox(&child.id).await), Code::SandboxNotFound);

    // All of it outlives the server, and a project that has anything stays.
    server.kill();
    server.restart();
    assert_eq!(beta.get_sandbox("web").await.unwrap().id, web[1].id);
    assert_eq!(code(none.get_sandbox(&web[1].id).await), Code::SandboxNotFound);
    assert_eq!(beta.get_agent("bot").await.unwrap().id, bots[1].id);
    let refused = server.client.delete_project("beta").await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::ProjectInUse));
    assert!(refused.to_string().contains("1 keys, 1 sandboxes, 1 snapshots, 1 volumes"), "{refused}");
}

/// A role may be taken away again; but a child in another project would keep everything that it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_on_a_sandbox_takes_neither_its_volumes_nor_its_secrets_along() {
    let server = Server::start();
    for name in ["alpha", "beta"] {
        project(&server, name, Quota::default()).await;
    }
    let (alpha_id, alpha) = key(&server, Some("alpha"), Scope::Manage).await;
    let (_, beta) = key(&server, Some("beta"), Scope::Manage).await;
    let volume = CreateVolume { name: "data".into(), size_bytes: Some(64 << 20), ..CreateVolume::default() };
    beta.create_volume(&volume).await.unwrap();
    let mount =
        VolumeMountDraft { volume: "data".into(), path: "/data".into(), read_only: false, subpath: None };
    let with_volume = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
    let secrets = BTreeMap::from([("TOKEN".to_owned(), Secret::new("value of beta's"))]);
    let with_secret = CreateSandbox { secrets, ..CreateSandbox::default() };
    for (create, code) in
        [(with_volume, Some(Code::Forbidden)), (with_secret, Some(Code::Forbidden)), (named("plain"), None)]
    {
        let parent = beta.create_sandbox(&create).await.unwrap();
        beta.grant(&parent.id, &alpha_id, Role::Manage).await.unwrap();
        let fork = ForkSandbox { count: 1, ..ForkSandbox::default() };
        let children = alpha.fork_sandbox(&parent.id, &fork).await.unwrap();
        assert_eq!(children.results[0].error.as_ref().map(|error| error.code), code);
        assert_eq!(ids(&beta).await, [parent.id.as_str()]);
        assert!(beta.fork_sandbox(&parent.id, &fork).await.unwrap().results[0].error.is_none());
        for id in ids(&beta).await {
            beta.delete_sandbox(&id).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_frozen_has_its_memory() {
    let server = Server::start();
    let quota = Quota { memory_bytes: Some(2 << 30), ..Quota::default() };
    project(&server, "team", quota).await;
    let (_, client) = key(&server, Some("team"), Scope::Manage).await;
    let first = client.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    for (mode, code) in [(PauseMode::Frozen, Some(Code::QuotaExceeded)), (PauseMode::Filesystem, None)] {
        client.pause_sandbox(&first, &PauseSandbox { mode: Some(mode) }).await.unwrap();
        let second = client.create_sandbox(&CreateSandbox::default()).await;
        assert_eq!(second.as_ref().err().and_then(ClientError::code), code, "{mode:?}");
        if let Ok(second) = second {
            client.delete_sandbox(&second.id).await.unwrap();
        }
        client.resume_sandbox(&first).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_against_fifty_at_once_and_says_what_to_do() {
    let server = Server::start();
    let quota = Quota { sandboxes: Some(4), running: Some(3), ..Quota::default() };
    project(&server, "team", quota).await;
    let (_, client) = key(&server, Some("team"), Scope::Manage).await;
    let asked = (0..50).map(|_| async { client.create_sandbox(&CreateSandbox::default()).await });
    let (made, refused): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 3);
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.code(), Some(Code::QuotaExceeded), "{error}");
    }
    let error = client.create_sandbox(&CreateSandbox::default()).await.unwrap_err();
    assert!(error.to_string().contains("the project 'team' has 3 of 3 (running sandboxes)"), "{error}");
    assert_eq!(ids(&client).await.len(), 3, "nothing is left of those that were refused");

    // A paused sandbox does not count as running; it wakes where there is room, also by itself.
    let first = made.into_iter().next().unwrap().unwrap().id;
    for mode in [None, Some(PauseMode::Filesystem)] {
        client.pause_sandbox(&first, &PauseSandbox { mode }).await.unwrap();
        let fourth = client.create_sandbox(&CreateSandbox::default()).await.unwrap();
        assert_eq!(code(client.resume_sandbox(&first).await), Code::QuotaExceeded);
        assert_eq!(code(client.create_exec(&first, &argv(&["true"])).await), Code::QuotaExceeded);
        assert_eq!(client.get_sandbox(&first).await.unwrap().state, SandboxState::Paused);
        let all = client
            .fork_sandbox(&fourth.id, &ForkSandbox { count: 1, ..ForkSandbox::default() })
            .await
            .unwrap();
        let refused = all.results[0].error.as_ref().unwrap();
        assert_eq!(refused.code, Code::QuotaExceeded);
        client.delete_sandbox(&fourth.id).await.unwrap();
        client.resume_sandbox(&first).await.unwrap();
        client.create_exec(&first, &argv(&["true"])).await.unwrap();
    }

    // Limits count: with the quota of memory used up nothing grows.
    let show = server.client.get_project("team").await.unwrap();
    let used = show.used.unwrap();
    assert_eq!((used.sandboxes, used.running), (3, 3));
    let quota = Quota { memory_bytes: Some(used.memory_bytes), ..show.quota };
    let update = UpdateProject { quota: Some(quota), ..UpdateProject::default() };
    server.client.update_project("team", &update).await.unwrap();
    let larger = |memory| UpdateSandbox {
        resources: ResourcesDraft { memory_bytes: Some(memory), ..ResourcesDraft::default() },
        ..UpdateSandbox::default()
    };
    assert_eq!(code(client.update_sandbox(&first, &larger(3 << 30)).await), Code::QuotaExceeded);
    assert_eq!(client.get_sandbox(&first).await.unwrap().resources.memory_bytes, 2 << 30);
    client.update_sandbox(&first, &larger(1 << 30)).await.unwrap();
    client.update_sandbox(&first, &larger(2 << 30)).await.unwrap();
    // A key of no project has no quota.
    let (_, none) = key(&server, None, Scope::Manage).await;
    none.create_sandbox(&CreateSandbox::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_secrets_and_usage_are_a_projects_own() {
    let server = Server::start();
    let defaults = ProjectDefaults {
        resources: ResourcesDraft { memory_bytes: Some(256 << 20), ..ResourcesDraft::default() },
        visibility: Some(Visibility::Private),
        ttl_ms: Some(600_000),
        ..ProjectDefaults::default()
    };
    let create = CreateProject { name: "team".into(), quota: Quota::default(), defaults };
    let made = server.client.create_project(&create).await.unwrap();
    let (_, client) = key(&server, Some("team"), Scope::Manage).await;
    let (_, colleague) = key(&server, Some(&made.id), Scope::Manage).await;
    let sandbox = client.create_sandbox(&CreateSandbox::default()).await.unwrap();
    assert_eq!((sandbox.resources.memory_bytes, sandbox.project.as_ref()), (256 << 20, Some(&made.id)));
    assert!(sandbox.expires_at_ms.is_some());
    assert_eq!(code(colleague.get_sandbox(&sandbox.id).await), Code::SandboxNotFound, "private, by default");
    let said = CreateSandbox {
        visibility: Some(Visibility::Shared),
        ttl_ms: Some(60_000),
        ..CreateSandbox::default()
    };
    let said = client.create_sandbox(&said).await.unwrap();
    assert_eq!(colleague.get_sandbox(&said.id).await.unwrap().id, said.id);

    // A secret of the project is for its sandboxes, and one of none is not.
    let scope = serde_json::from_value(serde_json::json!({"hosts": ["a.example.com"]})).unwrap();
    let put = PutSecret { value: Some(Secret::new("sesame".to_owned())), scope: Some(scope), note: None };
    server.client.put_secret(Some("team"), "TOKEN", &put).await.unwrap();
    server.client.put_secret(None, "OTHER", &put).await.unwrap();
    let names = async |client: &Client, project| {
        let list = client.list_secrets(project).await.unwrap();
        list.items.into_iter().map(|secret| secret.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&client, None).await, ["TOKEN"]);
    assert_eq!(names(&server.client, None).await, ["OTHER"]);
    let rule = |name: &str| -> CreateSandbox {
        let headers = BTreeMap::from([("authorization", format!("Bearer {{secret:{name}}}"))]);
        let rule = serde_json::json!({"name": "r", "hosts": ["a.example.com"], "headers": headers});
        serde_json::from_value(serde_json::json!({"egress": {"internet": "rules", "inject": [rule]}}))
            .unwrap()
    };
    client.create_sandbox(&rule("TOKEN")).await.unwrap();
    assert_eq!(code(client.create_sandbox(&rule("OTHER")).await), Code::SecretNotFound);
    let (_, none) = key(&server, None, Scope::Manage).await;
    assert_eq!(code(none.create_sandbox(&rule("TOKEN")).await), Code::SecretNotFound);

    // Usage, by project.
    client.create_exec(&sandbox.id, &argv(&["true"])).await.unwrap();
    none.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let get = GetUsage { group: UsageGroup::Project, ..GetUsage::default() };
    let all = server.client.usage(&get).await.unwrap().items;
    let of: Vec<_> = all.iter().map(|item| item.project.as_ref()).collect();
    assert_eq!(of, [Some(&made.id), None], "{all:?}");
    let only = GetUsage { project: Some("team".into()), group: UsageGroup::Total, ..GetUsage::default() };
    let only = server.client.usage(&only).await.unwrap().items;
    assert_eq!((only.len(), only[0].used.execs), (1, 1));
    assert_eq!(
        code(none.usage(&GetUsage { project: Some("team".into()), ..GetUsage::default() }).await),
        Code::ProjectNotFound
    );
}
