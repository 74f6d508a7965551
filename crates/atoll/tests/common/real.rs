//! Real servers: nginx, in clear and with TLS and HTTP/2, in front of a program that speaks WebSocket and
//! sends events.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::world::certificates;

/// nginx and the servers behind it.
pub(crate) struct Real {
    dir: TempDir,
    nginx: Child,
    sockets: Child,
    _stdin: ChildStdin,
    /// Where it speaks HTTP in clear.
    pub(crate) plain: SocketAddr,
    /// Where it speaks TLS, as `*.example.com`.
    pub(crate) tls: SocketAddr,
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Real {
    pub(crate) fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-real-").tempdir_in("/var/tmp").unwrap();
        certificates(dir.path());
        std::fs::create_dir(dir.path().join("www")).unwrap();
        std::fs::write(dir.path().join("www/text"), "line of text\n".repeat(10_000)).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/sockets.py");
        let mut sockets = Command::new("/usr/bin/python3")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(sockets.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stdin = sockets.stdin.take().unwrap();
        let (web_socket, events) = line.trim().split_once(' ').expect("two ports");
        let (plain, tls) = (free_address(), free_address());
        let config = config(dir.path(), plain, tls, web_socket, events);
        std::fs::write(dir.path().join("nginx.conf"), config).unwrap();
        let nginx = Command::new("/usr/sbin/nginx")
            .args(["-e", "stderr", "-c"])
            .arg(dir.path().join("nginx.conf"))
            .stderr(std::fs::File::create(dir.path().join("errors")).unwrap())
            .spawn()
            .expect("nginx is needed");
        let real = Self { dir, nginx, sockets, _stdin: stdin, plain, tls };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(real.tls).is_err() {
            assert!(Instant::now() < deadline, "nginx does not start: {}", real.read("errors"));
            std::thread::sleep(Duration::from_millis(20));
        }
        real
    }

    /// The authority of its certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The content that was uploaded, or nothing.
    pub(crate) fn uploaded(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join("www").join(name)).unwrap_or_default()
    }

    /// Each request: protocol, method, host, URI, status, `Authorization`, `X-Team`.
    pub(crate) fn log(&self) -> String {
        self.read("access")
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for child in [&mut self.nginx, &mut self.sockets] {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn config(dir: &Path, plain: SocketAddr, tls: SocketAddr, web_socket: &str, events: &str) -> String {
    let dir = dir.display();
    format!(
        r#"daemon off;
master_process off;
pid {dir}/pid;
events {{ worker_connections 1024; }}
http {{
  log_format all '$server_protocol $request_method $http_host $request_uri $status "$http_authorization" "$http_x_team"';
  access_log {dir}/access all;
  client_max_body_size 200m;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  gzip on;
  gzip_types text/plain application/octet-stream;
  server {{
    listen {plain};
    listen {tls} ssl http2;
    ssl_certificate {dir}/leaf.pem;
    ssl_certificate_key {dir}/leaf.key;
    root {dir}/www;
    location / {{ dav_methods PUT; }}
    location = /moved {{ return 302 https://other.example.com/; }}
    location /socket {{
      proxy_pass http://127.0.0.1:{web_socket};
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $http_connection;
    }}
    location /events {{
      proxy_pass http://127.0.0.1:{events};
      proxy_buffering off;
    }}
  }}
}}
"#
    )
}
