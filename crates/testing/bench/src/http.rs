//! The smallest HTTP client: one connection, no Nagle delay, nothing built twice.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

type Body = BoxBody<Bytes, std::convert::Infallible>;

/// Where a server is, and the key for it.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// `127.0.0.1:4600`
    pub(crate) authority: String,
    pub(crate) key: String,
}

impl Address {
    /// A TCP connection.
    pub(crate) async fn dial(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.authority).await.context("cannot connect to the server")?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// An HTTP connection.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let (sender, driver) = handshake(TokioIo::new(self.dial().await?)).await?;
        tokio::spawn(driver);
        Ok(Connection { address: self.clone(), sender })
    }
}

/// One kept-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Address,
    sender: SendRequest<Body>,
}

impl Connection {
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        kind: &str,
        body: Body,
    ) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, &self.address.authority)
            .header(AUTHORIZATION, format!("Bearer {}", self.address.key))
            .header(CONTENT_TYPE, kind)
            .body(body)?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&body));
    }

    /// Sends JSON and reads JSON.
    pub(crate) async fn json(&mut self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let body = BoxBody::new(Full::from(serde_json::to_vec(body)?));
        let response = self.send(method, path, "application/json", body).await?;
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Sends bytes, and reads the whole answer.
    pub(crate) async fn upload(
        &mut self,
        method: Method,
        path: &str,
        pieces: impl Iterator<Item = Bytes> + Send + Sync + 'static,
    ) -> Result<Bytes> {
        let frames = futures::stream::iter(pieces.map(|piece| Ok(Frame::data(piece))));
        let body = BoxBody::new(StreamBody::new(frames));
        let response = self.send(method, path, "application/octet-stream", body).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    /// Reads a body and counts its bytes.
    pub(crate) async fn download(&mut self, path: &str) -> Result<u64> {
        let body = BoxBody::new(Full::from(Bytes::new()));
        let mut body = self.send(Method::GET, path, "application/json", body).await?.into_body();
        let mut total = 0;
        while let Some(frame) = body.frame().await {
            total += frame?.data_ref().map_or(0, Bytes::len) as u64;
        }
        Ok(total)
    }

    /// Makes a sandbox; gives its id.
    pub(crate) async fn create(&mut self, image: &str) -> Result<String> {
        let made = self.json(Method::POST, "/v1/sandboxes", &serde_json::json!({ "image": image })).await?;
        Ok(made["id"].as_str().context("the answer has no id")?.to_owned())
    }

    /// Runs `/bin/true` and waits for its end.
    pub(crate) async fn run_true(&mut self, sandbox: &str) -> Result<()> {
        let command = serde_json::json!({ "argv": ["/bin/true"], "wait_ms": 60_000 });
        let done = self.json(Method::POST, &format!("/v1/sandboxes/{sandbox}/execs"), &command).await?;
        if done["exec"]["state"] != "exited" || done["exec"]["exit"]["code"] != 0 {
            bail!("true did not succeed: {done}");
        }
        Ok(())
    }

    /// Removes the warm pool of an image.
    pub(crate) async fn delete_pool(&mut self, image: &str) -> Result<()> {
        let body = BoxBody::new(Full::from(Bytes::new()));
        let path = format!("/v1/pools?image={image}");
        let response = self.send(Method::DELETE, &path, "application/json", body).await?;
        response.into_body().collect().await?;
        Ok(())
    }

    /// Deletes a sandbox.
    pub(crate) async fn delete(&mut self, sandbox: &str) -> Result<()> {
        let body = BoxBody::new(Full::from(Bytes::new()));
        let path = format!("/v1/sandboxes/{sandbox}");
        let response = self.send(Method::DELETE, &path, "application/json", body).await?;
        response.into_body().collect().await?;
        Ok(())
    }
}
