//! The way for SSH clients: the engine's SSH server, at the server's port.

use std::path::Path;
use std::sync::Arc;

use atoll_core::Code;
use atoll_server::{Ssh, SshClient, SshDoor, SshElsewhere, SshOfNodes, SshPlaces, SshServed};
use atoll_ssh::{Elsewhere, Holder, Origin, Place, Places, SshServer};

use crate::daemon::Daemon;
use crate::failure::{Failure, Result, chain};

/// Name of the host key in the data directory.
const HOST_KEY_FILE: &str = "ssh_host_ed25519_key";
/// Name under which the database keeps the one that all nodes have.
const HOST_KEY_SHARED: &str = "ssh_host_key";

/// Opens it. All nodes of a cluster have one host key, the first node's: a client that knows one node knows them all.
pub(super) async fn open(daemon: &Daemon, data_dir: &Path) -> Result<Ssh> {
    let file = data_dir.join(HOST_KEY_FILE);
    let engine = daemon.engine.clone();
    let (server, alias) = if engine.is_node() {
        let make = || atoll_ssh::host_key_text(&file);
        let (host_key, key) = engine.shared_key(HOST_KEY_SHARED, make).await.map_err(Failure::Plain)?;
        let alias = blake3::hash(host_key.as_bytes()).to_hex();
        (SshServer::of_text(engine, &key), alias.get(..16).unwrap_or_default().to_owned())
    } else {
        (SshServer::open(engine, &file), daemon.installation.clone())
    };
    let server = server.map_err(|error| Failure::plain(Code::Internal, chain(&error)))?;
    let host_key = server.host_key().to_owned();
    let (door, of_nodes) = (door(server.clone()), of_nodes(server));
    let host_key_alias = format!("atoll-{alias}");
    Ok(Ssh { door, of_nodes, host_key, host_key_alias, private_key: atoll_ssh::private_key })
}

fn door(server: SshServer) -> SshDoor {
    Arc::new(move |client| {
        let server = server.clone();
        let SshClient { stream, peer, elsewhere, places, stop } = client;
        let origin = Origin { peer, elsewhere: elsewhere.map(way), places: Some(counted(places)) };
        Box::pin(async move { server.serve(stream, origin, stop).await })
    })
}

/// The server's way to other nodes, as the SSH server takes it.
fn way(elsewhere: SshElsewhere) -> Elsewhere {
    Arc::new(move |asked, claim| {
        let found = elsewhere(asked, claim);
        Box::pin(async move { Some(Box::new(found.await?) as Box<dyn atoll_ssh::Duplex>) })
    })
}

/// The server's places, as the SSH server takes them.
fn counted(places: SshPlaces) -> Places {
    Arc::new(move |holder: Holder<'_>| -> atoll_core::Result<Place> {
        let place = match holder {
            Holder::Key(key) => places.of_key(key)?,
            Holder::LinksTo(sandbox) => places.of_links_to(sandbox)?,
        };
        Ok(Box::new(place))
    })
}

fn of_nodes(server: SshServer) -> SshOfNodes {
    Arc::new(move |asked, claim| {
        let server = server.clone();
        Box::pin(async move {
            let admitted = server.admit(&asked, &claim).await?;
            let served: SshServed = Box::new(move |client| {
                let SshClient { stream, peer, places, stop, .. } = client;
                let origin = Origin { peer, elsewhere: None, places: Some(counted(places)) };
                Box::pin(async move { server.serve_admitted(stream, admitted, origin, stop).await })
            });
            Some(served)
        })
    })
}
