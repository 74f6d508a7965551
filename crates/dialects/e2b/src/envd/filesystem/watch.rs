//! Watching a directory: `WatchDir`, and the parts that both ways of watching share.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_core::{Code, Error};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::client::WatchStream;
use atoll_guest_protocol::messages::{ChangeKind, Describe, FileKind, Watch, WatchEvent};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ATTRIBUTES, entry, guest, kind};
use crate::connect::{Answer, Ending, Fault, Kind};
use crate::envd::{Envd, paths};
use crate::wire::filesystem::{Empty, EventType, FilesystemEvent, WatchDirResponse, WatchRequest, Watched};

/// A directory that is watched.
#[derive(Debug)]
pub(super) struct Watching {
    guest: GuestLease,
    stream: WatchStream,
    root: String,
    with_entries: bool,
}

impl Watching {
    /// Begins to watch: reports the events from now on.
    pub(super) async fn begin(envd: &Envd, request: &WatchRequest) -> Result<Self, Fault> {
        let guest = guest(envd).await?;
        let root = paths::resolve(envd, &guest, &request.path).await?;
        match kind(&guest, &root).await? {
            Some(info) if info.kind() == FileKind::Directory => {}
            Some(_) => {
                return Err(Fault::new(Kind::InvalidArgument, format!("path {root} is not a directory")));
            }
            None => return Err(Fault::new(Kind::NotFound, format!("path {root} not found"))),
        }
        let watch = Watch { path: root.clone(), recursive: request.recursive, marks: true };
        let stream = guest.watch(watch).await.map_err(|error| envd.fault(&guest_error(error)))?;
        Ok(Self { guest, stream, root, with_entries: request.include_entry })
    }

    /// The next event; `None` when the guest stopped watching. Cancelling the wait loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<WatchEvent>, Error> {
        tokio::select! {
            event = self.stream.next() => match event.map_err(guest_error) {
                // The directory itself went away: nothing more happens in it.
                Err(error) if error.code == Code::FileNotFound => Ok(None),
                event => event,
            },
            () = self.guest.dead() => Err(Error::new(Code::SandboxFailed, "the sandbox is gone")),
        }
    }

    /// An event in the clients' terms: a rename is two.
    pub(super) async fn events(&self, event: &WatchEvent) -> Vec<FilesystemEvent> {
        let here = event.path.as_str();
        let mut all = match event.kind() {
            ChangeKind::Created => vec![(here, EventType::Create)],
            ChangeKind::Written => vec![(here, EventType::Write)],
            ChangeKind::Removed => vec![(here, EventType::Remove)],
            ChangeKind::Attributes => vec![(here, EventType::Chmod)],
            ChangeKind::Moved => vec![(event.from.as_str(), EventType::Rename), (here, EventType::Create)],
            ChangeKind::Overflow | ChangeKind::Mark => Vec::new(),
        };
        let mut told = Vec::with_capacity(all.len());
        for (path, kind) in all.drain(..) {
            let Some(name) = self.name(path) else { continue };
            let event = FilesystemEvent { name: name.to_owned(), kind: kind.into(), entry: None };
            told.push(FilesystemEvent { entry: self.entry(path, kind).await, ..event });
        }
        told
    }

    /// The path below the directory; `None` for a path that is not below it.
    fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.root.trim_end_matches('/'))?;
        match rest.strip_prefix('/') {
            Some(name) if !name.is_empty() => Some(name),
            // The directory itself.
            _ => rest.is_empty().then_some("."),
        }
    }

    async fn entry(&self, path: &str, kind: EventType) -> Option<crate::wire::filesystem::EntryInfo> {
        let there = matches!(kind, EventType::Create | EventType::Write | EventType::Chmod);
        if !self.with_entries || !there {
            return None;
        }
        let request = Describe { paths: vec![path.to_owned()], attributes: ATTRIBUTES.to_owned() };
        // The file may be gone already.
        let described = self.guest.describe(request).await.ok()?.into_iter().next()?;
        entry::entry(path, described)
    }

    pub(super) const fn guest(&self) -> &GuestLease {
        &self.guest
    }
}

/// The stream of `WatchDir`.
#[derive(Debug)]
pub(super) struct Stream {
    watching: Watching,
    ready: VecDeque<Watched>,
    keepalive: Duration,
    until: Option<Instant>,
    draining: CancellationToken,
    over: bool,
}

/// `WatchDir`.
pub(super) async fn stream(
    envd: &Envd,
    request: &WatchRequest,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Stream, Fault> {
    Ok(Stream {
        watching: Watching::begin(envd, request).await?,
        ready: VecDeque::from([Watched::Start(Empty {})]),
        keepalive,
        until: limit.map(|limit| Instant::now() + limit),
        draining: envd.app.host.draining_token(),
        over: false,
    })
}

impl Answer for Stream {
    type Item = WatchDirResponse;

    async fn next(&mut self) -> Result<Option<WatchDirResponse>, Ending> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(WatchDirResponse { event: Some(event) }));
            }
            if self.over {
                return Ok(None);
            }
            let until = self.until;
            let time = async move {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = self.watching.next() => event,
                () = time => return Err(Fault::deadline().into()),
                () = self.draining.cancelled() => return Err(Ending::Cut),
                () = tokio::time::sleep(self.keepalive) => {
                    self.ready.push_back(Watched::Keepalive(Empty {}));
                    continue;
                }
            };
            match event {
                Ok(Some(event)) => {
                    let events = self.watching.events(&event).await;
                    self.ready.extend(events.into_iter().map(Watched::Filesystem));
                }
                Ok(None) => self.over = true,
                Err(error) => {
                    tracing::debug!(%error, "a watch ended");
                    return Err(Ending::Cut);
                }
            }
        }
    }
}
