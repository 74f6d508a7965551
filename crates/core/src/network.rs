//! What can be seen of a sandbox's network.

use serde::{Deserialize, Serialize};

use crate::policy::Internet;

/// At which point something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Stage {
    /// A name was looked up.
    Dns,
    /// A connection was made.
    Connect,
    /// A request was sent.
    Request,
    /// A limit was reached.
    Limit,
}

/// An open connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConnectionView {
    /// Its number in this sandbox.
    pub number: u64,
    /// The name it was made to, where that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address.
    pub address: String,
    /// The port.
    pub port: u16,
    /// `tls`, `http`, `tcp`; `proxy` for one to the explicit proxy that has no destination yet.
    pub protocol: String,
    /// When it was made.
    pub opened_at_ms: u64,
    /// Bytes that left the sandbox.
    pub sent_bytes: u64,
    /// Bytes that came into the sandbox.
    pub received_bytes: u64,
}

/// Something that was refused, or would have been; equal ones are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DenialView {
    /// At which point.
    pub stage: Stage,
    /// What: a name, `name:port`, `address:port`, a request.
    pub what: String,
    /// Why.
    pub why: String,
    /// What would allow it, as arguments of the command line.
    pub ask: Option<String>,
    /// When it happened last.
    pub last_at_ms: u64,
    /// How often.
    pub count: u64,
    /// Whether it passed all the same, because the policy's mode is to observe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
}

/// Of what would allow something, as [`DenialView::ask`] has it, the option that opens nothing else, and its value: `--allow`
/// with a name, or `--allow-cidr` with an address. `None` where no such option is among it.
#[must_use]
pub fn narrowest(ask: &str) -> Option<(&str, &str)> {
    let (option, target) = ask.rsplit(", or ").next()?.split_once(' ')?;
    (matches!(option, "--allow" | "--allow-cidr") && !target.contains(' ')).then_some((option, target))
}

/// Bytes to one destination since the sandbox's network was taken up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TotalView {
    /// `name:port`, or `address:port` where there is no name; `(others)` for those beyond the limit.
    pub destination: String,
    /// Connections made.
    pub connections: u64,
    /// Bytes that left the sandbox.
    pub sent_bytes: u64,
    /// Bytes that came into the sandbox.
    pub received_bytes: u64,
}

/// Bytes of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Transferred {
    /// Bytes that left the sandbox.
    pub sent_bytes: u64,
    /// Bytes that came into the sandbox.
    pub received_bytes: u64,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NetworkView {
    /// What happens where no rule speaks.
    pub internet: Internet,
    /// Since the sandbox was made, or since the last start of the server.
    pub transferred: Transferred,
    /// Open connections, oldest first.
    pub connections: Vec<ConnectionView>,
    /// By destination, most bytes first.
    pub totals: Vec<TotalView>,
    /// What was refused, newest first.
    pub denials: Vec<DenialView>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_no_more_than_what_was_refused_is_found() {
        assert_eq!(narrowest("--allow a.test:443"), Some(("--allow", "a.test:443")));
        assert_eq!(
            narrowest("--internet on, or --allow-cidr 10.1.2.3:80"),
            Some(("--allow-cidr", "10.1.2.3:80"))
        );
        for ask in ["--internet on", "--connections", "", "--allow a.test b.test"] {
            assert_eq!(narrowest(ask), None, "{ask}");
        }
    }
}
