//! The tree of an image, to be copied: as it is in a sandbox that is made of it for that, and goes then.
//!
//! A snapshot of a directory is one of the whole disk, which takes and costs nothing but what changes later, with the
//! directory in its comment. Nothing else of it is given out.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::policy::EgressPolicy;
use atoll_core::sharing::Needs;
use atoll_core::spec::SandboxDraft;
use atoll_engine::Asked;
use serde::{Deserialize, Serialize};

use super::{Found, begin_with, find};
use crate::auth::Asker;
use crate::grpc::{Fault, Result};

/// How long such a sandbox lives if nobody deletes it, milliseconds.
const LIFE_MS: u64 = 3600 * 1000;
/// What the tree of a whole image is called in its archive.
const ROOT: &str = "root";

/// The comment of a snapshot that is one of a directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    modal_directory: String,
}

/// The comment of a snapshot that is one of this directory.
///
/// # Errors
/// `INVALID_ARGUMENT` for a path that is too long for it.
pub(crate) fn directory_note(path: &str) -> Result<String> {
    let note = serde_json::to_string(&Note { modal_directory: path.to_owned() }).unwrap_or_default();
    if note.len() > atoll_core::limits::SNAPSHOT_COMMENT_MAX_BYTES {
        return Err(Fault::invalid("path: is too long for a snapshot"));
    }
    Ok(note)
}

/// The directory that a snapshot is one of, by its comment.
pub(super) fn directory_in(comment: &str) -> Option<String> {
    let note: Note = serde_json::from_str(comment).ok()?;
    note.modal_directory.starts_with('/').then_some(note.modal_directory)
}

/// A sandbox with the tree of an image.
#[derive(Debug)]
pub(crate) struct ImageSource {
    pub(crate) sandbox: SandboxId,
    /// Where the tree is in it.
    pub(crate) path: String,
    /// What its directory is called in an archive of it.
    pub(crate) name: String,
}

impl ImageSource {
    /// Makes it.
    ///
    /// # Errors
    /// `NOT_FOUND`; what the engine says.
    pub(crate) async fn begin(asker: &Asker, image: &str) -> Result<Self> {
        let mut draft = SandboxDraft {
            ttl_ms: Some(LIFE_MS),
            egress: Some(EgressPolicy::default()),
            ..SandboxDraft::default()
        };
        let (path, name) = match find(asker, image, Needs::READ).await? {
            Found::Directory(id, path) => {
                draft.snapshot = Some(id.to_string());
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                // What the directory is, where its name is a link.
                (format!("{path}/."), name)
            }
            whole => {
                begin_with(asker, whole, &mut draft).await?;
                ("/".to_owned(), ROOT.to_owned())
            }
        };
        // It is a step of what is done here.
        let making = Arc::new(Asked::part()).scope(asker.engine().create_sandbox(draft, asker.caller()));
        let made = Box::pin(making).await?;
        Ok(Self { sandbox: made.id, path, name })
    }

    /// Whether it is a whole image.
    pub(crate) fn is_root(&self) -> bool {
        self.path == "/"
    }

    /// Lets the sandbox go.
    pub(crate) async fn end(self, asker: &Asker) {
        if let Err(error) = asker.engine().delete_sandbox(&self.sandbox).await {
            tracing::warn!(%error, sandbox = %self.sandbox, "the sandbox of an image's tree stays until its time is over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_people_are_no_directories() {
        let note = directory_note("/srv/data").unwrap();
        assert_eq!(directory_in(&note).as_deref(), Some("/srv/data"));
        for other in [
            "",
            "before the upgrade",
            "{}",
            r#"{"modal_directory":"x"}"#,
            r#"{"modal_directory":"/x","y":1}"#,
        ] {
            assert_eq!(directory_in(other), None, "{other}");
        }
        assert!(directory_note(&format!("/{}", "x".repeat(300))).is_err());
    }
}
