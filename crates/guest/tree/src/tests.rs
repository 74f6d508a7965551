use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, mkdirat};

use super::*;

fn dir(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).unwrap()
}

/// Makes directories one in the other, deeper than any path.
fn nest(at: &Path, depth: usize) {
    let mut here = dir(at);
    for _ in 0..depth {
        mkdirat(&here, c"d", Mode::from_raw_mode(0o700)).unwrap();
        here = open(here.as_fd(), c"d").unwrap();
    }
    fs::write(format!("/proc/self/fd/{}/leaf", std::os::fd::AsRawFd::as_raw_fd(&here)), "x").unwrap();
}

/// On the stack of a worker thread the standard library's own function ends the process here.
#[test]
fn nothing_is_too_deep_for_the_stack() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("top")).unwrap();
    nest(&place.path().join("top"), 5_000);
    let parent = dir(place.path());
    let small = std::thread::Builder::new().stack_size(64 << 10);
    let removed = small.spawn(move || remove(parent.as_fd(), c"top", 1 << 20)).unwrap().join().unwrap();
    removed.unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn everything_goes_and_links_lead_nowhere() {
    let place = tempfile::tempdir().unwrap();
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "x").unwrap();
    let top = place.path().join("top");
    for number in 0..1100 {
        fs::create_dir_all(top.join(format!("{number}/a"))).unwrap();
        fs::write(top.join(format!("{number}/a/f")), "x").unwrap();
    }
    symlink(&outside, top.join("link")).unwrap();
    symlink("nowhere", top.join("7/dangling")).unwrap();
    let parent = dir(place.path());
    remove(parent.as_fd(), c"top", 1 << 20).unwrap();
    assert!(!top.try_exists().unwrap());
    assert!(outside.join("keep").try_exists().unwrap());

    symlink(&outside, place.path().join("top")).unwrap();
    remove(parent.as_fd(), c"top", 10).unwrap();
    assert!(outside.join("keep").try_exists().unwrap(), "a link is removed itself");
    assert_eq!(remove(parent.as_fd(), c"top", 10).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn count_and_depth_have_an_end() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..10 {
        fs::create_dir_all(place.path().join(format!("top/{number}"))).unwrap();
    }
    let parent = dir(place.path());
    assert_eq!(remove(parent.as_fd(), c"top", 5).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    remove(parent.as_fd(), c"top", 100).unwrap();
    assert!(!place.path().join("top").try_exists().unwrap());
}
