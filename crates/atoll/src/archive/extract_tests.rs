//! Hostile and ordinary tars, unpacked for real. The destination lies in a directory of its own,
//! beside a file that must survive everything.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use tar::{EntryType, Header};
use tempfile::TempDir;

use super::*;

/// One member of a tar. An attacker chooses any name and any link for it.
#[derive(Clone, Copy)]
struct Raw<'a> {
    kind: EntryType,
    name: &'a [u8],
    link: &'a [u8],
    data: &'a [u8],
    mode: u32,
}

fn file<'a>(name: &'a str, data: &'a str) -> Raw<'a> {
    Raw { kind: EntryType::Regular, name: name.as_bytes(), link: b"", data: data.as_bytes(), mode: 0o644 }
}

fn dir(name: &str) -> Raw<'_> {
    Raw { kind: EntryType::Directory, mode: 0o755, ..file(name, "") }
}

fn link<'a>(kind: EntryType, name: &'a str, target: &'a str) -> Raw<'a> {
    Raw { kind, link: target.as_bytes(), ..file(name, "") }
}

fn member(raw: Raw<'_>, size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    // Not through the setters, which refuse what an attacker would write.
    header.as_old_mut().name[..raw.name.len()].copy_from_slice(raw.name);
    header.as_old_mut().linkname[..raw.link.len()].copy_from_slice(raw.link);
    header.set_entry_type(raw.kind);
    header.set_mode(raw.mode);
    header.set_size(size);
    header.set_mtime(1_000_000_000);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(raw.data);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn tar_of(members: &[Raw<'_>]) -> Vec<u8> {
    let mut out: Vec<u8> = members.iter().flat_map(|&raw| member(raw, raw.data.len() as u64)).collect();
    out.extend_from_slice(&[0; 1024]);
    out
}

struct Place {
    dir: TempDir,
}

impl Place {
    /// `outside` must keep its content; `dst` is unpacked into.
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll").tempdir().unwrap();
        fs::write(dir.path().join("outside"), "precious").unwrap();
        fs::create_dir(dir.path().join("dst")).unwrap();
        Self { dir }
    }

    fn dst(&self, path: &str) -> PathBuf {
        self.dir.path().join("dst").join(path)
    }

    fn unpack(&self, tar: &[u8], rename: Option<&str>) -> Result<Extracted> {
        let root = fs::File::open(self.dst("")).unwrap();
        let result = extract(tar, root.as_fd(), rename.map(OsStr::new));
        let outside = fs::symlink_metadata(self.dir.path().join("outside")).unwrap();
        assert_eq!(fs::read(self.dir.path().join("outside")).unwrap(), b"precious");
        assert_eq!(outside.nlink(), 1, "nobody linked to what is outside");
        let names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "only the destination was written to: {names:?}");
        result
    }
}

#[test]
fn attacks_are_refused() {
    use EntryType::{Directory, GNUSparse, Link, Symlink};
    let outside = "../outside";
    let long = "x/".repeat(49);
    let raw = |kind, name, link| Raw { kind, name, link, data: b"", mode: 0o644 };
    let cases: Vec<(&str, Vec<Raw<'_>>, &str)> = vec![
        ("dot dot", vec![file("../outside", "evil")], "'..'"),
        ("dot dot inside", vec![dir("a"), file("a/../../outside", "evil")], "'..'"),
        ("dot dot directory", vec![dir("../new")], "'..'"),
        ("absolute", vec![file("/tmp/atoll-evil", "evil")], "absolute"),
        (
            "through a symbolic link",
            vec![link(Symlink, "up", ".."), file("up/outside", "evil")],
            "symbolic link",
        ),
        (
            "through an absolute symbolic link",
            vec![link(Symlink, "tmp", "/tmp"), file("tmp/atoll-evil", "evil")],
            "symbolic link",
        ),
        ("directory through a link", vec![link(Symlink, "up", ".."), dir("up/new")], "symbolic link"),
        (
            "directory over a link, then through it",
            vec![link(Symlink, "up", ".."), dir("up"), file("up/outside", "evil")],
            "symbolic link",
        ),
        (
            "link through a link",
            vec![link(Symlink, "up", ".."), link(Symlink, "up/new", "x")],
            "symbolic link",
        ),
        (
            "magic link",
            vec![link(Symlink, "fd", "/proc/self/cwd"), file("fd/atoll-evil", "evil")],
            "symbolic link",
        ),
        ("hard link to outside", vec![link(Link, "a", outside)], "'..'"),
        ("hard link to an absolute path", vec![link(Link, "a", "/etc/passwd")], "absolute"),
        (
            "hard link through a link",
            vec![link(Symlink, "up", ".."), link(Link, "a", "up/outside")],
            "symbolic link",
        ),
        ("hard link to itself", vec![file("a", "1"), link(Link, "a", "a")], "itself"),
        ("hard link to nothing", vec![link(Link, "a", "")], "nowhere"),
        ("symbolic link to nothing", vec![link(Symlink, "a", "")], "nowhere"),
        ("file in a file", vec![file("a", "1"), file("a/b", "2")], "in the way"),
        ("file over a directory", vec![dir("a"), file("a", "2")], "in the way"),
        ("directory over a file", vec![file("a", "1"), dir("a")], "in the way"),
        ("sparse", vec![raw(GNUSparse, b"a", b"")], ""),
        ("name of dots", vec![raw(Directory, b"..", b"")], "'..'"),
        ("dot then dot dot", vec![file("./../outside", "evil")], "'..'"),
    ];
    for (what, members, why) in cases {
        let place = Place::new();
        let error = place.unpack(&tar_of(&members), None).expect_err(what);
        assert!(error.to_string().contains(why), "{what}: {error}");
    }
    // Deep, but not deeper than allowed.
    let place = Place::new();
    assert_eq!(place.unpack(&tar_of(&[file(&format!("{long}f"), "1")]), None).unwrap().members, 1);
}

#[test]
fn names_at_their_limits() {
    let refused = |name: &[u8]| normal(name, None).unwrap_err().to_string();
    assert!(refused(&[b'x'; NAME_MAX_BYTES + 1]).contains("too long"));
    assert!(refused("x/".repeat(DEPTH_MAX + 1).as_bytes()).contains("too deep"));
    assert!(refused(b"a\0b").contains("NUL"));
    assert_eq!(normal(b"./a//b/./c", None).unwrap(), Path::new("a/b/c"));
    assert_eq!(normal(b"a/b", Some(OsStr::new("z"))).unwrap(), Path::new("z/b"));
    assert_eq!(normal(b"./", Some(OsStr::new("z"))).unwrap(), Path::new(""));
}

#[test]
fn nothing_is_written_through_links_that_were_there() {
    let place = Place::new();
    symlink("../outside", place.dst("link")).unwrap();
    fs::write(place.dst("one"), "old").unwrap();
    fs::hard_link(place.dst("one"), place.dst("two")).unwrap();
    place.unpack(&tar_of(&[file("link", "new"), file("one", "new")]), None).unwrap();
    assert!(fs::symlink_metadata(place.dst("link")).unwrap().is_file());
    assert_eq!(fs::read_to_string(place.dst("link")).unwrap(), "new");
    assert_eq!(fs::read_to_string(place.dst("two")).unwrap(), "old");

    // A link of the user's own that leads elsewhere is not followed either.
    let place = Place::new();
    symlink("..", place.dst("sub")).unwrap();
    assert!(place.unpack(&tar_of(&[file("sub/outside", "evil")]), None).is_err());
}

#[test]
fn a_hard_link_to_a_symbolic_link_does_not_reach_its_target() {
    let place = Place::new();
    let members =
        [link(EntryType::Symlink, "s", "../outside"), link(EntryType::Link, "h", "s"), file("h", "evil")];
    place.unpack(&tar_of(&members), None).unwrap();
    assert_eq!(fs::read_to_string(place.dst("h")).unwrap(), "evil");
}

#[test]
fn an_ordinary_tree_arrives() {
    let place = Place::new();
    let members = [
        dir("top"),
        Raw { mode: 0o4755, ..file("top/run", "#!/bin/sh\n") },
        Raw { mode: 0o500, ..dir("top/closed") },
        file("top/closed/inner", "kept"),
        link(EntryType::Symlink, "top/link", "/etc/passwd"),
        link(EntryType::Link, "top/hard", "top/run"),
        file("top/made/on/the/way", "x"),
        link(EntryType::Fifo, "top/fifo", ""),
        link(EntryType::Char, "top/null", ""),
    ];
    let extracted = place.unpack(&tar_of(&members), Some("new")).unwrap();
    assert_eq!((extracted.members, extracted.bytes), (9, 10 + 4 + 1));
    assert_eq!(extracted.skipped, ["new/fifo", "new/null"]);
    let run = fs::metadata(place.dst("new/run")).unwrap();
    assert_eq!(run.permissions().mode() & 0o7700, 0o700, "no set-user-id");
    assert_eq!((run.nlink(), run.mtime()), (2, 1_000_000_000));
    assert_eq!(fs::read_to_string(place.dst("new/closed/inner")).unwrap(), "kept");
    assert_eq!(fs::read_link(place.dst("new/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read_to_string(place.dst("new/made/on/the/way")).unwrap(), "x");
    assert!(!place.dst("new/fifo").try_exists().unwrap());
    // A second time over it.
    place.unpack(&tar_of(&members), Some("new")).unwrap();
}

#[test]
fn a_tar_that_lies_about_its_length_is_no_success() {
    let place = Place::new();
    let whole = tar_of(&[file("a", "hello"), file("b", "world")]);
    for cut in [100, 512 + 3, 1024 + 100, 1536 + 2] {
        let result = place.unpack(&whole[..cut], None);
        assert!(matches!(result, Err(ExtractError::Read(_))), "cut at {cut}: {result:?}");
    }
    let endless = member(file("a", "x"), u64::MAX / 4);
    assert!(matches!(place.unpack(&endless, None), Err(ExtractError::Read(_))));
    assert!(matches!(place.unpack(&[b'x'; 2048], None), Err(ExtractError::Read(_))));
}

proptest::proptest! {
    /// Noise in a tar may make it fail, but not escape, hang or panic.
    #[test]
    fn noise_does_no_harm(at in 0_usize..2048, noise in proptest::collection::vec(proptest::num::u8::ANY, 1..64)) {
        let place = Place::new();
        let mut tar = tar_of(&[dir("a"), link(EntryType::Symlink, "a/up", "../.."), file("a/f", "data")]);
        for (i, byte) in noise.iter().enumerate() {
            if let Some(slot) = tar.get_mut(at + i) {
                *slot = *byte;
            }
        }
        drop(place.unpack(&tar, None));
    }
}
