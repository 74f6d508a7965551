//! The filter of system calls around a sentry, in real sandboxes.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Harness, Sandbox, chain, plan};
use atoll_isolation::{Isolation as _, Lifecycle as _};
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

/// What the processes of a sandbox are, by their ids on the host.
async fn processes(sandbox: &Sandbox) -> Vec<String> {
    let all = sandbox.driver.scan().await.unwrap().into_iter();
    let all: Vec<_> = all
        .filter(|found| found.sandbox == sandbox.id && found.kind == "process")
        .map(|found| found.name)
        .collect();
    assert!(all.len() >= 3, "the first process, the sentry and the gofer: {all:?}");
    all
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim()
}

/// Whether a process is the first of its jail. The gofer is the first, too, of a namespace in that.
fn waits(status: &str) -> bool {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let ids = |status: &str| field(status, "NSpid:").split_whitespace().count();
    field(status, "NSpid:").ends_with("\t1") && ids(status) == ids(&own) + 1
}

/// The descriptors of a process.
fn open(pid: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // One that was closed meanwhile is none.
    all.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect()
}

/// Every process of the jail is behind ours, and behind gVisor's own but for the first one, which only waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_a_jail_is_behind_it() {
    let harness = sentries();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    // With a process inside, so that there is one outside, too, in which it runs.
    drop(sandbox.start("ex-sleep", "root", "sleep 1000").await);
    for pid in processes(&sandbox).await {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert_eq!(field(&status, "Seccomp:"), "2", "{status}");
        let filters: u32 = field(&status, "Seccomp_filters:").parse().unwrap();
        assert_eq!(filters, if waits(&status) { 1 } else { filters.max(2) }, "{status}");
    }
    sandbox.destroy().await;
}

/// Not what the server inherited; and the first process, which has the host's own user namespace, no file of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_host_is_open_in_a_jail() {
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    let inherited = std::fs::read_link(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    let harness = sentries();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    for pid in processes(&sandbox).await {
        let open = open(&pid);
        assert!(!open.contains(&inherited), "{pid}: {open:?}");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        if waits(&status) {
            assert!(open.len() == 3 && open.iter().all(|file| file.ends_with("null")), "{open:?}");
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
