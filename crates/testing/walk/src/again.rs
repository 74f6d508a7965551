//! A creation that a client sends again with the same key, to the next server.

use atoll_core::Code;
use atoll_core::access::{AccessDraft, Target};
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;

use crate::{Call, Key, World};

/// A repeated creation finds the sandbox that the first one made, and changes nothing of it. Ports that were closed meanwhile, under
/// the lease of another key, stay closed; and though they could not be opened, as the sandbox has all the accesses that it
/// may have when it is `full`, the sandbox stays.
///
/// `create` opens ports, and has the same key of the request each time; `made` reads the sandbox's id from the answer.
pub async fn repeated(
    world: World,
    full: bool,
    create: impl Fn(&Key) -> Call,
    made: impl Fn(&[u8]) -> SandboxId,
) {
    let (owner, other) = (world.key(Scope::Manage).await, world.key(Scope::Manage).await);
    let (status, body) = world.send(create(&owner)).await;
    assert!(status < 300, "{status}: {}", String::from_utf8_lossy(&body));
    let id = made(&body);
    let opened = world.engine.accesses(&id).expect("it is there");
    assert!(!opened.is_empty(), "its ports are open");
    for access in opened {
        world.engine.revoke_access(&id, access.id.as_str()).await.expect("it is closed");
    }
    world.engine.take_lease(&id, &other.caller, 600_000).await.expect("a lease");
    let left = if full { fill(&world, &id, &other).await } else { 0 };
    let world = world.restarted().await;
    let (status, body) = world.send(create(&owner)).await;
    assert!(status < 300, "{status}: {}", String::from_utf8_lossy(&body));
    assert_eq!(made(&body), id);
    assert_eq!(world.engine.accesses(&id).expect("it is still there").len(), left);
}

/// Gives a sandbox as many accesses as it may have, each with a token; says how many.
async fn fill(world: &World, id: &SandboxId, by: &Key) -> usize {
    let mut made = 0;
    loop {
        let draft = AccessDraft { target: Target::Port(1), public: false, name: None, ttl_ms: None };
        match world.engine.create_access(id, draft, &by.caller).await {
            Ok(_) => made += 1,
            Err(error) if error.code == Code::LimitExceeded => return made,
            Err(error) => panic!("{error:?}"),
        }
    }
}
