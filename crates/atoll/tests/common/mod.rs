//! Helpers that several suites need.

#![allow(dead_code, clippy::unwrap_used, clippy::allow_attributes, reason = "tests; no suite uses all of it")]

pub(crate) mod acme;
pub(crate) mod gvisor;
pub(crate) mod machines;
pub(crate) mod outside;
pub(crate) mod pty;
pub(crate) mod real;
pub(crate) mod ssh;
pub(crate) mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_api::CreateExec;
use atoll_blackbox::{Server, wait_until};
use atoll_client::{ClientError, OutputQuery};
use atoll_core::Code;
use atoll_core::exec::OutputStream;
use atoll_testing::{Entry, run};
use tempfile::TempDir;

/// An exec of a shell line.
pub(crate) fn shell(line: &str) -> CreateExec {
    CreateExec { shell: Some(line.to_owned()), ..CreateExec::default() }
}

/// An exec of a program.
pub(crate) fn argv(argv: &[&str]) -> CreateExec {
    CreateExec { argv: Some(argv.iter().map(|&arg| arg.to_owned()).collect()), ..CreateExec::default() }
}

/// Files below a directory that hold a text. Disks are large files that are mostly holes, which `tar` leaves out.
pub(crate) fn files_with(text: &str, dir: &Path) -> Vec<String> {
    let each = "tar --sparse -cf - -- \"$1\" 2>/dev/null | grep -qaF -- \"$0\" && echo \"$1\"; true";
    let mut find = Command::new("find");
    let find =
        find.arg(dir).args(["-type", "f", "-exec", "sh", "-c", each, text, "{}", ";"]).output().unwrap();
    assert!(find.status.success(), "{find:?}");
    String::from_utf8_lossy(&find.stdout).lines().map(str::to_owned).collect()
}

/// The code of a refusal.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Code {
    let error = result.expect_err("a refusal");
    error.code().unwrap_or_else(|| panic!("no refusal of the server: {error:?}"))
}

/// Waits until the sandboxes stand still and cannot go on by themselves. The guard stops them early, as long as what
/// they wrote is not on disk, and lets them go on if there is more room than it reckoned with; it never does with less
/// than twice its margin.
pub(crate) async fn until_full_for_good(server: &Server, place: &str, margin_bytes: u64) {
    let free = format!("atoll_disk_free_bytes{{place=\"{place}\"}} ");
    wait_until("the sandboxes to be stopped for good", async || {
        let metrics = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
        let left = metrics.lines().find_map(|line| line.strip_prefix(&free)).expect("what is free there");
        let left: u64 = left.parse().unwrap();
        (metrics.lines().any(|line| line == "atoll_disk_full 1") && left < 2 * margin_bytes).then_some(())
    })
    .await;
}

/// All output of an exec by long-poll, until it ended or `bytes` are there: both streams.
pub(crate) async fn follow(server: &Server, sandbox: &str, exec: &str, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut out, mut err, mut offset) = (Vec::new(), Vec::new(), 0);
    let start = Instant::now();
    loop {
        assert!(
            start.elapsed() < Duration::from_secs(90),
            "no more output after {:?}",
            String::from_utf8_lossy(&out)
        );
        let query = OutputQuery { offset, wait_ms: 30_000, ..OutputQuery::default() };
        let page = server.client.exec_output(sandbox, exec, query).await.unwrap();
        assert_eq!(page.gap_until, None, "bytes were dropped");
        for chunk in &page.chunks {
            assert_eq!(chunk.offset, offset, "chunks are contiguous");
            let bytes = chunk.bytes().unwrap();
            offset += bytes.len() as u64;
            if chunk.stream == OutputStream::Stdout { &mut out } else { &mut err }.extend(bytes);
        }
        if out.len() + err.len() >= bytes || (page.state.is_final() && page.chunks.is_empty()) {
            return (out, err);
        }
    }
}

/// All output of an exec that ends: both streams.
pub(crate) async fn outputs(server: &Server, sandbox: &str, exec: &str) -> (Vec<u8>, Vec<u8>) {
    follow(server, sandbox, exec, usize::MAX).await
}

/// A small file system of its own, to be filled.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Makes and mounts one.
    pub(crate) fn new(bytes: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-small-").tempdir_in("/var/tmp").unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        let at = dir.path().join("mnt");
        fs::create_dir(&at).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        Self { dir }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Writes a file that leaves only `room` bytes free.
    pub(crate) fn fill(&self, room: u64) -> PathBuf {
        let free = rustix::fs::statvfs(self.path()).unwrap();
        let path = self.path().join("filler");
        let file = fs::File::create(&path).unwrap();
        let size = (free.f_bavail * free.f_frsize).saturating_sub(room);
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size) {
            // `NOSPC`: the server wrote meanwhile, and the disk is as full as it can be.
            Ok(()) | Err(rustix::io::Errno::NOSPC) => {}
            Err(error) => panic!("{error}"),
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}

/// Whether a path is there.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A layer with a shell and a few programs: the host's own, with their libraries.
pub(crate) fn base_layer() -> Vec<Entry> {
    let mut entries = vec![
        Entry::dir("bin"),
        Entry::dir("etc"),
        Entry::dir("home"),
        Entry::dir("tmp").mode(0o1777),
        Entry::dir("opt"),
        Entry::dir("opt/app").owner(1234, 1234),
        Entry::file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/opt/app:/bin/sh\n"),
        Entry::file("etc/group", b"root:x:0:\napp:x:1234:\n"),
    ];
    let mut dirs = std::collections::BTreeSet::new();
    let mut files = std::collections::BTreeMap::new();
    for name in ["sh", "cat", "id", "ls", "stat"] {
        let program = Path::new("/bin").join(name).canonicalize().unwrap();
        files.insert(format!("bin/{name}"), program.clone());
        let list = String::from_utf8(run(Command::new("ldd").arg(&program))).unwrap();
        for word in list.split_whitespace().filter(|word| word.starts_with('/')) {
            files.insert(word.trim_start_matches('/').to_owned(), Path::new(word).canonicalize().unwrap());
        }
    }
    for name in files.keys() {
        for dir in Path::new(name).ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
            dirs.insert(dir.display().to_string());
        }
    }
    entries.extend(dirs.iter().filter(|dir| *dir != "bin").map(|dir| Entry::dir(dir)));
    entries.extend(files.iter().map(|(name, from)| Entry::file(name, &fs::read(from).unwrap()).mode(0o755)));
    entries
}
