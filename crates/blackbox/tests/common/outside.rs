//! An outside for sandboxes, on loopback: a zone of names, and a SOCKS proxy that stands for the internet.
//!
//! The server under test is told to ask the zone and to dial through the proxy, so every public address can
//! be played by a server on loopback, nothing leaves the machine, and what the proxy was asked to dial and
//! the zone was asked to resolve is the whole truth about what would have left.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
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

type Names = Arc<Mutex<BTreeMap<String, Ipv4Addr>>>;
type Map = Arc<Mutex<BTreeMap<SocketAddr, SocketAddr>>>;
type Lines = Arc<Mutex<Vec<String>>>;

/// Zone and internet. Their threads end with the test's process.
pub(crate) struct Outside {
    pub(crate) zone: SocketAddr,
    pub(crate) proxy: SocketAddr,
    names: Names,
    map: Map,
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
        let (map, asked, dialled) = (Map::default(), Lines::default(), Lines::default());
        let dns = UdpSocket::bind("127.0.0.1:0").unwrap();
        let zone = dns.local_addr().unwrap();
        let socks = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = socks.local_addr().unwrap();
        let (zone_names, zone_asked) = (Arc::clone(&names), Arc::clone(&asked));
        std::thread::spawn(move || serve_zone(&dns, &zone_names, &zone_asked));
        let (proxy_map, proxy_dialled) = (Arc::clone(&map), Arc::clone(&dialled));
        std::thread::spawn(move || {
            for stream in socks.incoming().flatten() {
                let (map, dialled) = (Arc::clone(&proxy_map), Arc::clone(&proxy_dialled));
                std::thread::spawn(move || serve_socks(stream, &map, &dialled));
            }
        });
        Self { zone, proxy, names, map, asked, dialled }
    }

    /// A server whose only outside this is.
    pub(crate) fn server(&self) -> Server {
        self.server_with(&[])
    }

    pub(crate) fn server_with(&self, more: &[&str]) -> Server {
        let (zone, proxy) = (self.zone.to_string(), format!("socks5://{}", self.proxy));
        Server::with(&[&["--resolver", zone.as_str(), "--egress-proxy", proxy.as_str()], more].concat())
    }

    /// Changes what the zone says.
    pub(crate) fn name(&self, name: &str, address: &str) {
        self.names.lock().unwrap().insert(name.to_owned(), address.parse().unwrap());
    }

    /// Puts a server on loopback in place of an address.
    pub(crate) fn put(&self, address: &str, origin: SocketAddr) {
        self.map.lock().unwrap().insert(address.parse().unwrap(), origin);
    }

    /// A web server at this address that says `hello from ADDRESS` and keeps what it was sent.
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

    /// What the proxy was asked to dial so far.
    pub(crate) fn dials(&self) -> Vec<String> {
        self.dialled.lock().unwrap().clone()
    }

    /// What the zone was asked so far.
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
        let mut answer = query[..2].to_vec();
        let found = address.filter(|_| kind == 1);
        answer.extend([
            0x81,
            if address.is_none() { 0x83 } else { 0x80 },
            0,
            1,
            0,
            u8::from(found.is_some()),
            0,
            0,
            0,
            0,
        ]);
        answer.extend(&query[12..end + 4]);
        if let Some(address) = found {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            answer.extend(address.octets());
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

fn serve_socks(mut client: TcpStream, map: &Map, dialled: &Lines) {
    let mut greeting = [0; 3];
    if client.read_exact(&mut greeting).is_err() || client.write_all(&[5, 0]).is_err() {
        return;
    }
    let mut head = [0; 10];
    if client.read_exact(&mut head).is_err() || head[..4] != [5, 1, 0, 1] {
        return;
    }
    let ip = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
    let address = SocketAddrV4::new(ip, u16::from_be_bytes([head[8], head[9]]));
    dialled.lock().unwrap().push(address.to_string());
    let origin = map.lock().unwrap().get(&SocketAddr::V4(address)).copied();
    let origin = origin.or_else(|| ip.is_loopback().then_some(SocketAddr::V4(address)));
    let Some(server) = origin.and_then(|origin| TcpStream::connect(origin).ok()) else {
        drop(client.write_all(&[5, 5, 0, 1, 0, 0, 0, 0, 0, 0]));
        return;
    };
    if client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).is_err() {
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
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
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
    let body = if first.contains(" /big") { "x".repeat(8 << 20) } else { format!("hello from {address}\n") };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body.as_bytes())
}
