//! Archives that want out, and archives that are merely odd.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use atoll_core::Code;
use atoll_image::{ImageError, Images, Settings};
use atoll_testing::{Entry, tar_of};

struct Store {
    dir: tempfile::TempDir,
    images: Images,
}

impl Store {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-images-").tempdir().unwrap();
        let images = Images::open_with(&dir.path().join("images"), settings).unwrap();
        Self { dir, images }
    }

    async fn import(&self, entries: &[Entry]) -> Result<PathBuf, ImageError> {
        self.import_bytes(tar_of(entries)).await
    }

    async fn import_bytes(&self, bytes: Vec<u8>) -> Result<PathBuf, ImageError> {
        let image = self.images.import("test", std::io::Cursor::new(bytes)).await?;
        Ok(image.layers[0].clone())
    }

    /// Nothing half made is left, and nothing was written beside the store.
    fn assert_clean(&self, what: &str) {
        for part in ["tmp", "layers", "images", "refs", "partial"] {
            let left = std::fs::read_dir(self.dir.path().join("images").join(part)).unwrap().count();
            assert_eq!(left, 0, "{what}: something is left in {part}");
        }
        assert_eq!(std::fs::read_dir(self.dir.path()).unwrap().count(), 1, "{what}: it got out");
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn hostile_archives_are_refused_and_leave_nothing() {
    let long = "x".repeat(256);
    let deep = "d/".repeat(300);
    let huge = "p/".repeat(2100);
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim").display().to_string();
    std::fs::write(&victim, "safe").unwrap();
    let cases: Vec<(&str, Vec<Entry>)> = vec![
        ("upwards", vec![Entry::file("../out", b"x")]),
        ("upwards inside", vec![Entry::file("a/../../out", b"x")]),
        ("upwards directory", vec![Entry::dir("a/../..")]),
        ("hard link upwards", vec![Entry::hardlink("a", "../../victim")]),
        ("hard link to nothing", vec![Entry::hardlink("a", "b")]),
        ("hard link to the host", vec![Entry::hardlink("a", &victim)]),
        (
            "hard link through a link",
            vec![Entry::symlink("s", "/"), Entry::hardlink("a", &format!("s/{victim}"))],
        ),
        ("hard link to a directory", vec![Entry::dir("d"), Entry::hardlink("a", "d")]),
        ("hard link to a whiteout", vec![Entry::file(".wh.d", b""), Entry::hardlink("a", "d")]),
        ("whiteout of ..", vec![Entry::file(".wh...", b"")]),
        ("whiteout of .", vec![Entry::file("a/.wh..", b"")]),
        ("whiteout of nothing", vec![Entry::file(".wh.", b"")]),
        ("inside of a whiteout", vec![Entry::file(".wh.a/b", b"")]),
        ("name too long", vec![Entry::file(&long, b"")]),
        ("path too deep", vec![Entry::file(&format!("{deep}x"), b"")]),
        ("path too long", vec![Entry::file(&format!("{huge}x"), b"")]),
        (
            "path too deep through a link",
            vec![Entry::symlink("s", "x").pax("linkpath", deep.as_bytes()), Entry::file("s/x", b"")],
        ),
        (
            "path too deep through links to links",
            vec![
                Entry::symlink("s", "x").pax("linkpath", "d/".repeat(200).as_bytes()),
                Entry::symlink("t", "x").pax("linkpath", format!("s/{}", "d/".repeat(200)).as_bytes()),
                Entry::file("t/x", b""),
            ],
        ),
        ("NUL in a name", vec![Entry::file("a", b"x").pax("path", b"a\0b")]),
        ("NUL in a link", vec![Entry::symlink("a", "x").pax("linkpath", b"a\0b")]),
        ("empty link", vec![Entry::symlink("a", "")]),
        ("steering attribute", vec![Entry::file("a", b"").xattr("trusted.overlay.redirect", b"/etc")]),
        ("steering attribute for users", vec![Entry::dir("a").xattr("user.overlay.opaque", b"y")]),
        ("steering attribute on a link", vec![Entry::symlink("a", "b").xattr("trusted.x", b"y")]),
        ("huge attribute", vec![Entry::file("a", b"").xattr("user.x", &vec![b'x'; 70_000])]),
        ("bad capability", vec![Entry::file("a", b"").xattr("security.capability", b"junk")]),
        ("huge extended header", vec![Entry::file("a", b"").pax("comment", &vec![b'x'; 2 << 20])]),
        ("owner beyond ids", vec![Entry::file("a", b"").pax("uid", b"4294967295")]),
        (
            "circle of links",
            vec![Entry::symlink("a", "b"), Entry::symlink("b", "a"), Entry::file("a/x", b"")],
        ),
        ("file as parent", vec![Entry::file("a", b""), Entry::file("a/x", b"")]),
        ("root is a file", vec![Entry::file("x", b"").pax("path", b"/")]),
        ("absurd size", vec![Entry::file("a", b"").pax("size", b"18446744073709551615")]),
        ("size beyond the end", vec![Entry::file("a", b"").pax("size", b"1000000")]),
    ];
    for (what, entries) in cases {
        let store = Store::new();
        let error = store.import(&entries).await.expect_err(what);
        assert_eq!(error.to_core().code, Code::ImageInvalid, "{what}: {error}");
        store.assert_clean(what);
        assert_eq!(text(Path::new(&victim)), "safe", "{what}");
    }
}

#[tokio::test]
async fn links_of_the_archive_stay_inside() {
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().display().to_string();
    let store = Store::new();
    let root = store
        .import(&[
            Entry::symlink("abs", &out),
            Entry::file("abs/one", b"1"),
            Entry::dir("sub"),
            Entry::symlink("sub/up", "../../../../../../up"),
            Entry::file("sub/up/two", b"2"),
            Entry::file("/absolute", b"3"),
            // A directory turns into a link under an open path.
            Entry::dir("turn"),
            Entry::file("turn/first", b"4"),
            Entry::symlink("turn", &out),
            Entry::file("turn/second", b"5"),
        ])
        .await
        .unwrap();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "nothing got out");
    assert_eq!(text(&root.join(out.trim_start_matches('/')).join("one")), "1");
    assert_eq!(text(&root.join("up/two")), "2");
    assert_eq!(text(&root.join("absolute")), "3");
    assert_eq!(text(&root.join(out.trim_start_matches('/')).join("second")), "5");
    assert!(root.join("turn").is_symlink());
}

#[tokio::test]
async fn odd_archives_come_out_right() {
    let store = Store::new();
    let long = format!("{}/{}", "a".repeat(200), "b".repeat(200));
    let capability = [1, 0, 0, 2, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let root = store
        .import(&[
            Entry::file("set", b"x").mode(0o6755).owner(3, 4).xattr("security.capability", &capability),
            Entry::file("twice", b"old"),
            Entry::file("twice", b"new"),
            Entry::device("dev/null"),
            Entry::fifo("pipe"),
            Entry::file(&long, b"long"),
            Entry::file("kind", b"file"),
            Entry::dir("kind"),
            Entry::file(".wh.gone", b""),
            Entry::dir("mixed"),
            Entry::file(".wh.mixed", b""),
            Entry::file("one", b"linked"),
            Entry::hardlink("two", "one"),
            Entry::hardlink("two", "one"),
            Entry::file("time", b"").pax("mtime", b"-1.5"),
            Entry::file("label", b"").xattr("security.selinux", b"ignored"),
        ])
        .await
        .unwrap();
    let meta = |name: &str| std::fs::symlink_metadata(root.join(name)).unwrap();
    assert_eq!(
        (meta("set").permissions().mode() & 0o7777, meta("set").uid(), meta("set").gid()),
        (0o6755, 3, 4)
    );
    let mut value = [0; 64];
    let n = rustix::fs::lgetxattr(root.join("set"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(value[..n], capability);
    assert_eq!(text(&root.join("twice")), "new");
    assert!(!root.join("dev/null").is_symlink() && std::fs::symlink_metadata(root.join("dev/null")).is_err());
    assert!(meta("pipe").file_type().is_fifo());
    assert_eq!(text(&root.join(&long)), "long");
    assert!(meta("gone").file_type().is_char_device() && meta("gone").rdev() == 0);
    for opaque in ["kind", "mixed"] {
        let n = rustix::fs::lgetxattr(root.join(opaque), "trusted.overlay.opaque", &mut value[..]).unwrap();
        assert_eq!(value[..n], *b"y", "{opaque}");
    }
    assert_eq!((meta("one").ino(), meta("one").nlink()), (meta("two").ino(), 2));
    assert_eq!((meta("time").mtime(), meta("time").mtime_nsec()), (-2, 500_000_000));
}

#[tokio::test]
async fn sparse_files_of_gnu_tar() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sparse");
    atoll_testing::run(std::process::Command::new("truncate").args(["-s", "300K"]).arg(&file));
    for format in ["--format=gnu", "--format=pax"] {
        let mut content = vec![0; 300 << 10];
        for at in (0..300 << 10).step_by(20 << 10) {
            use std::os::unix::fs::FileExt as _;
            std::fs::OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .write_all_at(b"data", at as u64)
                .unwrap();
            content[at..at + 4].copy_from_slice(b"data");
        }
        let mut tar = std::process::Command::new("tar");
        let bytes =
            atoll_testing::run(tar.current_dir(dir.path()).args(["-cS", format, "-f", "-", "sparse"]));
        assert!(bytes.len() < 200 << 10, "it is stored sparsely");
        let root = Store::new();
        let path = root.import_bytes(bytes).await.unwrap().join("sparse");
        assert!(std::fs::read(path).unwrap() == content, "{format}");
    }
}

#[tokio::test]
async fn bombs_do_not_go_off() {
    let store = Store::with(Settings { unpacked_max_bytes: 1 << 20, ..Settings::default() });
    let exact = vec![Entry::file("a", &vec![0; 1 << 20])];
    store.import(&exact).await.unwrap();
    let store = Store::with(Settings { unpacked_max_bytes: 1 << 20, ..Settings::default() });
    let beyond = vec![Entry::file("a", &vec![0; 1 << 20]), Entry::file("b", b"x")];
    let error = store.import(&beyond).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::ImageInvalid);
    store.assert_clean("too large");

    let mut sparse = Entry::file("a", b"x").pax("GNU.sparse.map", b"0,1");
    sparse = sparse.pax("GNU.sparse.size", b"1099511627776");
    let error = store.import(&[sparse]).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::ImageInvalid, "{error}");
    store.assert_clean("a huge hole");
}

#[tokio::test]
async fn what_is_no_archive() {
    let whole = tar_of(&[Entry::file("a", &[7; 2000])]);
    let mut checksum = whole.clone();
    checksum[0] = b'b';
    for (what, bytes) in [
        ("text", b"hello, this is no archive at all".to_vec()),
        ("cut off in a header", whole[..300].to_vec()),
        ("cut off in data", whole[..1000].to_vec()),
        ("wrong checksum", checksum),
        ("damaged gzip", vec![0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ("damaged zstd", vec![0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3, 4, 5]),
        ("xz", vec![0xfd, b'7', b'z', b'X', b'Z', 0]),
    ] {
        let store = Store::new();
        let error = store.import_bytes(bytes).await.expect_err(what);
        assert_eq!(error.to_core().code, Code::ImageInvalid, "{what}: {error}");
        store.assert_clean(what);
    }
}

/// The blocks of zeros at the end, and what fills the block before them.
#[tokio::test]
async fn what_some_writers_leave_out_is_not_missed() {
    let whole = tar_of(&[Entry::file("a", &[7; 2000])]);
    for end in [512 + 2000, 512 + 2001, 512 + 2048, whole.len()] {
        let store = Store::new();
        let root = store.import_bytes(whole[..end].to_vec()).await.unwrap();
        assert_eq!(std::fs::read(root.join("a")).unwrap(), [7; 2000], "{end}");
    }
    let store = Store::new();
    assert!(store.import_bytes(whole[..512 + 1999].to_vec()).await.is_err());
}

/// A file system in memory as the store, mounted with `options`; gives what importing `bytes` there was refused with.
async fn refused_on(options: &str, bytes: Vec<u8>) -> ImageError {
    let dir = tempfile::Builder::new().prefix("atoll-full-").tempdir().unwrap();
    let mount = dir.path().join("disk");
    std::fs::create_dir(&mount).unwrap();
    let mut command = std::process::Command::new("mount");
    atoll_testing::run(command.args(["-t", "tmpfs", "-o", options, "atoll-test"]).arg(&mount));
    let images = Images::open(&mount.join("images")).unwrap();
    let error = images.import("big", std::io::Cursor::new(bytes)).await.unwrap_err();
    let left = std::fs::read_dir(mount.join("images/tmp")).unwrap().count();
    drop(images);
    atoll_testing::run(std::process::Command::new("umount").arg(&mount));
    assert_eq!(left, 0);
    error
}

#[tokio::test]
async fn a_full_disk_says_so_and_is_cleaned() {
    let error = refused_on("size=4m", tar_of(&[Entry::file("a", &vec![1; 8 << 20])])).await;
    assert_eq!(error.to_core().code, Code::HostDiskFull, "{error}");
}

/// An image of empty files ends before the host has no inodes for anything else.
#[tokio::test]
async fn inodes_are_left_for_others() {
    let names: Vec<String> = (0..32_000).map(|number| number.to_string()).collect();
    let files: Vec<Entry> = names.iter().map(|name| Entry::file(name, b"")).collect();
    let error = refused_on("nr_inodes=32768", tar_of(&files)).await;
    assert_eq!(error.to_core().code, Code::HostDiskFull, "{error}");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("inodes"), "{why}");
}
