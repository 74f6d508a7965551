//! Asks HTTP servers inside sandboxes.
//!
//! One request for each connection, over any byte stream. The server in the sandbox may be hostile: heads, bodies and
//! lines are bounded, a redirect is not followed, and of an answer only its status, its content type and its body are
//! read.

mod lines;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use lines::Splitter;
pub use lines::{Heard, LINE_MAX_BYTES};

/// Longest answer that is read whole, bytes.
pub const ANSWER_MAX_BYTES: usize = 4 << 20;
/// Longest head of an answer, bytes.
const HEAD_MAX_BYTES: usize = 64 << 10;
/// Most headers of an answer.
const HEADERS_MAX_COUNT: usize = 100;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The port, as the server sees it.
    pub port: u16,
    /// Path and query.
    pub path: &'a str,
    /// JSON that is posted; without, it is a `GET`.
    pub body: Option<&'a str>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What was to be asked cannot be.
    #[error("cannot be asked: {0}")]
    Request(#[from] http::Error),
    /// The connection broke, or what came over it is no HTTP.
    #[error("no answer: {0}")]
    Broken(#[from] hyper::Error),
    /// The answer is longer than what is read, or broke.
    #[error("the answer cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// An answer that is read line by line, as it comes: of server-sent events what each says, of everything else its lines.
#[derive(Debug)]
pub struct Stream {
    status: u16,
    body: Incoming,
    splitter: Splitter,
    _connection: Connection,
}

/// The task that moves a connection's bytes; it ends with this.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks, and reads the whole answer.
///
/// # Errors
/// [`Failure`].
pub async fn ask(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ask: Ask<'_>,
) -> Result<Answer, Failure> {
    let (response, _connection) = send(io, ask).await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await.map_err(Failure::Body)?;
    Ok(Answer { status, body: String::from_utf8_lossy(&body.to_bytes()).into_owned() })
}

/// Asks, and gives the answer when it has begun.
///
/// # Errors
/// [`Failure`].
pub async fn listen(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ask: Ask<'_>,
) -> Result<Stream, Failure> {
    let (response, connection) = send(io, ask).await?;
    let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    let events = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    Ok(Stream {
        status: response.status().as_u16(),
        body: response.into_body(),
        splitter: Splitter::new(events),
        _connection: connection,
    })
}

async fn send(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ask: Ask<'_>,
) -> Result<(http::Response<Incoming>, Connection), Failure> {
    let mut request = http::Request::builder()
        .method(if ask.body.is_some() { "POST" } else { "GET" })
        .uri(ask.path)
        .header(HOST, format!("localhost:{}", ask.port))
        .header(USER_AGENT, "atoll")
        .header(ACCEPT, "*/*");
    if ask.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::new(Bytes::from(ask.body.unwrap_or_default().to_owned())))?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEADERS_MAX_COUNT)
        .handshake(TokioIo::new(io))
        .await?;
    // The reader of the answer learns how the connection ends.
    let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
    Ok((sender.send_request(request).await?, connection))
}

impl Stream {
    /// The answer's status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The next piece of the answer. A caller that stops waiting loses nothing.
    pub async fn next(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.splitter.pop() {
                return heard;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.splitter.push(&bytes);
                    }
                }
                Some(Err(_)) => self.splitter.end(false),
                None => self.splitter.end(true),
            }
        }
    }

    /// The next piece of the answer, if it has come already.
    pub fn ready(&mut self) -> Option<Heard> {
        self.splitter.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const LISTEN: Ask<'_> = Ask { port: 80, path: "/x", body: None };

    /// A server that says this, and what it was asked.
    fn says(said: &'static [u8]) -> (tokio::io::DuplexStream, JoinHandle<String>) {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let asked = tokio::spawn(async move {
            let mut asked = vec![0; 4096];
            let len = theirs.read(&mut asked).await.unwrap();
            theirs.write_all(said).await.unwrap();
            asked.truncate(len);
            String::from_utf8(asked).unwrap()
        });
        (ours, asked)
    }

    #[tokio::test]
    async fn an_answer() {
        let (io, asked) = says(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok");
        let answer = ask(io, Ask { port: 4096, path: "/a?b=c", body: Some("{}") }).await.unwrap();
        assert_eq!(answer, Answer { status: 201, body: "ok".into() });
        let asked = asked.await.unwrap().to_ascii_lowercase();
        assert!(
            asked.starts_with("post /a?b=c http/1.1\r\n") && asked.contains("host: localhost:4096\r\n"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn redirects_are_answers_and_nonsense_is_none() {
        let (io, _asked) =
            says(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(ask(io, LISTEN).await.unwrap().status, 302);
        for bad in [&b"SSH-2.0-x\r\n\r\n"[..], b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\nx"]
        {
            let (io, _asked) = says(bad);
            assert!(ask(io, LISTEN).await.is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn answers_are_heard_as_they_come() {
        let (io, _asked) = says(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"a\":1}\n\n: hi\n\ndata: b\n\n");
        let mut stream = listen(io, LISTEN).await.unwrap();
        assert_eq!(stream.status(), 200);
        assert_eq!(stream.next().await, Heard::Line("{\"a\":1}".into()));
        assert_eq!(stream.ready(), Some(Heard::Line("b".into())));
        assert_eq!(stream.next().await, Heard::End { whole: true });
        let (io, _asked) = says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\none\ntwo");
        let mut stream = listen(io, LISTEN).await.unwrap();
        assert_eq!(stream.next().await, Heard::Line("one".into()));
        assert_eq!(stream.next().await, Heard::End { whole: false }, "the half line is none");
    }
}
