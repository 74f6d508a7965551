//! The operator's program that makes and removes records of the domain: `HOOK present|cleanup NAME VALUE`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// How long it may take.
const HOOK_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes that are kept of what it says on standard error: the last ones.
const SAID_MAX_BYTES: usize = 600;
/// How long processes that the hook left behind may keep its standard error open.
const SAID_TIMEOUT: Duration = Duration::from_secs(1);
/// Where it finds programs. It gets nothing else of the server's environment.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Present,
    Cleanup,
}

impl Verb {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Cleanup => "cleanup",
        }
    }
}

/// A running hook. If this is dropped before the hook has ended, the hook's whole process group is killed.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // One that has ended meanwhile is no matter.
            let _ended = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs it for one record.
pub(crate) async fn run(program: &Path, verb: Verb, name: &str, value: &str) -> Result<(), String> {
    run_for(program, verb, name, value, HOOK_TIMEOUT).await
}

async fn run_for(program: &Path, verb: Verb, name: &str, value: &str, limit: Duration) -> Result<(), String> {
    let what = || format!("{} {}", program.display(), verb.as_str());
    let mut command = Command::new(program);
    command.args([verb.as_str(), name, value]).env_clear().env("PATH", PATH).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{} cannot be run: {error}", what()))?;
    let stderr = child.stderr.take();
    let said = tokio::spawn(async move {
        match stderr {
            Some(stderr) => last_of(stderr).await,
            None => String::new(),
        }
    });
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut running = Running { child, group };
    let ended = tokio::time::timeout(limit, running.child.wait()).await;
    if ended.is_ok() {
        // It is reaped: another process may soon have its number.
        running.group = None;
    }
    drop(running);
    let reading = said.abort_handle();
    let said = tokio::time::timeout(SAID_TIMEOUT, said).await;
    reading.abort();
    let said = said.ok().and_then(Result::ok).filter(|said| !said.is_empty());
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{} failed, {status}{said}", what())),
        Ok(Err(error)) => Err(format!("{} cannot be waited for: {error}", what())),
        Err(_late) => Err(format!("{} took longer than {} seconds{said}", what(), limit.as_secs())),
    }
}

/// The last bytes that come, as a line.
async fn last_of(mut from: impl AsyncRead + Unpin) -> String {
    let (mut last, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        last.extend_from_slice(&piece[..count]);
        last.drain(..last.len().saturating_sub(SAID_MAX_BYTES));
    }
    crate::readable(String::from_utf8_lossy(&last).trim())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

    use super::*;

    fn hook(text: &str) -> tempfile::TempPath {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "#!/bin/sh\n{text}").unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o700)).unwrap();
        file.into_temp_path()
    }

    async fn run_of(text: &str) -> Result<(), String> {
        let hook = hook(text);
        run_for(&hook, Verb::Present, "_acme-challenge.a.test.", "v-1", Duration::from_secs(60)).await
    }

    #[tokio::test]
    async fn it_gets_three_arguments_and_nothing_else() {
        let test = r#"[ "$*" = "present _acme-challenge.a.test. v-1" ] && [ -z "$HOME$CARGO_MANIFEST_DIR" ]"#;
        run_of(&format!("{test} && [ \"$(pwd)\" = / ] && ! read line")).await.unwrap();
    }

    #[tokio::test]
    async fn what_it_says_is_in_the_error_and_bounded() {
        let failed = run_of("echo nothing >&1; echo 'no such zone' >&2; exit 3").await.unwrap_err();
        assert!(failed.ends_with("exit status: 3: no such zone"), "{failed}");
        let long =
            run_of("head -c 1000000 /dev/zero | tr '\\0' x >&2; printf '\\033[1mend' >&2; exit 1").await;
        let long = long.unwrap_err();
        assert!(long.len() < SAID_MAX_BYTES + 200 && long.ends_with("[1mend"), "{long}");
        let none = run(Path::new("/nowhere/hook"), Verb::Cleanup, "a", "b").await.unwrap_err();
        assert!(none.starts_with("/nowhere/hook cleanup cannot be run"), "{none}");
    }

    #[tokio::test]
    async fn one_that_hangs_is_ended_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("alive");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
        let hook = hook(&format!("exec 3<>{}; sleep 1000 & sleep 1000", fifo.display()));
        let limit = Duration::from_millis(500);
        let late = run_for(&hook, Verb::Present, "a", "b", limit).await.unwrap_err();
        assert!(late.contains("took longer"), "{late}");
        let mut fifo = std::fs::OpenOptions::new().read(true).custom_flags(0o4000).open(&fifo).unwrap();
        // As long as a process holds the other end there is nothing to read, but no end either.
        while std::io::Read::read(&mut fifo, &mut [0]).is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_it_leaves_behind_is_not_waited_for() {
        run_of("sleep 5 & exit 0").await.unwrap();
    }
}
