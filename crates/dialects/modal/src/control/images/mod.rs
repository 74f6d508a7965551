//! Images.
//!
//! A client builds an image layer by layer; each layer is some lines of a Dockerfile on top of another image. The
//! engine builds whole Dockerfiles, and finds the steps again that it has done. So a layer is built with all layers
//! below it ([`recipe`]), as a template that is named after its content. An image's id says everything about it:
//!
//! ```text
//! im-debian-slim             the default image: the template `modal-debian-slim`, else the server's default image
//! im-0123456789abcdefghij    the template modal-0123456789abcdefghij
//! im-sn06f2k3z9xw1m4t8q7e5c  a snapshot of a sandbox's disk, or of a directory of it ([`source`])
//! ```

mod build;
mod context;
mod recipe;
mod source;

use atoll_core::Code;
use atoll_core::id::SnapshotId;
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::spec::SandboxDraft;

use super::apps::BUILDER_VERSION;
use super::ended::status;
use crate::auth::Asker;
use crate::grpc::{Fault, Result};
use crate::ids;
use crate::wire::common::{Empty, GenericResult, ImageMetadata};
use crate::wire::images::{
    ImageDeleteRequest, ImageFromIdRequest, ImageFromIdResponse, ImageGetOrCreateResponse,
};

pub(crate) use build::Builds;
pub(super) use build::{get_or_create, join};
pub(super) use context::{
    Coming, beside, check_existence, get_or_create_mount, is_sent, put_file, put_in_place, read_sent, sent,
};
pub(crate) use context::{Mounts, put_mounts};
pub(crate) use source::{ImageSource, directory_note};

/// The image of sandboxes whose client names none: `Image.debian_slim()`.
const DEBIAN_SLIM: &str = "im-debian-slim";
/// The template that stands for it.
const DEBIAN_SLIM_TEMPLATE: &str = "modal-debian-slim";
/// Prefix of the names of templates that are images.
const TEMPLATE: &str = "modal-";
/// Characters of the id of an image that was built.
const ID_CHARS: usize = 20;
/// The user that runs commands in the server's default image.
const USER: &str = "root";

pub(super) fn metadata() -> ImageMetadata {
    ImageMetadata { image_builder_version: Some(BUILDER_VERSION.to_owned()), ..ImageMetadata::default() }
}

fn success() -> GenericResult {
    GenericResult { status: status::SUCCESS, ..GenericResult::default() }
}

fn ready(image_id: String) -> ImageGetOrCreateResponse {
    ImageGetOrCreateResponse { image_id, result: Some(success()), metadata: Some(metadata()) }
}

fn no_image(id: &str) -> Fault {
    Fault::not_found(format!("Image '{}' not found", atoll_core::error::shorten(id)))
}

/// The template of an image that was built; `None` for other images.
fn template_of(id: &str) -> Option<String> {
    let body = id.strip_prefix("im-")?;
    let form = body.len() == ID_CHARS && body.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    form.then(|| format!("{TEMPLATE}{body}"))
}

/// The kinds of images.
enum Found {
    DebianSlim,
    Template(String),
    Snapshot(SnapshotId),
    /// A directory in a snapshot.
    Directory(SnapshotId, String),
}

async fn find(asker: &Asker, id: &str, needs: Needs) -> Result<Found> {
    if id.is_empty() || id == DEBIAN_SLIM {
        return Ok(Found::DebianSlim);
    }
    if let Some(snapshot) = ids::parse_snapshot("im", id) {
        let found = asker.engine().usable_snapshot(snapshot.as_str(), needs, asker.caller()).await;
        let found =
            found.map_err(|error| if error.code == Code::Forbidden { error.into() } else { no_image(id) })?;
        return Ok(match found.comment.as_deref().and_then(source::directory_in) {
            Some(path) => Found::Directory(snapshot, path),
            None => Found::Snapshot(snapshot),
        });
    }
    let name = template_of(id).ok_or_else(|| no_image(id))?;
    match asker.engine().template(&name, None).await {
        Ok(_) => Ok(Found::Template(name)),
        Err(error) if error.code == Code::TemplateNotFound => Err(no_image(id)),
        Err(error) => Err(error.into()),
    }
}

/// `ImageFromId`.
pub(super) async fn from_id(asker: &Asker, request: ImageFromIdRequest) -> Result<ImageFromIdResponse> {
    asker.needs(Scope::Read)?;
    find(asker, &request.image_id, Needs::READ).await?;
    Ok(ImageFromIdResponse { image_id: request.image_id, metadata: Some(metadata()) })
}

/// `ImageDelete`.
pub(super) async fn delete(asker: &Asker, request: ImageDeleteRequest) -> super::Done {
    asker.needs(Scope::Manage)?;
    match find(asker, &request.image_id, Needs::MANAGE).await? {
        Found::DebianSlim => return Err(Fault::unsupported("the default image stays")),
        Found::Template(name) => asker.engine().delete_template(&name, None, asker.caller()).await?,
        Found::Snapshot(id) | Found::Directory(id, _) => {
            drop(asker.engine().delete_snapshot(&id, None, asker.caller()).await?);
        }
    }
    Ok(Empty {})
}

/// Makes a draft begin with an image.
///
/// # Errors
/// `NOT_FOUND`.
pub(super) async fn apply(asker: &Asker, image: &str, draft: &mut SandboxDraft) -> Result<()> {
    begin_with(asker, find(asker, image, Needs::READ).await?, draft).await
}

async fn begin_with(asker: &Asker, found: Found, draft: &mut SandboxDraft) -> Result<()> {
    match found {
        Found::Template(name) => draft.template = Some(name),
        Found::Directory(..) => {
            return Err(Fault::unsupported(
                "the image is a directory of a sandbox: mount it with Sandbox.mount_image",
            ));
        }
        Found::Snapshot(id) => draft.snapshot = Some(id.to_string()),
        Found::DebianSlim => match asker.engine().template(DEBIAN_SLIM_TEMPLATE, None).await {
            Ok(_) => draft.template = Some(DEBIAN_SLIM_TEMPLATE.to_owned()),
            Err(error) if error.code == Code::TemplateNotFound => draft.user = Some(USER.to_owned()),
            Err(error) => return Err(error.into()),
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_no_names_of_other_templates() {
        assert_eq!(template_of("im-0123456789abcdefghij").as_deref(), Some("modal-0123456789abcdefghij"));
        for bad in ["im-debian-slim", "im-", "im-../../../../../../etc", "x", "im-0123456789ABCDEFGHIJ"] {
            assert_eq!(template_of(bad), None, "{bad}");
        }
    }
}
