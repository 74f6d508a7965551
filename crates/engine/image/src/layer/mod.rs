//! Layers: from a packed archive to a directory that overlayfs takes as a lower.
//!
//! ```text
//! packed bytes ─▶ hash (blob digest) ─▶ gunzip / unzstd ─▶ bounds ─▶ hash (diff id) ─▶ tar ─▶ tree
//! ```
//!
//! A layer is unpacked in `tmp/` and renamed to `layers/<key>` once its digest is right, so a half-made one
//! is never seen. `layers/<key>/root` is the tree, `layers/<key>/layer.json` says what it is. The key is the
//! hex digest of the unpacked archive (the *diff id*), or that of the *chain* (this layer and all below) with
//! the suffix `-chain` when the layers below had a say in it (see [`tree`]).
//!
//! Nothing is synced here: [`crate::store`] syncs the file system once before it records an image, and after
//! a power failure layers of no recorded image are not trusted.

mod apply;
mod archive;
#[cfg(test)]
mod fuzz;
mod sparse;
mod tar_reader;
mod tree;
mod unpack;

pub(crate) use archive::{Place, index};
pub(crate) use tar_reader::unreadable;
pub(crate) use unpack::{Expected, Packed, Prepared, archive_budget, boot_id, decoder, unpack};
