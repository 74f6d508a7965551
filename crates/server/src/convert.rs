//! Records of the engine to types of the API: the one place.

use atoll_api as api;
use atoll_core::key::Scope;
use atoll_engine::{ExecView, SandboxMetrics};
use atoll_guest_protocol::messages;
use atoll_isolation::Resource;
use atoll_store::{KeyRecord, RegistryRecord, SandboxRecord, TemplateRecord};

const NANOS_PER_MS: i64 = 1_000_000;

pub(crate) fn sandbox(record: SandboxRecord) -> api::Sandbox {
    let spec = record.spec;
    api::Sandbox {
        id: record.id.into(),
        name: record.name,
        state: record.state,
        reason: record.reason,
        image: spec.image,
        image_digest: record.image_digest,
        template: spec.template,
        isolation: spec.isolation,
        resources: spec.resources,
        env: spec.env,
        labels: record.labels,
        user: spec.user,
        workdir: spec.workdir,
        created_at_ms: record.created_ms,
        expires_at_ms: record.expires_ms,
        idle_timeout_ms: spec.idle_timeout_ms,
        egress: spec.egress,
        last_active_at_ms: record.last_active_ms,
        owner: record.owner.map(Into::into),
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
        cwd: record.spec.cwd,
        tty: record.spec.tty.is_some(),
        exit: record.exit,
        output_bytes: extent.end,
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
            messages::ChangeKind::Overflow => api::WatchChange::Overflow,
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

pub(crate) fn template(record: TemplateRecord) -> api::Template {
    let spec = record.spec;
    api::Template {
        id: record.id.into(),
        name: record.name,
        version: record.version,
        image: spec.image,
        isolation: spec.isolation,
        resources: spec.resources,
        env: spec.env,
        labels: spec.labels,
        user: spec.user,
        workdir: spec.workdir,
        ttl_ms: spec.ttl_ms,
        idle_timeout_ms: spec.idle_timeout_ms,
        egress: spec.egress,
        created_at_ms: record.created_ms,
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
    }
}

pub(crate) fn registry(record: RegistryRecord) -> api::RegistryEntry {
    api::RegistryEntry { host: record.host, username: record.username, updated_at_ms: record.updated_ms }
}

pub(crate) fn key(record: KeyRecord) -> api::Key {
    api::Key {
        id: record.id.into(),
        name: record.name,
        // A record that says nothing readable does not work either; it is shown as the least.
        scope: record.scopes.first().and_then(|text| Scope::parse(text)).unwrap_or(Scope::Read),
        created_at_ms: record.created_ms,
        expires_at_ms: record.expires_ms,
        last_used_at_ms: record.last_used_ms,
    }
}

pub(crate) fn leak(resource: Resource, removed: bool) -> api::Leak {
    api::Leak {
        sandbox: resource.sandbox.into(),
        kind: resource.kind.to_owned(),
        name: resource.name,
        removed,
    }
}
