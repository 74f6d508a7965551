//! Sandboxes as tools of the Model Context Protocol, over the client of the native API.
//!
//! ```text
//! stdio ──┐
//!         ├─▶ Tools (one for each session) ─▶ Session (its sandboxes) ─▶ Client ─▶ a server, with the caller's key
//! http ───┘      │             (a server's own port, or one of `atoll mcp`)
//!                └─ resources: files and logs of the same sandboxes
//! ```
//!
//! A model may have been talked into what it asks for, so it is not trusted: it can name only sandboxes of its own
//! session, and the [`Preset`], which no tool changes, says what these are made of and may reach. What comes from
//! inside a sandbox is text, bounded in size, and means nothing here.

mod address;
mod error;
mod excerpt;
mod files;
mod http;
mod resources;
mod run;
mod session;
mod stdio;
mod tools;
mod types;

pub use http::{Endpoint, Presets, serve_http};
pub use session::{ABANDONED_AFTER_MS, Preset};
pub use stdio::serve_stdio;
