//! Pulling from real registries.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::collections::BTreeSet;
use std::path::Path;

use atoll_core::Code;
use atoll_core::secret::Secret;
use atoll_image::{Credentials, ImageError, Images, NoProgress, Platform, PullOptions, Reach, Settings};
use atoll_testing::{Entry, Flavour, Layout, PASSWORD, Registry, USERNAME};

/// The registries of these tests are here.
fn on_this_host() -> Settings {
    Settings { reach: Reach::new(vec!["127.0.0.0/8".parse().unwrap()]), ..Settings::default() }
}

fn images() -> (tempfile::TempDir, Images) {
    let dir = tempfile::Builder::new().prefix("atoll-images-").tempdir().unwrap();
    let images = Images::open_with(dir.path(), on_this_host()).unwrap();
    (dir, images)
}

fn layers() -> Vec<Vec<Entry>> {
    let base = vec![
        Entry::dir("./"),
        Entry::dir("bin"),
        Entry::file("bin/tool", b"first").mode(0o4755),
        Entry::dir("etc"),
        Entry::file("etc/gone", b"x"),
        Entry::file("etc/keep", b"keep").owner(7, 8),
        Entry::dir("opt"),
        Entry::file("opt/old", b"old"),
        Entry::dir("tmp").mode(0o1777),
        Entry::symlink("lib", "usr/lib"),
        Entry::dir("usr"),
        Entry::dir("usr/lib"),
    ];
    let middle = vec![
        Entry::file("etc/.wh.gone", b""),
        Entry::dir("opt"),
        Entry::file("opt/.wh..wh..opq", b""),
        Entry::file("opt/new", b"new").xattr("user.note", b"a\nb"),
        Entry::hardlink("opt/same", "opt/new"),
    ];
    let top =
        vec![Entry::file("lib/inner", b"inner"), Entry::file("tmp/file", b"t"), Entry::fifo("tmp/pipe")];
    vec![base, middle, top]
}

fn layout() -> Layout {
    Layout::new(&layers()).config(&["--config.env=A=b", "--config.user=7:8", "--config.workingdir=/opt"])
}

/// Type, mode, owner, size or target of everything in a tree.
fn listing(dir: &Path) -> Vec<String> {
    let out = atoll_testing::run(std::process::Command::new("find").current_dir(dir).args([
        ".",
        "-mindepth",
        "1",
        "-printf",
        "%P %y %m %U:%G %l ",
        "(",
        "-type",
        "f",
        "-printf",
        "%n %s %T@",
        ",",
        "-printf",
        "\\n",
        ")",
    ]));
    let mut lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// An overlay of the layers, mounted for as long as this lives.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(image: &atoll_image::Image) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-mount-").tempdir().unwrap();
        let empty = dir.path().join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        std::fs::create_dir(dir.path().join("merged")).unwrap();
        let lowers: Vec<_> =
            image.layers.iter().rev().chain([&empty]).map(|p| p.display().to_string()).collect();
        let options = format!("lowerdir={}", lowers.join(":"));
        atoll_testing::run(
            std::process::Command::new("mount")
                .args(["-t", "overlay", "atoll-test", "-o", &options])
                .arg(dir.path().join("merged")),
        );
        Self(dir)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("merged")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.path()).status());
    }
}

#[tokio::test]
async fn an_image_is_pulled_once_and_looks_as_umoci_unpacks_it() {
    let registry = Registry::start(Flavour::Open);
    let layout = layout();
    let (_dir, images) = images();
    for (tag, extra) in [("app:gzip", &[][..]), ("app:zstd", &["--dest-compress-format=zstd"][..])] {
        let reference = registry.push(&layout.source(), tag, extra);
        let image = images.pull(&reference, &PullOptions::default(), &NoProgress).await.unwrap();
        assert_eq!(images.resolve(&reference).unwrap(), image);
        assert_eq!(images.resolve(&image.digest.hex()[..12]).unwrap(), image);
        assert_eq!(image.defaults.env["A"], "b");
        assert_eq!(image.defaults.workdir.as_deref(), Some("/opt"));
        assert_eq!(image.layers.len(), 3);

        let expected = tempfile::tempdir().unwrap();
        layout.unpack_to(&expected.path().join("root"));
        let mounted = Mounted::new(&image);
        assert_eq!(listing(&mounted.path()), listing(&expected.path().join("root")), "{tag}");
        assert!(mounted.path().join("usr/lib/inner").is_file(), "a parent below is a link");
    }
}

#[tokio::test]
async fn passwords_are_asked_for_and_never_shown() {
    let registry = Registry::start(Flavour::Password);
    let reference = registry.push(&layout().source(), "app:1", &[]);
    let (_dir, images) = images();
    let with = |credentials| PullOptions { credentials, ..PullOptions::default() };
    let basic = |password: &str| {
        Some(Credentials::Basic { username: USERNAME.into(), password: Secret::new(password) })
    };
    for (credentials, works) in [(None, false), (basic("wrong secret"), false), (basic(PASSWORD), true)] {
        let given = credentials.is_some();
        match images.pull(&reference, &with(credentials), &NoProgress).await {
            Ok(_) => assert!(works),
            Err(error) => {
                assert!(!works, "{error}");
                assert!(
                    matches!(&error, ImageError::RegistryDenied { with_credentials, .. } if *with_credentials == given)
                );
                let shown = format!("{error:?} {:?}", error.to_core());
                assert!(!shown.contains("wrong secret"), "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn a_private_authority_must_be_given() {
    let registry = Registry::start(Flavour::Tls);
    let reference = registry.push(&layout().source(), "app:1", &[]);
    let (_dir, images) = images();
    let error = images.pull(&reference, &PullOptions::default(), &NoProgress).await.unwrap_err();
    assert!(matches!(error, ImageError::RegistryUntrusted { .. }), "{error:?}");
    let options = PullOptions { extra_ca_pem: Some(registry.ca_pem()), ..PullOptions::default() };
    images.pull(&reference, &options, &NoProgress).await.unwrap();
    let options = PullOptions { extra_ca_pem: Some("nonsense".into()), ..PullOptions::default() };
    let error = images.pull(&reference, &options, &NoProgress).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::InvalidArgument);
}

#[tokio::test]
async fn what_is_not_there_says_so() {
    let registry = Registry::start(Flavour::Open);
    let reference = registry.push(&layout().source(), "app:1", &[]);
    let (_dir, images) = images();
    let host = registry.host();
    for absent in [format!("{host}/nothing:1"), format!("{host}/app:2")] {
        let error = images.pull(&absent, &PullOptions::default(), &NoProgress).await.unwrap_err();
        assert_eq!(error.to_core().code, Code::RegistryImageNotFound, "{error}");
    }
    let platform = Some("linux/s390x".parse().unwrap());
    let options = PullOptions { platform, ..PullOptions::default() };
    let error = images.pull(&reference, &options, &NoProgress).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::ImagePlatformMismatch, "{error}");
    assert!(matches!(images.resolve(&reference), Err(ImageError::NotFound(_))));
}

#[tokio::test]
async fn images_survive_and_go_when_nobody_needs_them() {
    let registry = Registry::start(Flavour::Open);
    let reference = registry.push(&layout().source(), "app:1", &[]);
    let (dir, images) = images();
    let image = images.pull(&reference, &PullOptions::default(), &NoProgress).await.unwrap();
    assert!(matches!(Images::open(dir.path()), Err(ImageError::Locked(_))));
    drop(images);
    std::fs::write(dir.path().join("tmp/left"), b"x").unwrap();
    std::fs::write(dir.path().join("partial/left"), b"xyz").unwrap();

    let images = Images::open_with(dir.path(), on_this_host()).unwrap();
    assert_eq!(images.resolve(&reference).unwrap(), image);
    assert!(!dir.path().join("tmp/left").try_exists().unwrap());
    let tagged = images.tag(&image.digest, "mine").await.unwrap();
    assert_eq!(tagged.names, [reference.as_str(), "mine"]);
    let in_use = BTreeSet::from([image.digest.clone()]);
    let removed = images.remove(&reference, &in_use).await.unwrap();
    assert_eq!((removed.names, removed.image), (vec![reference], None), "only a name goes");
    assert!(matches!(images.remove("mine", &in_use).await, Err(ImageError::InUse(_))));
    assert_eq!(images.prune(&in_use).await.unwrap(), 3, "the partial file");
    let removed = images.remove("mine", &BTreeSet::new()).await.unwrap();
    assert_eq!(removed.image, Some(image.digest.clone()));
    assert_eq!(removed.freed_bytes, image.size_bytes);
    assert_eq!(std::fs::read_dir(dir.path().join("layers")).unwrap().count(), 0);
    assert!(images.list().is_empty());
}

#[tokio::test]
async fn an_index_gives_the_image_of_the_platform() {
    let registry = Registry::start(Flavour::Open);
    let (_dir, images) = images();
    let at = |text: &str| PullOptions { platform: Some(text.parse().unwrap()), ..PullOptions::default() };
    let mut entries = Vec::new();
    for (name, platform) in [("other", "linux/s390x".to_owned()), ("own", Platform::host().to_string())] {
        let architecture = platform.trim_start_matches("linux/");
        let layout =
            layout().config(&["--architecture", architecture, "--config.label", &format!("is={name}")]);
        let reference = registry.push(&layout.source(), &format!("app:{name}"), &[]);
        let image = images.pull(&reference, &at(&platform), &NoProgress).await.unwrap();
        entries.push(serde_json::json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": image.digest, "size": 1,
            "platform": { "os": "linux", "architecture": architecture },
        }));
    }
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "manifests": entries });
    let url = format!("http://{}/v2/app/manifests/multi", registry.host());
    let put = reqwest::Client::new().put(url).header("content-type", kind).body(index.to_string());
    assert!(put.send().await.unwrap().status().is_success());

    let reference = format!("{}/app:multi", registry.host());
    for (options, expected) in [(PullOptions::default(), "own"), (at("linux/s390x"), "other")] {
        let image = images.pull(&reference, &options, &NoProgress).await.unwrap();
        assert_eq!(image.labels["is"], expected);
        assert_eq!(images.resolve(&reference).unwrap(), image, "the name moves");
    }
    let error = images.pull(&reference, &at("linux/riscv64"), &NoProgress).await.unwrap_err();
    assert_eq!(error.to_core().code, Code::ImagePlatformMismatch);
    assert!(error.to_string().contains("linux/s390x"), "{error}");
}
