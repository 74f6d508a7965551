//! What the gateway sees: names that are asked for, requests, connections, and what was decided about them. A decision about
//! a program that wants to run has the same form.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{is_false, is_zero};

/// A question to the resolver and its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// The name.
    pub name: String,
    /// `A`, `AAAA`, …
    pub record: String,
    /// `NOERROR`, `NXDOMAIN`, `REFUSED`, `SERVFAIL`.
    pub answer: String,
    /// Addresses of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Whether it was looked up although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
}

/// A request that the gateway saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// Number of the connection, as in [`Connection::connection`].
    pub connection: u64,
    /// Method.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path without the query.
    pub path: String,
    /// Status of the answer; none when there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes of the request's body.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// Bytes of the answer's body.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received_bytes: u64,
    /// From the request's head to the answer's head, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_us: u64,
    /// From the request's head to the end of the answer, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duration_us: u64,
    /// The rule that allowed it, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Whether it passed although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// Names of the secrets that were put in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Where it led, as the policy was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Box<Destination>>,
}

/// Where something leads on the network, as the policy was asked about it: enough to ask another policy the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The name that is meant when it is one, or all that it may be meant by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The address; none when only a name was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Whether the address is the host's own, or leads to the server.
    #[serde(default, skip_serializing_if = "is_false")]
    pub own: bool,
    /// The network that the operator closed and that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Whether it is TLS.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tls: bool,
    /// The request's method, where the policy was asked about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The request's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A connection through the gateway, at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Counts a sandbox's connections since its network was taken up. Not `number`, which is the event's own beside it.
    pub connection: u64,
    /// The name it was meant for, if that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where it led, when it got so far as to lead anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What it spoke, as far as its first bytes told: `tls`, `http`, `tcp`, `proxy`, `udp`.
    pub protocol: String,
    /// Bytes out of the sandbox.
    pub sent_bytes: u64,
    /// Bytes into it.
    pub received_bytes: u64,
    /// How long it was open, microseconds.
    pub duration_us: u64,
}

/// A decision of the egress policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDecision {
    /// Whether it may pass.
    pub allowed: bool,
    /// Where it was decided: `dns`, `connect`, `request`, `limit`.
    pub stage: String,
    /// What it was about: `GET https://example.com/x`, `example.com:443`.
    pub subject: String,
    /// The rule, or that there is none, in words.
    pub rule: String,
    /// Which policy decided: its fingerprint, as in [`What::Limits`](super::What::Limits).
    pub policy_revision: u64,
    /// How often the same was decided since the last such event, this one included, when more than once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u64,
    /// Whether it passed although the policy is against it, because its mode is to observe.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// What would allow it, as arguments of the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<String>,
    /// Where it led; none for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Box<Destination>>,
}
