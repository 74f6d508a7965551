//! Addresses that are not the public internet: private networks, the host, link-local (where clouds keep
//! their metadata), multicast, and wrappings of such addresses in IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 blocks, with prefix length and what they are, as in the IANA registry of special purposes.
const V4: [(Ipv4Addr, u8, &str); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "the address of no host"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "a carrier's private address"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "the host's own loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local address (cloud metadata)"),
    // Not in the registry: on every virtual machine of Azure it is the host's agent, with credentials.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "Azure's address for its machines (cloud metadata)"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a reserved address"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "a documentation address"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a reserved address"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "a benchmarking address"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "a documentation address"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "a documentation address"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved address"),
];

/// IPv6 blocks inside the public range 2000::/3 that are not public, or lead to an IPv4 address.
const V6: [(Ipv6Addr, u8, &str); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a reserved address"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "a documentation address"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "an IPv4 address in a tunnel"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "a documentation address"),
];

/// An IPv4 address in IPv6 clothes is that IPv4 address.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The kind of an address, if it is not public. Give [`canonical`] addresses.
#[must_use]
pub fn special(address: IpAddr) -> Option<&'static str> {
    block(address).map(|block| block.what)
}

/// A block of special addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) what: &'static str,
    /// A rule that opens addresses of the block must be at least this narrow.
    pub(super) prefix: u8,
}

pub(super) fn block(address: IpAddr) -> Option<Block> {
    match address {
        IpAddr::V4(address) => {
            let bits = u32::from(address);
            V4.iter()
                .find(|(net, prefix, _)| (bits ^ u32::from(*net)) >> (32 - u32::from(*prefix)) == 0)
                .map(|&(_, prefix, what)| Block { what, prefix })
        }
        IpAddr::V6(address) => block_v6(address),
    }
}

fn block_v6(address: Ipv6Addr) -> Option<Block> {
    let [first, ..] = address.segments();
    let named = |what, prefix| Some(Block { what, prefix });
    match first {
        0xfe80..=0xfebf => named("a link-local address", 10),
        0xfc00..=0xfdff => named("a private address", 7),
        0xff00..=0xffff => named("a multicast address", 8),
        0x2000..=0x3fff => {
            let bits = u128::from(address);
            V6.iter()
                .find(|(net, prefix, _)| (bits ^ u128::from(*net)) >> (128 - u32::from(*prefix)) == 0)
                .map(|&(_, prefix, what)| Block { what, prefix })
        }
        // Loopback, unspecified, translation prefixes and everything unassigned.
        _ => named("a reserved address", 96),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_the_blocks() {
        let is = |text: &str| special(canonical(text.parse().unwrap())).is_some();
        for address in [
            "0.0.0.0",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "::10.0.0.1",
            "4000::1",
        ] {
            assert!(is(address), "{address}");
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "223.255.255.255",
            "2606:4700::1",
            "2a00::1",
            "2003::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(!is(address), "{address}");
        }
    }
}
