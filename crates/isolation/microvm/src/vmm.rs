//! QEMU: starting it in its jail, saving and restoring a machine.
//!
//! `model` is what it is told at its start; everything else it is told over its monitor.

mod model;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use atoll_isolation::{DiskIo, IsolationError};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::qmp::{Qmp, QmpError};
use crate::record::Record;
use crate::step::{Step, failed};
use crate::throttle::IoLimits;

pub(crate) use model::{KVM, Memory, Model, Place};

/// Where a saved machine is inside a jail.
const SAVED: &str = "/vm/saved";
/// Names of what a saved machine consists of.
pub(crate) const MEMORY_FILE: &str = "memory";
pub(crate) const STATE_FILE: &str = "state";
/// How fast a machine is written out: as fast as the host can, bytes per second.
const BANDWIDTH_MAX: u64 = 1 << 40;
/// How long a machine may take to go on that was stopped while it was written out.
const GO_ON_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two looks at something that is about to be there.
const LOOK: Duration = Duration::from_millis(1);
/// How long QEMU may take to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a machine may take to boot: of processor time, because on a busy host it gets little of the other.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take in all, however little processor time it gets.
const BOOT_PATIENCE: Duration = Duration::from_secs(900);
/// Most of a console that is kept, bytes.
const CONSOLE_BYTES: u64 = 4096;

/// Starts a VMM in its jail.
pub(crate) async fn start(
    launcher: &[PathBuf],
    model: &Model,
    place: &Place<'_>,
    memory: Memory<'_>,
) -> Result<(), IsolationError> {
    let jail = serde_json::to_string(&model.jail(place, memory)).map_err(std::io::Error::other);
    let jail = jail.step("describe a jail")?;
    let (program, arguments) = launcher
        .split_first()
        .ok_or_else(|| IsolationError::Unavailable("no launcher of VMMs".to_owned()))?;
    let output = Command::new(program)
        .args(arguments)
        .arg(jail)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .await
        .step("start the launcher of a VMM")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(failed("start a VMM".to_owned(), std::io::Error::other(said)))
}

/// Connects to a VMM.
pub(crate) async fn monitor(record: &Record) -> Result<Qmp, IsolationError> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        // The launcher makes the socket before the VMM runs.
        let greeted = tokio::time::timeout_at(deadline, Qmp::connect(record)).await;
        match greeted.unwrap_or_else(|_late| Err(QmpError::Silent(std::io::ErrorKind::TimedOut.into()))) {
            Ok(qmp) => return Ok(qmp),
            Err(error)
                if Instant::now() >= deadline
                    || matches!(&error, QmpError::Silent(cause) if is_end(cause)) =>
            {
                return Err(refused(&format!("{}; it said: {}", crate::chain(&error), record.said())));
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Whether the VMM has ended, which closed its sockets.
fn is_end(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// Waits until a booting machine is at its ports. `worked` tells the processor time that it had.
pub(crate) async fn booted(
    qmp: &mut Qmp,
    within: Option<Duration>,
    worked: impl Fn() -> Duration,
) -> Result<(), IsolationError> {
    let since = Instant::now();
    loop {
        let chardevs = qmp.run("query-chardev", json!({})).await.map_err(vmm)?;
        let port = chardevs.as_array().into_iter().flatten().find(|dev| dev["label"] == "control");
        if port.is_some_and(|port| port["frontend-open"] == Value::Bool(true)) {
            return Ok(());
        }
        let waited = since.elapsed();
        let late = waited > within.unwrap_or(BOOT_TIMEOUT);
        if late && (within.is_some() || worked() > BOOT_TIMEOUT || waited > BOOT_PATIENCE) {
            let size = json!({ "device": "console", "size": CONSOLE_BYTES });
            let console = qmp.run("ringbuf-read", size).await;
            let console = console.ok().and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
            let tail: String = console.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
            return Err(refused(&format!(
                "the guest has not booted in {waited:.0?} (it had {:.0?} of processor time); its console, newest line \
                 first: {tail}",
                worked()
            )));
        }
        tokio::time::sleep(LOOK * 20).await;
    }
}

/// Saves a machine that waits for its host, and ends it. Its memory is in its file already.
pub(crate) async fn save(qmp: &mut Qmp) -> Result<(), IsolationError> {
    how(qmp, Saving::Devices).await?;
    qmp.run("migrate", json!({ "uri": format!("file:{SAVED}/{STATE_FILE}") })).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)?;
    // It may be gone before it has answered.
    drop(qmp.run("quit", json!({})).await);
    Ok(())
}

/// Restores a saved machine into a VMM that waits for one. It runs at once.
pub(crate) async fn restore(qmp: &mut Qmp) -> Result<(), IsolationError> {
    how(qmp, Saving::Devices).await?;
    let state = json!({ "uri": format!("file:{SAVED}/{STATE_FILE}") });
    qmp.run("migrate-incoming", state).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)
}

/// Tells a machine how large its disk is: the one that it was saved with had another size.
pub(crate) async fn resize_disk(qmp: &mut Qmp, bytes: u64) -> Result<(), IsolationError> {
    qmp.run("block_resize", json!({ "node-name": "disk", "size": bytes })).await.map(drop).map_err(vmm)
}

/// Says how fast a machine's disks are, all of them together.
pub(crate) async fn throttle(qmp: &mut Qmp, limits: IoLimits) -> Result<(), IsolationError> {
    let (bytes, operations) =
        (limits.bytes_per_second.unwrap_or(0), limits.operations_per_second.unwrap_or(0));
    for device in ["image", "disk"] {
        // Devices in one group share one limit. Zero means no limit, and takes the device out of the group.
        let limit = json!({
            "id": device, "group": "disks",
            "bps": bytes, "bps_rd": 0, "bps_wr": 0,
            "iops": operations, "iops_rd": 0, "iops_wr": 0,
        });
        qmp.run("block_set_io_throttle", limit).await.map_err(vmm)?;
    }
    Ok(())
}

/// What a machine has read and written since its VMM was started, on all its disks.
pub(crate) async fn disk_io(qmp: &mut Qmp) -> Result<DiskIo, IsolationError> {
    let disks = qmp.run("query-blockstats", json!({})).await.map_err(vmm)?;
    let disks = disks.as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |name: &str| {
        let counts = disks.iter().map(|disk| disk["stats"][name].as_u64().unwrap_or(0));
        counts.fold(0, u64::saturating_add)
    };
    Ok(DiskIo {
        read_bytes: sum("rd_bytes"),
        written_bytes: sum("wr_bytes"),
        reads: sum("rd_operations"),
        writes: sum("wr_operations"),
    })
}

/// Stops a machine and writes it, memory and all, to a file.
pub(crate) async fn write_out(qmp: &mut Qmp, to: &std::fs::File) -> Result<(), IsolationError> {
    how(qmp, Saving::Whole).await?;
    qmp.run("migrate-set-parameters", json!({ "max-bandwidth": BANDWIDTH_MAX })).await.map_err(vmm)?;
    let path = qmp.hand_over(to).await.map_err(vmm)?;
    qmp.run("stop", json!({})).await.map_err(vmm)?;
    qmp.run("migrate", json!({ "uri": format!("file:{path}") })).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)
}

/// Lets a machine go on that stands still.
pub(crate) async fn go_on(qmp: &mut Qmp) -> Result<(), IsolationError> {
    qmp.run("cont", json!({})).await.map(drop).map_err(vmm)
}

/// Lets a machine go on that another process had begun to write out, however far that came. One that runs is left
/// alone.
pub(crate) async fn go_on_again(qmp: &mut Qmp) -> Result<(), IsolationError> {
    let deadline = Instant::now() + GO_ON_TIMEOUT;
    loop {
        let status = qmp.run("query-status", json!({})).await.map_err(vmm)?;
        if status["running"] == Value::Bool(true) {
            return Ok(());
        }
        // Not possible as long as it is being written out.
        drop(qmp.run("migrate_cancel", json!({})).await);
        match go_on(qmp).await {
            Err(error) if Instant::now() > deadline => return Err(error),
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Reads a machine back that was written out, but for its memory, which is there. It stands still.
pub(crate) async fn read_back(qmp: &mut Qmp, from: &std::fs::File) -> Result<(), IsolationError> {
    how(qmp, Saving::Whole).await?;
    let path = qmp.hand_over(from).await.map_err(vmm)?;
    qmp.run("migrate-incoming", json!({ "uri": format!("file:{path}") })).await.map_err(vmm)?;
    qmp.migrated().await.map_err(vmm)
}

/// What goes into the file when a machine is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saving {
    /// Everything but the memory, which is in a file of its own already.
    Devices,
    /// The memory, too.
    Whole,
}

/// Says so to the VMM. Both capabilities each time: it remembers what it was told when it was restored.
async fn how(qmp: &mut Qmp, saving: Saving) -> Result<(), IsolationError> {
    let capability = |name: &str, of: Saving| json!({ "capability": name, "state": saving == of });
    let both = [capability("x-ignore-shared", Saving::Devices), capability("mapped-ram", Saving::Whole)];
    qmp.run("migrate-set-capabilities", json!({ "capabilities": both })).await.map(drop).map_err(vmm)
}

fn vmm(error: QmpError) -> IsolationError {
    refused(&crate::chain(&error))
}

fn refused(said: &str) -> IsolationError {
    failed("run a virtual machine".to_owned(), std::io::Error::other(said.to_owned()))
}
