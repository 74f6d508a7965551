//! What must hold for templates, keys and registries.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::id::{KeyId, SandboxId, TemplateId, VolumeId};
use atoll_core::person::Person;
use atoll_core::pool::PoolSpec;
use atoll_core::sharing::{Lease, Role, Visibility};
use atoll_core::spec::TemplateSpec;
use atoll_core::volume::VolumeState;
use futures::future::join_all;

use super::sandbox;
use crate::{
    KeyKind, KeyRecord, Login, LoginBy, PoolRecord, RegistryRecord, SandboxFilter, SandboxRecord, Store,
    StoreError, TemplateRecord, VisibleTo, VolumeRecord,
};

pub(super) fn template(n: u64, name: &str) -> TemplateRecord {
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
        project: None,
        created_ms: n.into(),
        expires_ms: (n == 1).then_some(99),
        last_used_ms: None,
        kind: KeyKind::Key,
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

/// Somebody, and a login of theirs.
pub(super) fn person_and_login(n: u8) -> (KeyRecord, KeyRecord) {
    let row = |n: u8, name: &str, kind| KeyRecord {
        id: KeyId::from_parts(n.into(), n.into()),
        name: name.to_owned(),
        hash: vec![n; 32],
        scopes: Vec::new(),
        project: None,
        created_ms: n.into(),
        expires_ms: Some(90),
        last_used_ms: None,
        kind,
    };
    let issuer = "https://id.example.com".to_owned();
    let person = Person { issuer, subject: n.to_string(), email: None, claims: BTreeMap::new() };
    let login = Login { person: KeyId::from_parts(0, 0), by: LoginBy::Dashboard, exchange: vec![n] };
    (
        row(n, &format!("person {n}"), KeyKind::Person(person)),
        row(n + 1, &format!("login {n}"), KeyKind::Login(login)),
    )
}

pub(super) async fn people(store: &Store) {
    let row = |n: u8, expires_ms: u64, kind| KeyRecord {
        id: KeyId::from_parts(n.into(), n.into()),
        name: format!("row {n}"),
        hash: vec![n; 32],
        scopes: Vec::new(),
        project: None,
        created_ms: n.into(),
        expires_ms: Some(expires_ms),
        last_used_ms: None,
        kind,
    };
    let ann = |n: u8, expires_ms: u64, email: &str| {
        let claims = BTreeMap::from([("groups".to_owned(), vec![format!("g{n}")])]);
        let (issuer, subject) = ("https://id.example.com".to_owned(), "1".to_owned());
        let person = Person { issuer, subject, email: Some(email.to_owned()), claims };
        KeyRecord { hash: vec![200; 32], ..row(n, expires_ms, KeyKind::Person(person)) }
    };
    let login = |n: u8, expires_ms: u64, exchange: u8| {
        let of = KeyId::from_parts(0, 0);
        let login = Login { person: of, by: LoginBy::Dashboard, exchange: vec![exchange] };
        row(n, expires_ms, KeyKind::Login(login))
    };
    let logins = |rows: Vec<KeyRecord>| -> Vec<u64> {
        let of =
            |row: &KeyRecord| matches!(&row.kind, KeyKind::Login(login) if login.person == ann(1, 0, "").id);
        rows.iter().filter(|row| of(row)).map(|row| row.created_ms).collect()
    };
    let first = store.log_in(&ann(1, 50, "a@example.com"), &login(2, 50, 2), 3).await.unwrap();
    assert_eq!(first, ann(1, 50, "a@example.com"));
    // The same person: what the issuer says now, under the id that it had. A shorter login ends no longer one.
    let again = store.log_in(&ann(3, 40, "b@example.com"), &login(4, 40, 4), 3).await.unwrap();
    let KeyKind::Person(person) = ann(3, 0, "b@example.com").kind else { unreachable!("it is a person") };
    let expected = KeyRecord { name: "row 3".to_owned(), kind: KeyKind::Person(person), ..first.clone() };
    assert_eq!(again, expected);
    let twice = store.log_in(&ann(5, 90, "c@example.com"), &login(6, 90, 4), 3).await;
    assert!(matches!(twice, Err(StoreError::AlreadyExists)));
    assert_eq!(store.list_keys().await.unwrap()[0], again, "what was refused changed nothing");
    // The oldest login makes room, and expired logins go.
    for n in [7, 8] {
        store.log_in(&ann(n, 90, "c@example.com"), &login(n, 90, n), 3).await.unwrap();
    }
    assert_eq!(logins(store.list_keys().await.unwrap()), [4, 7, 8]);
    store.log_in(&ann(45, 95, "c@example.com"), &login(45, 95, 45), 9).await.unwrap();
    assert_eq!(logins(store.list_keys().await.unwrap()), [7, 8, 45]);
    // The person lasts as long as the last login.
    store.end_logins(&first.id, Some(&login(45, 0, 0).id), 60).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap()[0].expires_ms, Some(90));
    store.end_logins(&first.id, None, 60).await.unwrap();
    let left = store.list_keys().await.unwrap();
    assert!(left.len() == 1 && left[0].expires_ms == Some(60) && left[0].id == first.id, "{left:?}");
    store.log_in(&ann(70, 99, "d@example.com"), &login(71, 99, 71), 9).await.unwrap();
    assert!(store.delete_key(&first.id).await.unwrap());
    assert!(store.list_keys().await.unwrap().is_empty(), "logins go with their person");
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

pub(super) async fn access(store: &Store) {
    let key = |n: u8| KeyRecord {
        id: KeyId::from_parts(n.into(), n.into()),
        name: format!("key {n}"),
        hash: vec![n; 32],
        scopes: vec!["manage".to_owned()],
        project: None,
        created_ms: n.into(),
        expires_ms: None,
        last_used_ms: None,
        kind: KeyKind::Key,
    };
    let [owner, friend, other] = [1, 2, 3].map(key);
    for one in [&owner, &friend, &other] {
        store.insert_key(one).await.unwrap();
    }
    let own = SandboxRecord { owner: Some(owner.id.clone()), ..sandbox(1, 1) };
    let free = sandbox(2, 2);
    store.insert_sandbox(&own).await.unwrap();
    store.insert_sandbox(&free).await.unwrap();
    store.put_grant(&own.id, &friend.id, Role::Read).await.unwrap();
    store.put_grant(&own.id, &friend.id, Role::Exec).await.unwrap();
    store.set_visibility(&free.id, Some(Visibility::Shared)).await.unwrap();
    let lease =
        |n: u64| Lease { key: other.id.clone(), holder: format!("h{n}"), taken_ms: n, expires_ms: n + 1 };
    store.put_lease(&own.id, &lease(1)).await.unwrap();
    store.put_lease(&own.id, &lease(2)).await.unwrap();
    let nobody = SandboxId::from_parts(9, 9);
    assert!(matches!(store.put_grant(&nobody, &friend.id, Role::Read).await, Err(StoreError::NotFound)));
    assert!(matches!(store.put_lease(&nobody, &lease(1)).await, Err(StoreError::NotFound)));

    let all = store.list_access().await.unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[&own.id].grants, [(friend.id.clone(), Role::Exec)].into());
    assert_eq!((all[&own.id].visibility, all[&own.id].lease.clone()), (None, Some(lease(2))));
    assert_eq!(all[&free.id].visibility, Some(Visibility::Shared));

    let seen = async |key: &KeyRecord, default| {
        let visible_to = Some(VisibleTo { key: key.id.clone(), project: None, default });
        let filter = SandboxFilter { visible_to, ..SandboxFilter::default() };
        let page = store.list_sandboxes(&filter, None, 10).await.unwrap();
        page.items.into_iter().map(|record| record.id).collect::<Vec<_>>()
    };
    let both = vec![free.id.clone(), own.id.clone()];
    for (one, default, expected) in [
        (&owner, Visibility::Private, &both),
        (&friend, Visibility::Private, &both),
        (&other, Visibility::Private, &vec![free.id.clone()]),
        (&other, Visibility::Shared, &both),
    ] {
        assert_eq!(seen(one, default).await, *expected, "{} {default:?}", one.name);
    }
    store.set_visibility(&free.id, None).await.unwrap();
    assert!(seen(&other, Visibility::Private).await.is_empty());

    // Grants and visibility go with the key and with the sandbox.
    assert!(store.delete_key(&friend.id).await.unwrap());
    assert!(!store.delete_grant(&own.id, &friend.id).await.unwrap());
    assert!(store.delete_lease(&own.id).await.unwrap());
    assert!(!store.delete_lease(&own.id).await.unwrap());
    store.put_lease(&own.id, &lease(3)).await.unwrap();
    assert!(store.delete_sandbox(&own.id).await.unwrap());
    assert!(store.list_access().await.unwrap().is_empty());
}

pub(super) async fn volumes(store: &Store) {
    let volume = |n: u64, name: &str| VolumeRecord {
        id: VolumeId::from_parts(n, n),
        name: name.to_owned(),
        project: None,
        state: VolumeState::Creating,
        size_bytes: 1 << 30,
        source: (n == 1).then(|| "other".to_owned()),
        read_only: n == 1,
        owner: (n == 1).then(|| KeyId::from_parts(1, 1)),
        created_ms: n,
    };
    store.insert_volume(&volume(1, "b")).await.unwrap();
    store.insert_volume(&volume(2, "a")).await.unwrap();
    assert!(matches!(store.insert_volume(&volume(3, "a")).await, Err(StoreError::NameTaken)));
    assert!(store.set_volume_state(&volume(2, "a").id, VolumeState::Ready).await.unwrap());
    assert!(!store.set_volume_state(&volume(9, "a").id, VolumeState::Ready).await.unwrap());
    let second = VolumeRecord { state: VolumeState::Ready, ..volume(2, "a") };
    assert_eq!(store.list_volumes().await.unwrap(), [second, volume(1, "b")]);
    assert!(store.delete_volume(&volume(2, "a").id).await.unwrap());
    assert!(!store.delete_volume(&volume(2, "a").id).await.unwrap());
    store.insert_volume(&volume(4, "a")).await.unwrap();
}
