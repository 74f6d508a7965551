//! A server for the length of one command: `atoll run` when no server is configured.
//!
//! It is the real server on a loopback port of the kernel's choice, with a data directory of its own
//! and a key that only this process knows. When the process is killed its directory stays; the next
//! embedded server removes it, with the sandboxes that were left in it.

use std::path::{Path, PathBuf};

use atoll_client::Client;
use atoll_core::{Code, Error};
use atoll_isolation_storage::PoolSize;
use atoll_server::{Server, ServerConfig};
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Guard};
use crate::failure::{Failure, Result};

use super::{Daemon, DataDir, Limits};

/// Where embedded servers keep their directories, one each.
const BASE: &str = "/var/lib/atoll/run";

/// The host's list of names.
pub(crate) const HOSTS: &str = "/etc/hosts";

struct Embedded {
    daemon: Daemon,
    server: JoinHandle<()>,
    stop: CancellationToken,
    dir: PathBuf,
}

/// Starts one and connects to it.
pub(crate) async fn embedded() -> Result<Connection> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Plain(
            Error::new(
                Code::InvalidArgument,
                "no server is configured, and only root can run sandboxes without one",
            )
            .hint("set ATOLL_URL and ATOLL_API_KEY for a server that runs, or use sudo"),
        ));
    }
    sweep(Path::new(BASE)).await;
    let dir = Path::new(BASE).join(std::process::id().to_string());
    let mut limits = Limits { ready: 1, storage: PoolSize::None, ..Limits::default() };
    limits.egress.gateway.hosts_file = Some(HOSTS.into());
    let daemon = Daemon::start(DataDir::open(&dir)?, None, &limits).await?;
    let Some(key) = daemon.first_key(true).await? else {
        return Err(Failure::plain(Code::Internal, "the embedded server has no key"));
    };
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .await
        .map_err(|error| Failure::io("cannot listen on the loopback", error))?;
    let address =
        listener.local_addr().map_err(|error| Failure::io("cannot listen on the loopback", error))?;
    let stop = CancellationToken::new();
    let server = Server::new(daemon.engine.clone(), ServerConfig::new(daemon.installation.clone()), &[]);
    let server = tokio::spawn(server.serve(listener, stop.clone().cancelled_owned()));
    let client = Client::new(&format!("http://{address}"), &key.secret)?;
    Ok(Connection::embedded(client, Box::new(Embedded { daemon, server, stop, dir })))
}

impl Guard for Embedded {
    fn shutdown(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.stop.cancel();
            // A panic of the server was logged by it; the directory is removed all the same.
            drop(self.server.await);
            empty(self.daemon, &self.dir).await
        })
    }
}

/// Deletes every sandbox, then the directory.
async fn empty(daemon: Daemon, dir: &Path) -> Result<()> {
    loop {
        let page = daemon
            .engine
            .sandboxes(&atoll_engine::SandboxQuery::default(), &atoll_engine::Caller::system())
            .await
            .map_err(Failure::Plain)?;
        if page.items.is_empty() {
            break;
        }
        for sandbox in page.items {
            daemon.engine.delete_sandbox(&sandbox.id).await.map_err(Failure::Plain)?;
        }
    }
    daemon.engine.shutdown().await;
    std::fs::remove_dir_all(dir)
        .map_err(|error| Failure::io(format!("cannot remove {}", dir.display()), error))
}

/// Removes the directories and sandboxes of embedded servers that were killed. Best effort; a directory that is in use
/// is locked, and is passed over.
async fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let dir = entry.path();
        let Ok(lock) = DataDir::open_now(&dir) else { continue };
        let limits = Limits { ready: 0, storage: PoolSize::None, ..Limits::default() };
        if let Ok(daemon) = Daemon::start(lock, None, &limits).await {
            drop(empty(daemon, &dir).await);
        }
    }
}
