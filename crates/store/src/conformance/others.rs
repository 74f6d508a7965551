//! What must hold for templates, keys and registries.

use std::collections::BTreeSet;

use atoll_core::id::{KeyId, TemplateId};
use atoll_core::pool::PoolSpec;
use atoll_core::spec::TemplateSpec;
use futures::future::join_all;

use crate::{KeyRecord, PoolRecord, RegistryRecord, Store, StoreError, TemplateRecord};

fn template(n: u64, name: &str) -> TemplateRecord {
    TemplateRecord {
        id: TemplateId::from_parts(n, n),
        name: name.to_owned(),
        version: 0,
        spec: TemplateSpec::new(format!("image-{n}")),
        created_ms: n,
        created_by: None,
    }
}

pub(super) async fn templates_count_versions(store: &Store) {
    for (n, name, version) in [(1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "a", 3)] {
        assert_eq!(store.insert_template(&template(n, name)).await.unwrap(), version);
    }
    assert!(matches!(store.insert_template(&template(1, "a")).await, Err(StoreError::AlreadyExists)));
    let newest = TemplateRecord { version: 3, ..template(4, "a") };
    assert_eq!(store.template("a", None).await.unwrap(), Some(newest));
    let exact = TemplateRecord { version: 2, ..template(2, "a") };
    assert_eq!(store.template("a", Some(2)).await.unwrap(), Some(exact));
    assert_eq!(store.template("a", Some(9)).await.unwrap(), None);
    assert_eq!(store.template("c", None).await.unwrap(), None);
    let listed = store.list_templates(None).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|record| (record.name.as_str(), record.version)).collect();
    assert_eq!(listed, [("a", 3), ("a", 2), ("a", 1), ("b", 1)]);
    assert_eq!(store.list_templates(Some("b")).await.unwrap().len(), 1);
    // A number that was given out means nothing else later; a failed insertion used none up.
    assert_eq!(store.delete_template("a", Some(3)).await.unwrap(), 1);
    assert_eq!(store.delete_template("a", Some(3)).await.unwrap(), 0);
    assert_eq!(store.insert_template(&template(5, "a")).await.unwrap(), 4);
    assert_eq!(store.delete_template("a", None).await.unwrap(), 3);
    assert_eq!(store.insert_template(&template(6, "a")).await.unwrap(), 5);
}

pub(super) async fn racing_templates_get_distinct_versions(store: &Store) {
    let records: Vec<_> = (0..32).map(|n| template(n, "a")).collect();
    let versions = join_all(records.iter().map(|record| store.insert_template(record))).await;
    let versions: BTreeSet<_> = versions.into_iter().map(Result::unwrap).collect();
    assert_eq!(versions, (1..=32).collect());
}

pub(super) async fn keys(store: &Store) {
    let key = |n: u8| KeyRecord {
        id: KeyId::from_parts(n.into(), n.into()),
        name: format!("key {n}"),
        hash: vec![n; 32],
        scopes: vec!["all".to_owned(), "ü".to_owned()],
        created_ms: n.into(),
        expires_ms: (n == 1).then_some(99),
        last_used_ms: None,
    };
    for n in [2, 1] {
        store.insert_key(&key(n)).await.unwrap();
    }
    let same_hash = KeyRecord { hash: vec![1; 32], ..key(3) };
    assert!(matches!(store.insert_key(&same_hash).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.list_keys().await.unwrap(), [key(1), key(2)]);
    for (at, expected) in [(5, 5), (3, 5), (8, 8)] {
        store.touch_key(&key(1).id, at).await.unwrap();
        assert_eq!(store.list_keys().await.unwrap()[0].last_used_ms, Some(expected));
    }
    assert!(store.delete_key(&key(1).id).await.unwrap());
    assert!(!store.delete_key(&key(1).id).await.unwrap());
    assert_eq!(store.list_keys().await.unwrap(), [key(2)]);
}

pub(super) async fn registries(store: &Store) {
    let registry = |host: &str, ms: u64| RegistryRecord {
        host: host.to_owned(),
        name: None,
        username: format!("user {ms}"),
        sealed: vec![0, 255, u8::try_from(ms).unwrap()],
        updated_ms: ms,
    };
    store.put_registry(&registry("b:5000", 1)).await.unwrap();
    store.put_registry(&registry("a", 2)).await.unwrap();
    store.put_registry(&registry("b:5000", 3)).await.unwrap();
    assert_eq!(store.registry("b:5000").await.unwrap(), Some(registry("b:5000", 3)));
    assert_eq!(store.registry("c").await.unwrap(), None);
    assert_eq!(store.list_registries().await.unwrap(), [registry("a", 2), registry("b:5000", 3)]);
    assert!(store.delete_registry("a").await.unwrap());
    assert!(!store.delete_registry("a").await.unwrap());
}

pub(super) async fn pools(store: &Store) {
    let pool = |name: &str, count: u32| PoolRecord {
        name: name.to_owned(),
        spec: PoolSpec::fixed(count),
        updated_ms: count.into(),
    };
    store.put_pool(&pool("template:web", 1)).await.unwrap();
    store.put_pool(&pool("image:host", 2)).await.unwrap();
    store.put_pool(&pool("template:web", 3)).await.unwrap();
    assert_eq!(store.list_pools().await.unwrap(), [pool("image:host", 2), pool("template:web", 3)]);
    assert!(store.delete_pool("image:host").await.unwrap());
    assert!(!store.delete_pool("image:host").await.unwrap());
    assert_eq!(store.list_pools().await.unwrap(), [pool("template:web", 3)]);
}
