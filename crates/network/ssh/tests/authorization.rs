//! Which keys may log in to which sandbox, and what happens to a login whose key may no longer: the same table as the
//! APIs'.

#![cfg(test)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::access::{AccessDraft, Target};
use atoll_core::key::Scope;
use atoll_core::sharing::Role;
use atoll_core::{Code, Error};
use atoll_engine::{ExecQuery, SandboxQuery};
use atoll_ssh::{Holder, Origin, Place, Places, SshServer};
use atoll_walk::{Key, Objects, World};
use russh::Disconnect;
use russh::client::{self, DisconnectReason, Handle};
use russh::keys::PublicKeyOrCertificate;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Nothing here takes this long.
const DEADLINE: Duration = Duration::from_secs(60);

/// A client that believes any server, and keeps the reason for which that ends the connection.
#[derive(Default)]
struct Trusting {
    reason: Arc<Mutex<String>>,
}

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        if let DisconnectReason::ReceivedDisconnect(told) = reason {
            *self.reason.lock().unwrap() = told.message;
        }
        Ok(())
    }
}

struct Ssh {
    world: World,
    server: SshServer,
    places: Option<Places>,
}

impl Ssh {
    async fn new() -> Self {
        let world = World::new(&[]).await;
        let server = SshServer::open(world.engine.clone(), &world.dir().join("ssh.key")).unwrap();
        Self { world, server, places: None }
    }

    /// A connection before its login.
    async fn connect(&self, client: Trusting) -> Handle<Trusting> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (server, origin) =
            (self.server.clone(), Origin { places: self.places.clone(), ..Origin::default() });
        tokio::spawn(async move { server.serve(far, origin, CancellationToken::new()).await });
        client::connect_stream(Arc::new(client::Config::default()), near, client).await.unwrap()
    }

    /// A connection, if this password opens the sandbox.
    async fn log_in(&self, sandbox: &str, password: &str) -> Option<Handle<Trusting>> {
        let mut handle = self.connect(Trusting::default()).await;
        let answer = handle.authenticate_password(sandbox, password).await.unwrap();
        answer.success().then_some(handle)
    }

    /// A connection, if this name alone opens a sandbox.
    async fn log_in_by_name(&self, name: &str) -> Option<Handle<Trusting>> {
        let mut handle = self.connect(Trusting::default()).await;
        handle.authenticate_none(name).await.unwrap().success().then_some(handle)
    }

    async fn opens(&self, on: &Objects, key: &Key) -> bool {
        let by_id = self.log_in(on.sandbox.as_str(), &key.secret).await.is_some();
        assert_eq!(by_id, self.log_in(&on.name, &key.secret).await.is_some());
        by_id
    }
}

/// Asks for a command and waits for the channel's end. Gives how many commands began by that.
async fn run(ssh: &Ssh, on: &Objects, handle: &Handle<Trusting>) -> usize {
    let query = ExecQuery::default();
    let count = async || ssh.world.engine.execs(&on.sandbox, &query).await.unwrap().0.len();
    let before = count().await;
    let mut channel = handle.channel_open_session().await.unwrap();
    channel.exec(true, "echo hello").await.unwrap();
    while channel.wait().await.is_some() {}
    count().await - before
}

#[tokio::test]
async fn only_who_may_run_commands_logs_in() {
    let ssh = Ssh::new().await;
    let owner = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "hidden").await;
    for wrong in ["", "atoll_wrong"] {
        assert!(ssh.log_in(&on.name, wrong).await.is_none(), "{wrong}");
    }
    for scope in [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin] {
        let stranger = ssh.world.key(scope).await;
        assert_eq!(ssh.opens(&on, &stranger).await, scope == Scope::Admin, "{scope:?}");
    }
    assert!(ssh.opens(&on, &owner).await);
    assert!(!ssh.opens(&Objects::nothing(), &owner).await);
    let friend = ssh.world.key(Scope::Manage).await;
    for (role, opens) in [(Role::Read, false), (Role::Exec, true), (Role::Manage, true)] {
        ssh.world.grant(&on, &friend, role).await;
        assert_eq!(ssh.opens(&on, &friend).await, opens, "{role:?}");
    }
    ssh.world.engine.revoke(&on.sandbox, friend.id.as_str()).await.unwrap();
    assert!(!ssh.opens(&on, &friend).await);
    // The least of scope and role.
    let reader = ssh.world.key(Scope::Read).await;
    ssh.world.grant(&on, &reader, Role::Manage).await;
    assert!(!ssh.opens(&on, &reader).await);
}

#[tokio::test]
async fn a_login_makes_a_sandbox_for_who_may_make_one() {
    let ssh = Ssh::new().await;
    let owner = ssh.world.key(Scope::Manage).await;
    let worker = ssh.world.key(Scope::Exec).await;
    let everybody = ssh.world.key(Scope::Admin).await.caller;
    let list = async || ssh.world.engine.sandboxes(&SandboxQuery::default(), &everybody).await.unwrap().items;
    let count = async || list().await.len();
    for (login, password) in [
        ("new+made", "wrong"),
        ("new+made", worker.secret.as_str()),
        ("new", worker.secret.as_str()),
        ("new+", owner.secret.as_str()),
        ("new+made+", owner.secret.as_str()),
        ("new+No such name", owner.secret.as_str()),
        ("news+made", owner.secret.as_str()),
    ] {
        assert!(ssh.log_in(login, password).await.is_none(), "{login}");
        assert!(ssh.log_in_by_name(login).await.is_none(), "{login}");
        assert_eq!(count().await, 0, "{login}");
    }
    // Many at once make one.
    let log_in = || ssh.log_in("new+made", &owner.secret);
    let (a, b, c, d) = tokio::join!(log_in(), log_in(), log_in(), log_in());
    assert!([a, b, c, d].iter().all(Option::is_some));
    assert_eq!(count().await, 1);
    // A key that may run commands finds it.
    assert!(ssh.log_in("new+made+root", &worker.secret).await.is_some());
    assert!(ssh.log_in("made", &worker.secret).await.is_some());
    // Each login under the bare name makes one, which does not stay when it is not used.
    for so_far in 2..4 {
        assert!(ssh.log_in("new", &owner.secret).await.is_some());
        assert_eq!(count().await, so_far);
    }
    assert_eq!(
        list().await.iter().filter(|one| one.name.is_none() && one.spec.idle_timeout_ms.is_some()).count(),
        2
    );
    // Another key's private sandbox is neither found nor made again.
    let hidden = ssh.world.objects(&owner, "hidden").await;
    let stranger = ssh.world.key(Scope::Manage).await;
    assert!(ssh.log_in(&format!("new+{}", hidden.name), &stranger.secret).await.is_none());
}

#[tokio::test]
async fn a_lease_keeps_all_others_from_beginning_anything() {
    let ssh = Ssh::new().await;
    let owner = ssh.world.key(Scope::Manage).await;
    let friend = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "leased").await;
    ssh.world.grant(&on, &friend, Role::Manage).await;
    let handle = ssh.log_in(&on.name, &friend.secret).await.unwrap();
    assert_eq!(run(&ssh, &on, &handle).await, 1);
    ssh.world.engine.take_lease(&on.sandbox, &owner.caller, 600_000).await.unwrap();
    assert_eq!(run(&ssh, &on, &handle).await, 0, "a command began under another's lease");
    let port = handle.channel_open_direct_tcpip("localhost", 80, "localhost", 1).await;
    assert!(port.is_err(), "a port was reached under another's lease");
    let handle = ssh.log_in(&on.name, &owner.secret).await.unwrap();
    assert_eq!(run(&ssh, &on, &handle).await, 1);
}

#[tokio::test]
async fn a_login_ends_with_its_right() {
    let ssh = Ssh::new().await;
    let owner = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "shown").await;
    for ends in ["role", "key"] {
        let friend = ssh.world.key(Scope::Manage).await;
        ssh.world.grant(&on, &friend, Role::Exec).await;
        let handle = ssh.log_in(&on.name, &friend.secret).await.unwrap();
        if ends == "role" {
            ssh.world.engine.revoke(&on.sandbox, friend.id.as_str()).await.unwrap();
        } else {
            ssh.world.engine.delete_key(friend.id.as_str()).await.unwrap();
        }
        let ended = tokio::time::timeout(DEADLINE, handle).await;
        assert!(ended.is_ok(), "the connection goes on without its {ends}");
    }
}

#[tokio::test]
async fn a_token_is_a_login_to_one_sandbox() {
    let ssh = Ssh::new().await;
    let engine = &ssh.world.engine;
    let owner = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "shown").await;
    let other = ssh.world.objects(&owner, "other").await;
    let made = engine.create_ssh_token(&on.sandbox, "x", 600_000, &owner.caller).await.unwrap();
    let token = made.token.reveal();
    let handle = ssh.log_in_by_name(token).await.unwrap();
    assert_eq!(run(&ssh, &on, &handle).await, 1);
    // Any password will do, for clients that must send one.
    assert!(ssh.log_in(token, "").await.is_some());
    assert!(ssh.log_in_by_name(&format!("{token}+root")).await.is_some());
    // Its ids without their prefixes, and a code over both.
    let moved = token.replace(&on.sandbox.as_str()[2..], &other.sandbox.as_str()[2..]);
    assert_ne!(moved, token);
    let (start, last) = token.split_at(token.len() - 1);
    let changed = format!("{start}{}", if last == "0" { "1" } else { "0" });
    for wrong in [on.name.as_str(), on.sandbox.as_str(), &moved, &changed, start, "t", ""] {
        assert!(ssh.log_in_by_name(wrong).await.is_none(), "{wrong}");
    }
    // Another access to the port of SSH is no login.
    let draft = AccessDraft { target: Target::Port(22), public: false, name: None, ttl_ms: None };
    let link = engine.create_access(&on.sandbox, draft, &owner.caller).await.unwrap();
    assert!(ssh.log_in_by_name(link.token.unwrap().reveal()).await.is_none());
    let brief = engine.create_ssh_token(&on.sandbox, "x", 1, &owner.caller).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(ssh.log_in_by_name(brief.token.reveal()).await.is_none());
    engine.revoke_access(&on.sandbox, made.access.id.as_str()).await.unwrap();
    assert!(tokio::time::timeout(DEADLINE, handle).await.is_ok(), "the connection goes on without its token");
    assert!(ssh.log_in_by_name(token).await.is_none());
}

#[tokio::test]
async fn a_token_may_what_its_key_may() {
    let ssh = Ssh::new().await;
    let owner = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "shown").await;
    for ends in ["role", "key"] {
        let friend = ssh.world.key(Scope::Manage).await;
        ssh.world.grant(&on, &friend, Role::Exec).await;
        let made =
            ssh.world.engine.create_ssh_token(&on.sandbox, "x", 600_000, &friend.caller).await.unwrap();
        let handle = ssh.log_in_by_name(made.token.reveal()).await.unwrap();
        if ends == "role" {
            ssh.world.engine.revoke(&on.sandbox, friend.id.as_str()).await.unwrap();
        } else {
            ssh.world.engine.delete_key(friend.id.as_str()).await.unwrap();
        }
        assert!(
            tokio::time::timeout(DEADLINE, handle).await.is_ok(),
            "the connection goes on without its {ends}"
        );
        assert!(ssh.log_in_by_name(made.token.reveal()).await.is_none());
    }
}

/// Places that a semaphore has for all keys, and another one for all tokens.
fn places(keys: &Arc<Semaphore>, tokens: &Arc<Semaphore>) -> Places {
    let (keys, tokens) = (Arc::clone(keys), Arc::clone(tokens));
    Arc::new(move |holder: Holder<'_>| -> atoll_core::Result<Place> {
        let of = match holder {
            Holder::Key(_) => &keys,
            Holder::LinksTo(_) => &tokens,
        };
        let place = Arc::clone(of).try_acquire_owned();
        let place = place.map_err(|_none| Error::new(Code::LimitExceeded, "no place is left"))?;
        Ok(Box::new(place))
    })
}

/// Waits until so many places are left.
async fn until_left(places: &Semaphore, count: usize) {
    let waits = async {
        while places.available_permits() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waits).await.unwrap();
}

#[tokio::test]
async fn connections_and_their_sessions_take_places_and_give_them_back() {
    let (keys, tokens) = (Arc::new(Semaphore::new(3)), Arc::new(Semaphore::new(1)));
    let ssh = Ssh { places: Some(places(&keys, &tokens)), ..Ssh::new().await };
    let owner = ssh.world.key(Scope::Manage).await;
    let on = ssh.world.objects(&owner, "counted").await;
    let first = ssh.log_in(&on.name, &owner.secret).await.unwrap();
    assert_eq!(keys.available_permits(), 2);
    assert_eq!(run(&ssh, &on, &first).await, 1);
    until_left(&keys, 2).await;
    assert!(ssh.log_in(&on.name, "atoll_wrong").await.is_none());
    assert_eq!(keys.available_permits(), 2, "who is not let in takes none");
    let second = ssh.log_in(&on.name, &owner.secret).await.unwrap();
    let _third = ssh.log_in(&on.name, &owner.secret).await.unwrap();
    assert_eq!(run(&ssh, &on, &first).await, 0, "a command began without a place");
    // One connection more hears why it ends.
    let client = Trusting::default();
    let reason = Arc::clone(&client.reason);
    let mut late = ssh.connect(client).await;
    assert!(late.authenticate_password(&on.name, &owner.secret).await.unwrap().success());
    assert!(tokio::time::timeout(DEADLINE, late).await.is_ok(), "the connection goes on without a place");
    assert_eq!(*reason.lock().unwrap(), "no place is left");
    second.disconnect(Disconnect::ByApplication, "", "").await.unwrap();
    until_left(&keys, 1).await;
    assert_eq!(run(&ssh, &on, &first).await, 1);
    // Who comes by a token takes no place of the key that made it.
    until_left(&keys, 1).await;
    let made = ssh.world.engine.create_ssh_token(&on.sandbox, "x", 600_000, &owner.caller).await.unwrap();
    let _by_token = ssh.log_in_by_name(made.token.reveal()).await.unwrap();
    assert_eq!((keys.available_permits(), tokens.available_permits()), (1, 0));
}
