//! `pause`, `resume` and `usage`.

use std::collections::BTreeMap;

use atoll_api::{PauseSandbox, SandboxList, UsageGroup, UsageItem, UsageList};
use atoll_client::{Client, GetUsage, ListSandboxes};

use crate::cli::{PauseArgs, ResumeArgs, UsageArgs};
use crate::failure::Result;
use crate::output::{Printer, age, now_ms, table};
use crate::units::{format_bytes, format_duration_ms};

/// Byte-seconds of one GiB in one hour.
const GIB_HOUR: f64 = 3600.0 * 1_073_741_824.0;

/// `atoll pause`
pub(super) async fn pause(client: &Client, printer: Printer, args: PauseArgs) -> Result<()> {
    let mut items = Vec::new();
    for sandbox in &args.sandboxes {
        items.push(client.pause_sandbox(sandbox, &PauseSandbox { mode: Some(args.mode) }).await?);
    }
    done(printer, items)
}

/// `atoll resume`
pub(super) async fn resume(client: &Client, printer: Printer, args: ResumeArgs) -> Result<()> {
    let mut items = Vec::new();
    for sandbox in &args.sandboxes {
        items.push(client.resume_sandbox(sandbox).await?);
    }
    done(printer, items)
}

fn done(printer: Printer, items: Vec<atoll_api::Sandbox>) -> Result<()> {
    let list = SandboxList { items, next_cursor: None };
    printer
        .result(&list, || list.items.iter().map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>().join("\n"))
}

/// `atoll usage`
pub(super) async fn usage(client: &Client, printer: Printer, args: UsageArgs) -> Result<()> {
    let query = GetUsage {
        sandbox: args.sandbox,
        key: args.key,
        project: args.project,
        from_ms: args.since.map(|since| now_ms().saturating_sub(since)),
        to_ms: None,
        group: args.by,
    };
    let mut list = client.usage(&query).await?;
    if !printer.is_json() {
        name(client, args.by, &mut list).await;
    }
    printer.result(&list, || {
        table(
            ["WHAT", "CPU", "MEMORY", "DISK", "RUNNING", "SENT", "REQUESTS", "EXECS"],
            list.items.iter().map(|item| row(item, args.by)),
        )
    })
}

/// Puts names in the place of ids, as far as the user's API key may list what has them. What is gone keeps its id.
async fn name(client: &Client, by: UsageGroup, list: &mut UsageList) {
    let names: BTreeMap<String, String> = match by {
        UsageGroup::Sandbox => {
            let Ok(sandboxes) = super::sandbox::all(client, ListSandboxes::default()).await else { return };
            sandboxes.into_iter().filter_map(|sandbox| Some((sandbox.id, sandbox.name?))).collect()
        }
        UsageGroup::Key => {
            let Ok(keys) = client.list_keys().await else { return };
            keys.items.into_iter().map(|key| (key.id, key.name)).collect()
        }
        UsageGroup::Project => {
            let Ok(projects) = client.list_projects().await else { return };
            projects.items.into_iter().map(|project| (project.id, project.name)).collect()
        }
        UsageGroup::Total | UsageGroup::Hour => return,
    };
    for item in &mut list.items {
        for id in [&mut item.sandbox, &mut item.key, &mut item.project].into_iter().flatten() {
            if let Some(name) = names.get(id) {
                id.clone_from(name);
            }
        }
    }
}

fn row(item: &UsageItem, by: UsageGroup) -> [String; 8] {
    let what = match (&item.sandbox, &item.key, &item.project, item.hour_at_ms) {
        (Some(what), ..) | (_, Some(what), ..) | (_, _, Some(what), _) => what.clone(),
        (.., Some(hour)) => format!("{} ago", age(hour)),
        (None, None, None, None) if by == UsageGroup::Project => "no project".to_owned(),
        (None, None, None, None) => "all".to_owned(),
    };
    let used = &item.used;
    [
        what,
        format_duration_ms(used.cpu_us / 1000),
        gib_hours(used.memory_byte_seconds),
        gib_hours(used.disk_byte_seconds),
        format_duration_ms(used.running_ms),
        format_bytes(used.egress_bytes),
        used.requests.to_string(),
        used.execs.to_string(),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn gib_hours(byte_seconds: u64) -> String {
    format!("{:.3} GiBh", byte_seconds as f64 / GIB_HOUR)
}
