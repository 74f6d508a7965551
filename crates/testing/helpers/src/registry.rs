//! Debian's `docker-registry` on the loopback.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Child, free_port, run, wait_for};

/// User of a registry with [`Flavour::Password`].
pub const USERNAME: &str = "atoll";
/// The password.
pub const PASSWORD: &str = "correct horse";

/// How a registry is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Plain HTTP for every client.
    Open,
    /// Plain HTTP with user name and password.
    Password,
    /// HTTPS with a certificate of a private authority.
    Tls,
}

/// A running registry; it ends, and its images go, when this is dropped.
#[derive(Debug)]
pub struct Registry {
    flavour: Flavour,
    port: u16,
    dir: TempDir,
    _process: Child,
}

impl Registry {
    /// Starts a registry on a free port and waits until it serves.
    #[must_use]
    pub fn start(flavour: Flavour) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-registry-").tempdir().expect("a directory");
        let port = free_port();
        let config = dir.path().join("config.yml");
        fs::write(&config, configuration(flavour, port, dir.path())).expect("write a configuration");
        let mut process = Child::start(Command::new("docker-registry").arg("serve").arg(&config));
        wait_for("a registry", || {
            assert!(!process.ended(), "the registry ended");
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self { flavour, port, dir, _process: process }
    }

    /// Host and port.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the private authority, PEM, with [`Flavour::Tls`].
    #[must_use]
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.dir.path().join("ca.pem")).expect("a registry with TLS")
    }

    /// Copies an image into the registry with skopeo: `source` is such as `oci:DIR:TAG`, `name` such as
    /// `app:1`. Gives the full reference.
    pub fn push(&self, source: &str, name: &str, extra: &[&str]) -> String {
        let reference = format!("{}/{name}", self.host());
        let mut command = Command::new("skopeo");
        command.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]).args(extra);
        if self.flavour == Flavour::Password {
            command.arg(format!("--dest-creds={USERNAME}:{PASSWORD}"));
        }
        run(command.arg(source).arg(format!("docker://{reference}")));
        reference
    }

    /// Where the registry keeps its blobs, for tests that damage them.
    #[must_use]
    pub fn storage(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

fn configuration(flavour: Flavour, port: u16, dir: &Path) -> String {
    let data = dir.join("data");
    let mut text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n",
        data.display()
    );
    match flavour {
        Flavour::Open => {}
        Flavour::Password => {
            let line = run(Command::new("htpasswd").args(["-nbB", USERNAME, PASSWORD]));
            let file = dir.join("htpasswd");
            fs::write(&file, line).expect("write a password file");
            text.extend(["auth: {htpasswd: {realm: test, path: ", &file.to_string_lossy(), "}}\n"]);
        }
        Flavour::Tls => certificates(dir),
    }
    text.extend(["http: {addr: '127.0.0.1:", &port.to_string(), "'"]);
    if flavour == Flavour::Tls {
        let (pem, key) = (dir.join("server.pem"), dir.join("server.key"));
        text.extend([
            ", tls: {certificate: ",
            &pem.to_string_lossy(),
            ", key: ",
            &key.to_string_lossy(),
            "}",
        ]);
    }
    text.push_str("}\n");
    text
}

fn certificates(dir: &Path) {
    let openssl = |args: &[&str]| {
        run(Command::new("openssl").current_dir(dir).args(args));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let ca =
        ["-x509", "-days", "2", "-subj", "/CN=atoll test authority", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&["req"], &key[..], &ca[..]].concat());
    let request = ["-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"];
    openssl(&[&["req"], &key[..], &request[..]].concat());
    fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").expect("write a file");
    let sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext"];
    openssl(&[&["x509", "-req", "-in", "server.csr", "-out", "server.pem"], &sign[..]].concat());
}
