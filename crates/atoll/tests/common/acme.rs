//! A real server of ACME: Pebble, the one that Let's Encrypt has for tests, with a DNS server whose records a program sets.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_testing::run;
use serde_json::json;
use tempfile::TempDir;

/// The domain.
pub(crate) const DOMAIN: &str = "boxes.test";
/// A domain that no certificate is issued for.
pub(crate) const BLOCKED: &str = "blocked.test";

/// Settings that differ from the ordinary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Life of certificates, seconds.
    pub(crate) life_s: u64,
    /// Accounts must be bound to external accounts.
    pub(crate) external: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { life_s: 90 * 86_400, external: false }
    }
}

/// The server of ACME, with its DNS server and files.
pub(crate) struct Pebble {
    dir: TempDir,
    port: u16,
    management: u16,
    names: Child,
    records: u16,
    dns: u16,
    /// Where it asks for challenges over HTTP.
    pub(crate) http: u16,
    process: Option<Child>,
}

fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Pebble {
    /// Prepares one that does not run yet; its names are served.
    pub(crate) fn prepare(wanted: Wanted) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-acme-").tempdir_in("/var/tmp").unwrap();
        let [port, management, http, records, dns, tls] = std::array::from_fn(|_| free_port());
        certificate(dir.path());
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": dir.path().join("leaf.pem"),
            "privateKey": dir.path().join("leaf.key"),
            "httpPort": http,
            "tlsPort": tls,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": wanted.external,
            "externalAccountMACKeys": {"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"},
            "domainBlocklist": [BLOCKED],
            "certificateValidityPeriod": wanted.life_s,
        }});
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::write(
            dir.path().join("eab.key"),
            "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W\n",
        )
        .unwrap();
        let names = Command::new("pebble-challtestsrv")
            .args(["-dns01", &format!("127.0.0.1:{dns}"), "-management", &format!("127.0.0.1:{records}")])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pebble is not installed: scripts/install-deps");
        hook(dir.path(), records);
        Self { dir, port, management, names, records, dns, http, process: None }
    }

    /// Prepares and starts one.
    pub(crate) fn start(wanted: Wanted) -> Self {
        let mut made = Self::prepare(wanted);
        made.begin();
        made
    }

    /// Starts it; everything that an earlier one knew is gone.
    pub(crate) fn begin(&mut self) {
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut command = Command::new("pebble");
        command.args(["-strict", "-config"]).arg(self.path("config.json"));
        command.args(["-dnsserver", &format!("127.0.0.1:{}", self.dns)]);
        command
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .env("PEBBLE_AUTHZREUSE", "0");
        let both = (log.try_clone().unwrap(), log);
        let started = command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).spawn();
        self.process = Some(started.expect("pebble is not installed: scripts/install-deps"));
        for port in [self.port, self.management, self.records] {
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }

    /// `kill -9`.
    pub(crate) fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// A place for files.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Arguments for a server that asks it.
    pub(crate) fn args(&self, domain: &str) -> Vec<String> {
        let mut args: Vec<String> =
            ["--acme", "--acme-agree-tos", "--acme-email", "ops@example.com", "--domain", domain]
                .map(str::to_owned)
                .into();
        args.extend(["--acme-directory".to_owned(), format!("https://127.0.0.1:{}/dir", self.port)]);
        args.extend(["--acme-ca".to_owned(), self.path("ca.pem").display().to_string()]);
        args
    }

    /// Arguments for challenges by records.
    pub(crate) fn dns_args(&self) -> [String; 4] {
        let hook = self.path("hook").display().to_string();
        ["--acme-dns-hook".to_owned(), hook, "--acme-dns-wait".to_owned(), "0s".to_owned()]
    }

    /// The root of its certificates, as a file.
    pub(crate) fn root(&self) -> PathBuf {
        let path = self.path("root.pem");
        let url = format!("https://127.0.0.1:{}/roots/0", self.management);
        let pem = run(Command::new("curl").args(["-sSf", "--cacert"]).arg(self.path("ca.pem")).arg(url));
        fs::write(&path, pem).unwrap();
        path
    }

    /// Authorizations that it has made, one for each name of an order. Now and then it uses a valid one again, though it was
    /// told to do so never.
    pub(crate) fn authorizations(&self) -> usize {
        let log = fs::read_to_string(self.path("log")).unwrap();
        let told = log.lines().rev().find_map(|line| {
            line.split_once("There are now ")?.1.strip_suffix(" authorizations in the db")?.parse().ok()
        });
        told.unwrap_or_else(|| panic!("no authorization was made: {log}"))
    }

    /// The arguments of each run of the hook, a line each.
    pub(crate) fn hooks(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("hooks")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.end();
        drop(self.names.kill());
        drop(self.names.wait());
    }
}

/// An authority, and a certificate of it for this host.
fn certificate(dir: &Path) {
    let openssl = |args: &str| {
        run(Command::new("openssl").args(args.split(' ')).current_dir(dir));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 -keyout ca.key -out ca.pem -subj /CN=Pebble -days 2 {key}"));
    openssl(&format!("req -keyout leaf.key -out leaf.csr -subj /CN=leaf {key}"));
    fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        "x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out leaf.pem",
    );
}

/// A hook as people have them for lego; it fails while there is a file `broken`.
fn hook(dir: &Path, records: u16) {
    let script = format!(
        r#"#!/bin/sh
set -eu
cd {dir}
echo "$*" >>hooks
if [ -e broken ]; then cat broken >&2; exit 1; fi
case $1 in
  present) curl -sSf -d "{{\"host\": \"$2\", \"value\": \"$3\"}}" http://127.0.0.1:{records}/set-txt ;;
  cleanup) curl -sSf -d "{{\"host\": \"$2\"}}" http://127.0.0.1:{records}/clear-txt ;;
esac
"#,
        dir = dir.display()
    );
    let path = dir.join("hook");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
}
