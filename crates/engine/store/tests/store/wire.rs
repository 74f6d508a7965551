//! A way to a PostgreSQL on which a test holds back what a store sends: as a server that stands still, or a cable that is
//! pulled, at the worst moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::secret::Secret;
use atoll_store::StoreUrl;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::Postgres;

/// What a store sends to end its transaction.
const COMMIT: &[u8] = b"COMMIT";

/// How far the hold is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Everything passes.
    No,
    /// The next end of a transaction will be held back.
    Next,
    /// One is held back: its session is in a transaction.
    Holds,
}

/// The way; it is cut when this is dropped.
pub(crate) struct Wire {
    port: u16,
    hold: Arc<watch::Sender<Hold>>,
    stands: Arc<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

impl Wire {
    /// A way to a server of our own.
    pub(crate) async fn to(postgres: &Postgres) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (hold, stands) = (Arc::new(watch::Sender::new(Hold::No)), Arc::new(watch::Sender::new(false)));
        let task = tokio::spawn(serve(listener, postgres.socket(), Arc::clone(&hold), Arc::clone(&stands)));
        Self { port, hold, stands, task }
    }

    /// The same database, over this way.
    pub(crate) fn url(&self, url: &StoreUrl) -> StoreUrl {
        let StoreUrl::Postgres(url) = url else { panic!("a database of PostgreSQL") };
        let name = url.reveal().split(['/', '?']).nth(3).unwrap().to_owned();
        StoreUrl::Postgres(Secret::new(format!(
            "postgres://atoll@127.0.0.1:{}/{name}?sslmode=disable",
            self.port
        )))
    }

    /// Holds back the next end of a transaction.
    pub(crate) fn hold_next_commit(&self) {
        self.hold.send_replace(Hold::Next);
    }

    /// Waits until one is held back: its transaction has done everything else.
    pub(crate) async fn holds(&self) {
        self.hold.subscribe().wait_for(|hold| *hold == Hold::Holds).await.unwrap();
    }

    /// Lets it pass.
    pub(crate) fn let_go(&self) {
        self.hold.send_replace(Hold::No);
    }

    /// Nothing that stores send passes any more, or all of it again.
    pub(crate) fn stand_still(&self, stands: bool) {
        self.stands.send_replace(stands);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    socket: PathBuf,
    hold: Arc<watch::Sender<Hold>>,
    stands: Arc<watch::Sender<bool>>,
) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (socket, hold, stands) = (socket.clone(), Arc::clone(&hold), Arc::clone(&stands));
        tokio::spawn(async move { pass(client, &socket, &hold, &stands).await });
    }
}

/// Passes on what both say until one of them ends it.
async fn pass(client: TcpStream, socket: &Path, hold: &watch::Sender<Hold>, stands: &watch::Sender<bool>) {
    let Ok(server) = UnixStream::connect(socket).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(size) = from_client.read(&mut buffer).await
            && size > 0
        {
            let said = &buffer[..size];
            let ends = said.windows(COMMIT.len()).any(|part| part == COMMIT);
            let is_next = |hold: &mut Hold| {
                let next = *hold == Hold::Next;
                if next {
                    *hold = Hold::Holds;
                }
                next
            };
            if ends && hold.send_if_modified(is_next) {
                hold.subscribe().wait_for(|hold| *hold == Hold::No).await.unwrap();
            }
            stands.subscribe().wait_for(|stands| !stands).await.unwrap();
            if to_server.write_all(said).await.is_err() {
                return;
            }
        }
    };
    let back = async { tokio::io::copy(&mut from_server, &mut to_client).await };
    tokio::select! {
        () = there => {}
        _ended = back => {}
    }
}
