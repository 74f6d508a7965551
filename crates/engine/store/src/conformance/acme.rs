//! What must hold for certificates of servers of ACME.

use crate::{SealedValue, Store};

pub(super) async fn a_state_is_changed_by_one(store: &Store) {
    assert_eq!(store.acme("a").await.unwrap(), None);
    assert!(store.set_acme("a", "one", 0, None).await.unwrap());
    assert!(!store.set_acme("a", "two", 0, None).await.unwrap(), "it is there already");
    assert_eq!(store.acme("a").await.unwrap(), Some(("one".to_owned(), 1)));
    let sealed = |byte: u8| SealedValue {
        name: "certificate".to_owned(),
        visible: format!("chain {byte}"),
        sealed: vec![byte],
        created_ms: byte.into(),
    };
    assert!(store.set_acme("a", "two", 1, Some(&sealed(1))).await.unwrap());
    assert!(!store.set_acme("a", "three", 1, Some(&sealed(2))).await.unwrap(), "somebody was faster");
    assert_eq!(store.sealed_value("certificate").await.unwrap(), Some(sealed(1)), "nothing of it is there");
    assert!(store.set_acme("a", "three", 2, Some(&sealed(3))).await.unwrap());
    assert_eq!(store.sealed_value("certificate").await.unwrap(), Some(sealed(3)));
    assert_eq!(store.acme("a").await.unwrap(), Some(("three".to_owned(), 3)));
    assert_eq!(store.acme("b").await.unwrap(), None);
}
