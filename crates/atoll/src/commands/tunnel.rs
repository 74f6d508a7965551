//! `atoll tunnel`: ports of a sandbox on this machine, and ports of this machine in a sandbox.
//!
//! One WebSocket carries all connections. When it breaks, those that it carried are cut and said so; the
//! listeners here stay, and connections that are made while there is no tunnel wait for the next one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atoll_client::{Client, ClientError, TunnelSocket};
use atoll_core::{Code, Error};
use atoll_tunnel::{Accepted, Mux, Opener, Status, Stream};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cli::{Forward, Reverse, TunnelArgs};
use crate::failure::{Failure, Result};
use crate::output::Printer;

/// How long a connection here waits for a tunnel that is being made again.
const TUNNEL_WAIT: Duration = Duration::from_secs(30);
/// Pause before a tunnel is made again: doubles from the first to the second.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(8);
/// Pause when this machine refuses a connection, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One line of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Event {
    /// A port of the sandbox is reached here.
    Listening { port: u16, local: SocketAddr },
    /// A port here is reached in the sandbox.
    Showing { local: u16, port: u16 },
    /// The tunnel broke, and this many connections with it.
    Broken { connections: usize },
    /// There is one again.
    Connected,
}

struct Shared {
    printer: Printer,
    sandbox: String,
    /// The tunnel, while there is one.
    opener: watch::Sender<Option<Opener>>,
    connections: AtomicUsize,
    reverse: Vec<Reverse>,
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `atoll tunnel …`
pub(super) async fn tunnel(client: &Client, printer: Printer, args: TunnelArgs) -> Result<()> {
    let TunnelArgs { reverse, bind, sandbox, ports } = args;
    let listen: Vec<u16> = reverse.iter().map(|reverse| reverse.port).collect();
    // First of all: an error of the sandbox or the key is reported before anything listens here.
    let mut mux = client.tunnel(&sandbox, &listen).await?;
    let shared = Arc::new(Shared {
        printer,
        sandbox,
        opener: watch::Sender::new(None),
        connections: AtomicUsize::new(0),
        reverse,
    });
    let mut tasks = JoinSet::new();
    for forward in ports {
        tasks.spawn(serve(Arc::clone(&shared), bind_port(bind, forward).await?, forward.port));
    }
    for Reverse { local, port } in &shared.reverse {
        tell(&shared, &Event::Showing { local: *local, port: *port }, || {
            format!("port {port} in {} is port {local} here", shared.sandbox)
        })?;
    }
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        tokio::select! {
            () = carry(&shared, mux) => {}
            _ = &mut interrupted => return Ok(()),
        }
        let cut = shared.connections.load(Ordering::Relaxed);
        tell(&shared, &Event::Broken { connections: cut }, || {
            format!("the tunnel broke, with {cut} connections; making it again")
        })?;
        mux = tokio::select! {
            again = again(client, &shared, &listen) => again?,
            _ = &mut interrupted => return Ok(()),
        };
        tell(&shared, &Event::Connected, || "the tunnel is there again".to_owned())?;
    }
}

fn tell(shared: &Shared, event: &Event, text: impl FnOnce() -> String) -> Result<()> {
    if shared.printer.is_json() {
        return shared.printer.stream_item(event);
    }
    shared.printer.note(&text());
    Ok(())
}

/// Runs a tunnel until it breaks.
async fn carry(shared: &Arc<Shared>, mux: Mux<TunnelSocket>) {
    let (opener, accepted, driver) = mux.split();
    shared.opener.send_replace(Some(opener));
    tokio::select! {
        () = driver => {}
        () = inbound(shared, accepted) => {}
    }
    shared.opener.send_replace(None);
}

/// Makes the tunnel again. An error that will not pass by itself ends the command.
async fn again(client: &Client, shared: &Shared, listen: &[u16]) -> Result<Mux<TunnelSocket>> {
    let mut pause = RETRY_FIRST;
    loop {
        tokio::time::sleep(pause).await;
        match client.tunnel(&shared.sandbox, listen).await {
            Ok(mux) => return Ok(mux),
            // The port inside is let go of a moment after the tunnel broke.
            Err(ClientError::Api { error, .. }) if error.code == Code::PortTaken => {}
            Err(error @ ClientError::Api { .. }) if !error.code().is_some_and(Code::retryable) => {
                return Err(error.into());
            }
            Err(_) => {}
        }
        pause = (pause * 2).min(RETRY_LAST);
    }
}

async fn bind_port(address: std::net::IpAddr, forward: Forward) -> Result<TcpListener> {
    let address = SocketAddr::new(address, forward.local);
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => Failure::Plain(
            Error::new(Code::PortTaken, format!("port {} is taken on this machine", forward.local)).hint(
                format!("write {}:LOCAL with another port, or {}:0 for any", forward.port, forward.port),
            ),
        ),
        _ => Failure::io(format!("cannot listen on {address}"), source),
    })
}

/// Takes connections here and carries them to a port of the sandbox.
async fn serve(shared: Arc<Shared>, listener: TcpListener, port: u16) {
    if let Ok(local) = listener.local_addr() {
        let told = tell(&shared, &Event::Listening { port, local }, || {
            format!("{local} is port {port} of {}", shared.sandbox)
        });
        if told.is_err() {
            return;
        }
    }
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => drop(tokio::spawn(outbound(Arc::clone(&shared), stream, port))),
            Err(error) => {
                shared.printer.note(&format!("a connection was not taken: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn outbound(shared: Arc<Shared>, mut local: TcpStream, port: u16) {
    drop(local.set_nodelay(true));
    let Some(mut stream) = open(&shared).await else { return };
    match atoll_tunnel::ask(&mut stream, port).await {
        Ok(Status::Connected) => {
            let _counted = Counted::new(&shared);
            // When the connection is cut, the local program and the one in the sandbox notice it themselves.
            drop(tokio::io::copy_bidirectional(&mut local, &mut stream).await);
        }
        Ok(Status::Refused) => {
            shared.printer.note(&format!("nothing listens on port {port} of {}", shared.sandbox));
        }
        Ok(Status::NotAllowed | Status::Version) => shared.printer.note(&format!("port {port} was refused")),
        Err(_) => {}
    }
}

/// A stream of the tunnel that there is, or of the next.
async fn open(shared: &Shared) -> Option<Stream> {
    let mut opener = shared.opener.subscribe();
    tokio::time::timeout(TUNNEL_WAIT, async {
        loop {
            let current = opener.wait_for(Option::is_some).await.ok()?.clone()?;
            if let Ok(stream) = current.open().await {
                return Some(stream);
            }
            opener.changed().await.ok()?;
        }
    })
    .await
    .ok()
    .flatten()
}

/// Takes connections from inside and carries them to ports here.
async fn inbound(shared: &Arc<Shared>, mut accepted: Accepted) {
    while let Some(stream) = accepted.next().await {
        drop(tokio::spawn(from_inside(Arc::clone(shared), stream)));
    }
}

async fn from_inside(shared: Arc<Shared>, mut stream: Stream) {
    let Ok(Some(port)) = atoll_tunnel::asked(&mut stream).await else { return };
    // Only what the user named.
    let Some(reverse) = shared.reverse.iter().find(|reverse| reverse.port == port) else {
        drop(atoll_tunnel::answer(&mut stream, Status::NotAllowed).await);
        return;
    };
    match TcpStream::connect(("localhost", reverse.local)).await {
        Ok(mut local) => {
            drop(local.set_nodelay(true));
            let _counted = Counted::new(&shared);
            if atoll_tunnel::answer(&mut stream, Status::Connected).await.is_ok() {
                drop(tokio::io::copy_bidirectional(&mut local, &mut stream).await);
            }
        }
        Err(error) => {
            shared.printer.note(&format!("port {} here does not answer: {error}", reverse.local));
            drop(atoll_tunnel::answer(&mut stream, Status::Refused).await);
        }
    }
}
