//! The tree of an image, to be copied: it is read from a sandbox that is made for that, and deleted then.
//!
//! A snapshot of a directory is a snapshot of the whole disk, with the directory in its comment; it takes no time and
//! no space but for later changes. Clients get nothing of it but the directory.

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

/// How long such a sandbox lives if the server does not delete it, milliseconds.
const LIFE_MS: u64 = 3600 * 1000;
/// The name of a whole image's tree in its archive.
const ROOT: &str = "root";

/// The comment of a snapshot of a directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    modal_directory: String,
}

/// The comment of a snapshot of this directory.
///
/// # Errors
/// `INVALID_ARGUMENT` for a path that is too long for a comment.
pub(crate) fn directory_note(path: &str) -> Result<String> {
    let note = serde_json::to_string(&Note { modal_directory: path.to_owned() }).unwrap_or_default();
    if note.len() > atoll_core::limits::SNAPSHOT_COMMENT_MAX_BYTES {
        return Err(Fault::invalid("path: is too long for a snapshot"));
    }
    Ok(note)
}

/// The directory in the comment of a snapshot.
pub(super) fn directory_in(comment: &str) -> Option<String> {
    let note: Note = serde_json::from_str(comment).ok()?;
    note.modal_directory.starts_with('/').then_some(note.modal_directory)
}

/// A sandbox with the tree of an image.
#[derive(Debug)]
pub(crate) struct ImageSource {
    pub(crate) sandbox: SandboxId,
    /// The path of the tree in the sandbox.
    pub(crate) path: String,
    /// The name of its directory in an archive of it.
    pub(crate) name: String,
}

impl ImageSource {
    /// Makes the sandbox.
    ///
    /// # Errors
    /// `NOT_FOUND`; the engine's errors.
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
                // Follows a link at the end of the path.
                (format!("{path}/."), name)
            }
            whole => {
                begin_with(asker, whole, &mut draft).await?;
                ("/".to_owned(), ROOT.to_owned())
            }
        };
        // Creating the sandbox is part of the client's request.
        let making = Arc::new(Asked::part()).scope(asker.engine().create_sandbox(draft, asker.caller()));
        let made = Box::pin(making).await?;
        Ok(Self { sandbox: made.id, path, name })
    }

    /// Whether it is a whole image.
    pub(crate) fn is_root(&self) -> bool {
        self.path == "/"
    }

    /// Deletes the sandbox.
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
