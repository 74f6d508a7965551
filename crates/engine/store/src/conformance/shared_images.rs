//! What must hold for images that every node can have.

use std::collections::BTreeSet;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::Purpose;

use super::sandbox;
use crate::{SandboxRecord, SharedImage, SharedLayer, SharedSnapshot, Store, StoreError};

fn image(digest: &str, names: &[(&str, u64)]) -> SharedImage {
    SharedImage {
        digest: digest.to_owned(),
        document: format!("of {digest}"),
        names: names.iter().map(|(name, said_ms)| ((*name).to_owned(), *said_ms)).collect(),
    }
}

fn layers(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|layer| (*layer).to_owned()).collect()
}

pub(super) async fn life(store: &Store) {
    store.begin_image_uploads("first").await.unwrap();
    store.begin_image_uploads("second").await.unwrap();
    let one = image("sha256:aa1", &[("app:1", 10), ("app:latest", 10)]);
    let early = store.put_shared_image(&one, &layers(&["l1"]), 1).await;
    assert!(matches!(early, Err(StoreError::NotFound)), "not before its layers: {early:?}");
    assert_eq!(store.shared_layer("l1").await.unwrap(), None);
    assert_eq!(store.put_shared_layer("l1", "u1", 7).await.unwrap(), "u1");
    assert_eq!(store.put_shared_layer("l1", "u2", 7).await.unwrap(), "u1", "the first stays");
    let layer = |bytes, is_doubted| Some(SharedLayer { upload: "u1".to_owned(), bytes, is_doubted });
    assert_eq!(store.shared_layer("l1").await.unwrap(), layer(7, false));
    // A lost layer is sent again, by any node that has it.
    assert!(!store.doubt_shared_layer("l1", "u2").await.unwrap(), "it is in another");
    assert!(store.doubt_shared_layer("l1", "u1").await.unwrap());
    assert_eq!(store.shared_layer("l1").await.unwrap(), layer(7, true));
    assert!(!store.doubt_shared_layer("l1", "u1").await.unwrap());
    assert_eq!(store.put_shared_layer("l1", "u1", 8).await.unwrap(), "u1");
    assert_eq!(store.put_shared_layer("l1", "u2", 7).await.unwrap(), "u1");
    assert_eq!(store.shared_layer("l1").await.unwrap(), layer(8, false));
    store.put_shared_layer("l2", "u2", 7).await.unwrap();
    for _ in 0..2 {
        assert_eq!(store.put_shared_image(&one, &layers(&["l1", "l2"]), 1).await.unwrap(), 2);
    }

    // A name belongs to the image that was given it last, in whatever order the nodes report it; both images share a
    // layer.
    let two = image("sha256:ab2", &[("app:latest", 12)]);
    assert_eq!(store.put_shared_image(&two, &layers(&["l1"]), 2).await.unwrap(), 1);
    let late = image("sha256:ac3", &[("app:latest", 11)]);
    assert_eq!(store.put_shared_image(&late, &layers(&["l1"]), 2).await.unwrap(), 0);
    assert_eq!(store.put_shared_image(&one, &layers(&["l1", "l2"]), 2).await.unwrap(), 1);
    let one = image("sha256:aa1", &[("app:1", 10)]);
    assert_eq!(store.shared_images().await.unwrap(), [one.clone(), two.clone()]);
    let find = async |names: &[&str], digest| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        store.find_shared_images(&names, digest).await.unwrap()
    };
    assert_eq!(find(&["app:latest", "other"], None).await, std::slice::from_ref(&two));
    assert_eq!(find(&[], Some("sha256:aa")).await, std::slice::from_ref(&one));
    assert_eq!(find(&["app:1"], Some("sha256:ab2")).await, [one, two]);
    assert!(find(&[], Some("sha256:%")).await.is_empty());
    assert!(find(&[], None).await.is_empty());
    let index = store.shared_index().await.unwrap();
    assert_eq!(index.names["app:latest"], "sha256:ab2");
    assert_eq!(index.digests, layers(&["sha256:aa1", "sha256:ab2"]));

    let standing = SandboxRecord { image_digest: Some("sha256:ab2".to_owned()), ..sandbox(1, 1) };
    store.insert_sandbox(&standing).await.unwrap();
    assert!(store.is_image_used("sha256:ab2").await.unwrap());
    assert!(!store.is_image_used("sha256:aa1").await.unwrap());

    // A layer that an image needs stays. A layer that no image needs goes, unless another living node has sent it.
    assert_eq!(store.forget_unused_layers("u2").await.unwrap(), 0);
    assert!(!store.remove_shared_name("app:1", "sha256:ab2", 20).await.unwrap(), "another's");
    assert!(store.remove_shared_name("app:1", "sha256:aa1", 20).await.unwrap());
    assert!(store.remove_shared_image("sha256:aa1", 20).await.unwrap());
    assert!(!store.remove_shared_image("sha256:aa1", 20).await.unwrap());
    // A node that was away meanwhile does not bring the image back; a client that gives the name once more does.
    let one = image("sha256:aa1", &[("app:1", 10)]);
    assert_eq!(store.put_shared_image(&one, &layers(&["l1", "l2"]), 3).await.unwrap(), 0);
    assert!(!store.shared_index().await.unwrap().digests.contains("sha256:aa1"));
    let again = image("sha256:aa1", &[("app:1", 21)]);
    assert_eq!(store.put_shared_image(&again, &layers(&["l1", "l2"]), 3).await.unwrap(), 1);
    assert!(store.remove_shared_image("sha256:aa1", 22).await.unwrap());
    assert_eq!(store.forget_removed_names(22).await.unwrap(), 0);
    assert_eq!(store.forget_removed_names(23).await.unwrap(), 1);
    assert_eq!(store.forget_unused_layers("u2").await.unwrap(), 1);
    let left = store.shared_objects().await.unwrap();
    assert_eq!(left.layers, BTreeSet::from([("l1".to_owned(), "u1".to_owned())]));
    assert!(left.uploads.is_empty(), "nobody is a node here");
    // A disk of a template is there as long as its snapshot.
    let snapshot = SnapshotId::from_parts(1, 1);
    let there = SharedSnapshot { upload: "u1".to_owned(), digest: "blake3:1".to_owned() };
    let early = store.put_shared_snapshot(&snapshot, &there, 7).await;
    assert!(matches!(early, Err(StoreError::NotFound)), "{early:?}");
    assert_eq!(store.shared_snapshot(&snapshot).await.unwrap(), None);
    let made = super::snapshots::snapshot(1, Purpose::Snapshot);
    store.insert_snapshot(&made).await.unwrap();
    store.put_shared_snapshot(&made.id, &there, 7).await.unwrap();
    assert_eq!(store.shared_snapshot(&made.id).await.unwrap(), Some(there.clone()));
    assert_eq!(store.shared_index().await.unwrap().snapshots, BTreeSet::from([made.id.clone()]));
    store.remove_shared_snapshot(&made.id).await.unwrap();
    assert_eq!(store.shared_snapshot(&made.id).await.unwrap(), None);
    store.put_shared_snapshot(&made.id, &there, 7).await.unwrap();
    store.delete_snapshot(&made.id).await.unwrap();
    assert_eq!(store.shared_snapshot(&made.id).await.unwrap(), None);

    let used = store.remove_shared_image("sha256:ab2", 30).await;
    assert!(matches!(used, Err(StoreError::Conflict)), "a sandbox stands on it: {used:?}");
    assert_eq!(store.shared_index().await.unwrap().names["app:latest"], "sha256:ab2", "it keeps its names");
    store.delete_sandbox(&standing.id).await.unwrap();
    assert!(store.remove_shared_image("sha256:ab2", 30).await.unwrap());
    assert_eq!(store.shared_index().await.unwrap(), Default::default());
}
