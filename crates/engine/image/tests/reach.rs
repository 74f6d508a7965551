//! Pulls reach no address that is not public, in whichever way it is named.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_core::Code;
use atoll_image::{ImageError, Images, NoProgress, PullOptions, Reach, Settings};

/// A server on the loopback that counts its connections and answers each with the same head.
struct Answering {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Answering {
    fn start(head: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let answer = format!("{head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        Self { port, connections }
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn pull(reach: Reach, host: &str, known: bool) -> ImageError {
    let dir = tempfile::Builder::new().prefix("atoll-images-").tempdir().unwrap();
    let images = Images::open_with(dir.path(), Settings { reach, ..Settings::default() }).unwrap();
    // In clear from the start: the probe of the loopback would count, too.
    let options = PullOptions { insecure_http: true, known, ..PullOptions::default() };
    images.pull(&format!("{host}/app:1"), &options, &NoProgress).await.unwrap_err()
}

fn only(host: &str) -> Reach {
    Reach::new(vec![host.parse().unwrap()])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reference_leads_to_no_closed_address() {
    let inside = Answering::start("HTTP/1.1 404 Not Found".to_owned());
    let port = inside.port;
    for host in [inside.host(), format!("localhost:{port}"), format!("127.1:{port}"), format!("[::1]:{port}")]
    {
        let error = pull(Reach::default(), &host, false).await;
        // Some spellings are no reference at all.
        assert!(
            matches!(error, ImageError::RegistryClosed { .. } | ImageError::BadReference { .. }),
            "{host}: {error}"
        );
    }
    let error = pull(Reach::default(), &inside.host(), false).await.to_core();
    assert!(error.code == Code::Forbidden && error.hint.unwrap().contains("--registry-allow"));
    assert_eq!(inside.count(), 0, "nobody has connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_allows_or_knows_is_reached() {
    for (reach, known) in
        [(only("127.0.0.0/8"), false), (Reach::everything(), false), (Reach::default(), true)]
    {
        let inside = Answering::start("HTTP/1.1 404 Not Found".to_owned());
        let error = pull(reach, &inside.host(), known).await;
        assert!(matches!(error, ImageError::RegistryNotFound { .. }), "{error}");
        assert_eq!(inside.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_redirect_nor_a_token_server_leads_further() {
    let inside = Answering::start("HTTP/1.1 200 OK".to_owned());
    let port = inside.port;
    for to in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://2130706433:{port}/"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1/".to_owned(),
    ] {
        for head in [
            format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}"),
            format!("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{to}\",service=\"x\""),
        ] {
            let registry = Answering::start(head.clone());
            let error = pull(only(&registry.host()), &registry.host(), false).await;
            assert!(matches!(error, ImageError::RegistryClosed { .. }), "{head}: {error}");
            let error = pull(Reach::default(), &registry.host(), true).await;
            assert!(matches!(error, ImageError::RegistryClosed { .. }), "{head}: {error}");
        }
    }
    assert_eq!(inside.count(), 0, "nobody has connected");
}
