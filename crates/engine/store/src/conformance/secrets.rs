//! Secrets: versions, owners, sealed values, uses.

use atoll_core::id::SecretId;
use atoll_core::policy::SecretScope;

use super::sandbox;
use crate::{
    RegistryRecord, SealedAt, SealedValue, SecretRecord, SecretUse, SecretVersion, Store, StoreError,
};

pub(super) fn version(n: u32) -> SecretVersion {
    SecretVersion { version: n, sealed: vec![0, 255, u8::try_from(n).unwrap()], created_ms: u64::from(n) }
}

pub(super) fn secret(n: u64, name: &str) -> SecretRecord {
    SecretRecord {
        id: SecretId::from_parts(n, n),
        sandbox: None,
        project: None,
        name: name.to_owned(),
        scope: SecretScope {
            hosts: vec!["*.example.com".parse().unwrap()],
            templates: vec!["t".to_owned()],
            sandboxes: Vec::new(),
            keys: Vec::new(),
        },
        note: "a note".to_owned(),
        created_ms: n,
        created_by: None,
        versions: vec![version(1)],
    }
}

pub(super) async fn versions(store: &Store) {
    let mut first = secret(1, "B");
    let other = secret(2, "A");
    store.insert_secret(&first).await.unwrap();
    store.insert_secret(&other).await.unwrap();
    assert!(matches!(store.insert_secret(&secret(3, "A")).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.list_secrets().await.unwrap(), [other.clone(), first.clone()]);
    for n in 2..=5 {
        first.note = format!("note {n}");
        store.add_secret_version(&first, &version(n), 3).await.unwrap();
    }
    assert!(matches!(store.add_secret_version(&first, &version(5), 3).await, Err(StoreError::AlreadyExists)));
    first.versions = (3..=5).map(version).collect();
    assert_eq!(store.list_secrets().await.unwrap(), [other.clone(), first.clone()]);
    first.scope.templates.clear();
    store.update_secret(&first).await.unwrap();
    assert_eq!(store.list_secrets().await.unwrap()[1], first);
    assert!(store.delete_secret(&first.id).await.unwrap());
    assert!(!store.delete_secret(&first.id).await.unwrap());
    assert!(matches!(store.update_secret(&first).await, Err(StoreError::NotFound)));
    assert_eq!(store.list_secrets().await.unwrap(), [other]);
}

pub(super) async fn those_of_a_sandbox_go_with_it(store: &Store) {
    let parent = sandbox(1, 1);
    let own = SecretRecord { sandbox: Some(parent.id.clone()), ..secret(1, "A") };
    assert!(matches!(store.insert_secret(&own).await, Err(StoreError::NotFound)));
    store.insert_sandbox(&parent).await.unwrap();
    store.insert_secret(&own).await.unwrap();
    let shared = secret(2, "A");
    store.insert_secret(&shared).await.unwrap();
    assert_eq!(store.list_secrets().await.unwrap(), [shared.clone(), own]);
    assert!(store.delete_sandbox(&parent.id).await.unwrap());
    assert_eq!(store.list_secrets().await.unwrap(), [shared]);
}

pub(super) async fn sealed_values_change_where_they_are(store: &Store) {
    let own = |sealed: &[u8]| SealedValue {
        name: "ca".to_owned(),
        visible: "certificate".to_owned(),
        sealed: sealed.to_vec(),
        created_ms: 7,
    };
    store.insert_sealed_value(&own(&[1])).await.unwrap();
    store.insert_sealed_value(&own(&[2])).await.unwrap();
    assert_eq!(store.sealed_value("ca").await.unwrap(), Some(own(&[1])), "the first stands");
    assert_eq!(store.sealed_value("other").await.unwrap(), None);
    store.insert_secret(&secret(1, "A")).await.unwrap();
    let registry = RegistryRecord {
        host: "r".to_owned(),
        name: None,
        username: "u".to_owned(),
        sealed: vec![3],
        updated_ms: 1,
    };
    store.put_registry(&registry).await.unwrap();
    let all = store.list_sealed().await.unwrap();
    assert_eq!(all.len(), 3);
    for (at, old) in &all {
        store.replace_sealed(at, b"not what is there", b"x").await.unwrap();
        let new = [b"new".as_slice(), old].concat();
        store.replace_sealed(at, old, &new).await.unwrap();
        let now = store.list_sealed().await.unwrap();
        assert!(now.contains(&(at.clone(), new)), "{at:?}");
    }
    assert!(all.iter().any(|(at, _)| matches!(at, SealedAt::Own { name } if name == "ca")));
}

pub(super) async fn uses(store: &Store) {
    let one = |n: u64, name: &str| SecretUse {
        id: format!("{n:04}"),
        at_ms: n / 2,
        secret: name.to_owned(),
        version: 3,
        sandbox: atoll_core::id::SandboxId::from_parts(n % 2, 0),
        project: None,
        host: "h".to_owned(),
        method: "GET".to_owned(),
        path: "/p".to_owned(),
        rule: "r".to_owned(),
    };
    let all: Vec<_> = (0..6).map(|n| one(n, if n < 3 { "A" } else { "B" })).collect();
    store.insert_secret_uses(&all).await.unwrap();
    let newest_first: Vec<_> = all.iter().rev().cloned().collect();
    assert_eq!(store.list_secret_uses(None, None, 10).await.unwrap(), newest_first);
    assert_eq!(store.list_secret_uses(Some("A"), None, 10).await.unwrap(), newest_first[3..]);
    let of_one = store.list_secret_uses(None, Some(&all[1].sandbox), 2).await.unwrap();
    assert_eq!(of_one, [all[5].clone(), all[3].clone()]);
    assert_eq!(store.prune_secret_uses(4).await.unwrap(), 2);
    assert_eq!(store.list_secret_uses(None, None, 10).await.unwrap(), newest_first[..4]);
}
