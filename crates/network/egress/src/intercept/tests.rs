//! The interceptor between a real TLS client and a real TLS server, both in this process.
//!
//! Here are both ends ([`House`], [`Origin`]) and the tests of how connections and answers pass. [`secrets`] has where secrets are
//! put in and what is hidden of them, [`hostile`] the requests and servers that try to get them elsewhere.

use std::sync::Mutex;

use atoll_core::{Code, Error, Result};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::authority::Protocol;
use super::*;

mod budget;
mod fetching;
mod figures;
mod hostile;
mod secrets;

const SECRET: &str = "s3cret-value-of-the-test";
const TOKEN: &str = "atoll_secret_0123456789abcdef";

/// A vault with one secret, and the uses that it was told of.
#[derive(Debug, Default)]
struct Vault {
    used: Mutex<Vec<SecretUsed>>,
}

#[async_trait]
impl SecretSource for Vault {
    fn open(&self, _sandbox: &SandboxId, secret: &SecretRef, host: &HostName) -> Result<OpenedSecret> {
        if secret.name == "KEY" && host.as_str().ends_with("example.com") {
            return Ok(OpenedSecret { value: Secret::new(SECRET), version: 7 });
        }
        Err(Error::new(Code::Forbidden, format!("the secret '{secret}' may not be sent to {host}")))
    }

    async fn used(&self, used: SecretUsed) -> Result<()> {
        self.used.lock().unwrap().push(used);
        Ok(())
    }
}

/// Method, path, headers and body of a request.
type Seen = (Method, String, HeaderMap, String);

/// A server outside that tells which requests it got, and acts as the path of a request says.
#[derive(Debug, Clone)]
struct Origin {
    config: Arc<ServerConfig>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Connections that went on from an earlier one.
    resumed: Arc<std::sync::atomic::AtomicUsize>,
}

impl Origin {
    /// A server whose certificate is from `authority`, speaking these protocols.
    fn new(authority: &Authority, host: &str, protocols: &[Protocol]) -> Self {
        let config = authority.server_config(&host.parse().unwrap(), protocols[0]).unwrap();
        let mut config = ServerConfig::clone(&config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.alpn().to_vec()).collect();
        Self { config: Arc::new(config), seen: Arc::default(), resumed: Arc::default() }
    }

    fn serve(&self, stream: DuplexStream) {
        let origin = self.clone();
        tokio::spawn(async move {
            let Ok(stream) = TlsAcceptor::from(Arc::clone(&origin.config)).accept(stream).await else {
                return;
            };
            if stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed) {
                origin.resumed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |request| origin.clone().answer(request));
            let stream = TokioIo::new(stream);
            if two {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                drop(builder.serve_connection(stream, service).await);
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                drop(builder.serve_connection(stream, service).with_upgrades().await);
            }
        });
    }

    async fn answer(self, mut request: Request<Incoming>) -> Result<Response<OutBody>, BoxError> {
        let path = request.uri().path().to_owned();
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let address = request.uri().path_and_query().unwrap().to_string();
        if path == "/socket" {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                stream.write_all(format!("hello {SECRET}").as_bytes()).await.unwrap();
                let mut buffer = [0; 64];
                let count = stream.read(&mut buffer).await.unwrap();
                stream.write_all(&buffer[..count]).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", "test".parse().unwrap());
            response.headers_mut().insert("connection", "upgrade".parse().unwrap());
            return Ok(response);
        }
        let body = request.into_body().collect().await?;
        let trailers = body.trailers().cloned();
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        self.seen.lock().unwrap().push((method, address, headers.clone(), body.clone()));
        Ok(match path.as_str() {
            "/redirect" => {
                Response::builder().status(302).header("location", "https://evil.com/").body(empty())?
            }
            "/reason" => {
                let mut response =
                    Response::builder().header("location", format!("/?key={SECRET}")).body(empty())?;
                let reason = hyper::ext::ReasonPhrase::try_from(format!("Bad {SECRET}")).unwrap();
                response.extensions_mut().insert(reason);
                response
            }
            "/pretends" => Response::builder()
                .status(StatusCode::FORBIDDEN)
                .header("x-atoll-refused", "policy")
                .body(full("what: a file\nwhy:  a server says so\n"))?,
            "/compressed" => Response::builder().header("content-encoding", "gzip").body(full("x"))?,
            "/events" => {
                let events = ["data: 1\n\n", "data: s3cret-val", "ue-of-the-test\n\n"];
                let frames = events.map(|event| Ok(Frame::data(Bytes::from_static(event.as_bytes()))));
                let stream = StreamBody::new(futures::stream::iter(frames));
                Response::builder()
                    .header("alt-svc", "h3=\":443\"")
                    .body(http_body_util::BodyExt::boxed(stream))?
            }
            "/large" => Response::new(full(&"x".repeat(3 << 20))),
            _ => {
                let authorization =
                    headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
                let text = format!("{authorization}|{body}|{trailers:?}");
                Response::builder().header("x-echo", authorization).body(full(&text))?
            }
        })
    }
}

fn full(text: &str) -> OutBody {
    Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed()
}

fn empty() -> OutBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// A connection to the origin, with the policy as it is.
struct TestWay {
    sandbox: SandboxId,
    host: HostName,
    policy: Arc<Mutex<Arc<EgressPolicy>>>,
    origin: Option<Origin>,
    budget: Arc<Budget>,
}

#[async_trait]
impl Way for TestWay {
    fn sandbox(&self) -> &SandboxId {
        &self.sandbox
    }

    fn host(&self) -> &HostName {
        &self.host
    }

    fn port(&self) -> u16 {
        443
    }

    fn encrypted(&self) -> bool {
        true
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn policy(&self) -> Arc<EgressPolicy> {
        Arc::clone(&self.policy.lock().unwrap())
    }

    fn allowed_by_rules(&self, _policy: &EgressPolicy, _method: &str, path: &str) -> bool {
        path != "/observed"
    }

    fn admit(&self, method: &str, path: &str) -> Result<Admitted, Box<Response<OutBody>>> {
        if path == "/forbidden" {
            return Err(Box::new(Response::builder().status(403).body(full(method)).unwrap()));
        }
        Ok(Arc::new(()))
    }

    async fn dial(&self) -> std::io::Result<Box<dyn Io>> {
        let origin = self.origin.as_ref().ok_or(std::io::ErrorKind::ConnectionRefused)?;
        let (ours, theirs) = duplex(64 << 10);
        origin.serve(theirs);
        Ok(Box::new(ours))
    }
}

/// Everything of a test.
struct House {
    interceptor: TlsInterceptor,
    vault: Arc<Vault>,
    origin: Option<Origin>,
    policy: Arc<Mutex<Arc<EgressPolicy>>>,
    budget: Arc<Budget>,
}

impl House {
    fn new(rule: serde_json::Value, protocols: &[Protocol]) -> Self {
        let world = new_authority("world");
        Self::with(rule, Some(Origin::new(&world, "api.example.com", protocols)), world.certificate_pem())
    }

    fn with(rule: serde_json::Value, origin: Option<Origin>, roots: &str) -> Self {
        let vault = Arc::new(Vault::default());
        let secrets: Arc<dyn SecretSource> = Arc::<Vault>::clone(&vault);
        let interceptor = TlsInterceptor::new(new_authority("ours"), secrets, None, roots).unwrap();
        let budget = Budget::new(&crate::budget::Common::new(64 << 20));
        let house = Self { interceptor, vault, origin, policy: Arc::default(), budget };
        house.set_rule(rule);
        house
    }

    fn set_rule(&self, rule: serde_json::Value) {
        let mut whole = serde_json::json!({"name": "r", "hosts": ["api.example.com"]});
        whole.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        let rule = serde_json::from_value(whole).unwrap();
        *self.policy.lock().unwrap() = Arc::new(EgressPolicy { inject: vec![rule], ..EgressPolicy::open() });
    }

    /// A client in a sandbox that trusts our authority, after its handshake.
    async fn connect(&self, offer: &[Protocol]) -> tokio_rustls::client::TlsStream<DuplexStream> {
        let (client, gateway) = duplex(64 << 10);
        self.serve(gateway);
        handshake(client, self.interceptor.certificate_pem(), offer).await
    }

    /// The gateway's side of a connection.
    fn serve(&self, gateway: DuplexStream) {
        let way = TestWay {
            sandbox: SandboxId::from_parts(1, 1),
            host: "api.example.com".parse().unwrap(),
            policy: Arc::clone(&self.policy),
            origin: self.origin.clone(),
            budget: Arc::clone(&self.budget),
        };
        let shared = Arc::clone(&self.interceptor.shared);
        tokio::spawn(session::serve_tls(shared, Arc::new(way), gateway));
    }

    /// Sends one request over HTTP/1 and reads its answer whole.
    async fn send(&self, request: Request<OutBody>) -> (Response<()>, String) {
        let stream = TokioIo::new(self.connect(&[Protocol::Http1]).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let response = sender.send_request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
    }

    /// Sends bytes as they are; gives everything that comes back.
    async fn raw(&self, text: &str) -> String {
        let mut stream = self.connect(&[Protocol::Http1]).await;
        let text = text.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        drop(tokio::time::timeout(Duration::from_secs(5), reading).await);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A client's side of TLS, trusting one authority.
async fn handshake(
    stream: DuplexStream,
    trusted: &str,
    offer: &[Protocol],
) -> tokio_rustls::client::TlsStream<DuplexStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = offer.iter().map(|protocol| protocol.alpn().to_vec()).collect();
    let name = ServerName::try_from("api.example.com").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

fn new_authority(name: &str) -> Authority {
    let made = Authority::generate(name).unwrap();
    Authority::open(&made.certificate_pem, &made.key_pem).unwrap()
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "api.example.com")
}

fn bearer() -> serde_json::Value {
    serde_json::json!({"bearer": "{secret:KEY}"})
}

#[tokio::test]
async fn client_and_server_speak_the_same_protocol() {
    for (server, offer, want) in [
        (&[Protocol::Http2, Protocol::Http1][..], &[Protocol::Http2, Protocol::Http1][..], Protocol::Http2),
        (&[Protocol::Http1], &[Protocol::Http2, Protocol::Http1], Protocol::Http1),
        (&[Protocol::Http2, Protocol::Http1], &[Protocol::Http1], Protocol::Http1),
    ] {
        let house = House::new(bearer(), server);
        let stream = house.connect(offer).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(want.alpn()));
    }
}

#[tokio::test]
async fn http2_with_many_requests_and_trailers() {
    let house = House::new(bearer(), &[Protocol::Http2]);
    let stream = TokioIo::new(house.connect(&[Protocol::Http2]).await);
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let requests = (0..20).map(|n| {
        let mut sender = sender.clone();
        async move {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", n.to_string().parse().unwrap());
            let frames = [Ok(Frame::data(Bytes::from(format!("body {n}")))), Ok(Frame::trailers(trailers))];
            let body: OutBody =
                http_body_util::BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)));
            let request = Request::post(format!("https://api.example.com/{n}")).body(body).unwrap();
            let response = sender.send_request(request).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(body.to_vec()).unwrap()
        }
    });
    for (n, body) in futures::future::join_all(requests).await.into_iter().enumerate() {
        assert!(body.contains(&format!("Bearer {SECRET}|body {n}|")), "{body}");
        assert!(body.contains(&format!("\"x-sum\": \"{n}\"")), "trailers: {body}");
    }
    let mut sender = sender;
    let foreign = Request::get("https://evil.com/").version(Version::HTTP_2).body(empty()).unwrap();
    assert_eq!(sender.send_request(foreign).await.unwrap().status(), 421);
}

#[tokio::test]
async fn no_connection_goes_on_from_an_earlier_one() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    for _ in 0..3 {
        house.send(get("/").body(empty()).unwrap()).await;
    }
    let origin = house.origin.as_ref().unwrap();
    assert_eq!(origin.seen.lock().unwrap().len(), 3);
    assert_eq!(origin.resumed.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn redirects_are_the_clients_business_and_policy_has_its_word() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let (response, _) = house.send(get("/redirect").body(empty()).unwrap()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["location"]),
        (302, &"https://evil.com/".parse().unwrap())
    );
    assert!(!format!("{response:?}").contains(SECRET));
    let (response, body) = house.send(get("/forbidden").body(empty()).unwrap()).await;
    assert_eq!((response.status().as_u16(), body.as_str()), (403, "GET"));
    assert_eq!(house.vault.used.lock().unwrap().len(), 1, "only the redirect's request used it");
}

#[tokio::test]
async fn large_answers_pass_whole_and_a_100_is_sent_when_the_body_is_wanted() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let (_, body) = house.send(get("/large").body(empty()).unwrap()).await;
    assert_eq!(body.len(), 3 << 20);
    let mut stream = house.connect(&[Protocol::Http1]).await;
    let head =
        "POST / HTTP/1.1\r\nHost: api.example.com\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = [0; 256];
    let count = stream.read(&mut buffer).await.unwrap();
    assert!(buffer[..count].starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&buffer[..count]));
    stream.write_all(b"body").await.unwrap();
    let count = stream.read(&mut buffer).await.unwrap();
    assert!(buffer[..count].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..count]));
}
