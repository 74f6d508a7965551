//! Entering a cluster: this node's id, its place among the nodes, and the sandboxes that it finds on its host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use atoll_core::id::NodeId;
use atoll_core::node::NodeFacts;
use atoll_core::{Code, Error};
use atoll_engine::Clock;
use atoll_isolation::Isolation;
use atoll_store::{NodeDraft, Store, StoreError};
use atoll_tls::{Authority, NodeTls};
use atoll_vault::Vault;

use super::data_dir::DataDir;
use super::lease::LeaseFile;
use crate::failure::{Failure, Result, chain};

/// Name under which the database keeps the authority of the nodes.
const NODE_CA: &str = "node_ca";
/// Name of the file in the data directory that holds this node's id.
const IDENTITY: &str = "node";

/// An operator's settings for a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeSettings {
    /// Its name for people; the host's name when absent.
    pub(crate) name: Option<String>,
    /// Where the other nodes reach it.
    pub(crate) address: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) lease_ms: u64,
}

/// Enters the cluster that shares the database. When this returns, no sandbox is left on the host that another node has
/// taken over meanwhile, and the sandboxes that are left may run.
pub(super) async fn enter(
    dir: &DataDir,
    store: &Store,
    vault: &Vault,
    settings: &NodeSettings,
    sandboxes_max: usize,
    drivers: &[Arc<dyn Isolation>],
    clock: &Clock,
) -> Result<NodeTls> {
    let id = identity(dir.path(), clock)?;
    let make = || Authority::generate("nodes").map(|made| (made.certificate_pem, made.key_pem));
    // Before anything is entered: a node with another key of the vault cannot read this.
    let (certificate, key) =
        atoll_engine::kept_authority(store, vault, NODE_CA, clock, make).await.map_err(Failure::Plain)?;
    let tls = NodeTls::open(&certificate, &key, id.as_str())
        .map_err(|error| Failure::plain(Code::Internal, chain(&error)))?;
    let facts = NodeFacts {
        levels: drivers.iter().map(|driver| driver.level()).collect(),
        sandboxes_max: sandboxes_max as u64,
        labels: settings.labels.clone(),
        machines: drivers.iter().find_map(|driver| driver.platform()).map(|platform| platform.mark()),
        // The engine gives the facts that change while the node runs.
        ..NodeFacts::default()
    };
    let name = settings.name.clone().unwrap_or_else(host_name);
    let mut draft = NodeDraft {
        id,
        name,
        address: settings.address.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        facts: serde_json::to_string(&facts)
            .map_err(|error| Failure::plain(Code::Internal, error.to_string()))?,
        lease_ms: settings.lease_ms,
        now_ms: clock.now_ms(),
    };
    let lease = LeaseFile::open(dir.path())?;
    let mut entered = store.enter(&draft, lease.told()).await;
    if matches!(entered, Err(StoreError::NameTaken)) && settings.name.is_none() {
        // There are several nodes on one host: the installation is added to the name.
        draft.name = format!("{}-{}", draft.name, dir.installation());
        entered = store.enter(&draft, lease.told()).await;
    }
    entered.map_err(|error| refusal(&error, &draft))?;
    remove_foreign(store, drivers).await?;
    lease.arm()?;
    tracing::info!(node = draft.name, id = %draft.id, address = draft.address, "this server is a node");
    Ok(tls)
}

fn refusal(error: &StoreError, draft: &NodeDraft) -> Failure {
    Failure::Plain(match error {
        StoreError::Claimed => Error::new(
            Code::InvalidState,
            format!("the node '{}' is there already, or an older server has the database", draft.name),
        )
        .hint("a copy of a data directory is the same node: stop the other one; stop servers of versions before nodes"),
        StoreError::NameTaken => Error::new(
            Code::NameTaken,
            format!("another node is named '{}'", draft.name),
        )
        .hint("give this one another --node-name, or remove that one with 'atoll node rm'"),
        other => Error::new(Code::StoreUnavailable, format!("the cluster cannot be entered: {}", chain(other))),
    })
}

/// Removes the sandboxes on this host that are not this node's any more. They stand still at this moment, or have not
/// been long without a server.
async fn remove_foreign(store: &Store, drivers: &[Arc<dyn Isolation>]) -> Result<()> {
    let failed = |what: String| {
        Failure::Plain(
            Error::new(Code::Internal, format!("what another node took over cannot be removed: {what}"))
                .hint("'atoll purge --keep-data' ends everything of this data directory"),
        )
    };
    let own = store.own_sandbox_ids().await.map_err(|error| failed(chain(&error)))?;
    let own: BTreeSet<_> = own.into_iter().collect();
    for driver in drivers {
        let found = driver.sandboxes().await.map_err(|error| failed(chain(&error)))?;
        for id in found.difference(&own) {
            tracing::warn!(sandbox = %id, "removing what is not this node's any more");
            driver.destroy(id).await.map_err(|error| failed(chain(&error)))?;
        }
    }
    Ok(())
}

/// This node's id, made on first use.
fn identity(dir: &Path, clock: &Clock) -> Result<NodeId> {
    let path = dir.join(IDENTITY);
    let failed = |error| Failure::io(format!("cannot name the node of {}", dir.display()), error);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return text.trim().parse().map_err(Failure::Plain),
        // A crash may have left it empty.
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let random = getrandom::u64().map_err(|error| failed(std::io::Error::other(error)))?;
    let id = NodeId::from_parts(clock.now_ms(), random);
    let written = (|| {
        use std::io::Write as _;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(id.as_str().as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    })();
    written.map_err(failed)?;
    Ok(id)
}

/// The host's name, as far as it can be a node's.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fits = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.chars().map(fits).take(40).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
