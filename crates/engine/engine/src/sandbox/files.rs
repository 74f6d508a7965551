//! Tells the journal of changes of files, for sandboxes whose spec asks for that. The guest agent reports them: in a
//! container no process inside has power over the agent; in a machine the report is only as good as the processes that
//! have power over the machine.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use atoll_core::trace::TraceFiles;
use atoll_guest_protocol::client::{GuestClient, GuestError, WatchStream};
use atoll_guest_protocol::messages::{ChangeKind, Read, Watch, WatchEvent};
use atoll_recorder::What;
use atoll_recorder::event::{FileAction, FileEvent, Lost, RecorderEvent};
use tokio::time::{Instant, sleep_until};

use crate::errors::chain;

use super::shared::SandboxShared;

/// A file that is written to again and again is told of so often.
const ROUND: Duration = Duration::from_secs(1);
/// Changes that are told in one round; then the agent waits, and says so when its own queue overflows.
const ROUND_MAX_COUNT: usize = 5_000;
/// How often is looked for a path that is not there.
const ABSENT_PAUSE: Duration = Duration::from_secs(1);
/// Largest file whose content is told by its digest, bytes.
const DIGEST_MAX_BYTES: u64 = 64 << 20;

/// Tells as long as there is a connection.
pub(super) async fn tell(sandbox: &SandboxShared, client: &GuestClient) -> Infallible {
    let mut records = sandbox.watch_record();
    let wanted = records.wait_for(|record| record.spec.trace_files.is_some()).await;
    let wanted = wanted.ok().and_then(|record| record.spec.trace_files.clone());
    let Some(TraceFiles { paths, digests }) = wanted else { return std::future::pending().await };
    let each = paths.iter().map(|path| below(sandbox, client, path, digests));
    futures::future::join_all(each).await;
    std::future::pending().await
}

/// Of one path, over and over: it may come later, and go.
async fn below(sandbox: &SandboxShared, client: &GuestClient, path: &str, digests: bool) {
    let mut said = false;
    loop {
        let watch = Watch { path: path.to_owned(), recursive: true, marks: false };
        match client.watch(watch).await {
            Ok(changes) => {
                said = false;
                let begun = RecorderEvent::WatchesFiles { path: path.to_owned() };
                sandbox.trace.note(&sandbox.id, What::Recorder(begun));
                let error =
                    Round { sandbox, client, digests, written: BTreeSet::new() }.follow(changes).await;
                tracing::debug!(sandbox = %sandbox.id, path, error = chain(&error), "files are not watched any more");
            }
            Err(GuestError::Closed) => return,
            Err(error) if !said => {
                said = true;
                tracing::debug!(sandbox = %sandbox.id, path, error = chain(&error), "files cannot be watched yet");
            }
            Err(_again) => {}
        }
        tokio::time::sleep(ABSENT_PAUSE).await;
    }
}

struct Round<'a> {
    sandbox: &'a SandboxShared,
    client: &'a GuestClient,
    digests: bool,
    /// What was written to in this round.
    written: BTreeSet<String>,
}

impl Round<'_> {
    async fn follow(&mut self, mut changes: WatchStream) -> GuestError {
        let (mut end, mut count) = (Instant::now() + ROUND, 0);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => {
                    self.flush().await;
                    (end, count) = (Instant::now() + ROUND, 0);
                }
                change = changes.next(), if count < ROUND_MAX_COUNT => match change {
                    Ok(Some(change)) => {
                        count += 1;
                        self.take(change).await;
                    }
                    Ok(None) => {
                        self.flush().await;
                        return GuestError::Closed;
                    }
                    Err(error) => {
                        self.flush().await;
                        return error;
                    }
                },
            }
        }
    }

    async fn take(&mut self, change: WatchEvent) {
        let WatchEvent { path, from, .. } = change;
        let kind = ChangeKind::try_from(change.kind);
        let action = match kind {
            Ok(ChangeKind::Written) => {
                self.written.insert(path);
                return;
            }
            Ok(ChangeKind::Created) => FileAction::Created,
            Ok(ChangeKind::Removed) => FileAction::Deleted,
            Ok(ChangeKind::Moved) => FileAction::Renamed,
            Ok(ChangeKind::Overflow) => {
                let reason = "changes of files came faster than they were told".to_owned();
                let lost = What::Lost(Lost { count: None, reason });
                return self.sandbox.trace.note(&self.sandbox.id, lost);
            }
            Ok(ChangeKind::Attributes | ChangeKind::Mark) | Err(_) => return,
        };
        // What was written to it before is told before, without what is there no more.
        let before = if action == FileAction::Renamed { &from } else { &path };
        if self.written.remove(before) {
            self.say(FileAction::Written, before.clone(), None, None);
        }
        match (action, from.is_empty()) {
            (FileAction::Renamed, false) => self.say(action, from, Some(path), None),
            // It came from a path that is not watched.
            (FileAction::Renamed, true) => self.say(FileAction::Created, path, None, None),
            _ => self.say(action, path, None, None),
        }
    }

    /// Tells of all that was written to.
    async fn flush(&mut self) {
        for path in std::mem::take(&mut self.written) {
            let digest = if self.digests { self.digest(&path).await } else { None };
            self.say(FileAction::Written, path, None, digest);
        }
    }

    fn say(&self, action: FileAction, path: String, to: Option<String>, digest: Option<String>) {
        self.sandbox.trace.file(&self.sandbox.id, FileEvent { action, path, to, digest });
    }

    /// The content as it is now; none of what is gone, too large, or no file.
    async fn digest(&self, path: &str) -> Option<String> {
        let read = Read { path: path.to_owned(), offset: 0, length: DIGEST_MAX_BYTES + 1 };
        let mut content = self.client.read(read).await.ok()?;
        let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
        while let Some(piece) = content.next().await.ok()? {
            bytes += piece.len() as u64;
            if bytes > DIGEST_MAX_BYTES {
                return None;
            }
            hasher.update(&piece);
        }
        Some(format!("blake3:{}", hasher.finalize().to_hex()))
    }
}
