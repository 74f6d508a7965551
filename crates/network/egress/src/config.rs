//! The gateway's settings at start.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use atoll_core::policy::Cidr;
use atoll_core::secret::Secret;
use atoll_recorder::Recorder;

use crate::interceptor::Interceptor;

/// The gateway's settings at start.
#[derive(Debug, Clone, Default)]
pub struct GatewayConfig {
    /// Resolvers to ask; those of the host's `/etc/resolv.conf` when empty.
    pub resolvers: Vec<SocketAddr>,
    /// Names with their addresses, in the form of `/etc/hosts`, which come before what resolvers say.
    pub hosts_file: Option<PathBuf>,
    /// A proxy through which every connection to the outside goes.
    pub upstream: Option<UpstreamProxy>,
    /// Looks into connections where a policy asks for it.
    pub interceptor: Option<Arc<dyn Interceptor>>,
    /// Networks that count as private, besides the standard ones.
    pub closed: Vec<Cidr>,
    /// Names and addresses under which this server is reached, and below which its sandboxes' ports are: like the
    /// host's own addresses, they are reached only through a rule that names the address.
    pub own_hosts: Vec<String>,
    /// The recorder, which is told of everything that sandboxes do.
    pub recorder: Option<Recorder>,
    /// Connections of all sandboxes together; as many as the process's descriptors allow when absent.
    pub connections_max: Option<usize>,
    /// Bytes on their way that all sandboxes together may hold; a part of the host's memory when absent.
    pub buffered_max_bytes: Option<usize>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    Socks5,
    Http,
}

/// A proxy between this server and the outside: `socks5://[user:password@]host:port` or
/// `http://[user:password@]host:port`.
///
/// It is told addresses, never names: which address a name has was decided and checked here.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamProxy {
    pub(crate) kind: ProxyKind,
    /// `host:port`.
    pub(crate) authority: String,
    pub(crate) credentials: Option<(String, Secret)>,
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamProxy({:?}, {})", self.kind, self.authority)
    }
}

/// Why a text is not a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write socks5://[user:password@]host:port or http://[user:password@]host:port")]
pub struct NotAProxy;

impl FromStr for UpstreamProxy {
    type Err = NotAProxy;

    fn from_str(text: &str) -> Result<Self, NotAProxy> {
        let (scheme, rest) = text.split_once("://").ok_or(NotAProxy)?;
        let kind = match scheme {
            "socks5" | "socks5h" => ProxyKind::Socks5,
            "http" => ProxyKind::Http,
            _ => return Err(NotAProxy),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(credentials), authority),
            None => (None, rest),
        };
        let credentials = match credentials.map(|both| both.split_once(':').ok_or(NotAProxy)) {
            None => None,
            Some(both) => {
                let (user, password) = both?;
                // RFC 1929 gives each one length byte.
                if user.is_empty() || user.len() > 255 || password.len() > 255 {
                    return Err(NotAProxy);
                }
                Some((user.to_owned(), Secret::new(password)))
            }
        };
        let (host, port) = authority.rsplit_once(':').ok_or(NotAProxy)?;
        if host.is_empty() || host.contains('/') || !port.parse::<u16>().is_ok_and(|port| port != 0) {
            return Err(NotAProxy);
        }
        Ok(Self { kind, authority: authority.to_owned(), credentials })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_and_their_passwords_never_printed() {
        let proxy = "socks5://me:p@ss@127.0.0.1:1080".parse::<UpstreamProxy>().unwrap();
        assert_eq!((proxy.kind, proxy.authority.as_str()), (ProxyKind::Socks5, "127.0.0.1:1080"));
        assert_eq!(proxy.credentials.as_ref().unwrap().1.reveal(), "p@ss");
        assert!(!format!("{proxy:?}").contains("p@ss"));
        assert!("http://proxy.example:3128/".parse::<UpstreamProxy>().is_ok());
        for bad in ["", "ftp://a:1", "http://a", "http://a:0", "http://:1", "http://u@a:1", "http://a:1/x"] {
            assert!(bad.parse::<UpstreamProxy>().is_err(), "{bad}");
        }
    }
}
