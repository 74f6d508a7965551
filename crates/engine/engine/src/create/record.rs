//! The record of a sandbox that is about to be made: the one place that says what every new sandbox begins with. A creation
//! and a fork fill in the rest, each field of it: [`NewSandbox`] has no defaults, so that none is forgotten.

use std::collections::BTreeMap;

use atoll_core::Result;
use atoll_core::id::{KeyId, ProjectId};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{RequestKey, SandboxSpec};
use atoll_store::SandboxRecord;

use crate::engine::Inner;

/// What differs from one new sandbox to another.
#[derive(Debug)]
pub(crate) struct NewSandbox {
    pub(crate) name: Option<String>,
    pub(crate) project: Option<ProjectId>,
    /// Also says how long it lives.
    pub(crate) spec: SandboxSpec,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) image_digest: Option<String>,
    pub(crate) owner: Option<KeyId>,
    pub(crate) request: Option<RequestKey>,
}

impl NewSandbox {
    /// Its record, with an id of its own. It is made now.
    pub(crate) fn record(self, now_ms: u64) -> Result<SandboxRecord> {
        let Self { name, project, spec, labels, annotations, image_digest, owner, request } = self;
        let ttl_ms = spec.ttl_ms;
        Ok(SandboxRecord {
            id: Inner::new_sandbox_id(now_ms)?,
            name,
            project,
            state: SandboxState::Creating,
            reason: None,
            spec,
            labels,
            annotations,
            image_digest,
            owner,
            request,
            created_ms: now_ms,
            expires_ms: ttl_ms.map(|ttl| now_ms.saturating_add(ttl)),
            last_active_ms: now_ms,
            paused: None,
            paused_ms: None,
            pauses_ms: 0,
            boot_id: Inner::new_boot_id()?,
            kept_ms: None,
            memory_used: false,
            restored: None,
            generation: 1,
        })
    }
}
