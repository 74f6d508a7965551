//! The protocol between the host and the guest agent: messages, framing, and the host's client.
//!
//! # Transport
//!
//! One byte stream (a Unix socket for containers, vsock or virtio-serial for microVMs) carries
//! HTTP/2 (crate `h2`), host as client, guest as server. HTTP/2 gives streams, flow control,
//! cancellation and keep-alive; nothing of HTTP's semantics is used beyond a path that names the
//! operation. Every operation is one HTTP/2 stream: `POST /atoll.guest.v1/<operation>`. The host may
//! announce in the query what it will be about (`exec-start?<id>`), before it sends the request: a
//! hint, which guests may ignore.
//!
//! The body of either direction is a sequence of [`wire`] records: one kind byte, four bytes of
//! big-endian length, the payload. Control records hold a protobuf [`messages`] value; data records
//! hold raw bytes, so bulk data is never re-encoded.
//!
//! # Who trusts whom
//!
//! The guest agent runs among hostile processes and may itself be taken over. The host therefore
//! bounds every record, refuses what does not parse, and lets nothing the guest says widen what the
//! guest may do. A protocol violation closes the connection; it never panics the host.
//!
//! # Durable output
//!
//! The guest numbers the output bytes of each exec from 0, both streams together in the order it
//! read them. It keeps what the host has not acknowledged, up to a window, and stops reading the
//! pipes when the window is full: a host that is away costs back-pressure, never bytes. After a
//! reconnect the host attaches at the offset its log ends with.

pub mod body;
#[cfg(feature = "client")]
pub mod client;
pub mod control;
#[cfg(test)]
mod fuzz;
pub mod messages;
pub mod sentry;
pub mod serial;
pub mod server;
pub mod window;
pub mod wire;

/// Version of the protocol. A guest and a host of different versions refuse each other by name.
pub const VERSION: u32 = 1;

/// Output bytes of one exec that the guest keeps until the host acknowledges them.
pub const OUTPUT_WINDOW_BYTES: usize = 1 << 20;
/// Standard input bytes of one exec that the guest buffers before a write has to wait.
pub const STDIN_WINDOW_BYTES: usize = 1 << 20;

/// The start of every path of an operation.
pub const PATH_PREFIX: &str = "/atoll.guest.v1/";
/// Largest HTTP/2 frame either side accepts, bytes: few frames for bulk data.
pub const FRAME_BYTES: u32 = 256 << 10;
/// Bytes of one stream that may be under way to the guest unread.
pub const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Bytes of one stream that may be under way to the host unread. The host holds so many for each download whose client
/// takes nothing, and 512 such downloads of one sandbox fit into [`CONNECTION_WINDOW_BYTES`].
pub const ANSWER_WINDOW_BYTES: u32 = 128 << 10;
/// Bytes of all streams of a connection that may be under way unread. Far above one stream's, so that a
/// stream that the host does not read does not stall the others.
pub const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Bytes of one connection to a port that may be under way to the host unread: many of them together stay
/// below [`CONNECTION_WINDOW_BYTES`].
pub const PORT_WINDOW_BYTES: u32 = 64 << 10;
/// Operations at once on one connection.
pub const STREAMS_MAX: u32 = 4096;
/// Most that is sent of a line that was found, bytes.
pub const FOUND_LINE_MAX_BYTES: usize = 4 << 10;
/// Paths that are described at once at most.
pub const DESCRIBE_MAX_COUNT: usize = 1024;
/// Names and values of the extended attributes of a file that are told or set at most, bytes.
pub const ATTRIBUTES_MAX_BYTES: usize = 64 << 10;
/// Longest path, bytes (`PATH_MAX`).
pub const PATH_MAX_BYTES: usize = 4096;
