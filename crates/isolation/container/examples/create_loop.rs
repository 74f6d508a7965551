//! Measures create → connect → destroy: `create_loop <agent program> [count]`, as root.
//!
//! Prints the median and the 99th percentile of each. The pools refill while it runs, on the same
//! cores, as they do under load.
#![expect(clippy::print_stdout, reason = "a measuring program prints")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::{DiskSource, Gates as _, Lifecycle as _, Plan, RootFs};
use atoll_isolation_container::{ContainerConfig, ContainerIsolation, PoolSizes};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;

/// Names this program's cgroups: apart from those of servers and tests.
const INSTANCE: &str = "be0c4000";
/// Rest between rounds, so that a pool of the usual size is full again: so the measurement is that of a caller which
/// does not create in a tight loop.
const REST: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let agent = std::fs::read(arguments.next().ok_or("usage: create_loop <agent program> [count]")?)?;
    let count: u64 = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let dir = std::env::temp_dir().join(format!("atoll-create-loop-{}", std::process::id()));
    let driver = open(dir.clone(), agent)?;
    for rest in [Duration::ZERO, REST] {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for number in 0..count {
            tokio::time::sleep(rest).await;
            for (times, time) in times.iter_mut().zip(round(&driver, number).await?) {
                times.push(time);
            }
        }
        report(rest, times);
    }
    drop(driver);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn open(dir: PathBuf, agent: Vec<u8>) -> Result<ContainerIsolation, Box<dyn std::error::Error>> {
    let storage = Storage::open(&StorageConfig {
        dir: dir.join("storage"),
        instance: INSTANCE.to_owned(),
        pool: PoolSize::Host,
    })?;
    Ok(ContainerIsolation::open(ContainerConfig {
        dir,
        instance: INSTANCE.to_owned(),
        agent: agent.leak(),
        run: &[],
        storage: Arc::new(storage),
        slots: Arc::new(SlotPool::start(8)?),
        witness: Err("not asked for".to_owned()),
        pools: PoolSizes::default(),
    })?)
}

async fn round(
    driver: &ContainerIsolation,
    number: u64,
) -> Result<[Duration; 3], atoll_isolation::IsolationError> {
    let id = SandboxId::from_parts(1 << 40, number);
    let plan = Plan {
        id: id.clone(),
        root: RootFs::Host,
        resources: Resources::default(),
        hostname: "measured".to_owned(),
        disk: DiskSource::Empty,
        volumes: Vec::new(),
        layers: Vec::new(),
        execution: atoll_isolation::Execution::default(),
    };
    let start = Instant::now();
    if let Err(error) = driver.create(&plan).await {
        driver.destroy(&id).await?;
        return Err(error);
    }
    let created = Instant::now();
    let stream = driver.connect(&id).await?;
    let connected = Instant::now();
    drop(stream);
    driver.destroy(&id).await?;
    Ok([created - start, connected - created, connected.elapsed()])
}

fn report(rest: Duration, times: [Vec<Duration>; 3]) {
    println!("rest of {} ms between rounds", rest.as_millis());
    for (what, mut times) in ["create", "connect", "destroy"].into_iter().zip(times) {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len() - 1));
        println!("  {what:8} median {:?}  p99 {:?}", at(50).unwrap_or(&rest), at(99).unwrap_or(&rest));
    }
}
