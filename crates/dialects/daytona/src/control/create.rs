//! Making a sandbox. The answer comes when the sandbox can be used, and says `started`: a client that reads another
//! state asks again each second.

use std::collections::BTreeMap;

use atoll_core::access::Target;
use atoll_core::id::KeyId;
use atoll_core::idle::{IdlePolicy, OnIdle};
use atoll_core::sharing::Needs;
use atoll_core::spec::{ResourcesDraft, SandboxDraft};
use atoll_core::volume::VolumeMountDraft;
use atoll_core::{Code, Error};
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::sandboxes::{finish, keep_larger_disk, open};
use atoll_engine::{Caller as EngineCaller, Engine, Made};
use atoll_store::SandboxRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::builds::{self, BuildInfo};
use super::network::Network;
use super::{origin, secrets};
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Json, Root};
use crate::view;
use crate::who::Manage;

pub(super) const GIB: u64 = 1 << 30;
const MINUTE_MS: u64 = 60_000;
/// Minutes without use after which a sandbox stops, when the client gives none.
const AUTO_STOP_MIN: i64 = 15;
/// Name of the access that lets every client reach ports.
pub(super) const PUBLIC: &str = "daytona public";

/// A creation. Fields that are not named here are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Create {
    name: Option<String>,
    snapshot: Option<String>,
    user: Option<String>,
    env: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    public: Option<bool>,
    #[serde(flatten)]
    network: Network,
    target: Option<String>,
    #[serde(flatten)]
    size: Size,
    auto_stop_interval: Option<i64>,
    auto_pause_interval: Option<i64>,
    auto_archive_interval: Option<i64>,
    auto_delete_interval: Option<i64>,
    ttl_minutes: Option<i64>,
    volumes: Option<Vec<Volume>>,
    build_info: Option<BuildInfo>,
    linked_sandbox: Option<String>,
    secrets: Option<secrets::Asked>,
    outbound_proxy_url: Option<String>,
}

/// The resources that a sandbox may use: cores and GiB.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Size {
    cpu: Option<u32>,
    gpu: Option<u32>,
    memory: Option<u64>,
    disk: Option<u64>,
}

impl Size {
    /// # Errors
    /// 400 for graphics processors, and for numbers that are 0.
    pub(super) fn resources(&self) -> Result<ResourcesDraft> {
        if self.gpu.unwrap_or_default() > 0 {
            return Err(Failure::bad("gpu: this server has no graphics processors; leave it out"));
        }
        if self.cpu == Some(0) || self.memory == Some(0) || self.disk == Some(0) {
            return Err(Failure::bad("cpu, memory and disk must be at least 1"));
        }
        Ok(ResourcesDraft {
            cpu_millis: self.cpu.map(|cores| cores.saturating_mul(1000)),
            memory_bytes: self.memory.map(|gib| gib.saturating_mul(GIB)),
            disk_bytes: self.disk.map(|gib| gib.saturating_mul(GIB)),
            ..ResourcesDraft::default()
        })
    }

    pub(super) const fn has_disk(&self) -> bool {
        self.disk.is_some()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    volume_id: String,
    mount_path: String,
    subpath: Option<String>,
}

/// `POST /sandbox`.
pub(super) async fn create(
    caller: Caller<Manage>,
    root: Root,
    State(app): State<App>,
    Json(request): Json<Create>,
) -> Result<Response> {
    let (engine, by, key) = (app.host.engine().clone(), caller.engine().clone(), caller.key());
    let grant = caller.grant().clone();
    let made = async move {
        let draft = request.draft(&engine, &by, &key).await?;
        // It may have waited for a build, for hours: a key that was deleted meanwhile makes nothing.
        engine.recheck(&grant, Needs::MANAGE)?;
        make(&engine, &by, draft, request.public == Some(true)).await
    };
    let record = atoll_engine::spawn(made)
        .await
        .unwrap_or_else(|_panic| Err(Failure::internal("the creation failed")))?;
    let answer = Json(view::in_state(&record, &root, "started")).into_response();
    // The protocol has no key by which a retry finds the sandbox: a client that left has lost it.
    let undo = app.host.undo(vec![record.id]);
    Ok((axum::Extension(undo), answer).into_response())
}

async fn make(
    engine: &Engine,
    by: &EngineCaller,
    draft: SandboxDraft,
    public: bool,
) -> Result<SandboxRecord> {
    let record = engine.create_sandbox(draft, by).await.map_err(|error| refused(&error))?;
    let finished = finish(engine, by, Made::New(record), |record| async move {
        if public {
            open_ports(engine, &record, by).await?;
        }
        Ok::<_, Failure>(record)
    });
    finished.await.map(Made::into_record)
}

/// Lets every client reach the ports of a sandbox.
pub(super) async fn open_ports(engine: &Engine, record: &SandboxRecord, by: &EngineCaller) -> Result<()> {
    open(engine, &record.id, Target::Ports, PUBLIC, by).await.map_err(|error| Failure::of(&error))
}

/// The error of a creation, in the clients' terms.
fn refused(error: &Error) -> Failure {
    match error.code {
        // A thing that the body names is missing: 404 would be about the path.
        Code::VolumeNotFound | Code::SecretNotFound => Failure::bad(atoll_dialect_kit::sentence(error)),
        Code::SandboxFailed | Code::StartFailed => Failure::internal(atoll_dialect_kit::sentence(error)),
        _ => Failure::of(error),
    }
}

impl Create {
    fn check(&self) -> Result<()> {
        if self.linked_sandbox.as_ref().is_some_and(|linked| !linked.is_empty()) {
            return Err(crate::unsupported("linkedSandbox", "make a sandbox of its own, or fork one"));
        }
        if self.outbound_proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
            return Err(crate::unsupported(
                "outboundProxyUrl",
                "what a sandbox reaches is the egress policy's matter",
            ));
        }
        Ok(())
    }

    async fn draft(&self, engine: &Engine, by: &EngineCaller, key: &KeyId) -> Result<SandboxDraft> {
        self.check()?;
        let labels = self.labels.clone().unwrap_or_default();
        let mut draft = SandboxDraft {
            name: self.name.clone().filter(|name| !name.is_empty()),
            resources: self.size.resources()?,
            env: self.env.clone().unwrap_or_default(),
            labels: extras::fitting(&labels),
            user: self.user.clone().filter(|user| !user.is_empty()),
            volumes: self.mounts(),
            egress: self.network.policy()?,
            ttl_ms: minutes("ttlMinutes", self.ttl_minutes.filter(|minutes| *minutes != 0))?,
            ..SandboxDraft::default()
        };
        match &self.build_info {
            Some(info) => draft.template = Some(builds::template_of(engine, by, key, info).await?),
            None => origin::find(engine, by, self.snapshot.as_deref()).await?.apply(&mut draft),
        }
        let secrets = self.secrets.clone().unwrap_or_default();
        draft.egress =
            secrets::egress(engine, by, &secrets, draft.egress.take(), draft.template.as_deref()).await?;
        // A disk is at least as large as the client asked: the disk of an image with steps has a size of its own.
        keep_larger_disk(engine, &mut draft).await?;
        self.intervals(&mut draft)?;
        let mut extras = Extras {
            snapshot: self.snapshot.clone().filter(|name| !name.is_empty()),
            env: draft.env.clone(),
            labels: Some(labels),
            public: self.public.unwrap_or_default(),
            target: self.target.clone(),
            auto_archive: self.auto_archive_interval.and_then(|minutes| u64::try_from(minutes).ok()),
            ephemeral: self.auto_delete_interval == Some(0),
            ..Extras::default()
        };
        self.network.note(&mut extras);
        draft.annotations = BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]);
        Ok(draft)
    }

    fn mounts(&self) -> Vec<VolumeMountDraft> {
        let mount = |volume: &Volume| {
            let (name, path) = (volume.volume_id.clone(), volume.mount_path.clone());
            VolumeMountDraft { volume: name, path, read_only: false, subpath: volume.subpath.clone() }
        };
        self.volumes.iter().flatten().map(mount).collect()
    }

    /// When the sandbox stops by itself, and when it is deleted.
    fn intervals(&self, draft: &mut SandboxDraft) -> Result<()> {
        let pause = self.auto_pause_interval.unwrap_or_default();
        let stop = self.auto_stop_interval.unwrap_or(if pause > 0 { 0 } else { AUTO_STOP_MIN });
        if pause > 0 && stop > 0 {
            return Err(Failure::bad(
                "at most one of autoStopInterval and autoPauseInterval may be more than 0",
            ));
        }
        let interval = if pause > 0 { pause } else { stop };
        draft.idle_timeout_ms = minutes("autoStopInterval", Some(interval).filter(|minutes| *minutes != 0))?;
        let delete = self.auto_delete_interval.filter(|minutes| *minutes > 0);
        draft.idle = IdlePolicy {
            on_idle: match (self.auto_delete_interval, pause > 0) {
                (Some(0), _) => OnIdle::Delete,
                (_, true) => OnIdle::Freeze,
                (_, false) => OnIdle::Hibernate,
            },
            delete_paused_after_ms: minutes("autoDeleteInterval", delete)?,
            ..IdlePolicy::default()
        };
        Ok(())
    }
}

/// A number of minutes, as milliseconds.
///
/// # Errors
/// 400 for a negative number.
pub(super) fn minutes(field: &str, minutes: Option<i64>) -> Result<Option<u64>> {
    let Some(minutes) = minutes else { return Ok(None) };
    let ms = u64::try_from(minutes).ok().and_then(|minutes| minutes.checked_mul(MINUTE_MS));
    ms.map(Some).ok_or_else(|| Failure::bad(format!("{field}: must be a number of minutes, not negative")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Create {
        serde_json::from_str(text).unwrap()
    }

    fn idle(text: &str) -> Result<(Option<u64>, IdlePolicy)> {
        let mut draft = SandboxDraft::default();
        of(text).intervals(&mut draft).map(|()| (draft.idle_timeout_ms, draft.idle))
    }

    #[test]
    fn what_the_clients_send() {
        let least = of(r#"{"env":{},"labels":{"code-toolbox-language":"python"},"volumes":[]}"#);
        assert!(least.check().is_ok() && least.mounts().is_empty());
        let sized = of(r#"{"cpu":2,"memory":4,"disk":8,"networkBlockAll":true}"#);
        let resources = sized.size.resources().unwrap();
        assert_eq!((resources.cpu_millis, resources.disk_bytes), (Some(2000), Some(8 * GIB)));
        assert_eq!(sized.network.network_block_all, Some(true));
        assert!(of(r#"{"gpu":1}"#).size.resources().is_err());
        assert!(of(r#"{"linkedSandbox":"a"}"#).check().is_err());
    }

    #[test]
    fn intervals() {
        let (timeout, policy) = idle("{}").unwrap();
        assert_eq!((timeout, policy.on_idle), (Some(15 * MINUTE_MS), OnIdle::Hibernate));
        assert_eq!(idle(r#"{"autoStopInterval":0}"#).unwrap().0, None);
        let (timeout, policy) = idle(r#"{"autoPauseInterval":5}"#).unwrap();
        assert_eq!((timeout, policy.on_idle), (Some(5 * MINUTE_MS), OnIdle::Freeze));
        assert_eq!(idle(r#"{"autoDeleteInterval":0}"#).unwrap().1.on_idle, OnIdle::Delete);
        let kept = idle(r#"{"autoDeleteInterval":-1}"#).unwrap().1;
        assert_eq!((kept.on_idle, kept.delete_paused_after_ms), (OnIdle::Hibernate, None));
        assert_eq!(
            idle(r#"{"autoDeleteInterval":2}"#).unwrap().1.delete_paused_after_ms,
            Some(2 * MINUTE_MS)
        );
        assert!(idle(r#"{"autoStopInterval":5,"autoPauseInterval":5}"#).is_err());
        assert!(idle(r#"{"autoStopInterval":-5}"#).is_err());
    }
}
