//! Loading saved images and importing root file systems.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use atoll_core::Code;
use atoll_image::{Images, NoProgress};
use atoll_testing::{Entry, Layout, run, tar_of};

fn images() -> (tempfile::TempDir, Images) {
    let dir = tempfile::Builder::new().prefix("atoll-images-").tempdir().unwrap();
    let images = Images::open(dir.path()).unwrap();
    (dir, images)
}

fn layout() -> Layout {
    let layers = [vec![Entry::file("a", b"one")], vec![Entry::file(".wh.a", b""), Entry::file("b", b"two")]];
    Layout::new(&layers).config(&["--config.env=A=b"])
}

fn skopeo(source: &str, destination: &str) {
    run(Command::new("skopeo").args(["--insecure-policy", "copy", "--quiet", source, destination]));
}

#[tokio::test]
async fn every_form_gives_the_same_image() {
    let layout = layout();
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    skopeo(&layout.source(), &format!("oci-archive:{}", at("oci.tar").display()));
    skopeo(&layout.source(), &format!("docker-archive:{}:me/app:1", at("docker.tar").display()));
    run(Command::new("gzip").arg("-k").arg(at("docker.tar")));
    let (_dir, images) = images();
    let load = async |path: &Path, name| images.load(path, name, &NoProgress).await.unwrap().remove(0);

    let from_dir = load(&layout.directory(), Some("from-dir")).await;
    assert_eq!(from_dir.names, ["from-dir"]);
    assert_eq!(from_dir.defaults.env["A"], "b");
    let from_tar = load(&at("oci.tar"), None).await;
    assert_eq!(from_tar.layers, from_dir.layers);
    let docker = load(&at("docker.tar"), None).await;
    assert_eq!(docker.names, ["docker.io/me/app:1"]);
    assert_eq!(docker.layers, from_dir.layers, "prepared once");
    assert_eq!(images.resolve("me/app:1").unwrap(), docker);
    assert_eq!(load(&at("docker.tar.gz"), None).await, docker, "the same digest each time");

    let file = tokio::io::BufReader::new(std::io::Cursor::new(std::fs::read(at("docker.tar.gz")).unwrap()));
    let streamed = images.load_stream(file, None, &NoProgress).await.unwrap();
    assert_eq!(streamed, [docker]);
}

/// Nodes unpack a layer at different times, and a machine that moves remembers what it saw of it: also of directories that
/// the archive does not mention.
#[tokio::test]
async fn a_layer_is_the_same_whenever_it_is_unpacked() {
    let entries = vec![
        Entry::file("a", b"").pax("mtime", b"1000"),
        Entry::file("not/told/of", b"").pax("mtime", b"2000.5"),
    ];
    let layout = Layout::new(&[entries]);
    let (_dir, images) = images();
    let loaded = images.load(&layout.directory(), Some("one"), &NoProgress).await.unwrap().remove(0);
    for path in ["", "not", "not/told", "not/told/of"] {
        let found = loaded.layers[0].join(path).symlink_metadata().unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (2000, 500_000_000), "{path:?}");
    }
}

#[tokio::test]
async fn a_damaged_layout_is_refused() {
    let layout = layout();
    let blobs = layout.directory().join("blobs/sha256");
    let paths: Vec<_> = std::fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in paths {
        let whole = std::fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let (dir, images) = images();
        let loaded = images.load(&layout.directory(), Some("x"), &NoProgress).await;
        // Blobs of earlier states of the image belong to nothing.
        if let Err(error) = loaded {
            let code = error.to_core().code;
            assert!([Code::DigestMismatch, Code::ImageInvalid].contains(&code), "{error}");
            assert!(images.list().is_empty());
            assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
        }
        std::fs::remove_file(&path).unwrap();
        let gone = images.load(&layout.directory(), Some("x"), &NoProgress).await;
        if let Err(error) = gone {
            assert_eq!(error.to_core().code, Code::ImageInvalid, "{error}");
        }
        std::fs::write(&path, whole).unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_loaded() {
    let (_dir, images) = images();
    let work = tempfile::tempdir().unwrap();
    let outside = work.path().join("secret.json");
    std::fs::write(&outside, "{}").unwrap();
    let layout = work.path().join("layout");
    std::fs::create_dir(&layout).unwrap();
    std::os::unix::fs::symlink(&outside, layout.join("index.json")).unwrap();
    let escape = br#"[{"Config":"../../etc/passwd","RepoTags":null,"Layers":["x"]}]"#;
    for (what, bytes) in [
        ("empty", tar_of(&[])),
        ("nothing known", tar_of(&[Entry::file("hello", b"x")])),
        ("no list", tar_of(&[Entry::file("manifest.json", b"{}")])),
        ("a name that leads out", tar_of(&[Entry::file("manifest.json", escape)])),
        ("links in a circle", tar_of(&[Entry::symlink("manifest.json", "manifest.json")])),
        (
            "an index of nothing",
            tar_of(&[Entry::file("index.json", br#"{"schemaVersion":2,"manifests":[]}"#)]),
        ),
    ] {
        let error = images.load_stream(std::io::Cursor::new(bytes), None, &NoProgress).await.expect_err(what);
        assert_eq!(error.to_core().code, Code::ImageInvalid, "{what}: {error}");
    }
    let error = images.load(&layout, None, &NoProgress).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::ImageInvalid, "a link out of the layout: {error}");
}

#[tokio::test]
async fn an_imported_root_has_its_name() {
    let (_dir, images) = images();
    let tar = tar_of(&[Entry::dir("./"), Entry::file("etc/hello", b"hi")]);
    let image = images.import("my-root", std::io::Cursor::new(tar.clone())).await.unwrap();
    assert_eq!(images.resolve("my-root").unwrap(), image);
    assert_eq!(std::fs::read_to_string(image.layers[0].join("etc/hello")).unwrap(), "hi");
    let again = images.import("other:1", std::io::Cursor::new(tar)).await.unwrap();
    assert_eq!(again.digest, image.digest);
    assert_eq!(again.names, ["docker.io/library/other:1", "my-root"]);
    let error = images.import("Bad Name", std::io::Cursor::new(Vec::new())).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::InvalidArgument);
}
