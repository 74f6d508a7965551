//! Files of the client for builds: `Image.add_local_file` and its like send them before the Dockerfile.
//!
//! ```text
//! client ─ GET /api/object-storage/push-access ─▶ access    credentials for an hour
//!        ─ S3 below /storage ───────────────────▶ s3        HEAD, list, PUT, multipart uploads, signed (sign)
//!                                                 shelf     archives on disk, each of one API key
//!        ─ buildInfo.contextHashes ─────────────▶ context   the archives of a build as one
//! ```
//!
//! The clients bring S3 libraries of their own. This module has what these need and no more: an object has the name
//! `ORGANIZATION/MD5/context.tar`. The server does not check the hash that a client gives, so archives of different
//! keys are kept apart.

mod access;
mod chunks;
mod context;
mod s3;
mod shelf;
mod sign;

use axum::Router;
use axum::routing::any;

use crate::App;

pub(crate) use self::access::push_access;
pub(crate) use self::context::Context;

/// The path of the storage, in the dialect.
const PLACE: &str = "/storage";
/// The one bucket.
const BUCKET: &str = "contexts";

/// The routes. Requests are signed over their whole path, so nothing of it may be cut off.
pub(crate) fn routes() -> Router<App> {
    let places = ["/storage/{bucket}", "/storage/{bucket}/", "/storage/{bucket}/{*key}"];
    places.iter().fold(Router::new(), |router, place| router.route(place, any(s3::serve)))
}
