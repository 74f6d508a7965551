//! The walks. Each panics at the first answer that is not as the table says.

use atoll_core::key::Scope;
use atoll_core::sharing::Role;

use crate::{About, Answer, Objects, Protocol, Route, Verdict, World};

const SCOPES: [Scope; 3] = [Scope::Read, Scope::Exec, Scope::Manage];
const ROLES: [(Role, Scope); 3] =
    [(Role::Read, Scope::Read), (Role::Exec, Scope::Exec), (Role::Manage, Scope::Manage)];

pub(crate) fn expect<P: Protocol>(protocol: &P, route: &Route, what: &str, answer: &Answer, is: Verdict) {
    let Route { method, path, .. } = route;
    assert_eq!(protocol.verdict(answer), is, "{method} {path} {what}: {answer:?}");
}

/// A private object exists only for its owner's key: no key and a wrong key are refused everywhere, and to a stranger's
/// key it looks exactly as if it were not there.
pub async fn private<P: Protocol>(world: &World, protocol: &P) {
    let owner = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "hidden").await;
    let nothing = Objects::nothing();
    for scope in SCOPES {
        let stranger = world.key(scope).await;
        for route in protocol.routes() {
            for shown in [None, Some("atoll_wrong")] {
                let answer = world.ask(protocol, &route, &on, shown).await;
                expect(protocol, &route, "without a key", &answer, Verdict::NoKey);
            }
            let what = format!("by a stranger with {scope:?}");
            let shown = protocol.shown(world, &stranger, &on);
            if scope < route.needs {
                let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
                expect(protocol, &route, &what, &answer, Verdict::Weak);
            } else if route.about != About::Server {
                let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
                expect(protocol, &route, &what, &answer, protocol.hides_as());
                if !protocol.hides_existence() {
                    continue;
                }
                let shown = protocol.shown(world, &stranger, &nothing);
                let missing = world.ask(protocol, &route, &nothing, Some(&shown)).await;
                assert_eq!(answer, missing, "{} {} {what} tells", route.method, route.path);
            }
        }
    }
}

/// A shared object is shared within its project: to a key of another project, or of none, it looks exactly as if it
/// were not there. An object in no project looks so to a key of a project.
pub async fn apart<P: Protocol>(world: &World, protocol: &P) {
    let [one, other] = [world.project("one").await, world.project("other").await];
    let nothing = Objects::nothing();
    let homes = [Some(one.as_str()), None];
    for home in homes {
        let owner = world.key_of(Scope::Manage, home).await;
        let name = if home.is_some() { "apart-in-one" } else { "apart-in-none" };
        let on = world.shared_objects(&owner, name).await;
        let friend = world.key_of(Scope::Manage, home).await;
        let strange = if home.is_some() {
            [Some(other.as_str()), None]
        } else {
            [Some(other.as_str()), Some(one.as_str())]
        };
        let of_objects = |route: &Route| route.about != About::Server;
        for project in strange {
            let stranger = world.key_of(Scope::Manage, project).await;
            for route in protocol.routes().into_iter().filter(of_objects) {
                let what = format!("by a key of {project:?} on what is in {home:?}");
                let shown = protocol.shown(world, &stranger, &on);
                let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
                expect(protocol, &route, &what, &answer, protocol.hides_as());
                if protocol.hides_existence() {
                    let shown = protocol.shown(world, &stranger, &nothing);
                    let missing = world.ask(protocol, &route, &nothing, Some(&shown)).await;
                    assert_eq!(answer, missing, "{} {} {what} tells", route.method, route.path);
                }
            }
        }
        // Another key of the project is let in.
        let shown = protocol.shown(world, &friend, &on);
        for route in
            protocol.routes().into_iter().filter(of_objects).filter(|route| route.needs == Scope::Read)
        {
            let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
            expect(protocol, &route, "by another key of the project", &answer, Verdict::Admitted);
        }
    }
}

/// The lesser of scope and role counts, and a key that has enough of both is let in.
pub async fn roles<P: Protocol>(world: &World, protocol: &P) {
    let owner = world.key(Scope::Manage).await;
    let friend = world.key(Scope::Manage).await;
    let routes = protocol.routes().into_iter().filter(|route| route.about != About::Server);
    // A refused request and an admitted GET change nothing: the next request asks about the same objects.
    let mut kept = None;
    for (number, route) in routes.enumerate() {
        for (role, has) in ROLES {
            let on = match kept.take() {
                Some(on) => on,
                None => world.objects(&owner, &format!("walked-{number}-{}", role.as_str())).await,
            };
            world.grant(&on, &friend, role).await;
            let shown = protocol.shown(world, &friend, &on);
            let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
            let is = if has < route.needs { Verdict::Weak } else { Verdict::Admitted };
            expect(protocol, &route, &format!("as {role:?}"), &answer, is);
            if is == Verdict::Weak || route.method == "GET" {
                kept = Some(on);
            } else {
                world.remove(&on).await;
            }
        }
    }
}

/// While one key has a lease on a sandbox, all other keys can look at it, and nothing else.
pub async fn leased<P: Protocol>(world: &World, protocol: &P) {
    let owner = world.key(Scope::Manage).await;
    let friend = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "leased").await;
    world.grant(&on, &friend, Role::Manage).await;
    world.engine.take_lease(&on.sandbox, &owner.caller, 600_000).await.expect("a lease");
    let shown = protocol.shown(world, &friend, &on);
    let of_sandbox = |route: &Route| route.about == About::Sandbox && route.needs > Scope::Read;
    for route in protocol.routes().into_iter().filter(of_sandbox) {
        let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
        expect(protocol, &route, "under a lease", &answer, Verdict::Leased);
    }
}

/// A role that was taken away, and a key that was deleted, are good for nothing any more.
pub async fn revoked<P: Protocol>(world: &World, protocol: &P) {
    let owner = world.key(Scope::Manage).await;
    let friend = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "taken-back").await;
    world.grant(&on, &friend, Role::Manage).await;
    let shown = protocol.shown(world, &friend, &on);
    world.engine.revoke(&on.sandbox, friend.id.as_str()).await.expect("a role taken away");
    for route in protocol.routes().into_iter().filter(|route| route.about != About::Server) {
        let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
        expect(protocol, &route, "without its role", &answer, protocol.hides_as());
    }
    world.engine.delete_key(friend.id.as_str()).await.expect("a deleted key");
    for route in protocol.routes() {
        let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
        expect(protocol, &route, "with a deleted key", &answer, Verdict::NoKey);
    }
}
