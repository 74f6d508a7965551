//! A world outside: servers with a private authority, a name server that knows where everything is, and the
//! way there. All of it on the loopback: an upstream proxy stands for the internet.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use atoll_testing::run;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// The secret that the servers outside want to see.
pub(crate) const SECRET: &str = "s3cret/of+the=world-7f3a9c";
/// The public address that every name has.
pub(crate) const ADDRESS: [u8; 4] = [93, 184, 216, 34];

/// The world.
pub(crate) struct World {
    dir: TempDir,
    origin: Child,
    _stdin: ChildStdin,
    /// Arguments for a server that lives in it.
    pub(crate) args: Vec<String>,
}

impl World {
    /// Makes one. Tasks of the current runtime are part of it.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-world-").tempdir_in("/var/tmp").unwrap();
        certificates(dir.path());
        repository(dir.path());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/origin.py");
        let mut origin = Command::new("/usr/bin/python3")
            .arg(script)
            .args([dir.path().join("leaf.pem"), dir.path().join("leaf.key"), dir.path().to_owned()])
            .env("SECRET", SECRET)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(origin.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().expect("a port");
        let stdin = origin.stdin.take().unwrap();
        let (names, proxy) = (serve_names().await, serve_proxy(port).await);
        let ca = dir.path().join("ca.pem").display().to_string();
        let args = vec![
            "--resolver".to_owned(),
            names,
            "--egress-proxy".to_owned(),
            format!("http://{proxy}"),
            "--upstream-ca".to_owned(),
            ca,
        ];
        Self { dir, origin, _stdin: stdin, args }
    }

    /// Arguments for a server that lives in it.
    pub(crate) fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    /// A place for files of a test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.origin.kill());
        drop(self.origin.wait());
    }
}

/// An authority (`ca.pem`) and a certificate of it for `*.example.com` (`leaf.pem`, `leaf.key`).
pub(crate) fn certificates(dir: &Path) {
    let openssl = |args: &[&str]| run(Command::new("openssl").args(args).current_dir(dir));
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let mut ca =
        vec!["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=World", "-days", "2"];
    ca.extend(key);
    openssl(&ca);
    let mut request = vec!["req", "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=leaf"];
    request.extend(key);
    openssl(&request);
    std::fs::write(dir.join("ext"), "subjectAltName=DNS:*.example.com\n").unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        "leaf.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "ext",
        "-out",
        "leaf.pem",
    ]);
}

/// A repository with one commit, at `repo.git`.
fn repository(dir: &Path) {
    let git = |args: &[&str], at: &Path| {
        run(Command::new("/usr/bin/git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
            .args(args)
            .current_dir(at)
            .env("GIT_CONFIG_NOSYSTEM", "1"));
    };
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    git(&["init", "-q"], &work);
    std::fs::write(work.join("README"), "hello\n").unwrap();
    git(&["add", "README"], &work);
    git(&["commit", "-q", "-m", "first"], &work);
    git(&["clone", "-q", "--bare", "work", "repo.git"], dir);
    git(&["config", "http.receivepack", "true"], &dir.join("repo.git"));
}

/// Answers every question for an IPv4 address with [`ADDRESS`].
async fn serve_names() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((count, from)) = socket.recv_from(&mut buffer).await {
            let question = &buffer[12..count];
            let name_end = question.iter().position(|byte| *byte == 0).unwrap_or(0) + 1;
            let is_a = question.get(name_end..name_end + 2) == Some(&[0, 1]);
            let question = &question[..name_end + 4];
            let mut answer = buffer[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            answer.extend(question);
            if is_a {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(ADDRESS);
            }
            drop(socket.send_to(&answer, from).await);
        }
    });
    address
}

/// A proxy that leads every connection to the servers of this world.
async fn serve_proxy(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut client = tokio::io::BufStream::new(client);
                let mut line = String::new();
                while client.read_line(&mut line).await.is_ok_and(|count| count > 2) {
                    line.clear();
                }
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                client.flush().await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    address
}
