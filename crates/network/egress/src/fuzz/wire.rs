//! Requests on their whole way: bytes of a client, the gateway's parser, what a target makes of each request, the gateway's
//! writer, and a server outside that reads what came of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, duplex};

use crate::interceptor::BoxError;

/// A body on its way out.
pub(crate) type OutBody = BoxBody<Bytes, BoxError>;

/// A request as a server outside reads it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) method: Method,
    /// As it stands in the request's first line.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Heard {
    /// The only value of a header.
    pub(crate) fn only(&self, name: &str) -> &[u8] {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next().expect("the header");
        assert!(values.next().is_none(), "{name} stands there twice: {self:?}");
        first.as_bytes()
    }

    /// Nothing in the head concerns one connection only, except what the gateway says itself.
    pub(crate) fn assert_end_to_end(&self) {
        for name in
            ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "http2-settings"]
        {
            assert!(!self.headers.contains_key(name), "{name} passed: {self:?}");
        }
        if self.headers.contains_key(TE) {
            assert_eq!(self.only("te"), b"trailers");
        }
        if self.headers.contains_key(TRANSFER_ENCODING) {
            assert_eq!(self.only("transfer-encoding"), b"chunked");
            assert!(!self.headers.contains_key(CONTENT_LENGTH), "two lengths: {self:?}");
        }
        assert_eq!(self.headers.contains_key(CONNECTION), self.headers.contains_key(UPGRADE), "{self:?}");
        if self.headers.contains_key(CONNECTION) {
            assert_eq!(self.only("connection"), b"upgrade");
            assert!(
                !String::from_utf8_lossy(self.only("upgrade")).to_lowercase().contains("h2c"),
                "{self:?}"
            );
        }
    }
}

/// One request of the client: what the target judged, and the whole requests that a server read because of it.
pub(crate) type Passed<J> = (J, Vec<Heard>);

/// All of them, in their order.
pub(crate) struct Requests<J> {
    pub(crate) passed: Vec<Passed<J>>,
    /// How many came before the first that was refused. Whether the connection goes on after that depends on whether the rest
    /// of the refused request was there.
    certain: usize,
}

impl<J> Requests<J> {
    /// Those that do not depend on when the bytes arrived.
    pub(crate) fn certain(&self) -> &[Passed<J>] {
        &self.passed[..self.certain]
    }
}

/// The way of one target.
pub(crate) struct Way {
    /// Reads what the client sends.
    pub(crate) parser: server::conn::http1::Builder,
    /// Writes what goes out.
    pub(crate) writer: client::conn::http1::Builder,
}

impl Way {
    /// Lets bytes arrive in pieces. For each request that the gateway's parser finds in them, `judge` gives a judgement and
    /// the request to send in its place, or `None` to refuse it.
    pub(crate) fn pass<J, F>(
        self,
        bytes: &[u8],
        piece: usize,
        judge: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Requests<J>
    where
        J: Send + 'static,
        F: Future<Output = Option<(J, Request<OutBody>)>> + Send + 'static,
    {
        let passed = Arc::new(Mutex::new((Vec::new(), None)));
        let Self { parser, writer } = self;
        let seen = Arc::clone(&passed);
        let service = service_fn(move |request| {
            let (judged, seen, writer) = (judge(request), Arc::clone(&seen), writer.clone());
            async move {
                let status = match judged.await {
                    Some((judgement, request)) => {
                        let number = {
                            let (passed, _) = &mut *seen.lock().unwrap();
                            passed.push((judgement, Vec::new()));
                            passed.len() - 1
                        };
                        forward(request, &writer, move |heard| seen.lock().unwrap().0[number].1.push(heard))
                            .await?
                    }
                    None => {
                        let (passed, refused) = &mut *seen.lock().unwrap();
                        refused.get_or_insert(passed.len());
                        400
                    }
                };
                Ok::<_, BoxError>(Response::builder().status(status).body(Empty::<Bytes>::new())?)
            }
        });
        // Nothing waits for anything but memory: the clock, which stands still, goes on only when nothing moves any more.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (mut client, gateway) = duplex(1 << 20);
            tokio::spawn(parser.serve_connection(TokioIo::new(gateway), service));
            let all = async {
                for piece in bytes.chunks(piece) {
                    if client.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                std::future::pending::<()>().await;
            };
            drop(tokio::time::timeout(Duration::from_secs(1), all).await);
        });
        drop(runtime);
        let (passed, refused) = std::mem::take(&mut *passed.lock().unwrap());
        Requests { certain: refused.unwrap_or(passed.len()), passed }
    }
}

/// Sends a request to a server that tells `hear` of every whole request in what it reads.
async fn forward(
    request: Request<OutBody>,
    writer: &client::conn::http1::Builder,
    hear: impl Fn(Heard) + Clone + Send + 'static,
) -> Result<u16, BoxError> {
    let (ours, theirs) = duplex(1 << 16);
    let service = service_fn(move |request: Request<Incoming>| {
        let hear = hear.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let target = parts.uri.to_string();
            hear(Heard { method: parts.method, target, headers: parts.headers, body });
            Ok::<_, BoxError>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let server =
        server::conn::http1::Builder::new().max_headers(1000).serve_connection(TokioIo::new(theirs), service);
    tokio::spawn(server);
    let (mut send, connection) = writer.handshake(TokioIo::new(ours)).await?;
    tokio::spawn(connection);
    Ok(send.send_request(request).await?.status().as_u16())
}
