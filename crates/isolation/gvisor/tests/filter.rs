//! The filter of system calls around a sentry, in real sandboxes.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::path::PathBuf;

use atoll_core::spec::Resources;
use atoll_isolation::Lifecycle as _;
use atoll_isolation::conformance::{Harness, Sandbox, chain, plan};
use common::sentries;

/// Starts a program in whose place, and in whose children's, the kernel takes no filter.
const NO_FILTERS: &str = "
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 317), (0x06, 0, 0, 0x50000 | 1), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(steps), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// Every process of the jail is behind ours, and behind gVisor's own but for the first one, which only waits and has
/// nothing open by which it could get out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_a_jail_is_behind_it() {
    let sandbox = Sandbox::create(&sentries(), Resources::default()).await;
    // With a process inside, so that there is one outside, too, in which it runs.
    drop(sandbox.start("ex-sleep", "root", "sleep 1000").await);
    let all = sandbox.driver.scan().await.unwrap().into_iter();
    let all: Vec<_> = all.filter(|found| found.sandbox == sandbox.id && found.kind == "process").collect();
    assert!(all.len() >= 3, "the first process, the sentry and the gofer: {all:?}");
    for found in &all {
        let status = std::fs::read_to_string(format!("/proc/{}/status", found.name)).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!(field("Seccomp:"), "2", "{status}");
        let waits = field("NSpid:").ends_with("\t1");
        let filters: u32 = field("Seccomp_filters:").parse().unwrap();
        assert_eq!(filters, if waits { 1 } else { filters.max(2) }, "{status}");
        if waits {
            let open = std::fs::read_dir(format!("/proc/{}/fd", found.name)).unwrap();
            let open = open.map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap());
            assert_eq!(open.collect::<Vec<_>>(), vec![PathBuf::from("/dev/null"); 3]);
        }
    }
    sandbox.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_cannot_be_installed_nothing_starts() {
    let mut harness = sentries();
    let python = ["/usr/bin/python3", "-c", NO_FILTERS].map(PathBuf::from);
    harness.launcher = python.into_iter().chain(std::mem::take(&mut harness.launcher)).collect();
    let driver = harness.driver().await;
    let plan = plan(harness.root(), Resources::default());
    let refused = chain(&driver.create(&plan).await.unwrap_err());
    assert!(refused.contains("failed to install the filter of system calls"), "{refused}");
    driver.destroy(&plan.id).await.unwrap();
    assert_eq!(driver.scan().await.unwrap(), []);
}
