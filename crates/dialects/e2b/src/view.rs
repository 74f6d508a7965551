//! A sandbox as the clients read it.

use std::collections::BTreeMap;

use atoll_core::id::KeyId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use serde::Serialize;
use serde_json::{Value, json};

use crate::envd;
use crate::extras::{self, Extras};
use crate::request::Domain;
use crate::templates;
use crate::time::of_ms;

/// The clients want a client id and do nothing with it.
const CLIENT: &str = "atoll";
const MIB: u64 = 1 << 20;
/// A moment far away, for a sandbox without an end: the clients want an end.
const NEVER_MS: u64 = 253_402_300_799_000;

/// The answer to a creation and a connect: how to reach the sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    envd_access_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    domain: Option<String>,
}

impl Sandbox {
    /// The answer for the caller with this key, who finds ports below this domain.
    pub(crate) fn new(engine: &Engine, record: &SandboxRecord, key: &KeyId, domain: Domain) -> Self {
        let extras = Extras::of(record);
        let private = extras.private_ports;
        Self {
            template_id: template_id(record, &extras),
            sandbox_id: record.id.to_string(),
            client_id: CLIENT,
            envd_version: envd::VERSION,
            alias: extras.alias,
            envd_access_token: envd::access_token(engine, key, &record.id),
            traffic_access_token: private.then(|| envd::traffic_token(engine, key, &record.id)),
            domain: domain.0,
        }
    }
}

fn template_id(record: &SandboxRecord, extras: &Extras) -> String {
    if let Some(id) = &extras.template_id {
        return id.clone();
    }
    match (&record.spec.template, &record.spec.snapshot) {
        // `name:version`.
        (Some(name), _) => templates::id_of(name.split(':').next().unwrap_or(name)),
        (None, Some(snapshot)) => snapshot.to_string(),
        (None, None) => templates::id_of(templates::BASE),
    }
}

/// The word for a state; `None` for a sandbox that counts as gone for the clients.
pub(crate) const fn state(record: &SandboxRecord) -> Option<&'static str> {
    match record.state {
        SandboxState::Creating | SandboxState::Running | SandboxState::Resuming => Some("running"),
        SandboxState::Pausing | SandboxState::Paused => Some("paused"),
        SandboxState::Deleting | SandboxState::Failed => None,
    }
}

/// An item of a listing, and most of the answer about one sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: String,
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    metadata: BTreeMap<String, String>,
    state: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume_mounts: Vec<Value>,
}

impl Listed {
    /// `None` for a sandbox that counts as gone for the clients.
    pub(crate) fn new(record: &SandboxRecord) -> Option<Self> {
        let extras = Extras::of(record);
        let state = state(record)?;
        let resources = record.spec.resources;
        // A paused sandbox ended when it was paused.
        let end = record.paused_ms.filter(|_| state == "paused").or(record.expires_ms);
        let mounts = record.spec.volumes.iter();
        Some(Self {
            template_id: template_id(record, &extras),
            alias: extras.alias,
            sandbox_id: record.id.to_string(),
            client_id: CLIENT,
            started_at: of_ms(record.created_ms),
            end_at: of_ms(end.unwrap_or(NEVER_MS)),
            cpu_count: cpu_count(record),
            memory_mb: resources.memory_bytes / MIB,
            disk_size_mb: resources.disk_bytes / MIB,
            metadata: extras::metadata(record),
            state,
            envd_version: envd::VERSION,
            volume_mounts: mounts.map(|mount| json!({"name": mount.name, "path": mount.path})).collect(),
        })
    }
}

pub(crate) fn cpu_count(record: &SandboxRecord) -> u32 {
    record.spec.resources.cpu_millis.div_ceil(1000).max(1)
}

/// The whole answer about one sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    envd_access_token: String,
    domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
    lifecycle: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<&'static str>,
}

impl Detail {
    /// `None` for a sandbox that counts as gone for the clients.
    pub(crate) fn new(engine: &Engine, record: &SandboxRecord, key: &KeyId, domain: Domain) -> Option<Self> {
        let extras = Extras::of(record);
        let on_timeout = if record.spec.idle.pause_at_end.is_some() { "pause" } else { "kill" };
        Some(Self {
            listed: Listed::new(record)?,
            envd_access_token: envd::access_token(engine, key, &record.id),
            domain: domain.0,
            allow_internet_access: extras.allow_internet_access,
            network: extras.network,
            lifecycle: json!({"autoResume": extras.auto_resume, "onTimeout": on_timeout}),
            pause_mode: record.paused.map(|mode| match mode {
                PauseMode::Frozen | PauseMode::Memory => "full",
                PauseMode::Filesystem => "filesystem",
            }),
        })
    }
}
