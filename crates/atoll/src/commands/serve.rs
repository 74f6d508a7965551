//! `atoll serve`: the server, in the foreground.
//!
//! Ports are opened first, then the engine is started, and at last the ports are served, until a signal comes or another
//! node has taken this one over. [`settings`] makes the engine's settings of the arguments, [`certificate`] the
//! certificate.

mod certificate;
mod settings;
mod ssh;

use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_core::{Code, Error};
use atoll_engine::NewKey;
use atoll_isolation_host::EPHEMERAL;
use atoll_mcp::{Endpoint, Presets};
use atoll_server::dialect::Dialect;
use atoll_server::{McpDoor, Server, ServerConfig};
use atoll_store::StoreUrl;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

pub(super) use self::settings::open_objects;
use self::settings::{issuer, limits, names};
use super::{purge, system};
use crate::cli::{Advertised, ServeArgs};
use crate::config;
use crate::daemon::{
    Collector, Daemon, DataDir, NodeSettings, Spans, Telemetry, end_left_behind, follow_metrics,
};
use crate::failure::{Failure, Result};
use crate::output::Printer;

/// Other vendors' protocols.
const DIALECTS: [Dialect; 5] = [
    atoll_dialect_langsmith::DIALECT,
    atoll_dialect_e2b::DIALECT,
    atoll_dialect_daytona::DIALECT,
    atoll_dialect_runloop::DIALECT,
    atoll_dialect_modal::DIALECT,
];

/// The line of `--ready-json`.
#[derive(Serialize)]
struct Ready<'a> {
    url: &'a str,
    /// The operator's key, when this start made one; otherwise only its hash is known.
    api_key: Option<&'a str>,
}

/// For how long an address that is in use is tried again. A server that was killed while it made sandboxes can have
/// a child for some milliseconds yet, with all its descriptors, before that becomes the sandbox's first process.
const LISTEN_AGAIN_FOR: Duration = Duration::from_secs(1);

async fn listen(address: SocketAddr, data_dir: &Path) -> Result<TcpListener> {
    let give_up = Instant::now() + LISTEN_AGAIN_FOR;
    let mut is_first = true;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_first => {
                end_left_behind(data_dir);
                is_first = false;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let hint = "'ss -ltnp' shows which; choose another address with --listen";
                let message = format!("cannot listen on {address}: another program does");
                return Err(Failure::Plain(Error::new(Code::InvalidState, message).hint(hint)));
            }
            Err(error) => return Err(Failure::io(format!("cannot listen on {address}"), error)),
        }
    }
}

pub(super) async fn serve(printer: Printer, mut args: ServeArgs) -> Result<()> {
    system::need_root("run a server")?;
    if !args.ephemeral {
        args.database = args.database.take().map_or_else(config::database, |given| Ok(Some(given)))?;
        return Box::pin(serve_on(printer, args)).await;
    }
    let failed = |error| Failure::io("cannot make a directory below /var/tmp", error);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("atoll-ephemeral-").permissions(Permissions::from_mode(0o700));
    let dir = builder.tempdir_in("/var/tmp").map_err(failed)?;
    let path = dir.keep();
    // Should this process be killed, this file tells `atoll doctor` that the directory is an ephemeral server's.
    std::fs::write(path.join(EPHEMERAL), "").map_err(failed)?;
    args.data_dir.clone_from(&path);
    let served = Box::pin(serve_on(printer, args)).await;
    let ended = tokio::task::spawn_blocking(move || purge::end_ephemeral(&path)).await;
    let ended =
        ended.unwrap_or_else(|error| Err(Failure::io("nothing was ended", std::io::Error::other(error))));
    served.and(ended)
}

async fn serve_on(printer: Printer, args: ServeArgs) -> Result<()> {
    #[cfg(debug_assertions)]
    config::arm_failpoints()?;
    let otlp = args.otlp_endpoint.clone().map_or_else(config::otlp_endpoint, |given| Ok(Some(given)))?;
    let telemetry = Telemetry::start(&args.log, args.log_format, printer.colors(), otlp.as_deref())?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|e| Failure::io("cannot wait for signals", e))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|e| Failure::io("cannot wait for signals", e))?;

    raise_descriptors();
    // Listen first: a port that is taken is said before sandboxes are taken up.
    let listener = listen(args.listen, &args.data_dir).await?;
    let nodes = listen_to_nodes(&args).await?;
    let challenges = certificate::listen(&args).await?;
    let limits = limits(&args, nodes.as_ref().map(|(_, settings)| settings.clone())).await?;
    let mut daemon = Daemon::start(DataDir::open(&args.data_dir)?, args.database.as_deref(), &limits).await?;
    let recorded = otlp.as_deref().zip(daemon.engine.recorder());
    let spans = recorded.map(|(otlp, recorder)| Spans::start(recorder, otlp)).transpose();
    let spans = match spans {
        Ok(spans) => spans,
        Err(error) => {
            daemon.engine.shutdown().await;
            return Err(error);
        }
    };
    daemon.spans = spans.as_ref().map(Spans::counts);
    let engine = daemon.engine.clone();
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = engine.until_taken_over() => lost.store(true, Ordering::Release),
        }
    };
    let nodes = nodes.map(|(listener, _)| listener);
    let metrics = otlp.as_deref().map(|otlp| Collector::new(otlp, "metrics")).transpose();
    let mut served = match metrics {
        Ok(metrics) => {
            let listeners = Listeners { clients: listener, nodes, challenges };
            serve_with(printer, &args, &mut daemon, listeners, metrics, stop).await
        }
        Err(error) => Err(error),
    };
    if is_lost.load(Ordering::Acquire) {
        served = Err(taken_over());
    }
    // Also a server that cannot serve after all leaves nothing in the kernel.
    daemon.engine.shutdown().await;
    if let Some(spans) = spans {
        spans.stop().await;
    }
    telemetry.shutdown().await;
    served
}

/// The ports.
struct Listeners {
    clients: TcpListener,
    nodes: Option<TcpListener>,
    challenges: Option<TcpListener>,
}

/// Serves until `stop` ends.
async fn serve_with(
    printer: Printer,
    args: &ServeArgs,
    daemon: &mut Daemon,
    listeners: Listeners,
    metrics: Option<Collector>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Listeners { clients: listener, nodes, challenges } = listeners;
    let address = listener.local_addr().map_err(|error| Failure::io("cannot listen", error))?;
    let acme = certificate::open(&daemon.engine, args, challenges).await?;
    let key = daemon.first_key(args.new_key).await?;
    let server = open_server(args, daemon, address, acme.as_ref()).await?;
    announce(printer, args, address, key.as_ref())?;
    notify(sd_notify::NotifyState::Ready);
    let (engine, ephemeral) = (daemon.engine.clone(), args.ephemeral);
    let stopped = async move {
        stop.await;
        notify(sd_notify::NotifyState::Stopping);
        engine.drain();
        if ephemeral {
            tracing::info!("stopping, and ending everything");
        } else {
            tracing::info!("stopping; sandboxes go on and are taken up at the next start");
        }
    };
    let of_nodes = server.clone();
    let nodes = async move {
        if let Some(nodes) = nodes {
            of_nodes.serve_nodes(nodes).await;
        }
    };
    let (measured, end_metrics) = (server.clone(), CancellationToken::new());
    let metrics = metrics.map(|collector| {
        let read = Arc::new(move || measured.metrics_text());
        tokio::spawn(follow_metrics(collector, read, end_metrics.clone()))
    });
    let stopping = server.stopping();
    let acme = async move {
        if let Some(acme) = acme {
            Box::pin(acme.run(address.port(), stopping)).await;
        }
    };
    tokio::join!(server.serve(listener, stopped), nodes, acme);
    end_metrics.cancel();
    if let Some(metrics) = metrics
        && metrics.await.is_err()
    {
        tracing::error!("what sends metrics panicked");
    }
    Ok(())
}

/// The server as the arguments want it, for clients that come at `address`.
async fn open_server(
    args: &ServeArgs,
    daemon: &mut Daemon,
    address: SocketAddr,
    acme: Option<&certificate::Running>,
) -> Result<Server> {
    let mut server_config = ServerConfig::new(daemon.installation.clone());
    server_config.metrics_public = args.metrics_public;
    server_config.hosts = names(args);
    server_config.ports_domain.clone_from(&args.domain);
    server_config.dashboard = !args.no_dashboard;
    server_config.give_memory_back = atoll_isolation_host::give_memory_back;
    server_config.spans = daemon.spans.clone();
    server_config.people = issuer(&args.oidc)?;
    server_config.tls = certificate::tls(args, daemon.authority.take(), acme)?.map(Arc::new);
    server_config.nodes = daemon.nodes.take();
    server_config.public_url = args.public_url.as_ref().and_then(|url| url.0.parse().ok());
    let with_tls = server_config.tls.is_some();
    let mut server = Server::new(daemon.engine.clone(), server_config, &DIALECTS);
    if !args.no_ssh {
        server = server.with_ssh(ssh::open(daemon, &args.data_dir).await?);
    }

    // Over TLS its tools ask it on loopback, in clear.
    if !with_tls || address.ip().is_unspecified() || address.ip().is_loopback() {
        server = with_mcp(server, address);
    }
    Ok(server)
}

/// Opens the port for other nodes, if the database may be shared with some.
async fn listen_to_nodes(args: &ServeArgs) -> Result<Option<(TcpListener, NodeSettings)>> {
    let is_shared =
        args.database.as_deref().is_some_and(|url| url.parse().is_ok_and(|url: StoreUrl| url.is_shared()));
    if !is_shared {
        return Ok(None);
    }
    let wanted = match &args.node.advertise {
        None => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        // An address may be this host's own; a name may lead to it from elsewhere only.
        Some(Advertised { host, port }) => match host.trim_matches(['[', ']']).parse() {
            Ok(address) => SocketAddr::new(address, *port),
            Err(_name) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port)),
        },
    };
    let listener = listen(wanted, &args.data_dir).await?;
    let actual = listener.local_addr().map_err(|error| Failure::io("cannot listen", error))?;
    let address = match &args.node.advertise {
        None => actual.to_string(),
        Some(Advertised { host, port }) => format!("{host}:{port}"),
    };
    let settings = NodeSettings {
        name: args.node.node_name.clone(),
        address,
        labels: args.node.node_label.iter().cloned().collect(),
        lease_ms: args.node.node_lease,
    };
    Ok(Some((listener, settings)))
}

fn taken_over() -> Failure {
    Failure::Plain(
        Error::new(Code::StoreUnavailable, "another node has taken over what this one had").hint(
            "start the server again: it removes what is left here and goes on as a node without sandboxes",
        ),
    )
}

/// Descriptors that the server asks for, as its unit for systemd does: each sandbox takes eleven, every connection some.
const DESCRIPTORS: u64 = 1 << 20;

/// Lets this process have as many descriptors as it may. Commands in sandboxes begin with fewer, see the agent.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let raise = |limit| setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit });
    let allowed = getrlimit(Resource::Nofile).maximum;
    let wanted = allowed.map(|allowed| allowed.max(DESCRIPTORS));
    // Only who has CAP_SYS_RESOURCE may have more than it was given, and nobody more than `fs.nr_open`.
    if let Err(error) = raise(wanted).or_else(|_refused| raise(allowed)) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// The Model Context Protocol at `/mcp`. Its tools ask this server, over loopback where it listens there, with the key of the request.
fn with_mcp(server: Server, address: SocketAddr) -> Server {
    let mut itself = address;
    if address.ip().is_unspecified() {
        itself.set_ip(if address.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    // Any name that this server is called by will do: no page in a browser has a key to send along.
    let endpoint =
        Endpoint::new(&format!("http://{itself}"), Presets::OfAddress, Vec::new(), server.stopping());
    server.with_mcp(McpDoor(Arc::new(move |key, request| {
        let endpoint = endpoint.clone();
        Box::pin(async move { endpoint.answer(&key, request).await })
    })))
}

fn announce(printer: Printer, args: &ServeArgs, address: SocketAddr, key: Option<&NewKey>) -> Result<()> {
    let secret = key.map(|key| key.secret.reveal());
    let has_tls = args.tls.tls || args.tls.tls_cert.is_some() || args.acme.acme;
    // Clients of this host need no TLS, and so no authority to trust.
    let scheme = if has_tls && !reaches_loopback(address) { "https" } else { "http" };
    let url = &format!("{scheme}://{address}");
    if args.ready_json {
        return printer.stream_item(&Ready { url, api_key: secret });
    }
    if has_tls {
        printer.note(&format!("atoll speaks TLS on https://{}:{}", args.domain, address.port()));
    }
    printer.note(&format!("atoll listens on {url}"));
    if let Some(secret) = secret {
        printer.note(&format!(
            "a key was made; it is shown this once:\n\n  export ATOLL_URL={url}\n  export ATOLL_API_KEY={secret}\n\n\
             then, in another shell: atoll run -- uname -a, or atoll dashboard"
        ));
    }
    Ok(())
}

/// Whether clients of this host reach the address by a loopback address.
fn reaches_loopback(address: SocketAddr) -> bool {
    address.ip().is_loopback() || address.ip().is_unspecified()
}

/// Tells systemd, if it started us.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
