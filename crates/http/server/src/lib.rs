//! Atoll's HTTP server: the native API, `/v1`, on one port.
//!
//! # How a request flows
//!
//! ```text
//! socket ─ serve      accepts, limits connections, header size and header time; HTTP/1.1, HTTP/2, SSH
//!        ─ closing    ends connections so that clients read the last that was said to them
//!        ─ cluster    on a node of a cluster: passes a request on to the node that has the sandbox or other object
//!        ─ dashboard  answers every request under one of its host names; its sessions open the native API there
//!        ─ dialect    a request in another vendor's protocol goes to its router, below a middleware of its own
//!        ─ ingress    a request for a port of a sandbox goes there
//!        ─ middleware request id, log span, metrics, the check of `Origin`, panics, the error's body
//!        ─ once       a request done already under the same `Idempotency-Key` is answered from memory
//!        ─ router     route and method, or an error body
//!        ─ handler    in `routes`, a few lines each:
//!            1. authenticate   auth::Caller<Scope>   always the first argument
//!            2. parse          extract::{Path, Query, Json}   strict: unknown fields are errors
//!            3. call           one use case of atoll_engine::Engine
//!            4. convert        `convert`: records of the engine to types of the API
//!        ─ error      ApiError carries the engine's error; `error` alone maps codes to statuses
//! ```
//!
//! Nothing here decides anything about sandboxes: that is the engine's. Nothing here reads the
//! environment: [`ServerConfig`] has all there is to set.
//!
//! # Streams
//!
//! Output, watches, pulls and files stream. Each stream holds the object that it reads from (an output reader, a lease
//! on the guest) and lets it go when the client goes. All of them watch one token: when the server drains, long-polls
//! answer with the data that they have, event streams say `shutting_down`, WebSockets close with "going away", and
//! transfers have the rest of the deadline to finish. All of them end with the right by which they were opened
//! (`revocation`).

mod auth;
mod body;
mod bounds;
mod certificate;
mod closing;
mod cluster;
mod config;
mod convert;
mod dashboard;
pub mod dialect;
mod error;
mod extract;
mod hangup;
mod ingress;
mod linger;
mod metrics;
mod middleware;
mod once;
mod openapi;
mod origin;
mod revocation;
#[expect(unused_qualifications, reason = "the macro that documents a route spells its types out again")]
mod routes;
mod serve;
mod shared;
mod ssh;
mod streams;
mod trace;
mod transfer;

pub use config::{PeopleConfig, ServerConfig};
pub use ingress::{Forward, Ingress};
pub use metrics::SpanCounts;
pub use openapi::openapi;
pub use serve::{McpAnswer, McpDoor, Server};
pub use ssh::{Duplex, Ssh, SshClient, SshDoor, SshElsewhere, SshOfNodes, SshPlace, SshPlaces, SshServed};
