//! What must hold for contexts of code interpreters.

use std::collections::BTreeMap;

use atoll_core::code::ContextSpec;
use atoll_core::id::ContextId;

use crate::{ContextRecord, Store, StoreError};

pub(super) async fn life(store: &Store) {
    let (one, two) = (super::sandbox(1, 1), super::sandbox(2, 2));
    store.insert_sandbox(&one).await.unwrap();
    store.insert_sandbox(&two).await.unwrap();
    let context = |n: u8, sandbox: &crate::SandboxRecord, name: Option<&str>| ContextRecord {
        id: ContextId::from_parts(n.into(), n.into()),
        sandbox: sandbox.id.clone(),
        name: name.map(str::to_owned),
        spec: ContextSpec {
            language: "python".to_owned(),
            cwd: Some("/hömë".to_owned()),
            env: BTreeMap::from([("A".to_owned(), "'b'".to_owned())]),
        },
        created_ms: n.into(),
    };
    let all = [
        context(1, &one, None),
        context(2, &one, Some("a")),
        context(3, &one, None),
        context(4, &two, Some("a")),
    ];
    for record in &all {
        store.insert_context(record).await.unwrap();
    }
    let again = store.insert_context(&context(5, &one, Some("a"))).await;
    assert!(matches!(again, Err(StoreError::NameTaken)));
    let nowhere = store.insert_context(&context(6, &super::sandbox(9, 9), None)).await;
    assert!(matches!(nowhere, Err(StoreError::NotFound)));
    assert_eq!(store.list_contexts(&one.id).await.unwrap(), all[..3]);
    assert_eq!(store.context(&one.id, "a").await.unwrap().as_ref(), Some(&all[1]));
    assert_eq!(store.context(&two.id, "a").await.unwrap().as_ref(), Some(&all[3]));
    assert_eq!(store.context(&one.id, all[2].id.as_str()).await.unwrap().as_ref(), Some(&all[2]));
    assert_eq!(store.context(&two.id, all[2].id.as_str()).await.unwrap(), None, "of another sandbox");
    assert!(store.delete_context(&all[2].id).await.unwrap());
    assert!(!store.delete_context(&all[2].id).await.unwrap());
    assert!(store.delete_sandbox(&two.id).await.unwrap());
    assert_eq!(store.list_contexts(&two.id).await.unwrap(), [], "they go with their sandbox");
}
