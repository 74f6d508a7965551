//! Whether a network namespace is as it was when it was made.
//!
//! A namespace that was used is compared with one that never was, by what the kernel shows of each in `/proc/net`: the
//! files of [`NEEDED`] and [`OPTIONAL`] must have the same text. Whoever cannot be read, or differs in one counter, is
//! thrown away. The caller has seen to it that no process of the sandbox lives, and that nothing that a process opened can
//! be held by another sandbox.
//!
//! What could be left, since no capability of a sandbox reaches the namespace and its programs can only open sockets:
//!
//! | what | where it shows |
//! |---|---|
//! | a socket that somebody holds, or that is on its way in another one | `sockets: used`, which counts those of every family |
//! | packets, of any protocol, to anywhere; connections, also those that nobody accepted; waiting datagrams | `dev`: bytes and packets of `lo`, counted before the call that sends returns; `snmp`, `netstat`, `snmp6` |
//! | what the kernel learns from packets: metrics of TCP, paths' sizes and redirects, tracked connections, `TIME_WAIT`, fragments | without a packet there is none |
//! | attempts that sent nothing (no route over IPv6) | `snmp6` |
//! | memberships of multicast groups: they end with their socket, but the kernel still announces that, some ticks later | `igmp`, `igmp6`; and the announcement is a packet, which has been sent after the rest that the namespace is given (`used`) |
//! | labels of IPv6's flows, which outlive their socket by seconds | `ip6_flowlabel` |
//! | routes of IPv6 that the kernel keeps for a processor once they were looked up | `rt6_stats` |
//! | netlink sockets, which the kernel frees later | `sockets: used`; the rest is long enough for them |
//! | addresses, routes, rules of `nft`, settings, other devices | need a capability; settings can only be read inside |
//! | names of abstract Unix sockets, ports, groups that share a port, `net_cls` and `net_prio` marks | belong to a socket, and go with it |
//! | keys that the kernel makes at first need (TCP Fast Open) | do not show, are random, and help nobody outside the namespace |
//!
//! The inode of the namespace and its cookie stay the same. They name it, and say nothing of who was in it.

use std::fs::File;
use std::io::{self, Read};

/// Files that every kernel has.
const NEEDED: [&str; 4] = ["sockstat", "dev", "snmp", "netstat"];
/// Files that a kernel without IPv6, or without multicast, lacks in all namespaces.
const OPTIONAL: [&str; 6] = ["igmp", "sockstat6", "snmp6", "igmp6", "ip6_flowlabel", "rt6_stats"];
/// Longest file, bytes. Of the counters of all protocols there are some four thousand.
const FILE_MAX_BYTES: u64 = 64 << 10;
/// What one usually has, so that it is read at once.
const FILE_USUAL_BYTES: usize = 8 << 10;

/// What the kernel shows of a namespace that was made and not used.
#[derive(Debug)]
pub(crate) struct Fresh(Vec<(&'static str, Option<String>)>);

impl Fresh {
    /// Reads it in the namespace of this thread.
    ///
    /// # Errors
    /// When the kernel does not show it.
    pub(crate) fn read() -> io::Result<Self> {
        let mut files = Vec::with_capacity(NEEDED.len() + OPTIONAL.len());
        for name in NEEDED {
            files.push((name, Some(shown(name)?)));
        }
        for name in OPTIONAL {
            files.push((name, shown_if_there(name)?));
        }
        Ok(Self(files))
    }

    /// What differs in the namespace of this thread: the name of the first file that does.
    ///
    /// # Errors
    /// When the kernel does not show it.
    pub(crate) fn difference(&self) -> io::Result<Option<&'static str>> {
        for (name, fresh) in &self.0 {
            if shown_if_there(name)? != *fresh {
                return Ok(Some(*name));
            }
        }
        Ok(None)
    }
}

fn shown_if_there(name: &str) -> io::Result<Option<String>> {
    match shown(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// A file of this thread's namespace, without what it says of all namespaces together.
fn shown(name: &str) -> io::Result<String> {
    let mut text = String::with_capacity(FILE_USUAL_BYTES);
    let file = File::open(format!("/proc/thread-self/net/{name}"))?;
    let length = file.take(FILE_MAX_BYTES).read_to_string(&mut text)?;
    if length as u64 >= FILE_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("/proc/net/{name} is too long")));
    }
    Ok(if name == "sockstat" { own_part(&text) } else { text })
}

/// What the kernel counts for the whole host, and shows in every namespace: TCP's connections that no process has open any
/// more, its sockets, and the memory of protocols.
const OF_THE_HOST: [&str; 3] = ["orphan", "alloc", "mem"];

/// `TCP: inuse 1 orphan 0 tw 0 alloc 11 mem 0`: each line is a protocol with names and figures.
fn own_part(sockstat: &str) -> String {
    let own = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (protocol, figures) = words.split_at(words.len().min(1));
        let is_own = |figure: &&[&str]| figure.first().is_none_or(|name| !OF_THE_HOST.contains(name));
        let figures = figures.chunks(2).filter(is_own).flatten();
        protocol.iter().chain(figures).copied().collect::<Vec<_>>().join(" ")
    };
    sockstat.lines().map(own).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_hosts_is_left_out_and_nothing_else() {
        let sockstat = "sockets: used 2\nTCP: inuse 1 orphan 3 tw 4 alloc 11 mem 5\nUDP: inuse 1 mem 6\n\
                        RAW: inuse 0\nFRAG: inuse 0 memory 7\n";
        let own = "sockets: used 2\nTCP: inuse 1 tw 4\nUDP: inuse 1\nRAW: inuse 0\nFRAG: inuse 0 memory 7";
        assert_eq!(own_part(sockstat), own);
    }
}
