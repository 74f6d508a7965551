//! The gateway: the one place through which sandboxes reach the outside.
//!
//! ```text
//!  inside a sandbox's namespace          │  this crate, in the server's process
//!                                        │
//!  connect ──▶ gate.tcp ─────────────────┼─▶ accept ─▶ sniff (TLS server name, HTTP, other)
//!                                        │               │ name certain? (names: our resolver's answers)
//!                                        │               ▼
//!                                        │     policy::decide ── no ──▶ refusal (403, TLS alert, reset)
//!                                        │               │ yes
//!                                        │   ┌───────────┼─────────────────┐
//!                                        │   ▼           ▼                 ▼
//!                                        │ relay    http (each request   Interceptor (opens TLS,
//!                                        │ (splice)  decided by itself)   puts secrets in)
//!                                        │   └───────────┼─────────────────┘
//!                                        │               ▼
//!                                        │             Dialer ─▶ the address, or the upstream proxy
//!  lookup ───▶ gate.dns ─────────────────┼─▶ dns ─▶ policy::may_resolve ─▶ hosts file, resolvers of the host
//! ```
//!
//! # What makes a name certain
//!
//! A client sends a name (in its TLS hello, in `Host`) and has chosen an address. The name counts only if our resolver
//! told *this* sandbox that the name has *this* address; otherwise there is no name, and only rules about addresses can
//! allow the connection. So neither a forged server name on another machine's address nor a name that rebinds leads
//! anywhere: the address that was checked is the address that is dialled.
//!
//! # Failing
//!
//! Everything fails closed: there is no link, only the sockets of the gate, so traffic that this code does not carry
//! does not move. Limits are in [`limits`].

mod accept;
mod borders;
mod bucket;
mod budget;
mod client;
mod config;
mod connection;
mod dial;
mod dns;
mod fetch;
#[cfg(test)]
mod fuzz;
mod gateway;
mod hello;
mod http;
pub mod intercept;
mod interceptor;
pub mod limits;
mod names;
mod refusal;
mod relay;
mod route;
mod sandbox;
mod sniff;
mod trace;
mod upstream;

pub use client::ClientStream;
pub use config::{GatewayConfig, UpstreamProxy};
pub use connection::{Admitted, Dialer};
pub use dial::{DialError, UpstreamStream};
pub use fetch::{Connect, FetchError, FetchRoots, Fetched, ProxyStream, fetch};
pub use gateway::{Gateway, Stats};
pub use intercept::replace::Replacer;
pub use interceptor::{Answer, Ask, BoxError, Flow, Interceptor, Protocol};
pub use refusal::Refusal;
