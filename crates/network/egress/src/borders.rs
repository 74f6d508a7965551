//! Destinations that belong to this server, or that its operator closed, under any address.
//!
//! The kernel knows the host's own addresses. Other addresses lead back to the host without being its own: the public
//! address of a NAT, or that of a proxy in front. They are the addresses of the server's public names. A name in front
//! of a connection says so at once; for connections without one the addresses are looked up now and then.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use atoll_core::policy::{Cidr, HostName, canonical};

use crate::dial;
use crate::gateway::Shared;

/// How often the addresses of the server's names are looked up.
const REFRESH: Duration = Duration::from_secs(60);
/// A label below the domain of ports, which usually has addresses for every label and none itself.
const SOME_PORT: &str = "1-atoll";

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Borders {
    closed: Vec<Cidr>,
    /// Names of this server; names below them are ports of sandboxes.
    names: Vec<HostName>,
    addresses: RwLock<HashSet<IpAddr>>,
    watched: AtomicBool,
}

impl Borders {
    /// `own` are names and addresses under which this server is reached. A text that is neither is left out.
    pub(crate) fn new(closed: Vec<Cidr>, own: &[String]) -> Self {
        let addresses = own.iter().filter_map(|text| text.parse().ok()).map(canonical).collect();
        let names = own.iter().filter_map(|text| text.parse().ok()).collect();
        Self { closed, names, addresses: RwLock::new(addresses), watched: AtomicBool::new(false) }
    }

    /// The narrowest network that the operator closed and that has the address.
    pub(crate) fn closed(&self, address: IpAddr) -> Option<Cidr> {
        let around = self.closed.iter().filter(|cidr| cidr.net().contains(&address));
        around.max_by_key(|cidr| cidr.net().prefix_len()).copied()
    }

    /// Whether a connection leads to the host or this server.
    pub(crate) fn is_own(&self, names: &[HostName], address: IpAddr) -> bool {
        self.is_own_name(names)
            || self.addresses.read().unwrap_or_else(PoisonError::into_inner).contains(&address)
            || dial::is_own(address)
    }

    /// Whether one of these is a name of this server.
    pub(crate) fn is_own_name(&self, names: &[HostName]) -> bool {
        let below = |name: &HostName, own: &HostName| {
            name.as_str()
                .strip_suffix(own.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        names.iter().any(|name| self.names.iter().any(|own| below(name, own)))
    }

    /// Begins to look the server's names up, unless that has begun. Must be called on a runtime. The task ends with the
    /// gateway.
    pub(crate) fn watch(shared: &Arc<Shared>) {
        let borders = &shared.borders;
        if borders.names.is_empty() || borders.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::downgrade(shared);
        tokio::spawn(async move {
            while let Some(shared) = shared.upgrade() {
                shared.borders.refresh(&shared).await;
                drop(shared);
                tokio::time::sleep(REFRESH).await;
            }
        });
    }

    async fn refresh(&self, shared: &Shared) {
        let below = |name: &HostName| format!("{SOME_PORT}.{name}").parse().ok();
        // Names below `localhost` mean the loopback everywhere (RFC 6761), which is the host's anyway.
        let elsewhere = self.names.iter().filter(|name| !name.as_str().ends_with("localhost"));
        let asked: Vec<HostName> =
            elsewhere.flat_map(|name| [Some(name.clone()), below(name)]).flatten().collect();
        for name in asked {
            // Addresses from the resolvers, and from the host's own look-up. A found address stays: names move, but a
            // sandbox has no business at an address where this server was an hour ago either.
            let mut found = shared.resolver.addresses_of_host(&name).await;
            if let Ok(more) = tokio::net::lookup_host((name.as_str(), 0)).await {
                found.extend(more.map(|address| address.ip()));
            }
            let mut known = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
            known.extend(found.into_iter().map(canonical));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_this_server() {
        let own = ["Atoll.example.com".to_owned(), "ports.example".to_owned(), "93.184.216.34".to_owned()];
        let borders = Borders::new(Vec::new(), &own);
        let elsewhere: IpAddr = "93.184.216.35".parse().unwrap();
        let is = |name: &str| borders.is_own(&[name.parse().unwrap()], elsewhere);
        assert!(is("atoll.example.com") && is("ports.example") && is("3000-web.ports.example"));
        assert!(!is("example.com") && !is("notatoll.example.com") && !is("xports.example"));
        assert!(borders.is_own(&[], "93.184.216.34".parse().unwrap()));
        assert!(borders.is_own(&[], "127.0.0.1".parse().unwrap()));
        assert!(!borders.is_own(&[], elsewhere));
    }

    #[test]
    fn the_narrowest_closed_network_counts() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        let borders = Borders::new(vec![cidr("93.0.0.0/8"), cidr("93.184.0.0/16")], &[]);
        assert_eq!(borders.closed("93.184.1.1".parse().unwrap()), Some(cidr("93.184.0.0/16")));
        assert_eq!(borders.closed("93.1.1.1".parse().unwrap()), Some(cidr("93.0.0.0/8")));
        assert_eq!(borders.closed("8.8.8.8".parse().unwrap()), None);
    }
}
