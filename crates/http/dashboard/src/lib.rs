//! The dashboard: its files, its host names, and its sessions.
//!
//! ```text
//! site      console.localhost, console.<domain>: the only names under which it is served, and their origins
//! gate      what a browser must show: own origin, CSRF token
//! sessions  links that work once, and what they open: sessions of a key, in memory
//! cookie    the one that holds a session
//! files     the built frontend, compressed, in the program
//! ```
//!
//! Everything here is plain data and decisions. The server (`atoll-server`) asks before everything else whether a
//! request is for the dashboard, and gives a session the rights of its key through the engine.
//!
//! # Why a name of its own
//!
//! Browsers tell cookies apart by host name alone, not by port. A session at `127.0.0.1` would be sent to every other
//! server on that address, such as a port of a sandbox that `atoll tunnel` shows on this machine. `console.localhost`
//! is no other server's name; it is not the name of any port of a sandbox either, and the ports that are named in a
//! path or in headers do not exist below it.

mod cookie;
mod files;
mod gate;
mod sessions;
mod site;

pub use cookie::{COOKIES, cleared, cleared_login, is_ours, logins_of, of_login, of_session, sessions_of};
pub use files::{File, answer, file, files};
pub use gate::{CSRF, Refusal, check_csrf, check_origin, is_prefetched, is_typed};
pub use sessions::{LINK_AGE, SESSION_AGE, Session, Sessions};
pub use site::{Site, Sites};
