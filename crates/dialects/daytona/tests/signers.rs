//! Signatures on a sandbox: which keys can be behind them.

#![cfg(test)]

use std::cell::RefCell;
use std::collections::BTreeSet;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::sharing::Role;
use atoll_walk::{Call, Key, World};

#[tokio::test]
async fn only_keys_that_may_know_of_a_sandbox_can_have_signed() {
    let world = World::new(&[atoll_dialect_daytona::DIALECT]).await;
    let (owner, invited) = (world.key(Scope::Manage).await, world.key(Scope::Exec).await);
    let (other, admin) = (world.key(Scope::Manage).await, world.key(Scope::Admin).await);
    let project = world.project("elsewhere").await;
    let elsewhere = world.key_of(Scope::Manage, Some(&project)).await;
    let hidden = world.objects(&owner, "hidden").await;
    world.grant(&hidden, &invited, Role::Exec).await;
    let shared = world.shared_objects(&owner, "shared").await.sandbox;
    let is_found = |sandbox: &SandboxId, key: &Key| {
        let found = world.engine.signer(sandbox, |tried| *tried == key.id).unwrap();
        assert!(found.iter().all(|found| *found == key.id));
        found.is_some()
    };
    for (key, of_hidden, of_shared) in [
        (&owner, true, true),
        (&invited, true, true),
        (&admin, true, true),
        (&other, false, true),
        (&elsewhere, false, false),
    ] {
        assert_eq!((is_found(&hidden.sandbox, key), is_found(&shared, key)), (of_hidden, of_shared));
    }
    let tried = RefCell::new(Vec::new());
    let note = |key: &KeyId| {
        tried.borrow_mut().push(key.clone());
        false
    };
    assert_eq!(world.engine.signer(&hidden.sandbox, note).unwrap(), None);
    let tried = tried.into_inner();
    assert_eq!(tried[..2], [owner.id.clone(), invited.id.clone()]);
    let all = BTreeSet::from([&owner.id, &invited.id, &admin.id]);
    assert_eq!(tried.iter().collect::<BTreeSet<_>>(), all);
    world.engine.delete_key(admin.id.as_str()).await.unwrap();
    assert!(!is_found(&hidden.sandbox, &admin));
}

#[tokio::test]
async fn a_wrong_signature_is_refused() {
    let world = World::new(&[atoll_dialect_daytona::DIALECT]).await;
    let owner = world.key(Scope::Manage).await;
    let sandbox = world.objects(&owner, "box").await.sandbox;
    for signature in [format!("v1_{}", "A".repeat(43)), "v1_".to_owned()] {
        let path = format!(
            "/daytona/toolbox/{sandbox}/files/download?path=/etc/hostname&expires=0&signature={signature}"
        );
        let call = Call { method: "GET".to_owned(), path, headers: Vec::new(), body: Vec::new() };
        assert_eq!(world.send(call).await.0, 401, "{signature}");
    }
}
