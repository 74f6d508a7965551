//! Execs, their processes and connections, as spans for a collector of OpenTelemetry.
//!
//! No exec waits for any of this. One thread follows the journals on disk, as any other reader, and [`assemble`]s
//! spans; another one [`export`]s them. Between both is a bounded queue: a span that finds no room, because the
//! collector is slow, hangs or is away, is dropped and counted.

mod assemble;
mod export;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_recorder::event::RecorderEvent;
use atoll_recorder::{Reader, Recorder, What};
use atoll_server::SpanCounts;
use opentelemetry_sdk::trace::SpanData;
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::TryRecvError;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result};
use assemble::Assembler;

/// How often journals are looked at.
const TURN: Duration = Duration::from_millis(200);

/// The two threads.
#[derive(Debug)]
pub(crate) struct Spans {
    stop: CancellationToken,
    counts: Arc<SpanCounts>,
    threads: Vec<JoinHandle<()>>,
}

impl Spans {
    /// Begins to send spans of recorded events to a collector. Must be called on a runtime.
    pub(crate) fn start(recorder: &Recorder, endpoint: &str) -> Result<Self> {
        let (stop, counts) = (CancellationToken::new(), Arc::<SpanCounts>::default());
        let (sender, exporter) = export::start(endpoint, stop.clone(), Arc::clone(&counts))?;
        let mut follower = Follower {
            recorder: recorder.clone(),
            activity: recorder.activity(),
            journals: HashMap::new(),
            sender,
            counts: Arc::clone(&counts),
        };
        let (runtime, stopped) = (Handle::current(), stop.clone());
        let follow = move || follower.run(&runtime, &stopped);
        let follower = std::thread::Builder::new().name("spans".to_owned()).spawn(follow);
        let follower = follower.map_err(|error| Failure::io("no thread for spans", error))?;
        Ok(Self { stop, counts, threads: vec![follower, exporter] })
    }

    /// How many were sent, and how many dropped.
    pub(crate) fn counts(&self) -> Arc<SpanCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends the spans that are left, as far as the collector takes them.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let join = || self.threads.into_iter().all(|thread| thread.join().is_ok());
        if !matches!(tokio::task::spawn_blocking(join).await, Ok(true)) {
            tracing::error!("a thread for spans panicked");
        }
    }
}

/// One journal that is followed.
struct Journal {
    reader: Reader,
    assembler: Assembler,
}

/// Reads journals as they grow.
struct Follower {
    recorder: Recorder,
    activity: broadcast::Receiver<SandboxId>,
    journals: HashMap<SandboxId, Journal>,
    sender: SyncSender<SpanData>,
    counts: Arc<SpanCounts>,
}

impl Follower {
    fn run(&mut self, runtime: &Handle, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let changed = self.changed(runtime, stop);
            for sandbox in changed {
                self.read(&sandbox);
            }
            self.settle(Some(Instant::now()));
        }
        for sandbox in self.journals.keys().cloned().collect::<Vec<_>>() {
            self.read(&sandbox);
        }
        self.settle(None);
    }

    /// Waits a turn, and says whose journals have grown.
    fn changed(&mut self, runtime: &Handle, stop: &CancellationToken) -> HashSet<SandboxId> {
        runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(TURN) => {}
                () = stop.cancelled() => {}
            }
        });
        let mut changed = HashSet::new();
        loop {
            match self.activity.try_recv() {
                Ok(sandbox) => drop(changed.insert(sandbox)),
                // Some ids of sandboxes were lost: read all known journals now, and others when they grow again.
                Err(TryRecvError::Lagged(_)) => changed.extend(self.journals.keys().cloned()),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return changed,
            }
        }
    }

    fn read(&mut self, sandbox: &SandboxId) {
        if !self.journals.contains_key(sandbox) {
            let from = began(&mut self.recorder.reader(sandbox, 1));
            let assembler = Assembler::new(sandbox.clone(), from);
            let journal = Journal { reader: self.recorder.reader(sandbox, 1), assembler };
            self.journals.insert(sandbox.clone(), journal);
        }
        let Some(journal) = self.journals.get_mut(sandbox) else { return };
        loop {
            match journal.reader.read() {
                Ok(events) if events.is_empty() => return,
                Ok(events) => {
                    let now = Instant::now();
                    for event in events {
                        journal.assembler.take(event, now);
                    }
                }
                Err(error) => {
                    tracing::warn!(%sandbox, %error, "a journal cannot be read for spans");
                    return;
                }
            }
        }
    }

    fn settle(&mut self, now: Option<Instant>) {
        for journal in self.journals.values_mut() {
            let now = now.filter(|_| !journal.assembler.over);
            let (spans, dropped) = journal.assembler.settle(now);
            self.counts.dropped(dropped);
            for span in spans {
                if self.sender.try_send(span).is_err() {
                    self.counts.dropped(1);
                }
            }
        }
        self.journals.retain(|_, journal| !journal.assembler.over);
    }
}

/// The event with which this server began to write a journal; the server before it sent the spans of earlier events.
fn began(reader: &mut Reader) -> u64 {
    let mut began = 1;
    while let Ok(events) = reader.read()
        && !events.is_empty()
    {
        let went_on = |what: &What| matches!(what, What::Recorder(RecorderEvent::WentOn { .. }));
        began = events.iter().rfind(|event| went_on(&event.event.what)).map_or(began, |event| event.number);
    }
    began
}
