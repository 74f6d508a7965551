//! The engine as a witness: what it hands to the recorder, and which callers may read that.
//!
//! Hooks are one line each where something happens; what they record is said here.

mod elsewhere;
mod key;
mod moved;
mod read;
mod strict;

use std::collections::BTreeMap;

use atoll_core::code::{Ask, InterpreterCall};
use atoll_core::exec::{Exit, ExitReason};
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::snapshot::Purpose;
use atoll_core::spec::SandboxSpec;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_recorder::event::{Created, ExecEnded, ExecStarted, FileEvent};
use atoll_recorder::{Event, Recorder, What, Witness, fingerprint, now_us};
use atoll_store::{ExecRecord, SandboxRecord, SnapshotRecord};

use crate::code::CellInfo;

pub(crate) use elsewhere::Fetching;
pub use key::open as open_trace_key;
pub(crate) use moved::{Moving, keep_settled};
pub use read::{EventReader, TraceFilter, TracedEvent};

/// What the engine is told about recording at start.
#[derive(Debug, Clone, Default)]
pub struct TraceConfig {
    /// Nothing is recorded without.
    pub recorder: Option<Recorder>,
    /// How sandboxes are recorded that do not say; none is recorded less.
    pub mode: TraceMode,
}

impl TraceConfig {
    fn mode_of(&self, record: &SandboxRecord) -> TraceMode {
        self.mode_of_spec(&record.spec)
    }

    /// How a sandbox is recorded.
    pub(crate) fn mode_of_spec(&self, spec: &SandboxSpec) -> TraceMode {
        if self.recorder.is_none() {
            return TraceMode::Off;
        }
        spec.trace.unwrap_or(self.mode).max(self.mode)
    }

    /// Begins or goes on to record a sandbox. Called before its actor does anything.
    pub(crate) fn begin(&self, record: &SandboxRecord, new: bool) {
        let Some(recorder) = &self.recorder else { return };
        let owner = record.owner.as_ref().map(ToString::to_string);
        recorder.begin(&record.id, owner.clone(), self.mode_of(record));
        if new {
            let spec = &record.spec;
            let snapshot = spec.snapshot.as_ref().map(ToString::to_string);
            let created = Created {
                name: record.name.clone(),
                isolation: spec.isolation.as_str().to_owned(),
                source: snapshot.or_else(|| spec.template.clone()).unwrap_or_else(|| spec.image.clone()),
                by: owner,
                cpu_millis: u64::from(spec.resources.cpu_millis),
                memory_bytes: spec.resources.memory_bytes,
            };
            recorder.note(&record.id, What::Created(created));
        }
    }

    /// The sandbox is gone.
    pub(crate) fn end(&self, sandbox: &SandboxId) {
        if let Some(recorder) = &self.recorder {
            recorder.end(sandbox);
        }
    }

    /// Records something that concerns a sandbox as a whole.
    pub(crate) fn note(&self, sandbox: &SandboxId, what: What) {
        if let Some(recorder) = &self.recorder {
            recorder.note(sandbox, what);
        }
    }

    /// Records what a sandbox's agent says of a file.
    pub(crate) fn file(&self, sandbox: &SandboxId, event: FileEvent) {
        let Some(recorder) = &self.recorder else { return };
        let what = What::File(event);
        recorder.record(
            sandbox,
            Event { at_us: now_us(), witness: Witness::Guest, exec: None, process: None, what },
        );
    }

    fn of_exec(&self, sandbox: &SandboxId, exec: &ExecId, what: What) {
        let Some(recorder) = &self.recorder else { return };
        let (at_us, exec) = (now_us(), Some(exec.clone()));
        recorder.record(sandbox, Event { at_us, witness: Witness::Server, exec, process: None, what });
    }

    /// Records what has changed between two records of a sandbox.
    pub(crate) fn changed(&self, before: &SandboxRecord, after: &SandboxRecord) {
        if self.recorder.is_none() {
            return;
        }
        if before.state != after.state || before.paused != after.paused {
            let state = What::State {
                state: after.state.to_string(),
                mode: after.paused.map(|mode| mode.as_str().to_owned()),
                reason: after.reason.clone(),
            };
            self.note(&after.id, state);
        }
        let (old, new) = (&before.spec, &after.spec);
        let fields = BTreeMap::from([
            ("name", before.name != after.name),
            ("labels", before.labels != after.labels),
            ("ttl_ms", before.expires_ms != after.expires_ms),
            ("resources", old.resources != new.resources),
            ("egress", old.egress != new.egress),
            ("execution", old.execution != new.execution),
            ("layers", old.layers != new.layers),
            ("budget", old.budget != new.budget),
            ("idle", old.idle != new.idle || old.idle_timeout_ms != new.idle_timeout_ms),
            ("env", old.env != new.env),
            ("user", old.user != new.user),
            ("workdir", old.workdir != new.workdir),
        ]);
        let changed: Vec<String> =
            fields.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name.to_owned()).collect();
        if !changed.is_empty() {
            let policy_revision = if old.egress == new.egress { 0 } else { fingerprint(&new.egress) };
            self.note(&after.id, What::Limits { changed, policy_revision });
        }
    }

    /// Records that a snapshot of a sandbox was taken.
    pub(crate) fn snapshot(&self, taken: &SnapshotRecord) {
        let Some(sandbox) = &taken.sandbox else { return };
        let purpose = match &taken.purpose {
            Purpose::Snapshot => "snapshot".to_owned(),
            Purpose::Checkpoint(number) => format!("checkpoint {number}"),
            Purpose::AutoCheckpoint(number) => format!("checkpoint {number}, taken by itself"),
            Purpose::Held(holder) => holder.clone(),
        };
        self.note(sandbox, What::Snapshot { snapshot: taken.id.to_string(), purpose });
    }

    /// Records that a command is about to start; under strict recording it does not before that is written.
    ///
    /// # Errors
    /// [`Code::HostDiskFull`], only under strict recording.
    pub(crate) async fn exec_starts(&self, record: &ExecRecord) -> Result<()> {
        let spec = &record.spec;
        // Code may hold things that do not belong in a journal: its digest says which code it was.
        let argv = match &spec.interpreter {
            Some(call) => call_in_words(call, &spec.argv),
            None => spec.argv.clone(),
        };
        let started = ExecStarted {
            argv,
            cut: false,
            cwd: spec.cwd.clone().unwrap_or_default(),
            user: spec.user.clone(),
            env: spec.env.keys().cloned().collect(),
            tty: spec.tty.is_some(),
            by: record.started_by.as_ref().map(ToString::to_string),
            pid: None,
            traceparent: spec.traceparent.map(String::from),
        };
        self.of_exec(&record.sandbox, &record.id, What::ExecStarted(started));
        self.strictly(&record.sandbox).await
    }

    /// Records how a command ended.
    pub(crate) fn exec_ended(&self, record: &ExecRecord, exit: &Exit, cpu_us: u64) {
        if exit.reason == ExitReason::OutOfMemory {
            self.of_exec(&record.sandbox, &record.id, What::OutOfMemory);
        }
        let reason = serde_json::to_value(exit.reason).ok();
        let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or_default().to_owned();
        let ended = ExecEnded { code: exit.code, signal: exit.signal, reason, cpu_us };
        self.of_exec(&record.sandbox, &record.id, What::ExecEnded(ended));
    }

    /// Records that a client typed into the terminal of a command.
    pub(crate) fn typed(&self, record: &ExecRecord, by: Option<String>, bytes: u64) {
        self.of_exec(&record.sandbox, &record.id, What::TerminalInput { by, bytes });
    }

    /// Records that a command that was about to start did not.
    pub(crate) fn exec_did_not_start(&self, record: &ExecRecord) {
        let ended = ExecEnded { reason: "not_started".to_owned(), ..ExecEnded::default() };
        self.of_exec(&record.sandbox, &record.id, What::ExecEnded(ended));
    }

    /// Waits, under strict recording, until everything about a sandbox is in its journal.
    async fn strictly(&self, sandbox: &SandboxId) -> Result<()> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        if recorder.mode(sandbox) != TraceMode::Strict {
            return Ok(());
        }
        recorder.written(sandbox).await.map_err(|error| {
            Error::new(Code::HostDiskFull, error.to_string())
                .hint("the sandbox is recorded strictly: make room below the server's data directory")
        })
    }
}

/// What is asked of a code interpreter, as its client's arguments have it.
fn call_in_words(call: &InterpreterCall, argv: &[String]) -> Vec<String> {
    let ask = serde_json::to_value(call.ask).ok();
    let ask = ask.as_ref().and_then(|ask| ask.as_str()).unwrap_or_default().to_owned();
    let mut words = vec!["code-interpreter".to_owned(), ask, call.context.to_string(), call.language.clone()];
    if call.ask == Ask::Run {
        let CellInfo { digest, bytes, .. } = CellInfo::new(call, argv);
        words.extend([format!("blake3:{digest}"), format!("{bytes} bytes")]);
    }
    words
}
