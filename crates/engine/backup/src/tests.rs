//! Archives that `pack` writes, packed and unpacked again, and forged archives. Made and unpacked for real.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tar::{EntryType, Header as TarHeader};
use tempfile::TempDir;

use super::*;
use crate::format::{HEADER, MANIFEST};
use crate::manifest::Lines;
use crate::member::{BLOCK, Kind, Member};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn watch() -> Watch<'static, fn(u64)> {
    Watch { progress: |_| {}, stop: &GO_ON }
}

fn dir() -> TempDir {
    tempfile::Builder::new().prefix("atoll-backup-").tempdir().unwrap()
}

fn subject() -> Subject {
    Subject { installation: "0123abcd".into(), database: true, vault_key: true }
}

fn packed(data: &Path) -> Vec<u8> {
    let (mut out, root, scratch) = (Vec::new(), File::open(data).unwrap(), dir());
    pack(root.as_fd(), subject(), ("1.2.3", 7), &mut out, scratch.path(), |_| {}, &watch()).unwrap();
    out
}

/// Restores into `data` below the directory, whether or not that works.
fn restored(archive: &[u8], dir: &Path) -> Result<Header> {
    let data = dir.join("data");
    fs::create_dir_all(&data).unwrap();
    let restoration = Restoration::begin(&data)?;
    let header = Backup::open(archive)?.unpack(restoration.root(), &restoration.scratch(), &watch())?;
    restoration.finish()?;
    Ok(header)
}

/// What is refused, and why; and that it left nothing, within the directory or beside it.
fn refused(archive: &[u8]) -> String {
    let dir = dir();
    fs::write(dir.path().join("outside"), "precious").unwrap();
    let error = restored(archive, dir.path()).unwrap_err();
    assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 0, "{error}");
    assert_eq!(fs::read(dir.path().join("outside")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{error}");
    let checked = Backup::open(archive).and_then(|backup| backup.check(dir.path(), &watch()));
    assert!(checked.is_err(), "{error}");
    error.to_string()
}

fn uncompressed(archive: &[u8]) -> Vec<u8> {
    zstd::decode_all(archive).unwrap()
}

fn compressed(tar: &[u8]) -> Vec<u8> {
    zstd::encode_all(tar, 1).unwrap()
}

/// A data directory with everything that there may be.
fn sample() -> TempDir {
    let dir = dir();
    let at = |path: &str| dir.path().join(path);
    for path in
        ["images/layers/aa/root/etc", "images/tmp/x", "storage/empty", "run/1", "containers/sandboxes"]
    {
        fs::create_dir_all(at(path)).unwrap();
    }
    for (path, text) in
        [("installation", "0123abcd"), ("vault.key", "secret"), ("lock", ""), ("reserve", "zeros")]
    {
        fs::write(at(path), text).unwrap();
    }
    fs::set_permissions(at("vault.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let pool = File::create(at("storage/pool.img")).unwrap();
    pool.set_len(1 << 40).unwrap();
    pool.write_all_at(b"begin", 0).unwrap();
    pool.write_all_at(b"middle", 5 << 30).unwrap();
    let root = at("images/layers/aa/root");
    fs::write(root.join("program"), "#!").unwrap();
    fs::set_permissions(root.join("program"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(root.join("program"), root.join("zz")).unwrap();
    symlink("/outside/../etc/passwd", root.join("etc/link")).unwrap();
    fs::write(root.join("n".repeat(255)), "long").unwrap();
    fs::write(root.join("line\nbreak"), "").unwrap();
    mknodat(CWD, root.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    setxattr(root.join("program"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    setxattr(root.join("etc"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    std::os::unix::fs::chown(root.join("etc"), Some(1000), Some(70_000_000)).unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("containers/sandboxes/guest.sock")).unwrap());
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
    File::open(&root).unwrap().set_modified(long_ago).unwrap();
    dir
}

/// Version 2, with CAP_NET_RAW, which has a line break in it when it is read as text.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn everything_comes_back_as_it_was_and_nothing_else() {
    let (from, to) = (sample(), dir());
    let archive = packed(from.path());
    assert!(archive.len() < 64 << 10, "holes take no room: {}", archive.len());
    let header = restored(&archive, to.path()).unwrap();
    assert_eq!((header.program.as_str(), header.created_at_ms, header.of), ("1.2.3", 7, subject()));
    let at = |path: &str| to.path().join("data").join(path);
    for left_out in ["lock", "reserve", "run", "images/tmp", "containers/sandboxes/guest.sock", STAGING] {
        assert!(!at(left_out).try_exists().unwrap(), "{left_out}");
    }
    assert_eq!(fs::read_to_string(at("vault.key")).unwrap(), "secret");
    assert!(at("storage/empty").is_dir());
    for path in ["vault.key", "storage/pool.img", "images/layers/aa/root", "images/layers/aa/root/etc"] {
        let (was, is) = (fs::metadata(from.path().join(path)).unwrap(), fs::metadata(at(path)).unwrap());
        assert_eq!((was.mode(), was.uid(), was.gid()), (is.mode(), is.uid(), is.gid()), "{path}");
        assert_eq!(
            (was.len(), was.mtime(), was.mtime_nsec()),
            (is.len(), is.mtime(), is.mtime_nsec()),
            "{path}"
        );
    }
    let pool = File::open(at("storage/pool.img")).unwrap();
    assert!(pool.metadata().unwrap().blocks() < 1000);
    let mut bytes = [0; 6];
    pool.read_exact_at(&mut bytes, 5 << 30).unwrap();
    assert_eq!(&bytes, b"middle");
    let root = at("images/layers/aa/root");
    let [one, other] = ["program", "zz"].map(|name| fs::metadata(root.join(name)).unwrap());
    assert_eq!((one.ino(), one.mode() & 0o7777), (other.ino(), 0o4755));
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(root.join("program"), "security.capability", &mut value).unwrap();
    assert_eq!(value[..length], CAPABILITY);
    rustix::fs::getxattr(root.join("etc"), "trusted.overlay.opaque", &mut value).unwrap();
    assert_eq!(fs::read_link(root.join("etc/link")).unwrap(), Path::new("/outside/../etc/passwd"));
    assert_eq!(fs::read_to_string(root.join("n".repeat(255))).unwrap(), "long");
    let gone = fs::symlink_metadata(root.join("gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert!(fs::symlink_metadata(root.join("pipe")).unwrap().file_type().is_fifo());
    // A backup of the restored directory is the same: nothing was lost and nothing was added.
    assert_eq!(uncompressed(&packed(&to.path().join("data"))), uncompressed(&archive));
}

#[test]
fn other_programs_can_read_it() {
    let (from, to) = (sample(), dir());
    let file = to.path().join("backup.tar");
    fs::write(&file, uncompressed(&packed(from.path()))).unwrap();
    let tar =
        std::process::Command::new("tar").arg("-C").arg(to.path()).arg("-xf").arg(&file).output().unwrap();
    assert!(tar.status.success(), "{tar:?}");
    let pool = File::open(to.path().join("data/storage/pool.img")).unwrap();
    let mut bytes = [0; 6];
    pool.read_exact_at(&mut bytes, 5 << 30).unwrap();
    assert_eq!((&bytes, pool.metadata().unwrap().len()), (b"middle", 1 << 40));
    assert!(to.path().join("data/images/layers/aa/root/line\nbreak").try_exists().unwrap());
    assert!(to.path().join("atoll-backup/manifest.jsonl").try_exists().unwrap());
}

#[test]
fn what_is_cut_off_is_refused_wherever_it_is_cut() {
    let from = dir();
    fs::write(from.path().join("installation"), "0123abcd").unwrap();
    fs::write(from.path().join("noise"), blake3::hash(b"noise").as_bytes().repeat(100)).unwrap();
    let archive = packed(from.path());
    for length in 0..archive.len() {
        refused(&archive[..length]);
    }
    let tar = uncompressed(&archive);
    for length in (0..tar.len()).step_by(BLOCK) {
        refused(&compressed(&tar[..length]));
    }
    assert!(refused(&archive[..archive.len() - 1]).contains("ends in the middle"));
    refused(&[&archive[..], b"more"].concat());
    refused(&compressed(&[&tar[..], b"more"].concat()));
}

#[test]
fn every_changed_byte_is_noticed() {
    let from = dir();
    fs::write(from.path().join("installation"), "0123abcd").unwrap();
    let archive = packed(from.path());
    for at in 0..archive.len() {
        let mut changed = archive.clone();
        changed[at] ^= 1;
        // Some bits only say how much memory a reader needs.
        if zstd::decode_all(changed.as_slice()).is_ok_and(|tar| tar == uncompressed(&archive)) {
            continue;
        }
        refused(&changed);
    }
    // A change is also noticed when an attacker compresses the archive again. Changes to names of owners and the like
    // do not matter: these names are not restored.
    let tar = uncompressed(&archive);
    let at = tar.windows(8).rposition(|window| window == b"0123abcd").unwrap();
    let mut changed = tar;
    changed[at] ^= 1;
    let why = refused(&compressed(&changed));
    assert!(why.contains("'data/installation'") && why.contains("digest"), "{why}");
}

/// A tar with these members and a manifest that fits them: only the reader's other rules can refuse it.
fn forged(members: &[(Member, &[u8])]) -> Vec<u8> {
    let bytes = members.iter().map(|(member, _)| member.stored).sum();
    forged_with(members, &header(members.len() as u64, bytes))
}

fn header(members: u64, bytes: u64) -> Header {
    Header { format: FORMAT, program: "1".into(), created_at_ms: 0, members, bytes, of: subject() }
}

fn forged_with(members: &[(Member, &[u8])], header: &impl serde::Serialize) -> Vec<u8> {
    let scratch = dir();
    let (mut tar, mut lines) = (Vec::new(), Lines::new(scratch.path()).unwrap());
    let text = serde_json::to_vec(header).unwrap();
    let own = (Member::own(HEADER, text.len() as u64), text.as_slice());
    for (member, content) in std::iter::once(&own).chain(members) {
        tar.extend_from_slice(&member.encode().unwrap());
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
        let is_file = member.kind == Kind::File;
        lines.push(member, is_file.then(|| blake3::hash(content))).unwrap();
    }
    let (mut manifest, bytes) = lines.finish().unwrap();
    tar.extend_from_slice(&Member::own(MANIFEST, bytes).encode().unwrap());
    std::io::copy(&mut manifest, &mut tar).unwrap();
    tar.resize(tar.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    compressed(&tar)
}

fn file(path: &str, content: &'static str) -> (Member, &'static [u8]) {
    (Member::own(path.as_bytes(), content.len() as u64), content.as_bytes())
}

fn link(kind: Kind, path: &str, to: &str) -> (Member, &'static [u8]) {
    let member = Member { kind, link: to.as_bytes().to_vec(), ..Member::own(path.as_bytes(), 0) };
    (member, b"")
}

#[test]
fn hostile_members_are_refused() {
    assert!(restored(&forged(&[file("data/a/b", "fine")]), dir().path()).is_ok());
    let layer = "data/images/layers/aa/root";
    let cases = [
        (vec![file("/etc/passwd", "x")], "foreign name"),
        (vec![file("data/../../outside", "x")], "leads elsewhere"),
        (vec![file("data//etc/passwd", "x")], "leads elsewhere"),
        (vec![file("data/./a", "x")], "leads elsewhere"),
        (vec![file("data/", "x")], "leads elsewhere"),
        (vec![file("data", "x")], "foreign name"),
        (vec![file("datax/a", "x")], "foreign name"),
        (vec![file("data/lock", "x")], "may not be in a backup"),
        (vec![file("data/.restoring", "x")], "may not be in a backup"),
        (vec![file("data/a", "x"), file("data/a", "y")], "comes twice"),
        (vec![file("data/a", "x"), file("data/a/b", "y")], "not where it belongs"),
        (vec![file("data/a/b", "x"), file("data/a", "y")], "not where it belongs"),
        (vec![file("data/b", "x"), file("data/a", "y")], "not where it belongs"),
        // A name ends at its first NUL.
        (vec![file("data/a", "x"), file("data/a\0b", "y")], "comes twice"),
        (vec![link(Kind::Symlink, "data/a", "/etc")], "only layers"),
        (vec![link(Kind::Whiteout, "data/a", "")], "only layers"),
        (vec![link(Kind::Fifo, "data/a", "")], "only layers"),
        (
            vec![
                link(Kind::Symlink, &format!("{layer}/up"), "../../../../.."),
                file(&format!("{layer}/up/outside"), "x"),
            ],
            "not where it belongs",
        ),
        (
            vec![file("data/vault.key", "k"), link(Kind::Hardlink, &format!("{layer}/k"), "data/vault.key")],
            "leads out of the layers",
        ),
        (vec![link(Kind::Hardlink, &format!("{layer}/k"), "/etc/passwd")], "foreign name"),
        (
            vec![link(Kind::Hardlink, &format!("{layer}/k"), "data/images/layers/../../../x")],
            "leads elsewhere",
        ),
    ];
    for (members, why) in cases {
        let said = refused(&forged(&members));
        assert!(said.contains(why), "{why}: {said}");
    }
    let (mut steering, _) = file(&format!("{layer}/a"), "");
    steering.xattrs = vec![(b"trusted.overlay.redirect".to_vec(), b"/".to_vec())];
    assert!(refused(&forged(&[(steering, b"")])).contains("attribute"));
}

#[test]
fn other_kinds_of_members_are_refused() {
    for kind in [
        EntryType::Block,
        EntryType::Char,
        EntryType::GNUSparse,
        EntryType::GNULongName,
        EntryType::XGlobalHeader,
    ] {
        let mut tar = uncompressed(&forged(&[file("data/a", "x")]));
        let mut block = TarHeader::new_gnu();
        block.set_path("data/device").unwrap();
        block.set_entry_type(kind);
        block.set_size(0);
        block.set_mode(0o600);
        block.set_uid(0);
        block.set_gid(0);
        block.set_mtime(0);
        block.set_device_major(8).unwrap();
        block.set_device_minor(0).unwrap();
        block.set_cksum();
        // Behind the header of ours and its content.
        tar.splice(2 * BLOCK..2 * BLOCK, block.as_bytes().iter().copied());
        let said = refused(&compressed(&tar));
        assert!(said.contains("neither file, directory nor link"), "{kind:?}: {said}");
    }
}

#[test]
fn more_than_is_announced_is_refused_before_it_is_written() {
    let members = [file("data/a", "12345"), file("data/b", "12345")];
    for wrong in [header(1, 10), header(2, 9)] {
        assert!(refused(&forged_with(&members, &wrong)).contains("more than its header announces"));
    }
    for wrong in [header(3, 10), header(2, 11)] {
        assert!(refused(&forged_with(&members, &wrong)).contains("less than its header announces"));
    }
    assert!(refused(&forged_with(&members, &header(2, u64::MAX >> 1))).contains("are free"));
    // A file that says that it is as large as can be, and has nothing: its size costs nothing, and is all that it says.
    let mut huge = Member::own(b"data/huge", u64::MAX >> 1);
    huge.stored = u64::MAX >> 1;
    assert!(refused(&forged_with(&[(huge, b"")], &header(1, 1 << 20))).contains("more than its header"));
}

#[test]
fn newer_formats_are_refused_with_the_program_that_made_them() {
    let newer = serde_json::json!({ "format": 2, "program": "9.9", "unknown": true });
    let said = refused(&forged_with(&[], &newer));
    assert!(said.contains("format 2, of Atoll 9.9"), "{said}");
    for bad in [serde_json::json!({ "format": 0 }), serde_json::json!({}), serde_json::json!([1])] {
        assert!(refused(&forged_with(&[], &bad)).contains("header"), "{bad}");
    }
    assert!(refused(b"").contains("does not begin as one"));
    assert!(refused(b"not a backup at all").contains("does not begin as one"));
    assert!(refused(&compressed(&[0; 4 * BLOCK])).contains("does not begin with a header"));
}

#[test]
fn a_directory_that_is_not_empty_is_left_alone() {
    let dir = dir();
    fs::create_dir(dir.path().join("data")).unwrap();
    fs::write(dir.path().join("data/mine"), "precious").unwrap();
    let error = restored(&forged(&[file("data/a", "x")]), dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not empty: 'mine'"), "{error}");
    assert_eq!(fs::read(dir.path().join("data/mine")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 1);
}

#[test]
fn what_a_killed_restoration_left_is_replaced() {
    let dir = dir();
    let data = dir.path().join("data");
    fs::create_dir_all(data.join(STAGING).join("data/half")).unwrap();
    fs::write(data.join("moved"), "").unwrap();
    fs::write(data.join("lock"), "").unwrap();
    restored(&forged(&[file("data/a", "x")]), dir.path()).unwrap();
    let mut names: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "lock"]);
}

#[test]
fn what_cannot_be_restored_is_not_backed_up() {
    let data = dir();
    symlink("/elsewhere", data.path().join("storage")).unwrap();
    let root = File::open(data.path()).unwrap();
    let scratch = dir();
    let made = pack(root.as_fd(), subject(), ("1", 0), Vec::new(), scratch.path(), |_| {}, &watch());
    assert!(made.unwrap_err().to_string().contains("'storage' in the data directory is a symbolic link"));
}

#[test]
fn a_file_that_is_not_kept_leaves_nothing_and_one_that_is_is_private() {
    let dir = dir();
    let path = dir.path().join("backup");
    NewFile::beside(&path).unwrap().file().write_all(b"half").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    fs::write(&path, "the last one").unwrap();
    let file = NewFile::beside(&path).unwrap();
    file.file().write_all(b"whole").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"the last one");
    assert_eq!(file.keep().unwrap(), 5);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(NewFile::beside(dir.path()).is_err());
}

/// Found by coverage: `make fuzz`. It runs shortly with the other tests, too.
#[test]
fn any_archive_is_read_or_refused() {
    let scratch = dir();
    let whole = uncompressed(&forged(&[file("data/a", "12345"), link(Kind::Dir, "data/d", "")]));
    bolero::check!().for_each(|bytes: &[u8]| {
        // Each byte of the input replaces one of the archive, at a place that its index and its value say.
        let mut tar = whole.clone();
        for (n, byte) in bytes.iter().enumerate() {
            let at = (n * 97 + usize::from(*byte)) % tar.len();
            tar[at] = *byte;
        }
        let checked = Backup::open(compressed(&tar).as_slice())
            .and_then(|backup| backup.check(scratch.path(), &watch()));
        drop(checked);
    });
}
