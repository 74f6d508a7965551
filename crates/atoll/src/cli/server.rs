//! Arguments of the commands that concern the server and its host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use atoll_core::limits::POOL_MAX_COUNT;
use atoll_core::node;
use atoll_core::person::{LOGIN_MAX_MS, Rule};
use atoll_core::policy::Cidr;
use atoll_core::pool::PoolSpec;
use atoll_core::sharing::Visibility;
use atoll_core::spec::IsolationLevel;
use atoll_core::trace::TraceMode;
use atoll_image::Allowed;
use atoll_recorder::Retention;
use clap::Args;

use super::access::parse_visibility;
use super::pool::parse_image_pool;
use super::sandbox::parse_isolation;
use super::{AcmeArgs, SharedArgs};
use crate::units::{parse_bytes, parse_duration_ms};

/// The domain when none is given: browsers and curl lead all names below it to this host.
pub(crate) const LOCALHOST: &str = "localhost";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The server.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port. Use --tls, or --tls-cert and --tls-key, before leaving the loopback
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4600", value_parser = parse_listen)]
    pub(crate) listen: SocketAddr,
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/atoll")]
    pub(crate) data_dir: PathBuf,
    /// Keep everything in a directory below /var/tmp, and end it all with the server: for tests
    #[arg(long, conflicts_with_all = ["data_dir", "database"])]
    pub(crate) ephemeral: bool,
    /// Database, as sqlite:///path/file.db or postgres://… [env: ATOLL_DATABASE] [default: DIR/atoll.db]
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// Print one line of JSON with url and api_key on standard output once it serves
    #[arg(long)]
    pub(crate) ready_json: bool,
    /// Make a new admin key and show it, for when the first one is lost
    #[arg(long)]
    pub(crate) new_key: bool,
    /// Most sandboxes at once
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    pub(crate) sandboxes_max: usize,
    /// Disks, network and user namespaces to keep ready for new sandboxes
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub(crate) ready: usize,
    /// Image of a sandbox when neither the request nor a template says
    #[arg(long, value_name = "IMAGE", default_value = "host")]
    pub(crate) default_image: String,
    /// Isolation level of a sandbox when the request does not say, as protocols without a word for it do not
    #[arg(long, value_name = "LEVEL", default_value = "container", value_parser = parse_isolation)]
    pub(crate) default_isolation: IsolationLevel,
    /// What a sandbox may reach when neither the request nor a template says: off, on, or a file with a policy as JSON
    #[arg(long, value_name = "off|on|FILE", default_value = "off")]
    pub(crate) default_egress: String,
    /// Proxy for every connection of sandboxes: socks5://… or http://[user:password@]host:port
    /// [env: ATOLL_EGRESS_PROXY]
    #[arg(long, value_name = "URL")]
    pub(crate) egress_proxy: Option<String>,
    /// Resolver for sandboxes' names, as ADDRESS:PORT (repeatable) [default: those of the host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) resolver: Vec<SocketAddr>,
    /// Names with their addresses, in the form of /etc/hosts, which come before what resolvers say; read again when it
    /// changes [default: /etc/hosts, unless --resolver is given]
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts_file: Option<PathBuf>,
    /// Network that counts as private for sandboxes: reached only through a rule as narrow as it (repeatable)
    #[arg(long, value_name = "CIDR")]
    pub(crate) closed_cidr: Vec<Cidr>,
    /// Registry, or network of registries, that images may be pulled from although its address is not public
    /// (repeatable); those of 'atoll registry login' may be, too
    #[arg(long, value_name = "HOST[:PORT]|CIDR")]
    pub(crate) registry_allow: Vec<Allowed>,
    /// Authorities for servers outside whose TLS is looked into, besides the host's, PEM (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca: Vec<PathBuf>,
    /// Command that prints the vault's key (64 hexadecimal digits or base64), and on a second line the
    /// previous one until it was changed [env: ATOLL_VAULT_KEY, ATOLL_VAULT_KEY_PREVIOUS]
    /// [default: DIR/vault.key]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) vault_key_command: Option<String>,
    /// Take memory from frozen sandboxes when less than this is available on the host; 0 for never
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "1GiB")]
    pub(crate) reclaim_below: u64,
    /// Keep sandboxes of this image running for creations to come, as IMAGE=COUNT or IMAGE=MIN..MAX (repeatable)
    #[arg(long, value_name = "IMAGE=COUNT", value_parser = parse_image_pool)]
    pub(crate) pool: Vec<(String, PoolSpec)>,
    /// Most that are kept ready of what is asked for again and again and has no pool; 0 keeps nothing
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(..=i64::from(POOL_MAX_COUNT)))]
    pub(crate) pool_demand: u32,
    /// Memory that all warm pools may take together [default: half of the host's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) pool_memory: Option<u64>,
    /// Whether keys see sandboxes that other keys made: shared or private
    #[arg(long, value_name = "VISIBILITY", default_value = "shared", value_parser = parse_visibility)]
    pub(crate) visibility: Visibility,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Bucket for snapshots, as s3://bucket/prefix [env: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    /// AWS_SESSION_TOKEN hold the credentials]
    #[arg(long, value_name = "URL")]
    pub(crate) objects: Option<String>,
    /// Server of the bucket, for all but Amazon's own [env: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL", requires = "objects")]
    pub(crate) objects_endpoint: Option<String>,
    /// Region of the bucket [env: AWS_REGION]
    #[arg(long, value_name = "NAME", requires = "objects")]
    pub(crate) objects_region: Option<String>,
    /// Largest size of the pool for disks and snapshots, where the data directory's file system cannot clone
    /// files [default: what is free on it]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) storage_size: Option<u64>,
    /// Output of commands that is kept altogether; beyond that the oldest goes [default: a tenth of the file system of
    /// the data directory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) logs_size: Option<u64>,
    /// Images that every node of a cluster can have and nothing on this one stands on; beyond that the one that was used longest ago
    /// goes, until it is needed again [default: a tenth of the file system of the data directory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) images_size: Option<u64>,
    #[command(flatten)]
    pub(crate) microvm: MicrovmArgs,
    #[command(flatten)]
    pub(crate) gvisor: GvisorArgs,
    /// Answer /metrics without a key
    #[arg(long)]
    pub(crate) metrics_public: bool,
    /// Another name under which browsers may reach the server (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Domain of this server: it is reached as NAME, ports of sandboxes as <port>-<sandbox>.NAME
    #[arg(long, alias = "ports-domain", value_name = "NAME", default_value = LOCALHOST, value_parser = parse_domain)]
    pub(crate) domain: String,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) acme: AcmeArgs,
    /// Address under which clients reach the server, if it is behind a proxy, such as https://atoll.example.com
    #[arg(long, value_name = "URL", value_parser = parse_public_url)]
    pub(crate) public_url: Option<PublicUrl>,
    #[command(flatten)]
    pub(crate) oidc: OidcArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Do not let SSH clients in; otherwise they come to the same port
    #[arg(long)]
    pub(crate) no_ssh: bool,
    /// Do not serve the dashboard; otherwise it is at console.localhost and, over HTTPS, console.<domain>
    #[arg(long)]
    pub(crate) no_dashboard: bool,
    /// What to log: a level, or rules such as 'warn,atoll_engine=debug'
    #[arg(long, value_name = "RULES", default_value = "info")]
    pub(crate) log: String,
    /// How log lines look: for people, or one JSON object a line
    #[arg(long, value_name = "text|json", value_enum, default_value = "text", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,
    /// Send traces, metrics and the log to this collector, OTLP over HTTP [env: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// People who log in at an issuer of identities.
#[derive(Debug, Args)]
pub(crate) struct OidcArgs {
    /// Let people log in at this issuer of identities (OpenID Connect), besides keys
    #[arg(long, value_name = "URL", requires_all = ["oidc_client_id", "oidc_allow"])]
    pub(crate) oidc_issuer: Option<String>,
    /// Name under which it knows this server
    #[arg(long, value_name = "ID", requires = "oidc_issuer")]
    pub(crate) oidc_client_id: Option<String>,
    /// File with the secret that goes with it; without, the issuer must take this server as a public client
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    pub(crate) oidc_client_secret_file: Option<PathBuf>,
    /// Let people in of whom the issuer says this, with this scope (repeatable): groups=platform:manage,
    /// email=ann@example.com:admin, email=*@example.com:read; with @PROJECT behind it, as of that project. No other person is let in
    #[arg(long, value_name = "CLAIM=VALUE:SCOPE[@PROJECT]", requires = "oidc_issuer", value_parser = parse_oidc_rule)]
    pub(crate) oidc_allow: Vec<Rule>,
    /// What to ask the issuer for, besides openid (repeatable) [default: email]
    #[arg(long, value_name = "SCOPE", requires = "oidc_issuer")]
    pub(crate) oidc_scope: Vec<String>,
    /// How the dashboard's button calls it [default: its host]
    #[arg(long, value_name = "NAME", requires = "oidc_issuer")]
    pub(crate) oidc_name: Option<String>,
    /// How long a person stays logged in
    #[arg(long, value_name = "DURATION", value_parser = parse_login_ms, default_value = "12h")]
    pub(crate) oidc_login: u64,
}

/// Reads `ADDRESS:PORT`.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_malformed| "write an address and a port, such as 127.0.0.1:4600".to_owned())
}

fn parse_oidc_rule(text: &str) -> Result<Rule, String> {
    text.parse().map_err(|error: atoll_core::Error| match error.hint {
        Some(hint) => format!("{}: {hint}", error.message),
        None => error.message,
    })
}

fn parse_login_ms(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text)?;
    if (60_000..=LOGIN_MAX_MS).contains(&ms) { Ok(ms) } else { Err("must lie between 1m and 30d".to_owned()) }
}

/// A server on PostgreSQL is a node of a cluster.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Name among the servers that share a PostgreSQL database [default: the host's]
    #[arg(long, value_name = "NAME", value_parser = parse_node_name)]
    pub(crate) node_name: Option<String>,
    /// Where the others reach this server, on a port of its own that is for them alone [default: a free one on the
    /// loopback]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertised)]
    pub(crate) advertise: Option<Advertised>,
    /// Something to say of this node (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_node_label)]
    pub(crate) node_label: Vec<(String, String)>,
    /// How long the others wait for a sign of life before they take over
    #[arg(long, value_name = "DURATION", value_parser = parse_lease_ms, default_value = "10s")]
    pub(crate) node_lease: u64,
}

/// Where a node is reached.
#[derive(Debug, Clone)]
pub(crate) struct Advertised {
    pub(crate) host: String,
    pub(crate) port: u16,
}

fn parse_node_name(text: &str) -> Result<String, String> {
    node::validate_name("name", text).map_err(|error| error.message)?;
    Ok(text.to_owned())
}

fn parse_advertised(text: &str) -> Result<Advertised, String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match parts {
        Some((host, port)) if !host.is_empty() && host.len() <= 253 && port > 0 => {
            Ok(Advertised { host: host.to_owned(), port })
        }
        _ => Err("write HOST:PORT".to_owned()),
    }
}

fn parse_node_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    let label = std::collections::BTreeMap::from([(key.to_owned(), value.to_owned())]);
    node::validate_labels("label", &label).map_err(|error| error.message)?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_lease_ms(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text)?;
    if (node::NODE_LEASE_MIN_MS..=node::NODE_LEASE_MAX_MS).contains(&ms) {
        return Ok(ms);
    }
    Err("must lie between 3s and 10m".to_owned())
}

/// The flight recorder.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// What is recorded of what sandboxes do: off; on; strict: what cannot be recorded does not happen, the sandbox
    /// stands still. A sandbox may ask for more, never for less
    #[arg(long, value_name = "off|on|strict", default_value = "on", value_parser = parse_trace)]
    pub(crate) trace: TraceMode,
    /// How long journals are kept, also of sandboxes that are gone
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, default_value = "30d")]
    trace_keep: u64,
    /// Most bytes of one sandbox's journal; the oldest go first
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "256MiB")]
    trace_size: u64,
}

impl TraceArgs {
    pub(crate) fn retention(&self) -> Retention {
        Retention { age: Duration::from_millis(self.trace_keep), bytes: self.trace_size }
    }
}

/// Reads how much is recorded.
pub(crate) fn parse_trace(text: &str) -> Result<TraceMode, String> {
    TraceMode::parse(text).ok_or_else(|| "write off, on or strict".to_owned())
}

/// TLS of the server's port. Clients of this host may go on to speak plain HTTP.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Speak TLS, with certificates of an authority of this installation's own: 'atoll ca' shows what clients must
    /// trust
    #[arg(long, conflicts_with_all = ["tls_cert", "acme"])]
    pub(crate) tls: bool,
    /// Speak TLS with this certificate and those that lead to its authority, PEM: for NAME and *.NAME of --domain.
    /// Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "acme")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Virtual machines.
#[derive(Debug, Args)]
pub(crate) struct MicrovmArgs {
    /// Where the kernel of virtual machines, images for them and saved machines are kept; several servers may
    /// share it [default: DIR/microvm in the data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) microvm_dir: Option<PathBuf>,
    /// QEMU for virtual machines
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/qemu-system-x86_64")]
    pub(crate) qemu: PathBuf,
}

/// gVisor.
#[derive(Debug, Args)]
pub(crate) struct GvisorArgs {
    /// gVisor's program, for sandboxes of the isolation level gvisor [default: /usr/bin/runsc, where it is installed]
    #[arg(long, value_name = "FILE")]
    pub(crate) runsc: Option<PathBuf>,
}

/// What can be set up.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SetupCommand {
    /// Fetch the kernel for virtual machines (isolation level microvm), and boot one to see that it works
    Microvm(SetupMicrovmArgs),
}

/// The kernel of virtual machines.
#[derive(Debug, Args)]
pub(crate) struct SetupMicrovmArgs {
    /// Debian package of a cloud kernel, 6.12 or newer [default: the newest that apt-get can download]
    #[arg(long, value_name = "FILE")]
    pub(crate) package: Option<PathBuf>,
    /// The same, unpacked: with boot/vmlinuz-VERSION and lib/modules/VERSION
    #[arg(long, value_name = "DIR", conflicts_with = "package")]
    pub(crate) tree: Option<PathBuf>,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "/var/lib/atoll")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) microvm: MicrovmArgs,
}

/// Scheme, host and port, as they are in a URL.
#[derive(Debug, Clone)]
pub(crate) struct PublicUrl(pub(crate) String);

impl PublicUrl {
    /// The host, without its port; an IPv6 address without its brackets.
    pub(crate) fn host(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest).trim_end_matches('/');
        match rest.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or(address),
            None => rest.rsplit_once(':').map_or(rest, |(host, _)| host),
        }
    }
}

fn parse_public_url(text: &str) -> Result<PublicUrl, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let rest = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest)).unwrap_or_default();
    let plain = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b));
    if plain {
        Ok(PublicUrl(text.to_owned()))
    } else {
        Err("write http:// or https://, a host, and a port if it needs one".to_owned())
    }
}

/// A DNS name in lower case; browsers and DNS do not keep the case.
pub(crate) fn parse_domain(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= 180 && name.split('.').all(label) {
        Ok(name)
    } else {
        Err("not a domain name".to_owned())
    }
}

/// An installation to end.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Its data directory; no server may use it
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// End what runs, and keep everything in the data directory: sandboxes that ran are failed at the next start
    #[arg(long)]
    pub(crate) keep_data: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// An installation to back up.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// File to write, in place of one that is there; - for standard output. It holds all secrets and keys: only its
    /// owner may read it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Data directory of the server, which must be stopped; sandboxes that run stand still meanwhile
    #[arg(long, value_name = "DIR", default_value = "/var/lib/atoll")]
    pub(crate) data_dir: PathBuf,
    /// Its database is not in the data directory (atoll serve --database) and backed up by other means
    #[arg(long, conflicts_with = "cluster")]
    pub(crate) without_database: bool,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
}

/// A backup to restore.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// File that 'atoll backup' wrote; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Data directory to make, empty or absent
    #[arg(long, value_name = "DIR", required_unless_present_any = ["verify", "cluster"])]
    pub(crate) data_dir: Option<PathBuf>,
    /// Only read it to its end and compare all digests
    #[arg(long, conflicts_with_all = ["data_dir", "cluster"])]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
}

/// A server to work with from now on.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// Its address [default: the one that is configured, or http://127.0.0.1:4600]
    pub(crate) server: Option<String>,
    /// Log in as a person, at the server's issuer of identities, instead of with a key: in a browser, here or elsewhere
    #[arg(long)]
    pub(crate) oidc: bool,
}

/// The dashboard.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Open it in a browser of this machine, if there is one
    #[arg(long)]
    pub(crate) open: bool,
}

/// The host.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// List what carries the id of no known sandbox; without a server and a data directory, installations on this host
    /// whose data directory is gone; exit code 1 when there is something
    #[arg(long)]
    pub(crate) leaks: bool,
    /// Ask every node of the server's cluster for its lease, clock, vault's key and schema, and whether it reaches the
    /// others; exit code 1 when something is missing
    #[arg(long, conflicts_with_all = ["leaks", "data_dir"])]
    pub(crate) cluster: bool,
    /// Remove it
    #[arg(long, requires = "leaks")]
    pub(crate) remove: bool,
    /// Look at this data directory, whose server does not run, instead of asking a server
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) microvm: MicrovmArgs,
    #[command(flatten)]
    pub(crate) gvisor: GvisorArgs,
    /// Its database, if it is not in the data directory
    #[arg(long, value_name = "URL", requires = "data_dir")]
    pub(crate) database: Option<String>,
}
