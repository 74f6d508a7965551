//! The sandbox's identity, clock and resource use.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use atoll_guest_protocol::messages::{Configure, Metrics};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::failing::{Stop, errno, invalid};
use crate::files::place::{Place, is_directory};
use crate::files::{checked, make_directories, open_regular};
use crate::operations::Answer;
use crate::sys;
use crate::users::Database;

/// Longest host name the kernel takes.
const HOSTNAME_MAX_BYTES: usize = 64;
/// Bytes of a small file that are read.
const FILE_MAX_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// `configure`. Sets all that can be set. A host name or file that the sandbox may not change stays: the
/// isolation driver has set it up then.
pub(crate) fn configure(request: &Configure) -> Result<Answer, Stop> {
    if !request.hostname.is_empty() {
        let ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        if request.hostname.len() > HOSTNAME_MAX_BYTES || !request.hostname.bytes().all(ok) {
            return Err(invalid("the host name is malformed").into());
        }
        match rustix::system::sethostname(request.hostname.as_bytes()) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(cause) => return Err(errno("cannot set the host name", cause).into()),
        }
        write_name_files(&request.hostname);
    }
    if request.clock_unix_ns != 0 {
        sys::set_clock(request.clock_unix_ns).map_err(|cause| errno("cannot set the clock", cause))?;
    }
    if !request.workdir.is_empty() {
        let path = checked(&request.workdir)?;
        if !is_directory(path) {
            make_directories(path, 0o755, &Database::read().identity(&request.workdir_user)?)?;
        }
    }
    Ok(Answer::done(0))
}

/// Best effort: an image may have these files read-only, as links, or not at all.
fn write_name_files(hostname: &str) {
    let _unchanged = overwrite("/etc/hostname", format!("{hostname}\n").as_bytes());
    let hosts = text_of(open_regular(Path::new("/etc/hosts")));
    if hosts.split_whitespace().any(|word| word == hostname) {
        return;
    }
    let mut text = hosts;
    if !text.split_whitespace().any(|word| word == "localhost") {
        text.push_str("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str("127.0.1.1 ");
    text.push_str(hostname);
    text.push('\n');
    let _unchanged = overwrite("/etc/hosts", text.as_bytes());
}

/// Makes this the content of a regular file, where it lies; makes the file if there is none. A file that has this
/// content already is not written.
///
/// # Errors
/// Also [`io::ErrorKind::InvalidInput`] for a path that is no regular file, or a regular file with further names (hard
/// links), under which its content may have another meaning.
pub(crate) fn overwrite(path: &str, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
    let file = Place::of(Path::new(path))?.open(flags, 0o666)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut has = vec![0; content.len()];
    let length = u64::try_from(content.len()).map_err(io::Error::other)?;
    if metadata.len() == length && file.read_exact_at(&mut has, 0).is_ok() && has == content {
        return Ok(());
    }
    file.write_all_at(content, 0)?;
    if metadata.len() > length { file.set_len(length) } else { Ok(()) }
}

/// `metrics`. A value that cannot be read is 0.
pub(crate) fn metrics(started: Instant) -> Metrics {
    let (mut processes, mut pages) = (0, 0_u64);
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            processes += 1;
            pages = pages.saturating_add(resident_pages(&entry.path().join("statm")));
        }
    }
    let disk = rustix::fs::statvfs("/").ok();
    let disk_bytes = |blocks: u64| disk.as_ref().map_or(0, |disk| blocks.saturating_mul(disk.f_frsize));
    let load = read_text(Path::new("/proc/loadavg"));
    Metrics {
        processes,
        disk_total_bytes: disk_bytes(disk.as_ref().map_or(0, |disk| disk.f_blocks)),
        disk_used_bytes: disk_bytes(
            disk.as_ref().map_or(0, |disk| disk.f_blocks.saturating_sub(disk.f_bfree)),
        ),
        agent_rss_bytes: resident_pages(Path::new("/proc/self/statm")).saturating_mul(PAGE_BYTES),
        uptime_s: started.elapsed().as_secs(),
        load_1m_millis: load.split_whitespace().next().and_then(thousandths).unwrap_or(0),
        processes_rss_bytes: pages.saturating_mul(PAGE_BYTES),
    }
}

fn resident_pages(statm: &Path) -> u64 {
    read_text(statm).split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// `1.25` as 1250.
fn thousandths(number: &str) -> Option<u32> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part.parse().ok()?)
}

/// Reads a file of `/proc` for the agent itself: no client named it.
fn read_text(path: &Path) -> String {
    text_of(File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path))
}

fn text_of(file: io::Result<File>) -> String {
    let mut text = String::new();
    if let Ok(file) = file {
        drop(file.take(FILE_MAX_BYTES).read_to_string(&mut text));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_loads() {
        assert_eq!(thousandths("1.25"), Some(1250));
        assert_eq!(thousandths("0.07"), Some(70));
        assert_eq!(thousandths("12"), Some(12_000));
        assert_eq!(thousandths("x"), None);
    }
}
