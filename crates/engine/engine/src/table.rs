//! Which sandboxes there are: by id, by name and by the request that made them, in memory.
//!
//! An id, a name and a request are entered together before the first thing of a sandbox is made, and taken out together when the last is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::project::{kept_name, plain_name};
use atoll_core::spec::RequestKey;
use atoll_core::{Code, Error, Result};
use atoll_store::{SandboxRecord, Whereabouts};

use crate::cluster;
use crate::engine::Inner;
use crate::sandbox::SandboxShared;

/// Every sandbox of this server, by id and by name. Held only for look-ups, never across an await.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_id: BTreeMap<SandboxId, Arc<SandboxShared>>,
    /// By the name as it is kept: with its project.
    by_name: BTreeMap<String, SandboxId>,
    /// By the API key that asked for it, and the idempotency key of that request.
    by_request: BTreeMap<(KeyId, String), SandboxId>,
}

/// The name of a sandbox as it is kept.
fn kept(record: &SandboxRecord) -> Option<String> {
    record.name.as_deref().map(|name| kept_name(record.project.as_ref(), name))
}

/// Under what a request for a sandbox is found again.
fn request_of(record: &SandboxRecord) -> Option<(KeyId, String)> {
    Some((record.owner.clone()?, record.request.as_ref()?.key.clone()))
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic while holding it would leave two plain maps, usable as they are.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<SandboxShared>> {
        self.table().by_id.get(id).cloned()
    }

    /// The sandbox with this id.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> Result<Arc<SandboxShared>> {
        self.find(id).ok_or_else(|| {
            cluster::missing(Whereabouts::Sandbox(id.to_string()));
            SandboxId::not_found(id.as_str())
        })
    }

    /// The sandbox with this id, or this name as it is kept ([`Caller::kept`](crate::Caller)). What has the form of an id is
    /// one: no name has it.
    pub(crate) fn resolve(&self, id_or_name: &str) -> Result<Arc<SandboxShared>> {
        let table = self.table();
        let id = id_or_name.parse().ok().or_else(|| table.by_name.get(id_or_name).cloned());
        id.and_then(|id| table.by_id.get(&id).cloned()).ok_or_else(|| {
            cluster::missing(Whereabouts::Sandbox(id_or_name.to_owned()));
            SandboxId::not_found(plain_name(id_or_name))
        })
    }

    pub(crate) fn count_sandboxes(&self) -> u64 {
        self.table().by_id.len() as u64
    }

    /// The sandbox that this request of `owner` made before, if there is one.
    pub(crate) fn made_for(
        &self,
        owner: Option<&KeyId>,
        request: &RequestKey,
    ) -> Result<Option<Arc<SandboxShared>>> {
        let Some(owner) = owner else { return Ok(None) };
        let table = self.table();
        let id = table.by_request.get(&(owner.clone(), request.key.clone()));
        let Some(sandbox) = id.and_then(|id| table.by_id.get(id)) else { return Ok(None) };
        if sandbox.record().request.as_ref().is_some_and(|before| before.digest == request.digest) {
            return Ok(Some(Arc::clone(sandbox)));
        }
        Err(Error::new(Code::IdempotencyMismatch, "the idempotency key was used before with another request")
            .hint("use a new key for a new request"))
    }

    pub(crate) fn all_sandboxes(&self) -> Vec<Arc<SandboxShared>> {
        self.table().by_id.values().cloned().collect()
    }

    /// Every id that may have something on the host: sandboxes and members of pools.
    pub(crate) fn known_ids(&self) -> BTreeSet<SandboxId> {
        let mut ids = self.pools.ids();
        // In this order: a member that becomes a sandbox meanwhile is in one of the two.
        ids.extend(self.table().by_id.keys().cloned());
        ids
    }

    /// Enters a sandbox, if there is room and its name is free.
    pub(crate) fn enter(&self, sandbox: &Arc<SandboxShared>, counted: bool) -> Result<()> {
        let record = sandbox.record();
        let mut table = self.table();
        let max = self.config.sandboxes_max;
        if counted && table.by_id.len() >= max {
            return Err(Error::new(Code::LimitExceeded, format!("there are {max} sandboxes already"))
                .hint("delete some, or start the server with a larger --sandboxes-max"));
        }
        let request = request_of(&record);
        if request.as_ref().is_some_and(|request| table.by_request.contains_key(request)) {
            return Err(Error::new(
                Code::InvalidState,
                "another request with this idempotency key is under way",
            )
            .hint("ask again"));
        }
        if let Some(name) = kept(&record) {
            if table.by_name.contains_key(&name) {
                return Err(name_taken(&name));
            }
            table.by_name.insert(name, record.id.clone());
        }
        table.by_request.extend(request.map(|request| (request, record.id.clone())));
        table.by_id.insert(record.id.clone(), Arc::clone(sandbox));
        Ok(())
    }

    /// Gives a sandbox another name as well, if that is free.
    pub(crate) fn enter_name(&self, of: &SandboxRecord, name: &str) -> Result<()> {
        let name = kept_name(of.project.as_ref(), name);
        let mut table = self.table();
        match table.by_name.get(&name) {
            Some(owner) if *owner != of.id => Err(name_taken(&name)),
            _ => {
                table.by_name.insert(name, of.id.clone());
                Ok(())
            }
        }
    }

    /// Takes one name of a sandbox away.
    pub(crate) fn leave_name(&self, of: &SandboxRecord, name: &str) {
        let name = kept_name(of.project.as_ref(), name);
        let mut table = self.table();
        if table.by_name.get(&name) == Some(&of.id) {
            table.by_name.remove(&name);
        }
    }

    /// Takes a sandbox out.
    pub(crate) fn leave(&self, id: &SandboxId) {
        self.secrets.forget(id);
        self.acl.forget(id);
        self.config.trace.end(id);
        let mut table = self.table();
        if let Some(record) = table.by_id.remove(id).map(|sandbox| sandbox.record()) {
            if let Some(name) = kept(&record)
                && table.by_name.get(&name) == Some(id)
            {
                table.by_name.remove(&name);
            }
            if let Some(request) = request_of(&record)
                && table.by_request.get(&request) == Some(id)
            {
                table.by_request.remove(&request);
            }
        }
        drop(table);
        self.agents.sandbox_left(id);
    }
}

fn name_taken(kept: &str) -> Error {
    Error::new(Code::NameTaken, format!("another sandbox is named '{}'", plain_name(kept)))
        .hint("choose another name, or delete the sandbox that has it")
}
