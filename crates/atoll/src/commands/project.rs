//! Projects.

use atoll_api::{CreateProject, Project, ProjectDefaults, Quota, QuotaUsed, UpdateProject};
use atoll_client::Client;

use crate::cli::{Limit, ProjectArgs, ProjectCommand};
use crate::failure::Result;
use crate::output::{Printer, age, fields, table};
use crate::units::{format_bytes, format_cpu_millis, format_duration_ms};

/// `atoll project …`
pub(super) async fn project(client: &Client, printer: Printer, command: ProjectCommand) -> Result<()> {
    match command {
        ProjectCommand::Create(args) => {
            let mut create = CreateProject { name: args.name.clone(), ..CreateProject::default() };
            apply(*args, &mut create.quota, &mut create.defaults)?;
            let project = client.create_project(&create).await?;
            printer.note(&format!(
                "'atoll key create NAME --scope manage --project {}' makes a key of it",
                project.name
            ));
            printer.result(&project, || project.id.clone())
        }
        ProjectCommand::Ls => {
            let list = client.list_projects().await?;
            let header = ["ID", "NAME", "SANDBOXES", "RUNNING", "CPU", "MEMORY", "DISK", "AGE"];
            printer.result(&list, || table(header, list.items.iter().map(row)))
        }
        ProjectCommand::Show { project } => {
            let project = client.get_project(&project).await?;
            printer.result(&project, || shown(&project))
        }
        ProjectCommand::Set { args, rename } => {
            let name = args.name.clone();
            let Project { quota: mut new_quota, mut defaults, .. } = client.get_project(&name).await?;
            apply(*args, &mut new_quota, &mut defaults)?;
            let update = UpdateProject { name: rename, quota: Some(new_quota), defaults: Some(defaults) };
            let project = client.update_project(&name, &update).await?;
            printer.result(&project, || project.id.clone())
        }
        ProjectCommand::Rm { projects } => {
            for project in &projects {
                client.delete_project(project).await?;
            }
            printer.removed(&projects)
        }
    }
}

fn apply(args: ProjectArgs, quota: &mut Quota, defaults: &mut ProjectDefaults) -> Result<()> {
    let set = |to: &mut Option<u64>, said: Option<Limit<u64>>| {
        if let Some(Limit(value)) = said {
            *to = value;
        }
    };
    set(&mut quota.sandboxes, args.max_sandboxes);
    set(&mut quota.running, args.max_running);
    set(&mut quota.cpu_millis, args.max_cpu);
    set(&mut quota.memory_bytes, args.max_memory);
    set(&mut quota.disk_bytes, args.max_disk);
    if args.no_defaults {
        *defaults = ProjectDefaults::default();
    }
    defaults.image = args.image.or_else(|| defaults.image.take());
    defaults.isolation = args.isolation.or(defaults.isolation);
    defaults.resources.cpu_millis = args.cpu.or(defaults.resources.cpu_millis);
    defaults.resources.memory_bytes = args.memory.or(defaults.resources.memory_bytes);
    defaults.resources.disk_bytes = args.disk.or(defaults.resources.disk_bytes);
    defaults.visibility = args.visibility.or(defaults.visibility);
    set(&mut defaults.ttl_ms, args.ttl);
    set(&mut defaults.idle_timeout_ms, args.idle_timeout);
    defaults.egress = args.egress.policy()?.or_else(|| defaults.egress.take());
    Ok(())
}

fn cpus(millis: u64) -> String {
    u32::try_from(millis).map_or_else(|_| format!("{}", millis / 1000), format_cpu_millis)
}

fn plain(count: u64) -> String {
    count.to_string()
}

fn row(project: &Project) -> [String; 8] {
    let quota = &project.quota;
    let most = |limit: Option<u64>, shown: fn(u64) -> String| limit.map_or_else(String::new, shown);
    [
        project.id.clone(),
        project.name.clone(),
        most(quota.sandboxes, plain),
        most(quota.running, plain),
        most(quota.cpu_millis, cpus),
        most(quota.memory_bytes, format_bytes),
        most(quota.disk_bytes, format_bytes),
        age(project.created_at_ms),
    ]
}

/// Everything about one project.
fn shown(project: &Project) -> String {
    let (quota, used) = (&project.quota, project.used.unwrap_or_default());
    let of = |used: u64, limit: Option<u64>, shown: fn(u64) -> String| match limit {
        Some(limit) => format!("{} of {}", shown(used), shown(limit)),
        None => shown(used),
    };
    let QuotaUsed { sandboxes, running, cpu_millis, memory_bytes, disk_bytes } = used;
    let has = project.has.as_ref().map(|has| {
        let [keys, snapshots, volumes, secrets] = [has.keys, has.snapshots, has.volumes, has.secrets];
        format!("{keys} keys, {snapshots} snapshots, {volumes} volumes, {secrets} secrets")
    });
    fields([
        ("id", project.id.clone()),
        ("name", project.name.clone()),
        ("sandboxes", of(sandboxes, quota.sandboxes, plain)),
        ("running", of(running, quota.running, plain)),
        ("cpu of running", of(cpu_millis, quota.cpu_millis, cpus)),
        ("memory of running", of(memory_bytes, quota.memory_bytes, format_bytes)),
        ("disk", of(disk_bytes, quota.disk_bytes, format_bytes)),
        ("has", has.unwrap_or_default()),
        ("defaults", defaults(&project.defaults)),
    ])
}

fn defaults(defaults: &ProjectDefaults) -> String {
    let resources = &defaults.resources;
    let egress = defaults
        .egress
        .as_ref()
        .map(|egress| serde_json::to_string(egress).unwrap_or_else(|_unwritable| "a policy".to_owned()));
    let said = [
        ("image", defaults.image.clone()),
        ("isolation", defaults.isolation.map(|level| level.to_string())),
        ("cpu", resources.cpu_millis.map(format_cpu_millis)),
        ("memory", resources.memory_bytes.map(format_bytes)),
        ("disk", resources.disk_bytes.map(format_bytes)),
        ("visibility", defaults.visibility.map(|one| one.as_str().to_owned())),
        ("ttl", defaults.ttl_ms.map(format_duration_ms)),
        ("idle timeout", defaults.idle_timeout_ms.map(format_duration_ms)),
        ("egress", egress),
    ];
    let said: Vec<String> =
        said.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
    if said.is_empty() { "the server's".to_owned() } else { said.join(", ") }
}
