//! Snapshots in an object store, by their digest: what was pushed once is not sent again, and a tag there is
//! a small object that names a digest.
//!
//! ```text
//! snapshots/<digest>        what Engine::export_snapshot gives
//! tags/<name>/<tag>         the digest, as text
//! private/<key>/…           the same, of private snapshots: for the key that sent them
//! ```
//!
//! What is private here is private there: it lies apart, under the key that sent it, and what that key fetches from
//! there is private again.

use atoll_core::error::shorten;
use atoll_core::id::{KeyId, ProjectId, SnapshotId};
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::Reference;
use atoll_core::{Code, Error, Result};
use atoll_objects::{Objects, ObjectsError};
use atoll_store::SnapshotRecord;
use tokio_util::io::StreamReader;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::chain;

/// What a digest begins with.
const DIGEST_PREFIX: &str = "blake3:";
/// Where snapshots lie that are for all.
const SHARED: &str = "";
/// Hexadecimal digits of one.
const DIGEST_DIGITS: usize = 64;

/// What came of pushing a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The digest under which it is there.
    pub digest: String,
    /// References there that name it now.
    pub tags: Vec<Reference>,
    /// Bytes that were sent; 0 when it was there already.
    pub sent_bytes: u64,
}

impl Engine {
    fn objects(&self) -> Result<&Objects> {
        self.inner.config.objects.as_ref().ok_or_else(|| {
            Error::new(Code::InvalidState, "this server has no object store")
                .hint("start it with --objects s3://bucket/prefix")
        })
    }

    /// Sends a snapshot to the object store, with its references there as here, or with others.
    ///
    /// # Errors
    /// As [`Self::export_snapshot`]; [`Code::ObjectsDenied`], [`Code::ObjectsUnavailable`].
    #[boxed]
    pub async fn push_snapshot(
        &self,
        id: &SnapshotId,
        tags: Vec<Reference>,
        caller: &Caller,
    ) -> Result<Pushed> {
        let objects = self.objects()?;
        let (record, stream) = self.export(id, caller, None).await?;
        let digest = record.digest.clone().unwrap_or_default();
        let area = if self.is_private_snapshot(&record) {
            own_area(caller)
        } else {
            shared_area(record.project.as_ref())
        };
        let name = object_name(&area, &digest)?;
        let mut sent_bytes = 0;
        if !objects.exists(&name).await.map_err(|error| objects_error(&error))? {
            sent_bytes = objects.put(&name, stream).await.map_err(|error| objects_error(&error))?;
        }
        let tags = if tags.is_empty() { record.tags } else { tags };
        for tag in &tags {
            let put = objects.put_small(&tag_name(&area, tag), digest.clone().into_bytes()).await;
            put.map_err(|error| objects_error(&error))?;
        }
        Ok(Pushed { digest, tags, sent_bytes })
    }

    /// Fetches a snapshot from the object store: by its digest, or what a reference there names. It gets that
    /// reference here, too, or those that are given. What the caller sent as private is looked for first, and is
    /// private again.
    ///
    /// # Errors
    /// As [`Self::import_snapshot`]; [`Code::SnapshotNotFound`] when it is not there; [`Code::ObjectsDenied`],
    /// [`Code::ObjectsUnavailable`].
    #[boxed]
    pub async fn pull_snapshot(
        &self,
        from: &str,
        tags: Vec<Reference>,
        visibility: Option<Visibility>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let own = own_area(caller);
        match self.pull_from(&own, from, tags.clone(), Some(Visibility::Private), caller).await {
            Err(error) if error.code == Code::SnapshotNotFound => {
                self.pull_from(&shared_area(caller.project()), from, tags, visibility, caller).await
            }
            pulled => pulled,
        }
    }

    async fn pull_from(
        &self,
        area: &str,
        from: &str,
        mut tags: Vec<Reference>,
        visibility: Option<Visibility>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let objects = self.objects()?;
        let digest = if from.starts_with(DIGEST_PREFIX) {
            from.to_owned()
        } else {
            let reference: Reference = from.parse()?;
            let content = objects.get_small(&tag_name(area, &reference)).await;
            let content = content.map_err(|error| missing(&error, from))?;
            if tags.is_empty() {
                tags.push(reference);
            }
            String::from_utf8_lossy(&content).trim().to_owned()
        };
        self.check_references(caller.project(), &tags, caller).await?;
        // Before the answer of the object store is there: it is a connection, and what waits for room holds none.
        let room = self.room_to_transfer(caller).await?;
        let stream =
            objects.get(&object_name(area, &digest)?).await.map_err(|error| missing(&error, from))?;
        let imported = self.import_in(room, StreamReader::new(stream), tags, visibility, caller).await?;
        if imported.digest.as_deref() == Some(digest.as_str()) {
            return Ok(imported);
        }
        // Whole in itself, but not what was asked for.
        self.delete_unused_snapshot(&imported).await?;
        Err(Error::new(
            Code::DigestMismatch,
            format!("the object store has another snapshot under {}", shorten(&digest)),
        ))
    }
}

fn object_name(area: &str, digest: &str) -> Result<String> {
    let digits = digest.strip_prefix(DIGEST_PREFIX).unwrap_or_default();
    let hex = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if digits.len() == DIGEST_DIGITS && hex {
        return Ok(format!("{area}snapshots/{digits}"));
    }
    Err(Error::invalid("from", format_args!("'{}' is no digest of a snapshot", shorten(digest)))
        .hint("write blake3: and 64 hexadecimal digits, NAME or NAME:TAG"))
}

fn tag_name(area: &str, tag: &Reference) -> String {
    format!("{area}tags/{}/{}", tag.name, tag.tag)
}

/// Where the shared snapshots of a project, or of none, lie.
fn shared_area(project: Option<&ProjectId>) -> String {
    project.map_or_else(|| SHARED.to_owned(), |project| format!("projects/{project}/"))
}

/// Where the private snapshots of a caller lie.
fn own_area(caller: &Caller) -> String {
    format!("private/{}/", caller.key().map_or("server", KeyId::as_str))
}

fn missing(error: &ObjectsError, what: &str) -> Error {
    match error {
        ObjectsError::NotFound => Error::new(
            Code::SnapshotNotFound,
            format!("the object store has no snapshot '{}'", shorten(what)),
        ),
        other => objects_error(other),
    }
}

pub(crate) fn objects_error(error: &ObjectsError) -> Error {
    tracing::warn!(error = chain(error), "the object store");
    match error {
        ObjectsError::Denied => Error::new(Code::ObjectsDenied, error.to_string())
            .hint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment"),
        ObjectsError::NotFound => {
            Error::new(Code::ObjectsUnavailable, "the object store does not have this bucket")
        }
        ObjectsError::Source(_) => Error::new(Code::Internal, "the snapshot cannot be read"),
        ObjectsError::Config(_) | ObjectsError::TooLarge(_) | ObjectsError::Unavailable(_) => {
            Error::new(Code::ObjectsUnavailable, error.to_string())
        }
    }
}
