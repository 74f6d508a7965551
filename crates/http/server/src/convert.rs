//! Records of the engine to types of the API: the one place.

use atoll_api as api;
use atoll_core::build::BuildState;
use atoll_core::id::SnapshotId;
use atoll_core::key::Scope;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Lease;
use atoll_core::snapshot::Purpose;
use atoll_core::spec::is_own_annotation;
use atoll_engine::{
    AccessView, BuildView, CacheEntry, ExecView, KeyRight, PoolName, PoolOrigin, PoolView, PoolsView,
    ProjectView, SandboxMetrics, TemplateMemory, TemplateMemoryState, UsageItem, VolumeFile, VolumeFileKind,
    VolumeView, Wanted,
};
use atoll_guest_protocol::messages;
use atoll_isolation::Resource;
use atoll_store::{
    Belongings, BuildRecord, KeyKind, KeyRecord, Page, ProjectRecord, RegistryRecord, SandboxRecord,
    SecretRecord, SecretUse, SnapshotRecord, TemplateRecord,
};

const NANOS_PER_MS: i64 = 1_000_000;

pub(crate) fn sandbox(record: SandboxRecord) -> api::Sandbox {
    let spec = record.spec;
    let stands =
        matches!(record.state, SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming);
    api::Sandbox {
        id: record.id.into(),
        name: record.name,
        state: record.state,
        reason: record.reason,
        paused: record.paused.filter(|_| stands),
        paused_at_ms: record.paused_ms.filter(|_| stands),
        kept_at_ms: record.kept_ms,
        boot_id: record.boot_id,
        image: spec.image,
        image_digest: record.image_digest,
        template: spec.template,
        snapshot: spec.snapshot.map(Into::into),
        auto_checkpoints: spec.auto_checkpoints,
        durability: spec.durability,
        restored_from_ms: record.restored.map(|restored| restored.checkpoint_ms),
        restored_at_ms: record.restored.map(|restored| restored.at_ms),
        isolation: spec.isolation,
        accelerator: spec.accelerator,
        resources: spec.resources,
        env: spec.env,
        labels: record.labels,
        annotations: record.annotations.into_iter().filter(|(key, _)| !is_own_annotation(key)).collect(),
        user: spec.user,
        workdir: spec.workdir,
        created_at_ms: record.created_ms,
        expires_at_ms: record.expires_ms,
        idle_timeout_ms: spec.idle_timeout_ms,
        egress: spec.egress,
        execution: spec.execution,
        profiles: spec.profiles,
        on_idle: spec.idle.on_idle,
        idle_freeze_ms: spec.idle.freeze_ms,
        hibernate_after_ms: spec.idle.hibernate_after_ms,
        delete_paused_after_ms: spec.idle.delete_paused_after_ms,
        budget: spec.budget,
        last_active_at_ms: record.last_active_ms,
        volumes: spec.volumes,
        layers: spec.layers,
        owner: record.owner.map(Into::into),
        project: record.project.map(Into::into),
    }
}

pub(crate) fn exec(view: ExecView) -> api::Exec {
    let ExecView { record, extent } = view;
    api::Exec {
        id: record.id.into(),
        sandbox: record.sandbox.into(),
        argv: record.spec.argv,
        state: record.state,
        pid: record.pid,
        user: record.spec.user,
        profile: record.spec.profile.map(|profile| profile.name),
        cwd: record.spec.cwd,
        tty: record.spec.tty.is_some(),
        exit: record.exit,
        output_bytes: extent.end,
        cpu_us: record.cpu_us,
        output_first: extent.first,
        created_at_ms: record.created_ms,
        ended_at_ms: record.ended_ms,
        started_by: record.started_by.map(Into::into),
    }
}

pub(crate) fn metrics(from: &SandboxMetrics) -> api::Metrics {
    api::Metrics {
        cpu_us: from.usage.cpu_us,
        memory_bytes: from.usage.memory_bytes,
        memory_peak_bytes: from.usage.memory_peak_bytes,
        memory_limit_bytes: from.memory_limit_bytes,
        pids: from.usage.pids,
        oom_kills: from.usage.oom_kills,
        disk_host_bytes: from.usage.disk_bytes,
        disk_total_bytes: from.guest.disk_total_bytes,
        disk_used_bytes: from.guest.disk_used_bytes,
        uptime_s: from.guest.uptime_s,
        disk_io: from.disk_io.map(|io| api::DiskIo {
            read_bytes: io.read_bytes,
            written_bytes: io.written_bytes,
            reads: io.reads,
            writes: io.writes,
        }),
    }
}

fn present(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

pub(crate) fn file(info: messages::FileInfo) -> api::FileEntry {
    api::FileEntry {
        kind: match info.kind() {
            messages::FileKind::File => api::FileKind::File,
            messages::FileKind::Directory => api::FileKind::Directory,
            messages::FileKind::Symlink => api::FileKind::Symlink,
            messages::FileKind::Other => api::FileKind::Other,
        },
        path: info.path,
        size_bytes: info.size,
        mode: format!("{:04o}", info.mode & 0o7777),
        uid: info.uid,
        gid: info.gid,
        user: present(info.user),
        group: present(info.group),
        modified_at_ms: info.modified_ns.div_euclid(NANOS_PER_MS),
        target: present(info.target),
    }
}

pub(crate) fn watch(event: messages::WatchEvent) -> api::WatchMessage {
    api::WatchMessage {
        change: match event.kind() {
            // Marks are not asked for here: a guest that sends one has lost count.
            messages::ChangeKind::Overflow | messages::ChangeKind::Mark => api::WatchChange::Overflow,
            messages::ChangeKind::Created => api::WatchChange::Created,
            messages::ChangeKind::Written => api::WatchChange::Written,
            messages::ChangeKind::Removed => api::WatchChange::Removed,
            messages::ChangeKind::Moved => api::WatchChange::Moved,
            messages::ChangeKind::Attributes => api::WatchChange::Attributes,
        },
        path: event.path,
        from: present(event.from),
    }
}

pub(crate) fn template(record: TemplateRecord, memory: Option<TemplateMemory>) -> api::Template {
    let spec = record.spec;
    api::Template {
        id: record.id.into(),
        name: record.name,
        version: record.version,
        image: spec.image,
        snapshot: spec.snapshot.map(Into::into),
        isolation: spec.isolation,
        resources: spec.resources,
        env: spec.env,
        labels: spec.labels,
        user: spec.user,
        workdir: spec.workdir,
        ttl_ms: spec.ttl_ms,
        idle_timeout_ms: spec.idle_timeout_ms,
        pool: spec.pool,
        egress: spec.egress,
        start: spec.start,
        ready: spec.ready,
        restart: spec.restart,
        memory: memory.map(template_memory),
        execution: spec.execution,
        profiles: spec.profiles,
        services: spec.services.into_iter().map(Into::into).collect(),
        created_at_ms: record.created_ms,
    }
}

fn template_memory(memory: TemplateMemory) -> api::TemplateMemory {
    api::TemplateMemory {
        state: match memory.state {
            TemplateMemoryState::Saving => api::TemplateMemoryState::Saving,
            TemplateMemoryState::Saved => api::TemplateMemoryState::Saved,
            TemplateMemoryState::Failed => api::TemplateMemoryState::Failed,
            TemplateMemoryState::Superseded => api::TemplateMemoryState::Superseded,
        },
        problem: memory.problem,
        saved_at_ms: memory.saved_ms,
        stored_bytes: memory.stored_bytes,
    }
}

pub(crate) fn build(view: BuildView) -> api::Build {
    api::Build { needs_context: view.needs_context, ..build_record(view.record) }
}

pub(crate) fn build_record(record: BuildRecord) -> api::Build {
    let name = record.spec.name;
    api::Build {
        id: record.id.into(),
        state: record.state,
        needs_context: record.state == BuildState::Waiting,
        template: record.template_version.map(|version| format!("{name}:{version}")),
        name,
        failure: record.failure,
        created_at_ms: record.created_ms,
        started_at_ms: record.started_ms,
        ended_at_ms: record.ended_ms,
        created_by: record.created_by.map(Into::into),
    }
}

pub(crate) fn build_cache(entry: CacheEntry) -> api::BuildCacheEntry {
    let CacheEntry { record, in_template } = entry;
    api::BuildCacheEntry {
        key: record.key,
        step: record.step,
        size_bytes: record.stored_bytes,
        took_ms: record.made_in_ms,
        created_at_ms: record.created_ms,
        used_at_ms: record.used_ms,
        in_template,
    }
}

pub(crate) fn pool(view: PoolView) -> api::Pool {
    let name = view.name.to_string();
    let (template, image) = match view.name {
        PoolName::Template(name) => (Some(name), None),
        PoolName::Image(name) => (None, Some(name)),
        PoolName::Demand(Wanted { template: Some(name), .. }) => {
            (Some(name.split(':').next().unwrap_or_default().to_owned()), None)
        }
        PoolName::Demand(Wanted { image, .. }) => (None, Some(image)),
    };
    let version = view.template.as_deref().and_then(|text| text.rsplit_once(':')?.1.parse().ok());
    api::Pool {
        name,
        template,
        version,
        image,
        isolation: view.isolation,
        min: view.spec.min,
        max: view.spec.max,
        max_age_ms: view.spec.age_ms(),
        origin: match view.origin {
            PoolOrigin::Server => api::PoolOrigin::Server,
            PoolOrigin::Template => api::PoolOrigin::Template,
            PoolOrigin::Call => api::PoolOrigin::Call,
            PoolOrigin::Demand => api::PoolOrigin::Demand,
        },
        ready: view.ready,
        making: view.making,
        target: view.target,
        hits: view.hits,
        misses: view.misses,
        made: view.made,
        failed: view.failed,
        oldest_age_ms: view.ages_ms.first().copied(),
        make_ms: view.make_ms,
        member_bytes: view.member_bytes,
        problem: view.problem,
    }
}

pub(crate) fn pools(view: PoolsView) -> api::PoolList {
    api::PoolList {
        items: view.pools.into_iter().map(pool).collect(),
        memory_bytes: view.memory_bytes,
        memory_max_bytes: view.memory_max_bytes,
    }
}

pub(crate) fn access(view: AccessView) -> api::SandboxAccess {
    api::SandboxAccess {
        owner: view.owner.map(Into::into),
        visibility: view.visibility,
        is_default: view.is_default,
        grants: view.grants.into_iter().map(|(key, role)| api::Grant { key: key.into(), role }).collect(),
    }
}

pub(crate) fn lease(lease: Lease) -> api::Lease {
    api::Lease {
        key: lease.key.into(),
        holder: lease.holder,
        taken_at_ms: lease.taken_ms,
        expires_at_ms: lease.expires_ms,
    }
}

pub(crate) fn snapshot(record: SnapshotRecord) -> api::Snapshot {
    let manifest = record.manifest;
    api::Snapshot {
        id: record.id.into(),
        state: record.state,
        kind: manifest.kind,
        tags: record.tags.iter().map(ToString::to_string).collect(),
        checkpoint: record.purpose.checkpoint(),
        automatic: matches!(record.purpose, Purpose::AutoCheckpoint(_)),
        comment: record.comment,
        sandbox: record.sandbox.map(Into::into),
        image: manifest.image,
        image_digest: manifest.image_digest,
        isolation: manifest.isolation,
        resources: manifest.resources,
        env: manifest.env,
        user: manifest.user,
        workdir: manifest.workdir,
        format: manifest.format,
        digest: record.digest,
        stored_bytes: record.stored_bytes,
        method: record.method,
        paused_us: record.paused_us,
        created_at_ms: record.created_ms,
        created_by: record.created_by.map(Into::into),
    }
}

pub(crate) fn snapshots(page: Page<SnapshotRecord>) -> api::SnapshotList {
    let next_cursor = page.next.map(|next| next.to_string());
    api::SnapshotList { items: page.items.into_iter().map(snapshot).collect(), next_cursor }
}

pub(crate) fn volume(view: VolumeView) -> api::Volume {
    let VolumeView { record, usage, used_by } = view;
    api::Volume {
        id: record.id.into(),
        name: record.name,
        state: record.state,
        size_bytes: record.size_bytes,
        read_only: record.read_only,
        from: record.source,
        total_bytes: usage.map(|usage| usage.total_bytes),
        used_bytes: usage.map(|usage| usage.used_bytes),
        stored_bytes: usage.map(|usage| usage.stored_bytes),
        used_by,
        owner: record.owner.map(Into::into),
        created_at_ms: record.created_ms,
    }
}

pub(crate) fn volume_file(file: VolumeFile) -> api::FileEntry {
    api::FileEntry {
        kind: match file.kind {
            VolumeFileKind::File => api::FileKind::File,
            VolumeFileKind::Directory => api::FileKind::Directory,
            VolumeFileKind::Symlink => api::FileKind::Symlink,
            VolumeFileKind::Other => api::FileKind::Other,
        },
        path: file.path,
        size_bytes: file.size,
        mode: format!("{:04o}", file.mode & 0o7777),
        uid: file.uid,
        gid: file.gid,
        // A volume knows numbers only: names are each sandbox's own.
        user: None,
        group: None,
        modified_at_ms: file.modified_ms,
        target: file.target,
    }
}

pub(crate) fn image(image: &atoll_image::Image) -> api::Image {
    api::Image {
        digest: image.digest.to_string(),
        names: image.names.clone(),
        size_bytes: image.size_bytes,
        layers: u32::try_from(image.layers.len()).unwrap_or(u32::MAX),
        architecture: image.architecture.clone(),
        env: image.defaults.env.clone(),
        user: image.defaults.user.clone(),
        workdir: image.defaults.workdir.clone(),
        command: image.entrypoint.iter().chain(&image.cmd).cloned().collect(),
        created: image.created.clone(),
        place: None,
    }
}

pub(crate) fn listed_image(listed: &atoll_engine::ListedImage) -> api::Image {
    let place = listed.place.map(|place| match place {
        atoll_engine::ImagePlace::Here => api::ImagePlace::Here,
        atoll_engine::ImagePlace::Shared => api::ImagePlace::Shared,
        atoll_engine::ImagePlace::Elsewhere => api::ImagePlace::Elsewhere,
    });
    api::Image { place, ..image(&listed.image) }
}

pub(crate) fn registry(record: RegistryRecord) -> api::RegistryEntry {
    api::RegistryEntry { host: record.host, username: record.username, updated_at_ms: record.updated_ms }
}

/// `scope` is what it may do, if it may do anything.
pub(crate) fn key(record: KeyRecord, right: Option<KeyRight>) -> api::Key {
    api::Key {
        id: record.id.into(),
        name: record.name,
        // One that may do nothing does not work either; it is shown as the least.
        scope: right.as_ref().map_or(Scope::Read, |right| right.scope),
        created_at_ms: record.created_ms,
        expires_at_ms: record.expires_ms,
        last_used_at_ms: record.last_used_ms,
        project: right.as_ref().and_then(|right| right.project.clone()).or(record.project).map(Into::into),
        person: match record.kind {
            KeyKind::Person(person) => Some(api::KeyPerson {
                issuer: person.issuer,
                subject: person.subject,
                email: person.email,
                allowed: right.is_some(),
            }),
            KeyKind::Key | KeyKind::Login(_) => None,
        },
    }
}

pub(crate) fn project(record: &ProjectRecord) -> api::Project {
    api::Project {
        id: record.id.to_string(),
        name: record.name.clone(),
        quota: record.quota,
        defaults: record.defaults.clone(),
        used: None,
        has: None,
        created_at_ms: record.created_ms,
    }
}

pub(crate) fn project_view(view: &ProjectView) -> api::Project {
    let Belongings { keys, sandboxes, snapshots, volumes, secrets } = view.belongings;
    let has = api::ProjectContent { keys, sandboxes, snapshots, volumes, secrets };
    api::Project { used: Some(view.used), has: Some(has), ..project(&view.record) }
}

pub(crate) fn secret(record: SecretRecord) -> api::Secret {
    let versions = record.versions.iter();
    api::Secret {
        versions: versions
            .map(|version| api::SecretVersion { version: version.version, created_at_ms: version.created_ms })
            .collect(),
        name: record.name,
        scope: record.scope,
        note: record.note,
        created_at_ms: record.created_ms,
        created_by: record.created_by.map(Into::into),
    }
}

pub(crate) fn secret_use(record: SecretUse) -> api::SecretUse {
    api::SecretUse {
        at_ms: record.at_ms,
        secret: record.secret,
        version: record.version,
        sandbox: record.sandbox.into(),
        host: record.host,
        method: record.method,
        path: record.path,
        rule: record.rule,
    }
}

pub(crate) fn usage(item: UsageItem) -> api::UsageItem {
    api::UsageItem {
        sandbox: item.sandbox.map(Into::into),
        key: item.key.map(Into::into),
        project: item.project.map(Into::into),
        hour_at_ms: item.hour_ms,
        used: item.used,
    }
}

/// An artifact that belongs to no known snapshot.
pub(crate) fn leaked_artifact(id: SnapshotId, removed: bool) -> api::Leak {
    let (kind, name) = ("artifact".to_owned(), id.to_string());
    api::Leak { sandbox: None, snapshot: Some(id.into()), kind, name, removed }
}

pub(crate) fn leak(resource: Resource, removed: bool) -> api::Leak {
    api::Leak {
        sandbox: Some(resource.sandbox.into()),
        snapshot: None,
        kind: resource.kind.to_owned(),
        name: resource.name,
        removed,
    }
}
