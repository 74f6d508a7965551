//! What only machines have: a kernel that is theirs, and can end.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_core::spec::{Accelerator, Resources};
use atoll_isolation::conformance::{DEADLINE, Harness, Sandbox, assert_gone};
use atoll_isolation::{Death, IsolationError, RootFs};
use common::machines;

fn small() -> Resources {
    Resources { memory_bytes: 128 << 20, disk_bytes: 256 << 20, ..Resources::default() }
}

/// Clones of one saved machine are told apart by everything that counts, and have a handful of devices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_of_its_own_and_few_devices() {
    let Some(harness) = machines() else { return };
    let driver = harness.open().await;
    assert_eq!(driver.accelerator(), Some(Accelerator::Emulated), "as it was told");
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let sandbox = Sandbox::create(&harness, small()).await;
        assert_ne!(sandbox.see("uname -r").await, host.trim());
        // Two disks, a network card, one controller of serial ports; no bus to plug anything into.
        assert_eq!(
            sandbox.see("cat /sys/bus/virtio/devices/*/device | sort").await,
            "0x0001\n0x0002\n0x0002\n0x0003"
        );
        assert_eq!(sandbox.see("ls /sys/bus/pci/devices 2>/dev/null | wc -l").await, "0");
        let told = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";
        assert!(seen.insert(sandbox.see(told).await), "two machines have the same randomness");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(sandbox.see("date +%s").await.parse().unwrap()) < 60);
        sandbox.destroy().await;
    }
}

/// A guest that ends its kernel, either way, has ended, and is reported at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_ends_is_a_sandbox_that_died() {
    let Some(harness) = machines() else { return };
    for key in ["b", "c"] {
        let sandbox = Sandbox::create(&harness, small()).await;
        let driver = Arc::clone(&sandbox.driver);
        let id = sandbox.id.clone();
        drop(sandbox.start("ex-end", "root", &format!("echo {key} > /proc/sysrq-trigger")).await);
        let died = tokio::time::timeout(DEADLINE, driver.died(&id)).await;
        assert_eq!(died.expect("it has ended"), Death::Exited, "{key}");
        assert_gone(driver.connect(&id).await);
        sandbox.destroy().await;
    }
}

/// What a machine cannot be given is refused with the reason, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_cannot_have_is_refused() {
    let Some(harness) = machines() else { return };
    let driver = harness.open().await;
    let plan = atoll_isolation::conformance::plan(RootFs::Host, small());
    let refused = driver.create(&plan).await;
    assert!(matches!(refused, Err(IsolationError::BadRoot(_))), "{refused:?}");
    assert_eq!(driver.scan().await.unwrap(), []);
}
