//! Registries that break off, damage, stall and lie: a proxy in front of a real one.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use atoll_core::Code;
use atoll_image::limits::{FLOW_MIN_BYTES, FLOW_WINDOW};
use atoll_image::{
    Image, ImageError, Images, LayerEvent, NoProgress, Phase, Progress, PullOptions, Reach, Settings,
};
use atoll_testing::{Entry, Flavour, Layout, Registry, run};
use tokio::sync::watch;

const MIB: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The first answer with a layer ends in its middle.
    DieOnce,
    /// The same, and later offsets are ignored.
    DieOnceAndIgnoreRange,
    /// The first answer with a layer stops in its middle, and the connection stays.
    StallOnce,
    /// One byte of every layer is another.
    Corrupt,
    /// Layers are longer than the manifest says.
    TooLong,
    /// Every answer with a layer is 503.
    Unavailable,
    /// Every answer with a layer ends after a few bytes.
    Drip,
    /// An answer with a layer comes in pieces, as the test says.
    Trickle,
}

/// The registries of these tests are here.
fn on_this_host() -> Settings {
    Settings { reach: Reach::new(vec!["127.0.0.0/8".parse().unwrap()]), ..Settings::default() }
}

/// What was asked of the proxy about layers: the first line and the `Range` header.
type Seen = Arc<Mutex<Vec<Option<String>>>>;

/// How many bytes of a layer come next.
type Pieces = Arc<Mutex<mpsc::Receiver<usize>>>;

struct Proxy {
    host: String,
    seen: Seen,
    pieces: mpsc::Sender<usize>,
}

impl Proxy {
    /// Serves until the test's process ends.
    fn start(registry: &Registry, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (seen, upstream) = (Seen::default(), registry.host());
        let shared = Arc::clone(&seen);
        let (pieces, told) = mpsc::channel();
        let told = Arc::new(Mutex::new(told));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (seen, upstream, told) = (Arc::clone(&shared), upstream.clone(), Arc::clone(&told));
                std::thread::spawn(move || serve(client.unwrap(), &upstream, &seen, fault, &told));
            }
        });
        Self { host, seen, pieces }
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.seen.lock().unwrap().clone()
    }
}

fn head_of(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        // A TLS greeting is answered as a server without TLS does.
        if stream.read(&mut byte).ok()? == 0 || (head.is_empty() && byte[0] == 0x16) {
            let _sent = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn serve(mut client: TcpStream, upstream: &str, seen: &Seen, fault: Fault, pieces: &Pieces) {
    let Some(head) = head_of(&mut client) else {
        return;
    };
    let range = head.lines().find_map(|line| line.strip_prefix("range: ").map(str::to_owned));
    let mut head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    if let (Some(range), Fault::DieOnceAndIgnoreRange) = (&range, fault) {
        head = head.replace(&format!("range: {range}\r\n"), "");
    }
    let mut server = TcpStream::connect(upstream).unwrap();
    server.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).unwrap();
    let start = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    if head.contains("/blobs/") && answer.len() > MIB {
        let first = {
            let mut seen = seen.lock().unwrap();
            seen.push(range);
            seen.len() == 1
        };
        let half = start + (answer.len() - start) / 2;
        match fault {
            Fault::DieOnce | Fault::DieOnceAndIgnoreRange if first => answer.truncate(half),
            Fault::StallOnce if first => {
                client.write_all(&answer[..half]).unwrap();
                // Until the other side has enough.
                let _closed = client.read(&mut [0]);
                return;
            }
            Fault::Drip => answer.truncate(start + MIB / 16),
            Fault::Trickle => return send_in_pieces(&mut client, &answer, start, pieces),
            Fault::Corrupt => answer[half] ^= 1,
            Fault::TooLong => {
                let text = String::from_utf8_lossy(&answer[..start]).to_lowercase();
                let length = text.lines().position(|line| line.starts_with("content-length:")).unwrap();
                let mut lines: Vec<_> = text.trim_end().lines().map(str::to_owned).collect();
                lines[length] = format!("content-length: {}", answer.len() - start + 10);
                let body = answer.split_off(start);
                lines[0] = "HTTP/1.1 200 OK".into();
                answer = [lines.join("\r\n").as_bytes(), b"\r\n\r\n", &body, &[0; 10]].concat();
            }
            Fault::Unavailable => answer = b"HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n".to_vec(),
            Fault::DieOnce | Fault::DieOnceAndIgnoreRange | Fault::StallOnce => {}
        }
    }
    let _sent = client.write_all(&answer);
    let _shut = client.shutdown(Shutdown::Both);
}

/// Sends an answer whose body begins at `start`: the head, then of the body what the test says, until the test or the other
/// side has enough.
fn send_in_pieces(client: &mut TcpStream, answer: &[u8], start: usize, pieces: &Pieces) {
    let (head, mut left) = answer.split_at(start);
    client.write_all(head).unwrap();
    for piece in pieces.lock().unwrap().iter() {
        let (next, rest) = left.split_at(piece.min(left.len()));
        if client.write_all(next).is_err() || rest.is_empty() {
            return;
        }
        left = rest;
    }
}

/// An image with one layer of some megabytes that cannot be compressed.
fn layout() -> Layout {
    let mut noise = vec![0; 4 * MIB];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    Layout::new(&[vec![Entry::file("noise", &noise)]])
}

struct Setting {
    registry: Registry,
    proxy: Proxy,
    dir: tempfile::TempDir,
    images: Images,
}

impl Setting {
    fn new(fault: Fault) -> Self {
        let registry = Registry::start(Flavour::Open);
        registry.push(&layout().source(), "app:1", &[]);
        let proxy = Proxy::start(&registry, fault);
        let dir = tempfile::Builder::new().prefix("atoll-images-").tempdir().unwrap();
        let images = Images::open_with(dir.path(), on_this_host()).unwrap();
        Self { registry, proxy, dir, images }
    }

    async fn pull(&self) -> Result<Arc<Image>, ImageError> {
        let options = PullOptions { stall: Duration::from_secs(2), ..PullOptions::default() };
        self.images.pull(&format!("{}/app:1", self.proxy.host), &options, &NoProgress).await
    }

    fn files(&self, part: &str) -> usize {
        std::fs::read_dir(self.dir.path().join(part)).unwrap().count()
    }
}

/// The offset of a `bytes=N-` header.
fn offset(range: Option<&String>) -> usize {
    range.unwrap().trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap()
}

#[tokio::test]
async fn a_broken_download_goes_on_where_it_broke() {
    for fault in [Fault::DieOnce, Fault::StallOnce] {
        let setting = Setting::new(fault);
        setting.pull().await.unwrap();
        let ranges = setting.proxy.ranges();
        assert_eq!((ranges.len(), &ranges[0]), (2, &None));
        assert!(offset(ranges[1].as_ref()) > MIB, "{ranges:?}");
        assert_eq!(setting.files("partial"), 0);
    }
}

#[tokio::test]
async fn a_registry_that_ignores_the_offset_starts_again() {
    let setting = Setting::new(Fault::DieOnceAndIgnoreRange);
    setting.pull().await.unwrap();
    assert!(setting.proxy.ranges()[1].is_some());
}

#[tokio::test]
async fn damage_and_lies_are_found_and_leave_nothing() {
    for fault in [Fault::Corrupt, Fault::TooLong] {
        let setting = Setting::new(fault);
        let error = setting.pull().await.unwrap_err();
        assert_eq!(error.to_core().code, Code::DigestMismatch, "{error}");
        for part in ["partial", "tmp", "layers", "images", "refs"] {
            assert_eq!(setting.files(part), 0, "{part}");
        }
    }
}

#[tokio::test]
async fn a_registry_that_stays_away_is_given_up() {
    let setting = Setting::new(Fault::Unavailable);
    let error = setting.pull().await.unwrap_err();
    assert_eq!(error.to_core().code, Code::RegistryUnavailable, "{error}");
    assert_eq!(setting.proxy.ranges().len(), 5, "a bounded number of attempts");
}

#[tokio::test]
async fn a_registry_that_breaks_off_after_a_little_is_given_up_and_what_came_is_kept() {
    let setting = Setting::new(Fault::Drip);
    for attempts in [5, 10] {
        let error = setting.pull().await.unwrap_err();
        assert_eq!(error.to_core().code, Code::RegistryUnavailable, "{error}");
        assert_eq!(setting.proxy.ranges().len(), attempts, "it would be whole after 64");
    }
    let second = offset(setting.proxy.ranges()[5].as_ref());
    assert!(second > MIB / 16, "the second pull went on: {second}");
}

#[tokio::test]
async fn another_process_goes_on_and_damage_at_rest_is_found() {
    let setting = Setting::new(Fault::DieOnce);
    // As a process that was killed leaves it: some bytes of the blob, here damaged.
    let image = setting.pull().await.unwrap();
    let first = setting.proxy.ranges().len();
    setting.images.remove(image.digest.as_str(), &std::collections::BTreeSet::new()).await.unwrap();
    let blob = run(std::process::Command::new("find")
        .arg(setting.registry.storage())
        .args(["-name", "data", "-size", "+1M", "-print"]));
    let blob = std::path::PathBuf::from(String::from_utf8(blob).unwrap().trim());
    let hex = blob.parent().unwrap().file_name().unwrap().to_owned();
    let whole = std::fs::read(&blob).unwrap();
    let mut part = whole[..MIB].to_vec();
    let path = setting.dir.path().join("partial").join(hex);
    std::fs::write(&path, &part).unwrap();
    let image = setting.pull().await.unwrap();
    assert_eq!(offset(setting.proxy.ranges()[first].as_ref()), MIB, "continued");
    assert_eq!(setting.proxy.ranges().len(), first + 1);

    setting.images.remove(image.digest.as_str(), &std::collections::BTreeSet::new()).await.unwrap();
    part[7] ^= 1;
    std::fs::write(&path, &part).unwrap();
    setting.pull().await.unwrap();
    let ranges = setting.proxy.ranges();
    assert_eq!(ranges[first + 1..].iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    assert_eq!(setting.files("partial"), 0);
}

#[tokio::test]
async fn two_pulls_at_once_fetch_once() {
    let setting = Setting::new(Fault::DieOnce);
    let (a, b) = tokio::join!(setting.pull(), setting.pull());
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(setting.proxy.ranges().len(), 2, "one broken download, one continued");
    assert_eq!((setting.files("partial"), setting.files("layers")), (0, 1));
}

#[tokio::test]
async fn a_registry_that_stalls_holds_up_no_other_one_that_has_the_same_layer() {
    let setting = Setting::new(Fault::StallOnce);
    let patient = PullOptions { stall: Duration::from_secs(3600), ..PullOptions::default() };
    let name = format!("{}/app:1", setting.proxy.host);
    let stalled = setting.images.pull(&name, &patient, &NoProgress);
    let other = async {
        while setting.proxy.ranges().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let name = format!("{}/app:1", setting.registry.host());
        setting.images.pull(&name, &PullOptions::default(), &NoProgress).await
    };
    let pulled = tokio::select! {
        _ = stalled => panic!("it stalls"),
        pulled = tokio::time::timeout(Duration::from_secs(120), other) => pulled,
    };
    pulled.expect("it waited for the other registry").unwrap();
    // What the first one brought is there for the next pull; the other's own file is gone.
    assert_eq!((setting.files("partial"), setting.files("layers")), (1, 1));
}

/// How many bytes of the layer are here.
struct Came(watch::Sender<u64>);

impl Progress for Came {
    fn layer(&self, event: LayerEvent<'_>) {
        if event.phase == Phase::Download {
            self.0.send_replace(event.done_bytes);
        }
    }
}

/// Pulls a layer of which so many bytes come each second, by a clock that stands still meanwhile. Gives what came of it, and
/// for how many seconds the registry was waited for.
async fn pull_by_the_second(setting: &Setting, piece: usize) -> (Result<Arc<Image>, ImageError>, u64) {
    // As long as a task like this is at work, no clock of tokio's moves by itself.
    let (_ends, until_the_end) = mpsc::channel::<()>();
    drop(tokio::task::spawn_blocking(move || until_the_end.recv()));
    tokio::time::pause();
    let (came, mut seconds) = (Came(watch::Sender::new(0)), 0);
    let mut here = came.0.subscribe();
    let feed = async {
        let mut sent = 0;
        // Ten times as long as a registry has that sends nothing.
        while seconds < 10 * FLOW_WINDOW.as_secs() {
            setting.proxy.pieces.send(piece).unwrap();
            sent += piece as u64;
            // Whoever pulls waits for more when it has told of this.
            here.wait_for(|bytes| *bytes >= sent).await.unwrap();
            tokio::time::advance(Duration::from_secs(1)).await;
            seconds += 1;
        }
    };
    let (name, options) = (format!("{}/app:1", setting.proxy.host), PullOptions::default());
    let pulled = tokio::select! {
        pulled = setting.images.pull(&name, &options, &came) => pulled,
        () = feed => panic!("it is waited for without end"),
    };
    (pulled, seconds)
}

/// Without the line of `Registry::chunk` that asks for a pace, this is waited for until the layer is whole: for a day.
#[tokio::test]
async fn a_registry_that_trickles_is_given_up_after_a_window_and_not_asked_again() {
    let setting = Setting::new(Fault::Trickle);
    let (pulled, seconds) = pull_by_the_second(&setting, 50).await;
    let error = pulled.unwrap_err();
    assert_eq!(error.to_core().code, Code::RegistryUnavailable, "{error}");
    assert!(error.to_string().contains("less than 1 MiB in 60 seconds"), "{error}");
    assert_eq!(seconds, FLOW_WINDOW.as_secs(), "it was never silent for as long as a stall");
    assert_eq!(setting.proxy.ranges(), [None::<String>], "another attempt would be as slow");
    assert_eq!((setting.files("partial"), setting.files("layers")), (1, 0), "what came is kept");
}

#[tokio::test]
async fn a_registry_that_keeps_the_least_pace_is_waited_for_until_the_layer_is_whole() {
    let setting = Setting::new(Fault::Trickle);
    // A piece may come in two parts, one before and one after the end of a window: one less of them has to do.
    let least = usize::try_from(FLOW_MIN_BYTES.div_ceil(FLOW_WINDOW.as_secs() - 1)).unwrap();
    let (pulled, seconds) = pull_by_the_second(&setting, least).await;
    pulled.unwrap();
    assert!(seconds > 3 * FLOW_WINDOW.as_secs(), "it was waited for in several windows: {seconds}");
    assert_eq!(setting.proxy.ranges(), [None::<String>]);
    assert_eq!((setting.files("partial"), setting.files("layers")), (0, 1));
}
