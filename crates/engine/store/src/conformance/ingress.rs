//! What must hold for accesses and SSH keys.

use atoll_core::access::Target;
use atoll_core::id::{AccessId, KeyId, SshKeyId};

use crate::{AccessRecord, KeyKind, KeyRecord, SshKeyRecord, Store, StoreError};

pub(super) async fn accesses(store: &Store) {
    let (one, two) = (super::sandbox(1, 1), super::sandbox(2, 2));
    store.insert_sandbox(&one).await.unwrap();
    store.insert_sandbox(&two).await.unwrap();
    let access = |n: u8, sandbox: &crate::SandboxRecord, target| AccessRecord {
        id: AccessId::from_parts(n.into(), n.into()),
        sandbox: sandbox.id.clone(),
        target,
        name: (n == 1).then(|| "ü".to_owned()),
        hash: (n != 2).then(|| vec![n; 32]),
        created_ms: n.into(),
        created_by: None,
        expires_ms: (n == 3).then_some(99),
    };
    let file = Target::File { path: "/ä b".to_owned(), media_type: None, inline: true };
    let all = [access(1, &one, Target::Port(80)), access(2, &two, Target::Ports), access(3, &one, file)];
    for record in &all {
        store.insert_access(record).await.unwrap();
    }
    assert_eq!(store.list_accesses().await.unwrap(), all);
    let nowhere = access(4, &super::sandbox(9, 9), Target::Ports);
    assert!(matches!(store.insert_access(&nowhere).await, Err(StoreError::NotFound)));
    store.prune_accesses(98).await.unwrap();
    assert_eq!(store.list_accesses().await.unwrap().len(), 3);
    store.prune_accesses(99).await.unwrap();
    assert_eq!(store.list_accesses().await.unwrap(), all[..2]);
    assert!(store.delete_sandbox(&two.id).await.unwrap());
    assert_eq!(store.list_accesses().await.unwrap(), all[..1]);
    assert!(store.delete_access(&all[0].id).await.unwrap());
    assert!(!store.delete_access(&all[0].id).await.unwrap());
}

pub(super) async fn ssh_keys(store: &Store) {
    let owner = KeyRecord {
        id: KeyId::from_parts(1, 1),
        name: "k".to_owned(),
        hash: vec![1; 32],
        scopes: vec!["exec".to_owned()],
        project: None,
        created_ms: 1,
        expires_ms: None,
        last_used_ms: None,
        kind: KeyKind::Key,
    };
    let key = |n: u8| SshKeyRecord {
        id: SshKeyId::from_parts(n.into(), n.into()),
        name: "laptop".to_owned(),
        public_key: format!("ssh-ed25519 AAAA{n}"),
        fingerprint: format!("SHA256:{n}"),
        owner: owner.id.clone(),
        created_ms: n.into(),
        expires_ms: (n == 2).then_some(50),
    };
    assert!(matches!(store.insert_ssh_key(&key(1)).await, Err(StoreError::NotFound)));
    store.insert_key(&owner).await.unwrap();
    for n in [1, 2, 3] {
        store.insert_ssh_key(&key(n)).await.unwrap();
    }
    let twin = SshKeyRecord { fingerprint: "SHA256:1".to_owned(), ..key(4) };
    assert!(matches!(store.insert_ssh_key(&twin).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.ssh_key("SHA256:2").await.unwrap(), Some(key(2)));
    store.prune_ssh_keys(60).await.unwrap();
    assert_eq!(store.ssh_key("SHA256:2").await.unwrap(), None);
    assert!(store.delete_ssh_key(&key(1).id).await.unwrap());
    assert!(!store.delete_ssh_key(&key(1).id).await.unwrap());
    assert_eq!(store.list_ssh_keys().await.unwrap(), [key(3)]);
    assert!(store.delete_key(&owner.id).await.unwrap());
    assert_eq!(store.list_ssh_keys().await.unwrap(), []);
}
