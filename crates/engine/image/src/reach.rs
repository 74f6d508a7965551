//! The addresses that pulls may reach. References come from clients, redirects and the addresses of token servers from
//! registries. None of them may make the server connect to its own host, its network or its cloud's metadata service.
//!
//! Names are checked when they are looked up, so that the server connects to exactly the address that was checked.
//! Addresses in a URL are checked before the request goes out.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use atoll_core::policy::{Cidr, canonical, special};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::error::ImageError;

/// One registry, or network of registries, that may be reached although its address is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A host by name or address; on one port, if it says so.
    Host {
        /// In lower case, an IPv6 address without brackets.
        host: String,
        /// Any when absent.
        port: Option<u16>,
    },
    /// Addresses, on any port.
    Network(Cidr),
}

impl Allowed {
    fn covers(&self, host: &str, port: u16) -> bool {
        match self {
            Self::Host { host: own, port: at } => own == host && at.is_none_or(|at| at == port),
            Self::Network(cidr) => {
                host.parse().is_ok_and(|address: IpAddr| cidr.net().contains(&canonical(address)))
            }
        }
    }
}

impl FromStr for Allowed {
    type Err = ImageError;

    /// Reads `HOST`, `HOST:PORT`, or `ADDRESS/BITS`.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        if text.contains('/') {
            let bad = |error: atoll_core::Error| ImageError::BadOption {
                field: "registry-allow",
                why: error.to_string(),
            };
            return text.parse().map(Self::Network).map_err(bad);
        }
        let url = Url::parse(&format!("none://{text}")).ok().filter(|url| {
            url.username().is_empty()
                && url.path().is_empty()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        let host = url.as_ref().and_then(Url::host_str).filter(|host| !host.is_empty());
        let (Some(url), Some(host)) = (&url, host) else {
            let why = "write HOST, HOST:PORT, or ADDRESS/BITS".to_owned();
            return Err(ImageError::BadOption { field: "registry-allow", why });
        };
        Ok(Self::Host { host: bare(host), port: url.port() })
    }
}

/// A host in lower case, without the brackets of an IPv6 address and without a final dot.
fn bare(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// What pulls may reach: everything public, and what the operator allows besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    everything: bool,
    allowed: Arc<Vec<Allowed>>,
}

impl Reach {
    /// Everything public, and these.
    #[must_use]
    pub fn new(allowed: Vec<Allowed>) -> Self {
        Self { everything: false, allowed: Arc::new(allowed) }
    }

    /// Everything: for an operator who is the only user of the server.
    #[must_use]
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// With one registry more, as a reference names it.
    pub(crate) fn with(&self, registry: &str) -> Self {
        let mut allowed = Vec::clone(&self.allowed);
        // A text that is no host cannot be pulled from either.
        allowed.extend(registry.parse::<Allowed>().ok().map(|registry| match registry {
            // Without a port only the port of HTTPS is allowed, not every port of the host.
            Allowed::Host { host, port: None } => Allowed::Host { host, port: Some(443) },
            other => other,
        }));
        Self { everything: self.everything, allowed: Arc::new(allowed) }
    }

    /// Whether a request may go to a URL. For one with a name it says only that the port is right: the rest shows
    /// when the name is looked up, see [`Lookups`].
    pub(crate) fn check(&self, url: &Url) -> Result<(), Closed> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(Closed);
        };
        let host = bare(host);
        if self.everything || self.allowed.iter().any(|allowed| allowed.covers(&host, port)) {
            return Ok(());
        }
        match host.parse::<IpAddr>() {
            Ok(address) if special(canonical(address)).is_some() => Err(Closed),
            // The look-up does not know the port, so a name that is allowed on one is refused on others here.
            Err(_name) if self.names(&host) => Err(Closed),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn names(&self, name: &str) -> bool {
        self.allowed.iter().any(|allowed| matches!(allowed, Allowed::Host { host, .. } if host == name))
    }

    /// Those addresses of a name that the server may connect to.
    fn of_name(&self, name: &str, addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
        let name = bare(name);
        let network = |address: IpAddr| {
            let inside = |allowed: &Allowed| matches!(allowed, Allowed::Network(cidr) if cidr.net().contains(&address));
            self.allowed.iter().any(inside)
        };
        let all = self.everything || self.names(&name);
        let open = |address: IpAddr| all || special(address).is_none() || network(address);
        addresses.filter(|address| open(canonical(address.ip()))).collect()
    }
}

/// The address is not public, and the operator has not allowed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its address is not public")]
pub(crate) struct Closed;

/// Looks names up for a client, and gives only addresses that may be reached.
#[derive(Debug, Clone)]
pub(crate) struct Lookups(pub(crate) Reach);

impl Resolve for Lookups {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let open = reach.of_name(name.as_str(), found.iter().copied());
            if open.is_empty() && !found.is_empty() {
                return Err(Closed.into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// Whether a request failed because its address is closed.
pub(crate) fn was_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<Closed>() || inside.is_some_and(|inside| was_closed(inside)) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(allowed: &[&str]) -> Reach {
        Reach::new(allowed.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn may(reach: &Reach, url: &str) -> bool {
        reach.check(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn addresses_in_urls() {
        let none = reach(&[]);
        for closed in [
            "http://127.0.0.1:5000/",
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://0/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest",
            "http://168.63.129.16/",
            "http://[::1]:5000/",
            "http://[::ffff:127.0.0.1]/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[64:ff9b::a00:1]/",
        ] {
            assert!(!may(&none, closed), "{closed}");
            assert!(may(&Reach::everything(), closed), "{closed}");
        }
        assert!(may(&none, "https://93.184.216.34/") && may(&none, "https://ghcr.io/"));
        let some = reach(&["127.0.0.1:5000", "10.0.0.0/8", "Registry.corp", "localhost:5000", "[::1]:5000"]);
        for open in [
            "http://127.0.0.1:5000/x",
            "https://10.1.2.3:8443/",
            "https://registry.corp/",
            "http://[::1]:5000/",
        ] {
            assert!(may(&some, open), "{open}");
        }
        for closed in
            ["http://127.0.0.1:22/", "http://127.0.0.2:5000/", "http://localhost:22/", "http://[::1]/"]
        {
            assert!(!may(&some, closed), "{closed}");
        }
    }

    #[test]
    fn addresses_of_names() {
        let of = |reach: &Reach, name: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0));
            reach
                .of_name(name, addresses)
                .into_iter()
                .map(|address| address.ip().to_string())
                .collect::<Vec<_>>()
        };
        let none = reach(&[]);
        let mixed = ["127.0.0.1", "93.184.216.34", "::1", "10.0.0.1"];
        assert_eq!(of(&none, "rebound.example", &mixed), ["93.184.216.34"]);
        assert_eq!(of(&reach(&["10.0.0.0/8"]), "rebound.example", &mixed), ["93.184.216.34", "10.0.0.1"]);
        assert_eq!(of(&reach(&["rebound.example:5000"]), "Rebound.Example.", &mixed).len(), 4);
        assert_eq!(of(&reach(&["other.example"]), "rebound.example", &mixed), ["93.184.216.34"]);
    }

    #[test]
    fn a_registry_that_the_operator_knows() {
        let with = reach(&[]).with("127.0.0.1:5000").with("registry.corp");
        assert!(may(&with, "http://127.0.0.1:5000/v2/") && !may(&with, "http://127.0.0.1:22/"));
        assert!(may(&with, "https://registry.corp/") && !may(&with, "https://registry.corp:8443/"));
        for bad in ["", "a b", "http://a", "user@a", "a/x", "10.0.0.0/40", "a?b", "a:0x"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad}");
        }
    }
}
