//! Limits hold, inside and only inside.

use std::time::Instant;

use atoll_core::spec::{IsolationLevel, Resources};

use super::{Harness, Sandbox, assert_clean, plan};
use crate::IsolationError;

const MIB: u64 = 1 << 20;

/// A command that eats memory is killed and counted; the sandbox lives on.
pub async fn memory_kills_only_inside(harness: &dyn Harness) {
    let limits = Resources { memory_bytes: 64 * MIB, ..Resources::default() };
    let sandbox = Sandbox::create(harness, limits).await;
    let output = sandbox.run("tail /dev/zero").await;
    assert_ne!(output.code, 0, "{output:?}");
    let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
    assert!(usage.oom_kills >= 1, "{usage:?}");
    assert!(usage.memory_peak_bytes <= 64 * MIB + harness.overhead_bytes(), "{usage:?}");
    assert_eq!(sandbox.see("echo alive").await, "alive");
    sandbox.destroy().await;
}

/// No more processes than allowed, however many a script starts.
pub async fn processes_are_counted(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources { pids: 24, ..Resources::default() }).await;
    let output = sandbox.run("i=0; while [ $i -lt 64 ]; do sleep 1000 & i=$((i+1)); done").await;
    assert!(output.code != 0 && output.stderr.contains("fork"), "{output:?}");
    let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
    assert!(usage.pids <= 24 && usage.pids > 8, "{usage:?}");
    sandbox.destroy().await;
}

/// The limit is for all users together; no user has a limit of their own. A process that gets past the limit does not
/// stay.
pub async fn processes_of_all_users_are_counted(harness: &dyn Harness) {
    let many = "perl -e 'for $u (1000 .. 1040) { $p = fork; exit 1 if !defined $p; next if $p; $< = $> = $u; \
                for (1 .. 8) { fork // last } sleep 1000; exit }'";
    let own =
        "unshare --user --map-root-user sh -c 'i=0; while [ $i -lt 64 ]; do sleep 1000 & i=$((i+1)); done'";
    for crowd in [many, own] {
        let sandbox = Sandbox::create(harness, Resources { pids: 24, ..Resources::default() }).await;
        sandbox.run(crowd).await;
        super::eventually("the limit holds", || async {
            (sandbox.driver.usage(&sandbox.id).await.unwrap().pids <= 24).then_some(())
        })
        .await;
        let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
        assert_eq!(usage.oom_kills, 0, "taken for a lack of memory: {usage:?}");
        // The agent is as it was.
        sandbox.guest.list_execs().await.unwrap();
        sandbox.destroy().await;
    }
}

/// Writing beyond the limit fails with "no space left"; removing makes room; `df` tells the truth.
pub async fn the_disk_is_full_only_inside(harness: &dyn Harness) {
    let limits = Resources { disk_bytes: 48 * MIB, ..Resources::default() };
    let sandbox = Sandbox::create(harness, limits).await;
    let output = sandbox.run("head -c 96M /dev/zero > /root/big").await;
    assert!(output.code != 0 && output.stderr.contains("No space left"), "{output:?}");
    let size: u64 = sandbox.see("df -B1 --output=size / | tail -n 1").await.parse().unwrap();
    assert!(size <= 48 * MIB && size > 24 * MIB, "df shows {size}");
    assert_eq!(sandbox.see("rm /root/big; echo room > /root/small; cat /root/small").await, "room");
    let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
    assert!(usage.disk_bytes > 0 && usage.disk_bytes <= 48 * MIB, "{usage:?}");
    sandbox.destroy().await;
}

/// A busy loop gets its share of time and no more. Judged by the CPU time it got, so a slow machine, which
/// can only give less, cannot fail it.
pub async fn cpu_time_is_throttled(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources { cpu_millis: 200, ..Resources::default() }).await;
    let used = || async { sandbox.driver.usage(&sandbox.id).await.unwrap().cpu_us };
    let (start, before) = (Instant::now(), used().await);
    sandbox.run("timeout 2 sh -c 'while :; do :; done'").await;
    let got = used().await - before;
    let elapsed = start.elapsed().as_micros();
    // A fifth, and one period of slack at each end.
    let allowed = elapsed / 5 + 2 * 100_000 / 5;
    assert!(got > 0 && u128::from(got) <= allowed, "got {got} of {elapsed} microseconds");
    sandbox.destroy().await;
}

/// Reads from a disk and writes to it are held back, past the cache or through it, or the limit is refused. Judged by
/// the bytes that were moved in the time it took, so a slow machine, which can only move less, cannot fail it.
pub async fn io_is_limited(harness: &dyn Harness) {
    const RATE: u64 = 4 * MIB;
    let bytes = Resources { io_bytes_per_second: Some(RATE), ..Resources::default() };
    let operations = Resources { io_operations_per_second: Some(50), ..Resources::default() };
    let driver = harness.open().await;
    if driver.check_limits(&bytes).is_err() {
        return no_limit_of_io(harness, [bytes, operations]).await;
    }
    let sandbox = Sandbox::create(harness, bytes).await;
    let taken = async |script: &str| {
        let start = Instant::now();
        sandbox.see(script).await;
        start.elapsed().as_secs_f64()
    };
    // What comes at once is a tenth of a second's and one request, which is large where a cache writes out.
    for (script, at_least) in [
        ("dd if=/dev/zero of=/root/direct bs=64k count=64 oflag=direct", 0.8),
        ("dd if=/dev/zero of=/root/cached bs=1M count=8; sync", 1.5),
        ("echo 3 > /proc/sys/vm/drop_caches; dd if=/root/cached of=/dev/null bs=64k", 1.7),
    ] {
        let seconds = taken(script).await;
        assert!(seconds >= at_least, "only {seconds} s for {script}");
    }
    sandbox.driver.update(&sandbox.id, &operations).await.unwrap();
    let seconds = taken("dd if=/dev/zero of=/root/direct bs=4k count=60 oflag=direct conv=notrunc").await;
    assert!(seconds >= 1.0, "60 operations in {seconds} s");
    // Under the limit of a moment ago this would take longer than anything may.
    let least = Resources { io_bytes_per_second: Some(MIB), ..Resources::default() };
    sandbox.driver.update(&sandbox.id, &least).await.unwrap();
    sandbox.driver.update(&sandbox.id, &Resources::default()).await.unwrap();
    taken("dd if=/dev/zero of=/root/direct bs=1M count=80 oflag=direct").await;
    sandbox.destroy().await;
}

/// The driver neither makes a sandbox with such limits nor gives them to a live one, which goes on.
async fn no_limit_of_io(harness: &dyn Harness, limits: [Resources; 2]) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    for resources in limits {
        let plan = plan(harness.root(), resources);
        for refused in [
            sandbox.driver.check_limits(&resources),
            sandbox.driver.create(&plan).await,
            sandbox.driver.update(&sandbox.id, &resources).await,
        ] {
            assert!(matches!(refused, Err(IsolationError::Unenforceable(_))), "{refused:?}");
        }
        assert_clean(&*sandbox.driver, &plan.id).await;
    }
    assert_eq!(sandbox.see("echo alive").await, "alive");
    sandbox.destroy().await;
}

/// New limits hold at once, in both directions.
pub async fn limits_change_while_it_lives(harness: &dyn Harness) {
    let small = Resources { pids: 16, memory_bytes: 64 * MIB, ..Resources::default() };
    let large = Resources { pids: 256, memory_bytes: 512 * MIB, ..small };
    let sandbox = Sandbox::create(harness, small).await;
    if sandbox.driver.level() == IsolationLevel::Microvm {
        sandbox.destroy().await;
        // Nothing of this one is used.
        return a_machine_does_not_grow(harness, small, large).await;
    }
    let crowd = "while [ ${i:=0} -lt 32 ]; do sleep 1000 & all=\"$all $!\"; i=$((i+1)); done; kill $all";
    assert_ne!(sandbox.run(crowd).await.code, 0);
    sandbox.driver.update(&sandbox.id, &large).await.unwrap();
    sandbox.see(crowd).await;
    // The first crowd still sleeps, so the number of processes stays as it is.
    let less_memory = Resources { memory_bytes: small.memory_bytes, ..large };
    sandbox.driver.update(&sandbox.id, &less_memory).await.unwrap();
    assert_ne!(sandbox.run("tail /dev/zero").await.code, 0);
    let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
    assert!(usage.memory_bytes <= 64 * MIB + harness.overhead_bytes(), "{usage:?}");
    sandbox.destroy().await;
}

/// A machine has all the memory that it will ever have, and less than that is a limit like any other.
async fn a_machine_does_not_grow(harness: &dyn Harness, small: Resources, large: Resources) {
    let sandbox = Sandbox::create(harness, Resources { pids: small.pids, ..large }).await;
    let (driver, id) = (&sandbox.driver, &sandbox.id);
    let crowd = "while [ ${i:=0} -lt 32 ]; do sleep 1000 & all=\"$all $!\"; i=$((i+1)); done; kill $all";
    assert_ne!(sandbox.run(crowd).await.code, 0);
    driver.update(id, &large).await.unwrap();
    sandbox.see(crowd).await;
    let eat = "head -c 100M /dev/zero | tail -c 100M | wc -c";
    assert_eq!(sandbox.see(eat).await, "104857600");
    driver.update(id, &Resources { memory_bytes: small.memory_bytes, ..large }).await.unwrap();
    let starved = sandbox.run(&format!("{eat} | grep 104857600")).await;
    assert_ne!(starved.code, 0, "{starved:?}");
    driver.update(id, &large).await.unwrap();
    assert_eq!(sandbox.see(eat).await, "104857600");
    let larger = Resources { memory_bytes: 2 * large.memory_bytes, ..large };
    let refused = driver.update(id, &larger).await;
    assert!(matches!(refused, Err(IsolationError::Unenforceable(_))), "{refused:?}");
    sandbox.destroy().await;
}
