//! How fast the disks of machines are.

use crate::common::machines::{World, world};
use atoll_api::{CreateSandbox, PauseSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_core::sandbox::PauseMode;

/// Writes three MiB past every cache. With four in a second, a tenth of that at once, that takes its time; a slow host can
/// only take longer.
async fn is_slow(server: &Server, sandbox: &str) {
    let start = std::time::Instant::now();
    let written = server.sh(sandbox, "dd if=/dev/zero of=/root/x bs=64k count=48 oflag=direct").await;
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds >= 0.6, "{sandbox}: 3 MiB in {seconds} s: {written:?}");
}

/// A limit of disk I/O comes with the template, holds in the member of its pool, in every copy, after a restart of the
/// server and of the machine, and changes while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn its_disks_are_no_faster_than_allowed() {
    let World { _dir, mut server } = world().await;
    let args = "template create slow --image debian --isolation microvm --cpu 1 --memory 128MiB --disk 1GiB \
                --io-bytes 4M/s --pool 1";
    server.cli(&args.split_whitespace().collect::<Vec<_>>()).ok();
    wait_until("one is ready", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.into_iter().find(|pool| pool.ready == 1 && pool.making == 0)
    })
    .await;
    let create = CreateSandbox { template: Some("slow".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(sandbox.resources.io_bytes_per_second, Some(4 << 20));
    server.client.delete_template("slow", None).await.unwrap();
    let id = sandbox.id;
    let counted = async || server.client.sandbox_metrics(&id).await.unwrap().disk_io.unwrap();
    let before = counted().await;
    is_slow(&server, &id).await;
    let after = counted().await;
    assert!(after.written_bytes >= before.written_bytes + (3 << 20), "{before:?} {after:?}");
    assert!(after.writes >= before.writes + 48 && after.read_bytes > 0, "{before:?} {after:?}");
    // Data that is only in the machine's memory is written out at once when the disk is copied: at this rate no caller
    // would wait for it.
    server.cli(&["update", &id, "--io-bytes", "1M/s"]).ok();
    let cached = "cd /proc/sys/vm; echo 95 > dirty_ratio; echo 90 > dirty_background_ratio; head -c 40M /dev/zero > /root/cached";
    server.sh(&id, cached).await;
    server.cli(&["snapshot", "create", &id]).ok();
    server.cli(&["update", &id, "--io-bytes", "4M/s"]).ok();
    let forked = server.cli(&["fork", &id, "--memory"]).ok();
    is_slow(&server, forked.stdout.trim()).await;
    server.client.delete_sandbox(forked.stdout.trim()).await.unwrap();
    server.kill();
    server.restart();
    is_slow(&server, &id).await;
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(&id, &pause).await.unwrap();
    is_slow(&server, &id).await;
    let updated = server.cli(&["update", &id, "--io-bytes", "none", "--io-operations", "50"]).ok();
    assert!(updated.stdout.contains("50 operations/s\n"), "{updated:?}");
    let start = std::time::Instant::now();
    server.sh(&id, "dd if=/dev/zero of=/root/x bs=4k count=60 oflag=direct conv=notrunc").await;
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds >= 1.0, "60 operations in {seconds} s");
    server.finish().await;
}
