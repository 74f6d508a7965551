//! Walks every route of a protocol, on real objects, with every kind of key: none, a wrong one, strangers' of every
//! scope, those of another project and of none, every role, under the lease of another key, and keys that are taken
//! back before a request or in the middle of it.
//!
//! A protocol brings a table of its routes with what each needs ([`Route`]), and says how a route is called and which
//! answers are refusals ([`Protocol`]). [`routes_in`] reads the routes out of a router's source, so that one that is
//! added and not in the table fails a test. The server below has a fake of the isolation.

#![expect(clippy::missing_panics_doc, reason = "helpers of tests panic by design")]

mod again;
mod cut;
mod hung;
mod source;
mod walks;
mod world;

use std::fmt::Write as _;

use atoll_core::key::Scope;

pub use again::repeated;
pub use atoll_manual_clock::ManualClock;
pub use cut::cut_off;
pub use hung::hung_up;
pub use source::routes_in;
pub use walks::{apart, leased, private, revoked, roles};
pub use world::{Key, Objects, World};

/// What a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The server as a whole: only the key's scope counts.
    Server,
    /// A sandbox that it names.
    Sandbox,
    /// A snapshot that it names.
    Snapshot,
}

/// A line of a protocol's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The method.
    pub method: &'static str,
    /// The path as the router has it; of a call of gRPC's kind, with its name.
    pub path: &'static str,
    /// The scope that it needs.
    pub needs: Scope,
    /// The kind of object that it is about.
    pub about: About,
}

/// A line about the server as a whole.
#[must_use]
pub const fn on_server(method: &'static str, path: &'static str, needs: Scope) -> Route {
    Route { method, path, needs, about: About::Server }
}

/// A line about a sandbox.
#[must_use]
pub const fn on_sandbox(method: &'static str, path: &'static str, needs: Scope) -> Route {
    Route { method, path, needs, about: About::Sandbox }
}

/// A line about a snapshot.
#[must_use]
pub const fn on_snapshot(method: &'static str, path: &'static str, needs: Scope) -> Route {
    Route { method, path, needs, about: About::Snapshot }
}

/// A request over HTTP/1.1.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers but for `Host` and `Content-Length`.
    pub headers: Vec<(&'static str, String)>,
    /// The body; none is sent when it is empty.
    pub body: Vec<u8>,
}

impl Call {
    /// The head as it is sent, with further headers.
    fn head(&self, host: &str, more: &str) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").expect("a text takes what is written");
        }
        head + more + "\r\n"
    }
}

/// An answer, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body of an error, or the error in a head of gRPC, without the names of the objects; empty else.
    pub text: String,
}

/// What an answer says about the caller's right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The caller was let in, also when the call failed later.
    Admitted,
    /// There is no key, or none that is good.
    NoKey,
    /// The key, or its role, is too weak.
    Weak,
    /// The object that the route is about is not there for this key.
    Missing,
    /// Another key has a lease.
    Leased,
}

/// A protocol to walk.
pub trait Protocol {
    /// The table.
    fn routes(&self) -> Vec<Route>;

    /// How a caller with the credential `shown` calls a route on these objects.
    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call;

    /// What an answer says.
    fn verdict(&self, answer: &Answer) -> Verdict;

    /// The body of an error without the parts that differ each time, such as the time at which it was made.
    fn steady(&self, text: &str) -> String {
        text.to_owned()
    }

    /// The credential that a key's holder shows: the key, unless clients get another credential in its place.
    fn shown(&self, world: &World, key: &Key, on: &Objects) -> String {
        let _ = (world, on);
        key.secret.clone()
    }

    /// Whether an answer says that the request was done.
    fn is_done(&self, answer: &Answer) -> bool {
        (200..400).contains(&answer.status)
    }

    /// Whether a hidden object looks exactly as one that is not there. Otherwise no caller must be able to guess ids.
    fn hides_existence(&self) -> bool {
        true
    }

    /// How it says that an object is not there for the caller. Where a credential is for one sandbox only, that is
    /// [`Verdict::NoKey`].
    fn hides_as(&self) -> Verdict {
        Verdict::Missing
    }
}
