//! Client of the native API: one typed method for each operation.
//!
//! ```text
//! Client ── http ──┬── call        one JSON answer, bounded in size and time
//!                  ├── lines       newline-delimited JSON, one bounded line at a time
//!                  ├── sse         server-sent events, one bounded event at a time
//!                  ├── Download    bytes as they come
//!                  └── attach      WebSocket that is opened again after a cut
//! ```
//!
//! The server is believed about what happened, but not about sizes: every answer has a limit, and
//! every call that should be quick has a deadline. Streams may be silent for as long as the thing
//! they show is; [`attach`] notices a dead peer by pings.
//!
//! Operations are grouped by noun in the modules below; all are methods of [`Client`].

mod agent_attach;
mod agents;
pub mod attach;
mod builds;
mod code;
mod error;
mod execs;
mod files;
mod follow;
mod http;
mod images;
mod lines;
mod live;
mod login;
mod network;
mod nodes;
mod pools;
mod ports;
mod projects;
mod resume;
mod sandboxes;
mod secrets;
mod services;
mod sharing;
mod snapshots;
mod sse;
mod ssh;
mod system;
mod templates;
mod trace;
mod usage;
mod volumes;
mod websocket;

pub use agent_attach::{SessionAttachment, SessionUpdate};
pub use attach::{AttachEvent, AttachEvents, AttachInput, Attachment, InputClosed};
pub use builds::{BuildFollower, ListBuilds};
pub use error::{ClientError, Result};
pub use execs::{ExecEvent, ListExecs, OutputQuery};
pub use files::{Download, WatchEvent, WriteFile};
pub use follow::OutputFollower;
pub use http::Client;
pub use ports::TunnelSocket;
pub use resume::ResumePolicy;
pub use sandboxes::ListSandboxes;
pub use secrets::ListSecretUses;
pub use snapshots::ListSnapshots;
pub use trace::GetEvents;
pub use usage::GetUsage;
