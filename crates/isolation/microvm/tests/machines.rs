//! What only machines have: a kernel that is theirs, and can end.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::spec::{Accelerator, Resources};
use atoll_isolation::conformance::{DEADLINE, Harness, Sandbox, assert_gone};
use atoll_isolation::{Death, IsolationError, Plan, RootFs};
use common::machines;

fn small() -> Resources {
    Resources { memory_bytes: 128 << 20, disk_bytes: 256 << 20, ..Resources::default() }
}

/// Clones of one saved machine are told apart by everything that counts, and have a handful of devices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_of_its_own_and_few_devices() {
    let harness = machines();
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
    let harness = machines();
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

/// After the first sandbox of an image, others go on from a machine that was made ahead: different ones all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_prepared_for_the_next() {
    let mut harness = machines();
    harness.prepares = true;
    let driver = harness.open().await;
    let create = async |hostname: &str, resources| {
        let plan = atoll_isolation::conformance::plan(harness.root(), resources);
        let plan = Plan { hostname: hostname.to_owned(), ..plan };
        driver.create(&plan).await.unwrap();
        Sandbox::connect(Arc::clone(&driver), plan.id).await
    };
    // A VMM that maps the memory of a prepared machine does so somewhere in a file.
    let maps = async |sandbox: &Sandbox| {
        let vmm = driver.scan().await.unwrap().into_iter();
        let mut vmm = vmm.filter(|found| found.sandbox == sandbox.id && found.kind == "process");
        let pid = vmm.next().expect("a VMM").name;
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("offset=")
    };
    let first = create("first", small()).await;
    assert!(!maps(&first).await);
    let start = Instant::now();
    loop {
        let sandbox = create("soon", small()).await;
        let is_prepared = maps(&sandbox).await;
        sandbox.destroy().await;
        if is_prepared {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "nothing is prepared");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut seen = BTreeSet::new();
    for name in ["second", "third"] {
        let sandbox = create(name, small()).await;
        assert!(maps(&sandbox).await, "{name} does not go on from the prepared machine");
        let told = "hostname; cat /etc/hostname; cut -f2 /etc/hosts | tail -n 1";
        assert_eq!(sandbox.see(told).await, format!("{name}\n{name}\n{name}"));
        assert!(seen.insert(sandbox.see("cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1").await));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(sandbox.see("date +%s").await.parse().unwrap()) < 60);
        assert!(sandbox.guest.list_execs().await.unwrap().is_empty());
        // Limits are its own, within the machine's size.
        assert_eq!(sandbox.see("cat /sys/fs/cgroup/sandbox/memory.max").await, (128 << 20).to_string());
        sandbox.destroy().await;
    }
    let larger = create("larger", Resources { disk_bytes: 512 << 20, ..small() }).await;
    assert!(!maps(&larger).await, "the prepared disk has another size");
    driver.close().await;
    for sandbox in [first, larger] {
        sandbox.destroy().await;
    }
    assert_eq!(driver.scan().await.unwrap(), []);
}

/// What a machine cannot be given is refused with the reason, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_cannot_have_is_refused() {
    let harness = machines();
    let driver = harness.open().await;
    let plan = atoll_isolation::conformance::plan(RootFs::Host, small());
    let refused = driver.create(&plan).await;
    assert!(matches!(refused, Err(IsolationError::BadRoot(_))), "{refused:?}");
    assert_eq!(driver.scan().await.unwrap(), []);
}
