//! Looks at the first bytes of a connection.

use std::io;

use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::client::read_more;
use crate::hello::{self, Hello};
use crate::limits::SNIFF_MAX_BYTES;

/// The kind of a connection, by its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// TLS, with the server name if it says one. A hello that cannot be read has none.
    Tls(Option<String>),
    /// HTTP/1.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// Anything else.
    Other,
    /// The client closed without a word.
    Nothing,
}

/// Every connection of HTTP/2 begins with this.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Reads until it is known what the connection is. Does not lose bytes when it is dropped half way.
pub(crate) async fn sniff(socket: &TcpStream, ahead: &mut BytesMut) -> io::Result<Opening> {
    loop {
        if let Some(opening) = judge(ahead, ahead.len() >= SNIFF_MAX_BYTES) {
            return Ok(opening);
        }
        if read_more(socket, ahead).await? == 0 {
            let last = if ahead.is_empty() { None } else { judge(ahead, true) };
            return Ok(last.unwrap_or(if ahead.is_empty() { Opening::Nothing } else { Opening::Other }));
        }
    }
}

/// The kind of these bytes; `None` when more are needed, which `last` rules out.
fn judge(bytes: &[u8], last: bool) -> Option<Opening> {
    if bytes.is_empty() {
        return None;
    }
    if hello::is_tls(bytes) {
        return match hello::read(bytes) {
            Hello::Complete(name) => Some(Opening::Tls(name)),
            Hello::Broken => Some(Opening::Tls(None)),
            Hello::Incomplete => last.then_some(Opening::Tls(None)),
        };
    }
    if bytes.starts_with(HTTP2_PREFACE) {
        return Some(Opening::Http2);
    }
    // Servers pass over empty lines before a request.
    let line = bytes.trim_ascii_start();
    let end = line.iter().position(|&byte| byte == b'\n');
    let line = &line[..end.unwrap_or(line.len())];
    // The protocol follows a request's path. Servers differ in the other forms of that line that they
    // accept. So a line that names HTTP is taken for HTTP; the strict parser refuses it if it is not.
    let says_http = line.windows(5).any(|word| word.eq_ignore_ascii_case(b"http/"));
    if says_http && (end.is_some() || last) {
        return Some(Opening::Http);
    }
    let text = line
        .iter()
        .all(|&byte| byte == b'\t' || byte == b'\r' || (b' '..0x7f).contains(&byte) || byte >= 0x80);
    if end.is_some() || last || !text {
        return Some(Opening::Other);
    }
    // A request has its method and a blank soon; other protocols of lines need not wait for their end.
    let method = line.iter().position(|&byte| byte == b' ' || byte == b'\t');
    (method.is_none() && line.len() > 32).then_some(Opening::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings() {
        let is = |bytes: &[u8]| judge(bytes, false);
        assert_eq!(is(b"GET / HTTP/1.1\r\nHost: a\r\n"), Some(Opening::Http));
        for odd in [&b"\r\n\r\nGET / HTTP/1.0\n"[..], b"get\t/ http/1.1\n", b"FOO x HTTP/9\r\n"] {
            assert_eq!(is(odd), Some(Opening::Http));
        }
        for unfinished in [&b"G"[..], b"GET /", b"GET / HTTP/1.1", b"\r\n", b"\x16", b"PRI * HTTP"] {
            assert_eq!(is(unfinished), None);
        }
        for other in
            [&b"SSH-2.0-OpenSSH_9\r\n"[..], b"EHLO me\r\n", b"\x00\x00\x00\x08", b"*1\r\n$4\r\nPING\r\n"]
        {
            assert_eq!(is(other), Some(Opening::Other));
        }
        assert_eq!(is(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(Opening::Http2));
        assert_eq!(is(&hello::tests::hello("x.example")), Some(Opening::Tls(Some("x.example".into()))));
        assert_eq!(is(b"\x15\x03\x01\x00\x02\x02\x28"), Some(Opening::Tls(None)));
        assert_eq!(judge(b"GET /", true), Some(Opening::Other));
    }
}
