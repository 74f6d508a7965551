//! Sandboxes: `create`, `ls`, `rm`, `inspect`, `update`, `extend`, `metrics`.

use std::collections::BTreeMap;

use atoll_api::{CreateSandbox, Sandbox, SandboxList, UpdateSandbox};
use atoll_client::{Client, ListSandboxes};
use atoll_core::Code;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_core::snapshot::{AutoCheckpoints, Durability};
use atoll_core::spec::{Accelerator, Resources, ResourcesDraft};

use super::image;
use crate::cli::{
    EnvFile, ExtendArgs, InspectArgs, LimitArgs, LsArgs, RmArgs, SandboxArg, SandboxArgs, UpdateArgs,
};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, fields, table, until};
use crate::terminal;
use crate::units::{format_bytes, format_cpu_millis, format_duration_ms};

/// Most pages that are fetched for one listing: a server that always has another one is broken.
const PAGES_MAX_COUNT: usize = 1000;

/// Limits as the API takes them.
pub(super) fn limits(args: &LimitArgs, disk: Option<u64>) -> ResourcesDraft {
    ResourcesDraft {
        cpu_millis: args.cpu,
        memory_bytes: args.memory,
        pids: args.pids,
        disk_bytes: disk,
        io_bytes_per_second: args.io_bytes.map(|rate| rate.0),
        io_operations_per_second: args.io_operations.map(|rate| rate.0),
    }
}

/// Variables of files and, before them, of the command line.
pub(super) fn variables(files: Vec<EnvFile>, said: Vec<(String, String)>) -> BTreeMap<String, String> {
    files.into_iter().flat_map(|file| file.0).chain(said).collect()
}

/// The request that the arguments mean.
pub(super) fn request(args: SandboxArgs) -> Result<CreateSandbox> {
    Ok(CreateSandbox {
        name: args.name,
        visibility: args.visibility,
        image: args.image,
        template: args.template,
        snapshot: args.snapshot,
        memory: args.from_memory,
        auto_checkpoints: args.auto_checkpoints.map(|keep| AutoCheckpoints { keep }),
        durability: args.durability.into_iter().reduce(|one, other| Durability {
            every_ms: one.every_ms.or(other.every_ms),
            after_exec: one.after_exec || other.after_exec,
        }),
        isolation: args.isolation,
        resources: limits(&args.limits, args.disk),
        env: variables(args.env_file, args.env),
        labels: args.label.into_iter().collect(),
        node_labels: args.node_label.into_iter().collect(),
        user: args.user,
        workdir: args.workdir,
        ttl_ms: args.ttl,
        volumes: args.volume,
        idle_timeout_ms: args.idle_timeout,
        secrets: BTreeMap::new(),
        egress: args.egress.policy()?,
        execution: args.execution.policy()?,
        profiles: args.profiles.profiles()?,
        trace_files: args.trace_files.files(),
        services: args.services.services()?,
        on_idle: args.idle.on_idle,
        idle_freeze_ms: args.idle.idle_freeze,
        hibernate_after_ms: args.idle.hibernate_after,
        delete_paused_after_ms: args.idle.delete_paused_after,
        budget: args.idle.budget.budget(),
        ..CreateSandbox::default()
    })
}

/// Makes a sandbox. An image that is not here is pulled first, as `docker run` does.
pub(super) async fn make(client: &Client, printer: Printer, request: &CreateSandbox) -> Result<Sandbox> {
    match (client.create_sandbox(request).await, &request.image) {
        (Err(error), Some(image)) if error.code() == Some(Code::ImageNotFound) => {
            printer.note(&format!("there is no image '{image}' here: pulling it"));
            image::pull_missing(client, printer, image).await?;
            Ok(client.create_sandbox(request).await?)
        }
        (made, _) => Ok(made?),
    }
}

/// `atoll create`: prints the id. Says on standard error if a machine is emulated.
pub(super) async fn create(client: &Client, printer: Printer, args: SandboxArgs) -> Result<()> {
    let sandbox = make(client, printer, &request(args)?).await?;
    if sandbox.accelerator == Some(Accelerator::Emulated) {
        printer.note("its processor is emulated, many times slower than with KVM: 'atoll doctor' says why");
    }
    printer.result(&sandbox, || sandbox.id.clone())
}

/// All pages of a listing.
pub(super) async fn all(client: &Client, mut list: ListSandboxes) -> Result<Vec<Sandbox>> {
    list.limit = Some(PAGE_MAX_COUNT);
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX_COUNT {
        let page = client.list_sandboxes(&list).await?;
        items.extend(page.items);
        match page.next_cursor {
            Some(cursor) => list.cursor = Some(cursor),
            None => return Ok(items),
        }
    }
    Err(Failure::plain(Code::TooLarge, format!("the server has more than {PAGES_MAX_COUNT} pages")))
}

/// `atoll ls`
pub(super) async fn ls(client: &Client, printer: Printer, args: LsArgs) -> Result<()> {
    let list = ListSandboxes {
        state: args.state,
        labels: args.label.into_iter().collect(),
        project: args.project,
        ..ListSandboxes::default()
    };
    let mut items = all(client, list).await?;
    if args.state.is_none() && !args.all {
        items.retain(|sandbox| !matches!(sandbox.state, SandboxState::Deleting | SandboxState::Failed));
    }
    let list = SandboxList { items, next_cursor: None };
    let ids = args.quiet.then(|| list.items.iter().map(|sandbox| sandbox.id.as_str()));
    printer.names_or(&list, ids, || {
        table(["ID", "NAME", "IMAGE", "LEVEL", "STATE", "AGE", "ENDS"], list.items.iter().map(row))
    })
}

fn row(sandbox: &Sandbox) -> [String; 7] {
    [
        sandbox.id.clone(),
        sandbox.name.clone().unwrap_or_default(),
        sandbox.image.clone(),
        sandbox.isolation.to_string(),
        match sandbox.paused {
            Some(mode) => format!("{} ({mode})", sandbox.state),
            None => sandbox.state.to_string(),
        },
        age(sandbox.created_at_ms),
        until(sandbox.expires_at_ms),
    ]
}

/// `atoll rm`: goes on after a failure and reports the first.
pub(super) async fn rm(client: &Client, printer: Printer, args: RmArgs) -> Result<()> {
    let sandboxes = if args.all {
        let labels = args.label.into_iter().collect();
        let found = all(client, ListSandboxes { labels, ..ListSandboxes::default() }).await?;
        if !args.force && !found.is_empty() {
            confirm_all(found.len())?;
        }
        found.into_iter().map(|sandbox| sandbox.id).collect()
    } else {
        args.sandboxes
    };
    let mut failed = None;
    let mut removed = Vec::new();
    for sandbox in sandboxes {
        match client.delete_sandbox(&sandbox).await {
            Ok(()) => removed.push(sandbox),
            Err(error) if args.force && error.code() == Some(Code::SandboxNotFound) => {}
            Err(error) => {
                if let Some(earlier) = failed.replace(Failure::from(error)) {
                    printer.failure(&earlier);
                }
            }
        }
    }
    printer.result(&serde_json::json!({ "removed": removed }), || removed.join("\n"))?;
    failed.map_or(Ok(()), Err)
}

fn confirm_all(count: usize) -> Result<()> {
    if !terminal::can_ask() {
        return Err(Failure::Usage(format!("this deletes {count} sandboxes: add --yes to mean it")));
    }
    if terminal::confirm(&format!("Delete {count} sandboxes?"))? {
        return Ok(());
    }
    Err(Failure::plain(Code::InvalidArgument, "nothing was deleted"))
}

/// `atoll inspect`
pub(super) async fn inspect(client: &Client, printer: Printer, args: InspectArgs) -> Result<()> {
    match args.exec {
        Some(exec) => printer.document(&client.get_exec(&args.sandbox, &exec, 0).await?),
        None => printer.document(&client.get_sandbox(&args.sandbox).await?),
    }
}

/// `atoll update`
pub(super) async fn update(client: &Client, printer: Printer, args: UpdateArgs) -> Result<()> {
    let labels = (!args.label.is_empty()).then(|| args.label.into_iter().collect());
    let update = UpdateSandbox {
        name: args.name,
        env: args.env.into_iter().map(|(key, value)| (key, Some(value))).collect(),
        labels,
        ttl_ms: args.ttl.map(|lifetime| lifetime.0),
        idle_timeout_ms: args.idle_timeout.map(|lifetime| lifetime.0),
        resources: limits(&args.limits, None),
        secrets: BTreeMap::new(),
        egress: args.egress.policy()?,
        execution: args.execution.policy()?,
        on_idle: args.on_idle,
        idle_freeze_ms: args.idle_freeze.map(|lifetime| lifetime.0),
        hibernate_after_ms: args.hibernate_after.map(|lifetime| lifetime.0),
        delete_paused_after_ms: args.delete_paused_after.map(|lifetime| lifetime.0),
        budget: args.budget.budget(),
        ..UpdateSandbox::default()
    };
    if update == UpdateSandbox::default() {
        return Err(Failure::Usage(
            "nothing to change: give --name, --env, --label, --ttl, --idle-timeout, --on-idle, a budget, a limit, a network policy or --execution"
                .into(),
        ));
    }
    // The policy is replaced as a whole: what goes with the old one is said.
    let before = match &update.egress {
        Some(_) => Some(client.get_sandbox(&args.sandbox).await?.egress),
        None => None,
    };
    let sandbox = client.update_sandbox(&args.sandbox, &update).await?;
    if let Some(before) = before.filter(|before| *before != sandbox.egress) {
        printer.note(&super::net::diff(&before, &sandbox.egress));
    }
    printer.result(&sandbox, || summary(&sandbox))
}

/// `atoll extend`
pub(super) async fn extend(client: &Client, printer: Printer, args: ExtendArgs) -> Result<()> {
    let update = UpdateSandbox { ttl_ms: Some(Some(args.duration)), ..UpdateSandbox::default() };
    let sandbox = client.update_sandbox(&args.sandbox, &update).await?;
    printer.result(&sandbox, || summary(&sandbox))
}

fn summary(sandbox: &Sandbox) -> String {
    let labels: Vec<_> = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let limits = &sandbox.resources;
    fields([
        ("sandbox", sandbox.id.clone()),
        ("labels", labels.join(" ")),
        ("ends", until(sandbox.expires_at_ms)),
        ("idle timeout", sandbox.idle_timeout_ms.map_or_else(|| "none".into(), format_duration_ms)),
        ("cpu", format_cpu_millis(limits.cpu_millis)),
        ("memory", format_bytes(limits.memory_bytes)),
        ("pids", limits.pids.to_string()),
        ("disk", format_bytes(limits.disk_bytes)),
        ("disk i/o", disk_io(limits)),
    ])
}

fn disk_io(limits: &Resources) -> String {
    let bytes = limits.io_bytes_per_second.map(|bytes| format!("{}/s", format_bytes(bytes)));
    let operations = limits.io_operations_per_second.map(|count| format!("{count} operations/s"));
    let parts: Vec<_> = bytes.into_iter().chain(operations).collect();
    if parts.is_empty() { "no limit".to_owned() } else { parts.join(", ") }
}

fn moved(moved: Option<(u64, u64)>) -> String {
    let text = |(bytes, operations)| format!("{} in {operations} operations", format_bytes(bytes));
    moved.map_or_else(|| "not counted".to_owned(), text)
}

/// `atoll metrics`
pub(super) async fn metrics(client: &Client, printer: Printer, args: &SandboxArg) -> Result<()> {
    let metrics = client.sandbox_metrics(&args.sandbox).await?;
    let of = |used: u64, total: u64| format!("{} of {}", format_bytes(used), format_bytes(total));
    printer.result(&metrics, || {
        fields([
            ("cpu time", format_duration_ms(metrics.cpu_us / 1000)),
            ("memory", of(metrics.memory_bytes, metrics.memory_limit_bytes)),
            ("memory peak", format_bytes(metrics.memory_peak_bytes)),
            ("oom kills", metrics.oom_kills.to_string()),
            ("pids", metrics.pids.to_string()),
            ("disk", of(metrics.disk_used_bytes, metrics.disk_total_bytes)),
            ("disk on host", format_bytes(metrics.disk_host_bytes)),
            ("disk read", moved(metrics.disk_io.as_ref().map(|io| (io.read_bytes, io.reads)))),
            ("disk written", moved(metrics.disk_io.as_ref().map(|io| (io.written_bytes, io.writes)))),
            ("uptime", format_duration_ms(metrics.uptime_s.saturating_mul(1000))),
        ])
    })
}
