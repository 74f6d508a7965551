//! Images: from a registry or an archive to directories that every isolation level mounts.
//!
//! ```text
//! registry ──▶ partial/<blob> ─┐
//!                              ├─▶ layers/<key>/root ──▶ images/<digest>.json ──▶ refs/<name>.json
//! archive, rootfs tar ─────────┘         (prepared, shared)        (record)            (names)
//! ```
//!
//! - Layers are prepared once, addressed by content and shared between images. See [`layer`].
//! - An image is recorded after all its layers are there, a name after its image: an interrupted operation
//!   leaves only files that [`Images::open`] removes (`tmp/`), that a later pull goes on with (`partial/`,
//!   `layers/`), or that [`Images::prune`] removes. One process works on a directory at a time (`lock`).
//! - Where several nodes share images, packed layers stay in `packed/` until the other nodes can have them. A pull
//!   looks for a layer where the other nodes put theirs before it asks the registry: see [`Elsewhere`].
//! - Looking an image up is done in memory: [`Images::resolve`] does no I/O.
//! - Everything that comes from a registry or an archive is hostile: see [`limits`].
//!
//! The directory is readable by its owner only: layers hold set-user-id programs that come from images.

mod challenge;
mod digest;
mod error;
mod fetch;
mod files;
mod flow;
#[cfg(test)]
mod fuzz;
mod image;
mod layer;
pub mod limits;
mod load;

mod manifest;
mod packed;
mod progress;
mod pull;
mod reach;
mod reference;
mod registry;
mod retry;
mod shared;
mod source;

mod store;

pub use digest::Digest;
pub use error::{ImageError, Result};
pub use image::Image;
pub use manifest::Platform;
pub use progress::{LayerEvent, NoProgress, Phase, Progress};
pub use pull::{Credentials, PullOptions};
pub use reach::{Allowed, Reach};
pub use reference::{Asked, local_or_normal, registry_of};
pub use shared::{Coming, Document, Elsewhere, Found};
pub use store::{Images, Removed, Settings};
