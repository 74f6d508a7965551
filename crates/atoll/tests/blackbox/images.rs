//! Real images from real registries, through the API and the command line, and a real Debian in a sandbox.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{code, shell};
use atoll_api::{CreateSandbox, Image, ImageProgress, PullImage, RegistryCredentials};
use atoll_blackbox::Server;
use atoll_client::ClientError;
use atoll_core::Code;
use atoll_core::secret::Secret;
use atoll_testing::{Entry, Flavour, Layout, PASSWORD, Registry, USERNAME, run};
use futures::StreamExt as _;

fn layout() -> Layout {
    let second = vec![Entry::file("opt/app/hello", b"from the second layer\n").owner(1234, 1234)];
    Layout::new(&[crate::common::base_layer(), second]).config(&[
        "--config.user=app",
        "--config.env=GREETING=from the image",
        "--config.workingdir=/opt/app",
    ])
}

async fn pull(server: &Server, pull: &PullImage) -> Result<Image, ClientError> {
    let mut progress = server.client.pull_image(pull).await?;
    let mut last = None;
    while let Some(step) = progress.next().await {
        match step? {
            ImageProgress::Done { image } => last = Some(image),
            ImageProgress::Error { error } => {
                return Err(ClientError::Api { error: error.into(), request_id: None });
            }
            ImageProgress::Layer { .. } => {}
        }
    }
    Ok(last.expect("a pull ends with its image"))
}

fn plain(reference: &str) -> PullImage {
    PullImage {
        reference: reference.into(),
        credentials: None,
        platform: None,
        insecure_http: false,
        ca_pem: None,
    }
}

/// The registries of these tests are on the loopback, where a server pulls from only when it is told so.
const HERE: [&str; 2] = ["--registry-allow", "127.0.0.0/8"];

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_leads_nowhere_but_where_the_operator_wants_it() {
    let server = Server::start();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    closed.set_nonblocking(true).unwrap();
    let reference = format!("{}/app:1", closed.local_addr().unwrap());
    assert_eq!(code(pull(&server, &plain(&reference)).await), Code::Forbidden);
    let said = server.cli(&["image", "pull", &reference]);
    assert!(said.code != Some(0) && said.stderr.contains("--registry-allow"), "{said:?}");
    assert_eq!(code(pull(&server, &plain("169.254.169.254/app:1")).await), Code::Forbidden);
    assert!(closed.accept().is_err(), "nobody has connected");
    // A registry that the operator has configured.
    let locked = Registry::start(Flavour::Password);
    let layout = Layout::new(&[vec![Entry::dir("etc"), Entry::file("etc/x", b"x")]]);
    let reference = locked.push(&layout.source(), "app:1", &[]);
    assert_eq!(code(pull(&server, &plain(&reference)).await), Code::Forbidden);
    let login = ["registry", "login", "-u", USERNAME, "--password-stdin", &locked.host()];
    server.cli_with(&login, PASSWORD.as_bytes()).ok();
    server.cli(&["image", "pull", &reference]).ok();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulled_images_run_as_they_say() {
    let server = Server::with(&HERE);
    let registry = Registry::start(Flavour::Open);
    let layout = layout();
    let reference = registry.push(&layout.source(), "app:1", &[]);
    let other = registry.push(&layout.config(&["--config.env=GREETING=other"]).source(), "app:2", &[]);
    let image = pull(&server, &plain(&reference)).await.unwrap();
    let create = CreateSandbox { image: Some(reference.clone()), ..CreateSandbox::default() };
    let made = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(made.image_digest.as_deref(), Some(image.digest.as_str()));
    let seen =
        server.sh(&made.id, "id -u; echo $GREETING; cat hello; stat -c '%u %a' /opt/app /tmp; ls /").await;
    assert!(
        seen.stdout.starts_with("1234\nfrom the image\nfrom the second layer\n1234 755\n0 1777\n"),
        "{seen:?}"
    );
    assert!(!seen.stdout.contains("usr\nvar\nboot"), "{seen:?}");
    // The layers of a second image that has the same ones are there already.
    let size = || fs_bytes(&server.data().join("images"));
    let before = size();
    server.cli(&["image", "pull", &other]).ok();
    assert!(size() < before + (256 << 10), "{before} and then {}", size());
    // A file that is written in one sandbox is in no other.
    server
        .run(
            &made.id,
            atoll_api::CreateExec { user: Some("root".into()), ..shell("echo changed > /opt/app/hello") },
        )
        .await;
    assert_eq!(
        server.cli(&["run", "--image", &other, "--", "sh", "-c", "cat hello; echo $GREETING"]).ok().stdout,
        "from the second layer\nother\n"
    );
    // In use: refused. Then gone.
    let refused = server.client.remove_image(&reference).await;
    assert_eq!(code(refused), Code::ImageInUse);
    server.client.delete_sandbox(&made.id).await.unwrap();
    server.cli(&["image", "rm", &reference, &other]).ok();
    server.cli(&["image", "prune"]).ok();
    assert!(server.client.list_images().await.unwrap().items.is_empty());
    assert!(size() < 128 << 10, "{} bytes of images are left", size());
    assert_eq!(code(server.client.create_sandbox(&create).await), Code::ImageNotFound);
    server.finish().await;
}

fn fs_bytes(dir: &Path) -> u64 {
    let text = String::from_utf8(run(Command::new("du").args(["-s", "-B1"]).arg(dir))).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn registries_that_ask_for_a_password_or_have_their_own_authority() {
    let server = Server::with(&HERE);
    let layout = Layout::new(&[vec![Entry::dir("etc"), Entry::file("etc/x", b"x")]]);
    let locked = Registry::start(Flavour::Password);
    let reference = locked.push(&layout.source(), "app:1", &[]);
    assert_eq!(code(pull(&server, &plain(&reference)).await), Code::RegistryDenied);
    let with = |password: &str| PullImage {
        credentials: Some(RegistryCredentials { username: USERNAME.into(), password: Secret::new(password) }),
        ..plain(&reference)
    };
    assert_eq!(code(pull(&server, &with("wrong")).await), Code::RegistryDenied);
    let failed = server.cli(&["image", "pull", &reference]);
    assert!(failed.code == Some(125) && failed.stderr.contains("registry login"), "{failed:?}");
    server
        .cli_with(
            &["registry", "login", "-u", USERNAME, "--password-stdin", &locked.host()],
            PASSWORD.as_bytes(),
        )
        .ok();
    server.cli(&["image", "pull", &reference]).ok();
    let listed = server.cli(&["--json", "registry", "ls"]).ok().stdout;
    assert!(listed.contains(USERNAME) && !listed.contains(PASSWORD), "{listed}");
    // Sealed on disk, and not in the log.
    let grep = Command::new("grep").args(["-rlF", PASSWORD]).arg(server.data()).output().unwrap();
    assert!(grep.stdout.is_empty() && !server.log().contains(PASSWORD), "{grep:?}");
    // What is not here is pulled, and asked for once more.
    server.cli(&["image", "rm", &reference]).ok();
    let made = server.cli(&["create", "--name", "pulled", "--image", &reference, "--json"]).ok();
    assert_eq!((made.json()["name"].as_str(), made.stderr.as_str()), (Some("pulled"), ""), "{made:?}");
    server.cli(&["rm", "pulled"]).ok();
    server.cli(&["registry", "logout", &locked.host()]).ok();
    server.cli(&["image", "rm", &reference]).ok();
    pull(&server, &with(PASSWORD)).await.unwrap();
    // TLS of an authority that only we know.
    let tls = Registry::start(Flavour::Tls);
    let reference = tls.push(&layout.source(), "app:1", &[]);
    let unknown = server.cli(&["image", "pull", &reference]);
    assert!(unknown.code == Some(125) && unknown.stderr.contains("certificate authority"), "{unknown:?}");
    pull(&server, &PullImage { ca_pem: Some(tls.ca_pem()), ..plain(&reference) }).await.unwrap();
    let missing = plain(&reference.replace("app:1", "nope:1"));
    let missing = PullImage { ca_pem: Some(tls.ca_pem()), ..missing };
    assert_eq!(code(pull(&server, &missing).await), Code::RegistryImageNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_for_other_machines_and_registries_that_die() {
    let mut server = Server::with(&HERE);
    let registry = Registry::start(Flavour::Open);
    let foreign = Layout::new(&[vec![Entry::dir("etc")]]).config(&["--architecture=riscv64"]);
    let foreign = registry.push(&foreign.source(), "foreign:1", &[]);
    assert_eq!(code(pull(&server, &plain(&foreign)).await), Code::ImagePlatformMismatch);
    // A blob is damaged in the registry: found, said, and nothing of it is used.
    let mut noise = vec![0; 3_000_000];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), &mut noise).unwrap();
    let layout = Layout::new(&[vec![Entry::dir("etc"), Entry::file("etc/noise", &noise)]]);
    let good = registry.push(&layout.source(), "big:1", &[]);
    let blobs = String::from_utf8(run(Command::new("find")
        .arg(registry.storage())
        .args(["-name", "data", "-size", "+100k"])))
    .unwrap();
    let blob = blobs.lines().next().unwrap().to_owned();
    let content = fs::read(&blob).unwrap();
    let mut damaged = content.clone();
    damaged[content.len() / 2] ^= 0xff;
    fs::write(&blob, damaged).unwrap();
    assert_eq!(code(pull(&server, &plain(&good)).await), Code::DigestMismatch);
    // It is cut in the middle.
    fs::write(&blob, &content[..content.len() / 2]).unwrap();
    let cut = code(pull(&server, &plain(&good)).await);
    assert!([Code::RegistryUnavailable, Code::DigestMismatch, Code::RegistryInvalid].contains(&cut), "{cut}");
    assert!(server.client.list_images().await.unwrap().items.is_empty());
    // The server dies in the middle of a pull; after that, and with the registry whole again, it works.
    fs::write(&blob, &content).unwrap();
    let pulling = {
        let (client, reference) = (server.client.clone(), plain(&good));
        tokio::spawn(async move {
            let Ok(mut progress) = client.pull_image(&reference).await else { return };
            while progress.next().await.is_some_and(|step| step.is_ok()) {}
        })
    };
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    server.kill();
    pulling.await.unwrap();
    server.restart();
    let image = pull(&server, &plain(&good)).await.unwrap();
    assert!(!image.digest.is_empty());
    let listed = server.client.list_images().await.unwrap().items.len();
    assert_eq!(listed, 1);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_loaded_and_hostile_ones_are_not() {
    let server = Server::start();
    let layout = layout();
    let dir = tempfile::Builder::new().prefix("atoll-load-").tempdir().unwrap();
    let tar = dir.path().join("saved.tar").display().to_string();
    run(Command::new("skopeo").args([
        "--insecure-policy",
        "copy",
        "--quiet",
        &layout.source(),
        &format!("docker-archive:{tar}:saved:1"),
    ]));
    server.cli(&["image", "load", &tar]).ok();
    server.cli(&["image", "load", &layout.path()]).ok();
    let images = server.client.list_images().await.unwrap().items;
    let saved =
        images.iter().flat_map(|image| &image.names).find(|name| name.contains("saved")).unwrap().clone();
    assert_eq!(
        server.cli(&["run", "--image", &saved, "--", "cat", "hello"]).ok().stdout,
        "from the second layer\n"
    );
    for (name, entries) in [
        ("up", vec![Entry::file("../../escape", b"x")]),
        ("through", vec![Entry::symlink("out", "/var/tmp"), Entry::file("out/atoll-escape", b"x")]),
        ("link", vec![Entry::hardlink("passwd", "/etc/passwd")]),
        ("linkup", vec![Entry::hardlink("passwd", "../../../etc/passwd")]),
    ] {
        let answer = server.request("POST", &format!("/v1/images/import?name={name}"));
        let answer = server.send(answer.body(atoll_testing::tar_of(&entries))).await;
        assert!(
            !crate::common::is_there("/var/tmp/atoll-escape".as_ref())
                && !crate::common::is_there("/escape".as_ref())
        );
        // Refused, or made harmless: then it stays inside.
        if answer.status == 200 && answer.text().contains("\"done\"") {
            let layers = server.data().join("images");
            let found =
                Command::new("find").arg(&layers).args(["-samefile", "/etc/passwd"]).output().unwrap();
            assert!(found.stdout.is_empty(), "{name}: linked to the host's file");
        } else {
            assert!(answer.text().contains("image_invalid"), "{name}: {}", answer.text());
        }
    }
    let device = vec![Entry::dir("dev"), Entry::device("dev/mem"), Entry::file("x", b"x")];
    let answer = server.request("POST", "/v1/images/import?name=device");
    server.send(answer.body(atoll_testing::tar_of(&device))).await;
    let devices = run(Command::new("find").arg(server.data().join("images")).args(["-type", "c"]));
    // Whiteouts are character devices 0:0; nothing else may be.
    for path in String::from_utf8(devices).unwrap().lines() {
        let device = std::os::unix::fs::MetadataExt::rdev(&fs::symlink_metadata(path).unwrap());
        assert_eq!(device, 0, "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_debian_is_administered_inside() {
    let server = Server::start();
    // Without documentation and lists: the rest is all that the test needs.
    let made = Command::new("mmdebstrap")
        .args([
            "--quiet",
            "--variant=apt",
            "--include=sudo,adduser,passwd,login",
            "--format=tar",
            "--dpkgopt=force-unsafe-io",
        ])
        .args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/locale/*", "--aptopt=Apt::Install-Recommends \"false\""])
        .args(["--customize-hook=rm -rf $1/var/lib/apt/lists/*", release().as_str(), "-"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    server.cli_with(&["image", "import", "-", "debian"], &made.stdout).ok();
    server.cli(&["create", "--image", "debian", "--name", "box"]).ok();
    // A package of our own, made inside and installed inside.
    let package = "set -e; mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin; \
        printf 'Package: hello-atoll\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@example.com>\\nDescription: x\\n' > /tmp/p/DEBIAN/control; \
        printf '#!/bin/sh\\nset -e\\nadduser --system --group --no-create-home hellod\\ninstall -d -o hellod -g hellod /var/lib/hello\\n' > /tmp/p/DEBIAN/postinst; \
        printf '#!/bin/sh\\necho hello from a package\\n' > /tmp/p/usr/bin/hello-atoll; \
        chmod 755 /tmp/p/DEBIAN/postinst /tmp/p/usr/bin/hello-atoll; \
        dpkg-deb --root-owner-group -b /tmp/p /tmp/hello.deb; apt-get install -y /tmp/hello.deb; hello-atoll; \
        stat -c '%U %G' /var/lib/hello; dpkg -V hello-atoll; apt-get remove -y hello-atoll";
    let output = server.sh("box", package).await;
    assert!(
        output.code == Some(0) && output.stdout.contains("hello from a package\nhellod hellod\n"),
        "{output:?}"
    );
    let users = "set -e; adduser --disabled-password --gecos '' ann; echo 'ann ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ann; \
        su ann -c 'id -un; sudo id -un; sudo -u hellod id -un'; su - ann -c pwd; passwd -S ann | cut -d' ' -f2; deluser --quiet ann";
    let output = server.sh("box", users).await;
    assert!(output.stdout.contains("ann\nroot\nhellod\n/home/ann\nL\n"), "{output:?}");
    // A user without that right has none of it.
    let refused = server.sh("box", "adduser --quiet --disabled-password --gecos '' bob; su bob -c 'sudo -n id; cat /etc/shadow; mknod /tmp/n b 8 0'").await;
    assert!(refused.code != Some(0) && !refused.stdout.contains("uid=0"), "{refused:?}");
    // The owners that the package wrote on disk are users without rights on the host.
    assert_eq!(
        server.sh("box", "stat -c %u:%g /usr/bin/sudo /etc/shadow; stat -c %a /usr/bin/sudo").await.stdout,
        "0:0\n0:42\n4755\n"
    );
    server.finish().await;
}

/// The host's own release, so that the packages are the ones that are at hand.
fn release() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("bookworm");
    name.trim_matches('"').to_owned()
}
