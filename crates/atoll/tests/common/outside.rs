//! An outside for sandboxes, on loopback: a zone of names, and a proxy (SOCKS5 and HTTP) that stands for the
//! internet.
//!
//! The server under test is told to ask the zone and to dial through the proxy, so every public address can
//! be played by a server on loopback, and nothing leaves the machine. The addresses that the proxy was asked to dial
//! and the names that the zone was asked to resolve are all that would have left.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_api::{CreateSandbox, Sandbox};
use atoll_blackbox::Server;
use atoll_core::policy::EgressPolicy;
use serde_json::{Value, json};

/// Addresses that names of the zone have. All public, none of them reached for real.
pub(crate) const WEB: &str = "93.184.215.14";
pub(crate) const SHARED: &str = "151.101.1.69";
pub(crate) const OTHER: &str = "9.9.9.9";

/// The login that a client of the proxy must give when the proxy wants one, as `user:password`.
pub(crate) const LOGIN: &str = "some-user:some-p@ssword";

type Names = Arc<Mutex<BTreeMap<String, IpAddr>>>;
type Map = Arc<Mutex<BTreeMap<SocketAddr, SocketAddr>>>;
type Lines = Arc<Mutex<Vec<String>>>;

/// Zone and internet. Their threads end with the test's process.
pub(crate) struct Outside {
    pub(crate) zone: SocketAddr,
    pub(crate) proxy: SocketAddr,
    names: Names,
    map: Map,
    /// Whether the proxy wants [`LOGIN`].
    login: Arc<AtomicBool>,
    /// Names that the zone was asked for.
    pub(crate) asked: Lines,
    /// Addresses that the proxy was asked to dial.
    pub(crate) dialled: Lines,
}

impl Outside {
    pub(crate) fn new() -> Self {
        let names = Names::default();
        for (name, address) in [
            ("web.test", WEB),
            ("tls.test", WEB),
            ("a.cdn.test", SHARED),
            ("b.cdn.test", SHARED),
            ("other.test", OTHER),
            ("rebind.test", "169.254.169.254"),
            ("lan.test", "192.168.77.1"),
        ] {
            names.lock().unwrap().insert(name.to_owned(), address.parse().unwrap());
        }
        let login = Arc::<AtomicBool>::default();
        let (map, asked, dialled) = (Map::default(), Lines::default(), Lines::default());
        let dns = UdpSocket::bind("127.0.0.1:0").unwrap();
        let zone = dns.local_addr().unwrap();
        let internet = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = internet.local_addr().unwrap();
        let (zone_names, zone_asked) = (Arc::clone(&names), Arc::clone(&asked));
        std::thread::spawn(move || serve_zone(&dns, &zone_names, &zone_asked));
        let (proxy_map, proxy_dialled) = (Arc::clone(&map), Arc::clone(&dialled));
        let wants_login = Arc::clone(&login);
        std::thread::spawn(move || {
            for stream in internet.incoming().flatten() {
                let (map, dialled) = (Arc::clone(&proxy_map), Arc::clone(&proxy_dialled));
                let login = wants_login.load(Ordering::Relaxed);
                std::thread::spawn(move || serve_proxy(stream, &map, &dialled, login));
            }
        });
        Self { zone, proxy, names, map, login, asked, dialled }
    }

    /// From now on the proxy wants [`LOGIN`].
    pub(crate) fn want_login(&self) {
        self.login.store(true, Ordering::Relaxed);
    }

    /// A server whose only outside this is.
    pub(crate) fn server(&self) -> Server {
        self.server_with(&[])
    }

    pub(crate) fn server_with(&self, more: &[&str]) -> Server {
        let mut args = self.args().to_vec();
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        Server::with(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The arguments that make this a server's only outside.
    pub(crate) fn args(&self) -> [String; 4] {
        let proxy = format!("socks5://{}", self.proxy);
        ["--resolver".to_owned(), self.zone.to_string(), "--egress-proxy".to_owned(), proxy]
    }

    /// Changes the zone's address for a name.
    pub(crate) fn name(&self, name: &str, address: &str) {
        self.names.lock().unwrap().insert(name.to_owned(), address.parse().unwrap());
    }

    /// Puts a server on loopback in place of an address.
    pub(crate) fn put(&self, address: &str, origin: SocketAddr) {
        self.map.lock().unwrap().insert(address.parse().unwrap(), origin);
    }

    /// A web server at this address that says `hello from ADDRESS` and keeps the requests that it was sent.
    pub(crate) fn web(&self, address: &str) -> Lines {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.put(address, listener.local_addr().unwrap());
        let (seen, address) = (Lines::default(), address.to_owned());
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, address) = (Arc::clone(&kept), address.clone());
                std::thread::spawn(move || serve_web(stream, &kept, &address));
            }
        });
        seen
    }

    /// A server at this address that speaks first, then sends everything back.
    pub(crate) fn banner(&self, address: &str) -> Lines {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.put(address, listener.local_addr().unwrap());
        let seen = Lines::default();
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    if stream.write_all(b"220 welcome\r\n").is_err() {
                        return;
                    }
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        kept.lock().unwrap().push(String::from_utf8_lossy(&buffer[..count]).into_owned());
                        if stream.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        seen
    }

    /// The addresses that the proxy was asked to dial so far.
    pub(crate) fn dials(&self) -> Vec<String> {
        self.dialled.lock().unwrap().clone()
    }

    /// The questions that the zone was asked so far.
    pub(crate) fn questions(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// A policy from its JSON.
pub(crate) fn policy(value: Value) -> EgressPolicy {
    serde_json::from_value(value).expect("a policy")
}

/// A policy of rules that allow these domains, as the command line writes them.
pub(crate) fn allow(domains: &[&str]) -> EgressPolicy {
    let rule = |text: &&str| match text.split_once(':') {
        Some((domain, port)) => json!({"action": "allow", "domain": domain, "ports": [port]}),
        None => json!({"action": "allow", "domain": text}),
    };
    policy(json!({"internet": "rules", "rules": domains.iter().map(rule).collect::<Vec<_>>()}))
}

/// A sandbox with a policy.
pub(crate) async fn sandbox(server: &Server, egress: EgressPolicy) -> Sandbox {
    let create = CreateSandbox { egress: Some(egress), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.expect("make a sandbox")
}

// === the zone ===

fn serve_zone(socket: &UdpSocket, names: &Names, asked: &Lines) {
    let mut buffer = [0; 1024];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let query = &buffer[..length];
        let Some((name, end)) = question(query) else { continue };
        let kind = u16::from_be_bytes([query[end], query[end + 1]]);
        asked.lock().unwrap().push(format!("{name} {kind}"));
        let address = names.lock().unwrap().get(&name).copied();
        let found = match (address, kind) {
            (Some(IpAddr::V4(ip)), 1) => Some(ip.octets().to_vec()),
            (Some(IpAddr::V6(ip)), 28) => Some(ip.octets().to_vec()),
            _ => None,
        };
        let status = if address.is_none() { 0x83 } else { 0x80 };
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, status, 0, 1, 0, u8::from(found.is_some()), 0, 0, 0, 0]);
        answer.extend(&query[12..end + 4]);
        if let Some(octets) = found {
            answer.extend([0xc0, 12, 0, query[end + 1], 0, 1, 0, 0, 0, 1, 0]);
            answer.push(u8::try_from(octets.len()).unwrap());
            answer.extend(octets);
        }
        drop(socket.send_to(&answer, from));
    }
}

/// The name of a question, and where it ends.
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return (query.len() >= at + 4).then(|| (labels.join("."), at));
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_lowercase());
        at += length;
    }
}

// === the internet ===

fn serve_proxy(mut client: TcpStream, map: &Map, dialled: &Lines, login: bool) {
    let mut first = [0];
    let asked = match client.peek(&mut first) {
        Ok(1..) if first == [5] => asked_by_socks(&mut client, login),
        Ok(1..) => asked_by_connect(&mut client, login),
        Ok(_) | Err(_) => None,
    };
    let Some((address, good, bad)) = asked else { return };
    dialled.lock().unwrap().push(address.to_string());
    let origin = map.lock().unwrap().get(&address).copied();
    let origin = origin.or_else(|| address.ip().is_loopback().then_some(address));
    let Some(server) = origin.and_then(|origin| TcpStream::connect(origin).ok()) else {
        drop(client.write_all(bad));
        return;
    };
    if client.write_all(good).is_err() {
        return;
    }
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let outwards = std::thread::spawn(move || {
        drop(std::io::copy(&mut from_client, &mut to_server));
        drop(to_server.shutdown(Shutdown::Write));
    });
    let (mut from_server, mut to_client) = (server, client);
    drop(std::io::copy(&mut from_server, &mut to_client));
    drop(to_client.shutdown(Shutdown::Both));
    drop(from_server.shutdown(Shutdown::Both));
    drop(outwards.join());
}

/// The address to dial, and the answers when it is there and when it is not.
type Asked = (SocketAddr, &'static [u8], &'static [u8]);

fn asked_by_socks(client: &mut TcpStream, login: bool) -> Option<Asked> {
    let mut greeting = [0; 3];
    client.read_exact(&mut greeting).ok()?;
    let method = if login { 2 } else { 0 };
    if greeting != [5, 1, method] {
        drop(client.write_all(&[5, 0xff]));
        return None;
    }
    client.write_all(&[5, method]).ok()?;
    if login {
        let mut version = [0];
        client.read_exact(&mut version).ok()?;
        let said = format!("{}:{}", counted(client)?, counted(client)?);
        client.write_all(&[1, u8::from(version != [1] || said != LOGIN)]).ok()?;
        if said != LOGIN {
            return None;
        }
    }
    let mut head = [0; 4];
    client.read_exact(&mut head).ok()?;
    let ip: IpAddr = match head {
        [5, 1, 0, 1] => {
            let mut octets = [0; 4];
            client.read_exact(&mut octets).ok()?;
            Ipv4Addr::from(octets).into()
        }
        [5, 1, 0, 4] => {
            let mut octets = [0; 16];
            client.read_exact(&mut octets).ok()?;
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    let mut port = [0; 2];
    client.read_exact(&mut port).ok()?;
    let address = SocketAddr::new(ip, u16::from_be_bytes(port));
    Some((address, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0], &[5, 5, 0, 1, 0, 0, 0, 0, 0, 0]))
}

/// A text after its length.
fn counted(client: &mut TcpStream) -> Option<String> {
    let mut length = [0];
    client.read_exact(&mut length).ok()?;
    let mut text = vec![0; usize::from(length[0])];
    client.read_exact(&mut text).ok()?;
    String::from_utf8(text).ok()
}

fn asked_by_connect(client: &mut TcpStream, login: bool) -> Option<Asked> {
    use base64::Engine as _;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).ok()?;
    let wanted = base64::engine::general_purpose::STANDARD.encode(LOGIN);
    if login && !head.contains(&format!("\r\nProxy-Authorization: Basic {wanted}\r\n")) {
        drop(client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"));
        return None;
    }
    let address = head.strip_prefix("CONNECT ")?.split(' ').next()?.parse().ok()?;
    Some((address, b"HTTP/1.1 200 Connected\r\nX: y\r\n\r\n", b"HTTP/1.1 502 Bad Gateway\r\n\r\n"))
}

// === a web server ===

/// Answers requests one after the other. Its reading is naive on purpose: it believes `Content-Length`.
fn serve_web(mut stream: TcpStream, seen: &Lines, address: &str) {
    let mut pending = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        while let Some(end) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&pending[..end]).into_owned();
            pending.drain(..end + 4);
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            while pending.len() < length.unwrap_or(0) {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => pending.extend(&buffer[..count]),
                    Ok(_) | Err(_) => return,
                }
            }
            pending.drain(..length.unwrap_or(0));
            let first = head.lines().next().unwrap_or_default().to_owned();
            seen.lock().unwrap().push(head);
            if respond(&mut stream, &first, address).is_err() {
                return;
            }
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => pending.extend(&buffer[..count]),
            Ok(_) | Err(_) => return,
        }
    }
}

fn respond(stream: &mut TcpStream, first: &str, address: &str) -> std::io::Result<()> {
    if first.contains(" /stream") {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            stream.write_all(b"5\r\ntick\n\r\n")?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    if first.contains(" /silent") {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        // Until the other side goes.
        return stream.read(&mut [0]).map(drop);
    }
    let body = if first.contains(" /big") { "x".repeat(8 << 20) } else { format!("hello from {address}\n") };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body.as_bytes())
}
