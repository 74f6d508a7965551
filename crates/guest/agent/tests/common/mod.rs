//! Starts the real agent as a plain process and connects the real client to it.
#![expect(unsafe_code, reason = "the agent gets its descriptors by number")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, clippy::allow_attributes, reason = "each test program uses a part of this")]

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient, GuestError};
use atoll_guest_protocol::messages::{Exited, Reason, StartExec};
use tokio::net::UnixStream;

pub(crate) const SANDBOX: &str = "sb000000000000000test0";
/// Nothing here takes this long; a test that does is stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Guest {
    child: Child,
    pub(crate) directory: tempfile::TempDir,
    cgroup: Option<PathBuf>,
}

impl Guest {
    /// Without a cgroup: trees are searched for.
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// With a cgroup of its own.
    pub(crate) fn start_with_cgroup() -> Self {
        let mut roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new).into_iter();
        let is_one = |root: &&Path| {
            root.join("cgroup.procs").is_file() && root.join("cgroup.kill").is_file() || cgroup2(root)
        };
        let root = roots.find(is_one).expect("a host with cgroups of version 2");
        let cgroup = root.join(format!("atoll-test-{}-{:x}", std::process::id(), rand()));
        std::fs::create_dir(&cgroup).unwrap();
        Self::start_with(Some(cgroup))
    }

    fn start_with(cgroup: Option<PathBuf>) -> Self {
        let directory = tempfile::Builder::new().prefix("atoll-guest-").tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        let cgroup_directory = cgroup.as_ref().map(|cgroup| std::fs::File::open(cgroup).unwrap());
        let (socket, group) = (listener.as_raw_fd(), cgroup_directory.as_ref().map(AsRawFd::as_raw_fd));
        let mut command = Command::new(env!("CARGO_BIN_EXE_atoll-guest"));
        command.env_clear().env("ATOLL_SANDBOX_ID", SANDBOX);
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(move || hand_over(socket, group)) };
        let child = command.spawn().unwrap();
        Self { child, directory, cgroup }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn cgroups(&self) -> Vec<String> {
        let Some(cgroup) = &self.cgroup else { return Vec::new() };
        let entries = std::fs::read_dir(cgroup).unwrap().map(Result::unwrap);
        entries.filter(|e| e.path().is_dir()).map(|e| e.file_name().into_string().unwrap()).collect()
    }

    /// How many processes an exec has.
    pub(crate) fn processes(&self, exec: &str) -> usize {
        let directory = self.cgroup.as_ref().unwrap().join(format!("exec-{exec}"));
        std::fs::read_to_string(directory.join("cgroup.procs")).unwrap().lines().count()
    }

    pub(crate) async fn stream(&self) -> UnixStream {
        UnixStream::connect(self.directory.path().join("socket")).await.unwrap()
    }

    pub(crate) async fn client(&self) -> GuestClient {
        let (client, welcome) = GuestClient::connect(self.stream().await, SANDBOX).await.unwrap();
        assert_eq!(welcome.boot_id.len(), 32);
        client
    }

    pub(crate) fn alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its descendants first: they cannot be found once the agent is gone.
        for pid in descendants(self.child.id()) {
            // SAFETY: a process that this test's agent started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(cgroup) = &self.cgroup {
            drop(std::fs::write(cgroup.join("cgroup.kill"), "1"));
            let start = Instant::now();
            loop {
                for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
                    drop(std::fs::remove_dir(entry.path()));
                }
                if std::fs::remove_dir(cgroup).is_ok() || start.elapsed() > Duration::from_secs(10) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Puts the descriptors where the agent expects them; the rest is closed.
fn hand_over(socket: i32, group: Option<i32>) -> std::io::Result<()> {
    // Out of the way of the numbers that are set.
    // SAFETY: no pointers.
    let socket = unsafe { libc::fcntl(socket, libc::F_DUPFD, 100) };
    // SAFETY: no pointers.
    let group = group.map(|group| unsafe { libc::fcntl(group, libc::F_DUPFD, 100) });
    // SAFETY: no pointers.
    unsafe { libc::dup2(socket, 3) };
    match group {
        // SAFETY: no pointers.
        Some(group) => unsafe { libc::dup2(group, 4) },
        // SAFETY: no pointers.
        None => unsafe { libc::close(4) },
    };
    // The standard library's own pipe for a failed start has to stay, so: on exec.
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close_range, 5, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

fn cgroup2(root: &Path) -> bool {
    root.join("cgroup.controllers").is_file()
}

fn rand() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process runs (zombies do not).
pub(crate) fn runs(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

fn descendants(root: u32) -> Vec<i32> {
    let mut found = vec![i32::try_from(root).unwrap()];
    let pids: Vec<i32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    loop {
        let more: Vec<i32> = pids
            .iter()
            .copied()
            .filter(|pid| {
                !found.contains(pid) && parent_of(*pid).is_some_and(|parent| found.contains(&parent))
            })
            .collect();
        if more.is_empty() {
            return found.split_off(1);
        }
        found.extend(more);
    }
}

/// An exec of a shell script.
pub(crate) fn shell(id: &str, script: &str) -> StartExec {
    argv(id, &["/bin/sh", "-c", script])
}

pub(crate) fn argv(id: &str, argv: &[&str]) -> StartExec {
    StartExec {
        exec_id: id.to_owned(),
        argv: argv.iter().map(|part| (*part).to_owned()).collect(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: "/".to_owned(),
        user: "root".to_owned(),
        tty: None,
        stdin: false,
        profiles: Vec::new(),
        end_tree: false,
    }
}

#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exited: Exited,
}

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

/// Reads an exec to its end, acknowledging as it goes.
pub(crate) async fn finish(mut stream: ExecStream) -> Output {
    within(async {
        let mut output = Output::default();
        while let Some(event) = stream.next().await.unwrap() {
            match event {
                ExecEvent::Output { stderr, bytes } => {
                    let to = if stderr { &mut output.stderr } else { &mut output.stdout };
                    to.extend_from_slice(&bytes);
                    drop(stream.ack(stream.offset).await);
                }
                ExecEvent::Exited(exited) => output.exited = exited,
            }
        }
        output
    })
    .await
}

pub(crate) async fn run(client: &GuestClient, exec: StartExec) -> Output {
    finish(client.start_exec(exec).await.unwrap()).await
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("stuck")
}

/// Waits until the check gives a value.
pub(crate) async fn eventually<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    within(async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// The reason of a refusal.
pub(crate) fn reason<T: std::fmt::Debug>(result: Result<T, GuestError>) -> Reason {
    match result {
        Err(GuestError::Failure { reason, .. }) => reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
