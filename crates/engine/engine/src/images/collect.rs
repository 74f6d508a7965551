//! Removes objects of layers that no image needs, and of disks that no template does: what a crash left of an upload, what another node
//! had sent before, what is of things that are gone.
//!
//! Objects are listed first, and rows are read afterwards. What is listed, belongs to no row and was sent by no living
//! node will never belong to one: only the node that sent an object writes its row, before it starts anew or is taken
//! over. A living node removes what it sent itself, while it sends nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_core::Result;
use atoll_store::SharedObjects;
use futures::TryStreamExt as _;

use super::Shared;
use crate::engine::Engine;
use crate::errors::{chain, store_error};
use crate::snapshot::objects_error;

/// Objects that are looked at in one go.
const NAMES_MAX_COUNT: usize = 100_000;
/// For how long it is remembered that a name was taken away: a node that was away for longer gives it again.
const NAMES_KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// Of what an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Layer,
    Snapshot,
}

impl Kind {
    const fn directory(self) -> &'static str {
        match self {
            Self::Layer => "layers",
            Self::Snapshot => "snapshots",
        }
    }

    const fn known(self, objects: &SharedObjects) -> &BTreeSet<(String, String)> {
        match self {
            Self::Layer => &objects.layers,
            Self::Snapshot => &objects.snapshots,
        }
    }

    /// What the database calls what has this name there.
    fn row(self, name: &str) -> String {
        match self {
            Self::Layer => format!("sha256:{name}"),
            Self::Snapshot => name.to_owned(),
        }
    }
}

impl Engine {
    /// Looks at all of them.
    pub(crate) async fn collect_shared(&self) {
        let Some(shared) = self.inner.shared_images.clone() else { return };
        let before_ms = self.inner.now_ms().saturating_sub(NAMES_KEPT_MS);
        if let Err(error) = self.inner.store.forget_removed_names(before_ms).await {
            tracing::warn!(%error, "names that were taken away are not forgotten");
        }
        for kind in [Kind::Layer, Kind::Snapshot] {
            match self.collect_of(&shared, kind).await {
                Ok(0) => {}
                Ok(removed) => {
                    tracing::info!(removed, what = kind.directory(), "what nothing needed is removed");
                }
                Err(error) => {
                    tracing::warn!(%error, what = kind.directory(), "what nothing needs cannot be looked for");
                }
            }
        }
    }

    async fn collect_of(&self, shared: &Arc<Shared>, kind: Kind) -> Result<u64> {
        let _turn = shared.sending.lock().await;
        let place = format!("{}/{}", shared.place, kind.directory());
        let (mut names, mut listed) = (shared.objects.list(&place), Vec::new());
        while let Some(name) = names.try_next().await.map_err(|error| objects_error(&error))? {
            listed.extend(parse(&place, &name));
            if listed.len() >= NAMES_MAX_COUNT {
                break;
            }
        }
        let store = &self.inner.store;
        store.forget_unused_layers(&shared.upload).await.map_err(store_error)?;
        let objects = store.shared_objects().await.map_err(store_error)?;
        let mut removed = 0;
        for (what, upload) in listed {
            let is_elsewhere = upload != shared.upload && objects.uploads.contains(&upload);
            if is_elsewhere || kind.known(&objects).contains(&(kind.row(&what), upload.clone())) {
                continue;
            }
            let name = format!("{place}/{what}/{upload}");
            match shared.objects.remove(&name).await {
                Ok(()) => removed += 1,
                Err(error) => {
                    tracing::warn!(name, error = chain(&error), "an object cannot be removed");
                    break;
                }
            }
        }
        Ok(removed)
    }
}

/// What an object is of, and its upload. What has another form is not ours.
fn parse(place: &str, name: &str) -> Option<(String, String)> {
    let mut parts = name.strip_prefix(place)?.strip_prefix('/')?.split('/');
    let found = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    (parts.next().is_none() && is_word(&found.0) && is_word(&found.1)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let place = "images/p/layers";
        assert_eq!(parse(place, "images/p/layers/ab/12"), Some(("ab".to_owned(), "12".to_owned())));
        for other in [
            "images/p/layers/ab",
            "images/p/layers/ab/12/3",
            "images/p/layersab/12",
            "images/p/layers/../12",
            "images/p/layers//12",
        ] {
            assert_eq!(parse(place, other), None, "{other}");
        }
    }
}
