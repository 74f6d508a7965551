//! The client's side of the two kinds of proxies: SOCKS5 (RFC 1928, 1929) and HTTP `CONNECT`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::{ProxyKind, UpstreamProxy};
use crate::dial::DialError;

/// Longest answer of an HTTP proxy to `CONNECT`, bytes.
const ANSWER_MAX_BYTES: usize = 8 << 10;

/// Connects to `address` through a proxy.
pub(crate) async fn connect(proxy: &UpstreamProxy, address: SocketAddr) -> Result<TcpStream, DialError> {
    let unreachable = |error: io::Error| DialError::Proxy(format!("it cannot be reached: {error}"));
    let mut stream = TcpStream::connect(&proxy.authority).await.map_err(unreachable)?;
    match proxy.kind {
        ProxyKind::Socks5 => socks5(&mut stream, proxy, address).await?,
        ProxyKind::Http => http_connect(&mut stream, proxy, address).await?,
    }
    Ok(stream)
}

fn broken(error: io::Error) -> DialError {
    DialError::Proxy(format!("it broke off: {error}"))
}

async fn socks5(stream: &mut TcpStream, proxy: &UpstreamProxy, address: SocketAddr) -> Result<(), DialError> {
    let method: u8 = if proxy.credentials.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method]).await.map_err(broken)?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await.map_err(broken)?;
    if chosen != [5, method] {
        return Err(DialError::Proxy("it wants another way of logging in".to_owned()));
    }
    if let Some((user, password)) = &proxy.credentials {
        // Both are at most 255 bytes: `UpstreamProxy` was parsed so.
        let mut login = vec![1, u8::try_from(user.len()).unwrap_or(u8::MAX)];
        login.extend(user.bytes());
        login.push(u8::try_from(password.reveal().len()).unwrap_or(u8::MAX));
        login.extend(password.reveal().bytes());
        stream.write_all(&login).await.map_err(broken)?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await.map_err(broken)?;
        if answer[1] != 0 {
            return Err(DialError::Proxy("it does not accept the credentials".to_owned()));
        }
    }
    let mut request = vec![5, 1, 0];
    match address.ip() {
        IpAddr::V4(ip) => {
            request.push(1);
            request.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            request.push(4);
            request.extend(ip.octets());
        }
    }
    request.extend(address.port().to_be_bytes());
    stream.write_all(&request).await.map_err(broken)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(broken)?;
    if head[1] != 0 {
        return Err(DialError::Proxy(format!("SOCKS error {}", head[1])));
    }
    let bound = match head[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await.map_err(broken)?),
        _ => return Err(DialError::Proxy("its answer makes no sense".to_owned())),
    };
    stream.read_exact(&mut vec![0; bound + 2]).await.map_err(broken).map(drop)
}

async fn http_connect(
    stream: &mut TcpStream,
    proxy: &UpstreamProxy,
    address: SocketAddr,
) -> Result<(), DialError> {
    let mut request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n");
    if let Some((user, password)) = &proxy.credentials {
        let both = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{}", password.reveal()));
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&both);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    // Byte by byte: bytes after the answer belong to the connection.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= ANSWER_MAX_BYTES {
            return Err(DialError::Proxy("its answer is too long".to_owned()));
        }
        answer.push(stream.read_u8().await.map_err(broken)?);
    }
    let line = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let status = line.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    if status.len() == 3 && status[0] == b'2' {
        return Ok(());
    }
    Err(DialError::Proxy(crate::connection::shorten(&String::from_utf8_lossy(line))))
}
