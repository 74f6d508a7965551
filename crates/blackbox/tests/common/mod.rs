//! What several suites need.

#![allow(dead_code, clippy::unwrap_used, clippy::allow_attributes, reason = "tests; no suite uses all of it")]

pub(crate) mod outside;
pub(crate) mod pty;
pub(crate) mod world;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_api::CreateExec;
use atoll_blackbox::Server;
use atoll_client::{ClientError, OutputQuery};
use atoll_core::Code;
use atoll_core::exec::OutputStream;
use atoll_testing::run;
use tempfile::TempDir;

/// An exec of a shell line.
pub(crate) fn shell(line: &str) -> CreateExec {
    CreateExec { shell: Some(line.to_owned()), ..CreateExec::default() }
}

/// An exec of a program.
pub(crate) fn argv(argv: &[&str]) -> CreateExec {
    CreateExec { argv: Some(argv.iter().map(|&arg| arg.to_owned()).collect()), ..CreateExec::default() }
}

/// The code of a refusal.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Code {
    let error = result.expect_err("a refusal");
    error.code().unwrap_or_else(|| panic!("no refusal of the server: {error:?}"))
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
        let query = OutputQuery { offset, wait_ms: 30_000, max_bytes: None };
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
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
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
        let file = std::fs::File::create(&path).unwrap();
        let size = (free.f_bavail * free.f_frsize).saturating_sub(room);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
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
    std::fs::symlink_metadata(path).is_ok()
}
