//! Sandboxes: what is shared with readers ([`SandboxShared`]) and the actor that owns it.
//!
//! ```text
//!            Message             ┌────────────── actor (one task) ─────────────┐
//! callers ───────────▶ queue ───▶│ create saga → serve ⇄ pause → fail | delete │
//!    ▲                           └──┬──────────────┬───────────────────────────┘
//!    │ watch                        │ publishes    │ spawns
//!    └──────── SandboxShared ◀──────┘              ▼
//!                  ▲ guest              link (one task): connects to the guest, again and again
//!                  └────────────────────┘
//! ```

mod actor;
mod downloads;
mod files;
mod freezer;
mod lease;
mod link;
mod shared;
mod teardown;
mod transfer;

pub(crate) use actor::{Origin, SETTLE_MAX, spawn};
pub(crate) use downloads::Downloads;
pub(crate) use freezer::{InUse, Stillness};
pub(crate) use lease::wait_for_guest;
pub use lease::{GuestLease, SandboxMetrics};
pub(crate) use link::connect;
pub(crate) use shared::{GuestLink, Message, SandboxShared};
pub(crate) use teardown::{destroy, remove_logs};
pub use transfer::{ByteStream, FileReader, FileWriter};
