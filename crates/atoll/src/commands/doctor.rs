//! `atoll doctor`: what this host enforces, and what is left over on it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use atoll_api::{Doctor, Leak, LeakList};
use atoll_client::Client;
use atoll_core::Code;
use atoll_isolation::{Check, Isolation as _, Resource, Status};
use atoll_isolation_host::{EPHEMERAL, Installation, installations};
use atoll_isolation_storage::PoolSize;

use super::{purge, system};
use crate::cli::{DoctorArgs, GlobalArgs};
use crate::config;
use crate::daemon::{
    DataDir, Levels, Machines, Sentries, left_in_kernel, open_containers, open_levels, open_slots,
    open_storage, open_store, try_witness,
};
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};

/// Where a server keeps everything unless it is told otherwise.
const DATA_DIR: &str = "/var/lib/atoll";
/// Exit code when leaks are there and were not removed.
const EXIT_LEAKS: u8 = 1;
/// Exit code when a cluster lacks something.
const EXIT_MISSING: u8 = 1;

pub(super) async fn doctor(global: &GlobalArgs, printer: Printer, args: &DoctorArgs) -> Result<u8> {
    let settings = config::load(global)?;
    let client = match (&settings.url, &settings.api_key) {
        (Some(url), Some(key)) if args.data_dir.is_none() => Some(Client::new(url, key)?),
        _ => None,
    };
    if args.cluster {
        let client = client.ok_or_else(|| {
            Failure::plain(
                Code::InvalidArgument,
                "there is no server to ask: set ATOLL_URL and ATOLL_API_KEY",
            )
        })?;
        let report = client.cluster_doctor().await?;
        printer.result(&report, || match report.checks.as_slice() {
            [] => "the server is no node of a cluster".to_owned(),
            checks => checks_table(checks),
        })?;
        let is_missing = report.checks.iter().any(|check| check.status == Status::Missing);
        return Ok(if is_missing { EXIT_MISSING } else { 0 });
    }
    if args.leaks {
        let leaks = match client {
            Some(client) if args.remove => client.remove_leaks().await?,
            Some(client) => client.list_leaks().await?,
            None => local_leaks(args).await?,
        };
        return show_leaks(printer, &leaks);
    }
    let report = match client {
        Some(client) => client.doctor().await?,
        None => Doctor { checks: local_checks(args).await? },
    };
    printer.result(&report, || checks_table(&report.checks))?;
    Ok(0)
}

fn checks_table(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let mark = match check.status {
            Status::Ok => "ok",
            Status::Limited => "limited",
            Status::Missing => "missing",
        };
        let hint = check.hint.as_ref().map(|hint| format!("\n→ {hint}")).unwrap_or_default();
        [check.name.clone(), mark.to_owned(), format!("{}{hint}", check.detail)]
    });
    table(["CHECK", "STATUS", "WHAT WAS SEEN"], rows)
}

fn show_leaks(printer: Printer, leaks: &LeakList) -> Result<u8> {
    printer.result(leaks, || {
        if leaks.items.is_empty() {
            return "nothing is left over".to_owned();
        }
        let rows = leaks.items.iter().map(|leak| {
            let removed = if leak.removed { "removed" } else { "there" };
            let id = leak.sandbox.as_ref().or(leak.snapshot.as_ref()).cloned().unwrap_or_default();
            [id, leak.kind.clone(), leak.name.clone(), removed.to_owned()]
        });
        table(["ID", "KIND", "NAME", ""], rows)
    })?;
    Ok(if leaks.items.iter().any(|leak| !leak.removed) { EXIT_LEAKS } else { 0 })
}

/// Probes this host without a server, in a directory that is gone afterwards.
async fn local_checks(args: &DoctorArgs) -> Result<Vec<Check>> {
    system::need_root("try what this host enforces; with ATOLL_URL and ATOLL_API_KEY a server is asked")?;
    let scratch = std::env::temp_dir().join(format!("atoll-doctor-{}", std::process::id()));
    let checks = async {
        let dir = DataDir::open(&scratch)?;
        let storage = open_storage(&dir, PoolSize::Host)?;
        let slots = open_slots(0)?;
        let witness = try_witness(&dir);
        let driver = open_containers(&dir, 0, Arc::clone(&storage), Arc::clone(&slots), witness.clone())?;
        let mut checks = driver.doctor().await;
        if let Ok(witness) = witness {
            witness.close();
        }
        checks.push(check_installations());
        let machines = Machines::new(Path::new(DATA_DIR), &args.microvm);
        match machines.open(&dir, Arc::clone(&storage), Arc::clone(&slots)).await {
            Ok(Some(driver)) => checks.extend(driver.doctor().await),
            Ok(None) => checks.push(Machines::missing()),
            Err(error) => checks.push(Check::new("microvm", Status::Missing, error.to_string())),
        }
        let sentries = Sentries::new(&args.gvisor);
        match sentries.try_open(&dir, storage, driver.volumes(), slots).await {
            Ok(driver) => checks.extend(driver.doctor().await),
            Err(error) => checks.push(sentries.missing(crate::failure::chain(&error))),
        }
        Ok(checks)
    }
    .await;
    if let Err(error) = std::fs::remove_dir_all(&scratch)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(Failure::io(format!("cannot remove {}", scratch.display()), error));
    }
    checks
}

/// Looks for leaks of a data directory whose server does not run; without one, for installations whose directory is gone.
/// Asked about one directory it says nothing of other installations, such as one that is just ending.
async fn local_leaks(args: &DoctorArgs) -> Result<LeakList> {
    system::need_root("look for what is left over; with ATOLL_URL and ATOLL_API_KEY a server is asked")?;
    if let Some(path) = &args.data_dir {
        return leaks_of(path, args).await;
    }
    let mut leaks = LeakList { items: Vec::new() };
    for gone in gone_installations()? {
        if args.remove {
            end_gone(&gone)?;
        }
        leaks.items.push(Leak {
            sandbox: None,
            snapshot: None,
            kind: "installation".to_owned(),
            name: text_of(&gone),
            removed: args.remove,
        });
    }
    Ok(leaks)
}

/// Installations that run here although their data directory is gone.
fn gone_installations() -> Result<Vec<Installation>> {
    let all =
        installations().map_err(|error| Failure::plain(Code::Internal, crate::failure::chain(&error)))?;
    Ok(all.into_iter().filter(Installation::is_gone).collect())
}

fn text_of(gone: &Installation) -> String {
    let dir = gone.data_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
    format!("atoll-{} of {dir}", gone.name)
}

fn end_gone(gone: &Installation) -> Result<()> {
    match &gone.data_dir {
        // An ephemeral server's is still there.
        Some(dir) if dir.join(EPHEMERAL).try_exists().is_ok_and(|there| there) => purge::end_ephemeral(dir),
        dir => purge::end(&gone.name, dir.as_deref()).map(drop),
    }
}

fn check_installations() -> Check {
    let gone = match gone_installations() {
        Ok(gone) if gone.is_empty() => {
            return Check::new("installations", Status::Ok, "none runs whose data directory is gone");
        }
        Ok(gone) => gone.iter().map(text_of).collect::<Vec<_>>().join(", "),
        Err(error) => error.to_string(),
    };
    Check::new("installations", Status::Limited, format!("the data directory is gone: {gone}"))
        .hint("'atoll doctor --leaks --remove' ends them")
}

/// Looks for leaks of one data directory: everything that carries the id of a sandbox which the store does not know.
async fn leaks_of(path: &Path, args: &DoctorArgs) -> Result<LeakList> {
    let dir = DataDir::open(path)?;
    let store = open_store(&dir, args.database.as_deref()).await?;
    let machines = Machines::new(path, &args.microvm);
    let sentries = Sentries::new(&args.gvisor);
    let witness = left_in_kernel(&dir);
    let Levels { drivers, .. } = open_levels(
        &dir,
        0,
        PoolSize::Host,
        Some(&machines),
        Some(&sentries),
        std::future::ready(witness.clone()),
    )
    .await?;
    let failed = |error: &dyn std::error::Error| Failure::plain(Code::Internal, crate::failure::chain(error));
    // By the ids of all rows: what belongs to one that cannot be read is no leak.
    let known: BTreeSet<_> = store.sandbox_ids().await.map_err(|error| failed(&error))?.into_iter().collect();
    let snapshots = store.snapshot_ids().await.map_err(|error| failed(&error))?;
    let snapshots: BTreeSet<_> = snapshots.into_iter().collect();
    let (mut leaks, mut artifacts) = (Vec::<Resource>::new(), BTreeSet::new());
    for driver in &drivers {
        let found = driver.scan().await.map_err(|error| failed(&error))?;
        leaks.extend(found.into_iter().filter(|found| !known.contains(&found.sandbox)));
        artifacts.extend(driver.artifacts().await.map_err(|error| failed(&error))?);
    }
    artifacts.retain(|artifact| !snapshots.contains(artifact));
    if args.remove {
        let ids: BTreeSet<_> = leaks.iter().map(|leak| &leak.sandbox).collect();
        for driver in &drivers {
            for artifact in &artifacts {
                driver.remove_artifact(artifact).await.map_err(|error| failed(&error))?;
            }
            for id in &ids {
                driver.destroy(id).await.map_err(|error| failed(&error))?;
            }
        }
    }
    store.close().await;
    if args.remove
        && let Ok(witness) = witness
    {
        // Programs without sandboxes, of a server that was killed.
        witness.close();
    }
    let artifacts = artifacts.into_iter().map(|id| Leak {
        sandbox: None,
        snapshot: Some(id.to_string()),
        kind: "artifact".to_owned(),
        name: id.to_string(),
        removed: args.remove,
    });
    let items = leaks.into_iter().map(|leak| Leak {
        sandbox: Some(leak.sandbox.to_string()),
        snapshot: None,
        kind: leak.kind.to_owned(),
        name: leak.name,
        removed: args.remove,
    });
    Ok(LeakList { items: items.chain(artifacts).collect() })
}
