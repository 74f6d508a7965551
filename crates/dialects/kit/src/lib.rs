//! What every adapter of another vendor's sandbox protocol needs, so that no adapter writes it again.
//!
//! A dialect is a crate with a [`Dialect`](atoll_server::dialect::Dialect) for the server to mount and a router, whose
//! state implements [`Protocol`]: what errors look like, and where a path names its sandbox. In return it gets
//!
//! - [`request`]: the caller ([`request::Caller`], which checks key, scope and the rights on the sandbox), and the
//!   parts of a request, with errors in the protocol's words;
//! - [`exec`]: commands by an id of the client, a shell if there is none, output from offsets that count each stream
//!   by itself;
//! - [`files`]: answers with a file or a range of it, uploads as forms, permissions as a text;
//! - [`paths`]: paths inside a sandbox, and its users' homes;
//! - [`sandboxes`]: making to the end, waking, listing by filters that the engine does not know;
//! - [`remembered`]: how sandboxes ended;
//! - [`once`]: a client that sends a request again gets the first one's answer;
//! - [`promise`]: also from the next server, it gets what the first one made; [`disk`]:
//!   files that are whole;
//! - [`secrets`]: variables that stand for secrets;
//! - [`spool`]: files that clients send to the server; [`kept`]: what they send before they use it;
//! - [`memory`]: what is held as a whole, and how much of that each caller has;
//! - [`turns`]: work that happens one after the other;
//! - [`annotation`]: values that the protocol must say back and the engine has no field for;
//! - [`names`]: names that the engine does not allow;
//! - [`pending`]: work that takes longer than a client waits, and which keys may see it;
//! - [`status`]: errors as gRPC and Connect tell them; [`uuid`] and [`time`]: ids and times as texts.
//!
//! Nothing here knows a vendor.

pub mod annotation;
pub mod disk;
pub mod exec;
pub mod files;
pub mod kept;
pub mod memory;
pub mod names;
pub mod once;
pub mod paths;
pub mod pending;
pub mod promise;
mod protocol;
pub mod remembered;
pub mod request;
pub mod sandboxes;
pub mod secrets;
pub mod spool;
pub mod status;
pub mod time;
pub mod turns;
pub mod uuid;

pub use protocol::{Protocol, sentence};
