//! The settings that the server gets when it starts.

use std::sync::Arc;
use std::time::Duration;

use atoll_oidc::Issuer;
use atoll_tls::{NodeTls, Tls};

use crate::metrics::SpanCounts;

/// Where people log in.
#[derive(Debug, Clone)]
pub struct PeopleConfig {
    /// The issuer of identities: it says which person logs in.
    pub issuer: Arc<Issuer>,
    /// The issuer's name on the dashboard's button.
    pub name: String,
}

/// Settings of the server. The caller reads them from wherever they come.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Random id of this installation, shown by `/v1/info`.
    pub installation: String,
    /// Answer `/metrics` without a key.
    pub metrics_public: bool,
    /// Names, besides `localhost` and IP addresses, under which browsers may reach this server. A
    /// request that a web page sends to another name is refused: see `origin`.
    pub hosts: Vec<String>,
    /// Ports of sandboxes are reached as `<port>-<sandbox>.<this>`.
    pub ports_domain: String,
    /// Scheme, host and port under which clients reach this server, when that is not where it listens: as
    /// behind a proxy that speaks TLS.
    pub public_url: Option<http::Uri>,
    /// Turns connections into TLS connections. Without it clients speak plain HTTP; with it only clients on this host
    /// may.
    pub tls: Option<Arc<Tls>>,
    /// This node's side of connections to other nodes, where it is one of a cluster.
    pub nodes: Option<Arc<NodeTls>>,
    /// Serve the dashboard, under host names of its own.
    pub dashboard: bool,
    /// Where people log in, if they may.
    pub people: Option<PeopleConfig>,
    /// Connections at once. More wait in the kernel's queue.
    pub connections_max: usize,
    /// Answers that go on or are long (output that is followed, files, archives) that one key may have open at once.
    pub streams_of_key_max: usize,
    /// Gives memory that was freed back to the kernel. The server calls it when many of those answers have ended.
    pub give_memory_back: fn(),
    /// Counts of the spans of execs that were sent and lost, where a collector gets them.
    pub spans: Option<Arc<SpanCounts>>,
    /// How long requests under way may take to finish when the server stops.
    pub drain_timeout: Duration,
}

impl ServerConfig {
    /// The defaults: 10,000 connections, 4,096 open answers of a key, 10 seconds to drain, metrics for keys only.
    #[must_use]
    pub fn new(installation: impl Into<String>) -> Self {
        Self {
            installation: installation.into(),
            metrics_public: false,
            hosts: Vec::new(),
            ports_domain: "localhost".to_owned(),
            public_url: None,
            tls: None,
            nodes: None,
            dashboard: true,
            people: None,
            connections_max: 10_000,
            streams_of_key_max: 4096,
            give_memory_back: || {},
            spans: None,
            drain_timeout: Duration::from_secs(10),
        }
    }

    /// Whether a proxy in front speaks TLS with clients.
    pub(crate) fn is_proxied(&self) -> bool {
        self.public_url.as_ref().is_some_and(|url| url.scheme_str() == Some("https"))
    }

    /// Whether clients come over TLS.
    pub(crate) fn is_https(&self) -> bool {
        match &self.public_url {
            Some(_) => self.is_proxied(),
            None => self.tls.is_some(),
        }
    }
}
