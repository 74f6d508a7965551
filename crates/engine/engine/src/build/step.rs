//! One step in its sandbox.

use atoll_build::plan::{Step, Work};
use atoll_core::build::{BuildEvent, BuildFailure};
use atoll_core::exec::{Exit, ExitReason, OutputStream};
use atoll_core::id::SandboxId;
use atoll_core::limits::SECRET_VALUE_MIN_BYTES;
use atoll_core::network::DenialView;
use atoll_core::spec::{Command, ExecDraft};
use atoll_core::{Code, Error, Result};
use atoll_egress::Replacer;
use atoll_guest_protocol::messages::Mkdir;

use super::base::Sources;
use super::run::{Numbered, Run, at};
use crate::errors::guest_error;
use crate::exec::OutputEvent;
use crate::log::Piece;

/// Most output in one entry of the log, bytes.
const PIECE_MAX_BYTES: usize = 16 << 10;
/// What of a failed command's output stands in the failure, bytes and lines.
const TAIL_MAX_BYTES: usize = 4 << 10;
const TAIL_MAX_LINES: usize = 12;
/// Refusals of the network that a failure names.
const REFUSED_SHOWN_MAX_COUNT: usize = 5;
/// The image that is this machine's own files.
const HOST: &str = "host";
/// Programs that install packages of a system, and what to do when they were run where there is none.
const PACKAGE_MANAGERS: [&str; 6] = ["apt", "apt-get", "dpkg", "dnf", "yum", "apk"];
const NO_PACKAGES: &str = "the image 'host' has this machine's programs and not its packages: begin with an image such as \
    docker.io/library/debian:bookworm; 'atoll template build-defaults' makes the bases that other vendors' clients expect";

impl Run<'_> {
    /// Does what a step does.
    pub(super) async fn work(
        &self,
        step: &Step,
        sandbox: &SandboxId,
        numbered: &Numbered<'_>,
        sources: &Sources<'_>,
    ) -> Result<(), BuildFailure> {
        let done = match &step.work {
            Work::Run { argv, env, user, cwd, mounts } => {
                let mounts = self.mount(step, sandbox, user, mounts, sources).await;
                let mounts = mounts.map_err(|error| at(step.place, error))?;
                let draft = ExecDraft {
                    env: env.clone(),
                    cwd: Some(cwd.clone()),
                    user: Some(user.clone()),
                    // As with other builders: what a step leaves running is in no other step, and writes to no snapshot.
                    end_tree: true,
                    ..ExecDraft::new(Command::Argv(mounts.argv(argv)))
                };
                self.command(step, sandbox, draft, numbered).await?;
                return Ok(self.unmount(step, sandbox, mounts).await?);
            }
            Work::Fetch { url, checksum, to } => self.fetch(sandbox, url, checksum.as_deref(), to).await,
            Work::Directory(path) => self.directory(sandbox, path).await,
            Work::CopyContext { selection, to } => self.copy_context(sandbox, selection, to).await,
            Work::CopyFrom { from, sources: files, to } => {
                self.copy_from(sandbox, &sources.of(from)?, files, to).await
            }
        };
        done.map_err(|error| at(step.place, error).into())
    }

    async fn directory(&self, sandbox: &SandboxId, path: &str) -> Result<()> {
        let lease = self.engine.guest(sandbox).await?;
        let request = Mkdir { path: path.to_owned(), mode: 0, user: "0:0".to_owned(), parents: true };
        lease.mkdir(request).await.map_err(guest_error)
    }

    async fn command(
        &self,
        step: &Step,
        sandbox: &SandboxId,
        draft: ExecDraft,
        numbered: &Numbered<'_>,
    ) -> Result<(), BuildFailure> {
        let placed = |error| at(step.place, error);
        let gateway = &self.engine.inner.gateway;
        let denials = || gateway.network(sandbox).map(|view| view.denials).unwrap_or_default();
        let before = denials();
        let view = self.engine.create_exec(sandbox, draft, self.caller).await.map_err(placed)?;
        let exec = view.record.id.to_string();
        let mut reader = self.engine.output(sandbox, &exec, 0, false).await.map_err(placed)?;
        let (mut out, mut err) = (self.text(), self.text());
        let mut tail = Vec::new();
        loop {
            match reader.next(PIECE_MAX_BYTES).await.map_err(placed)? {
                OutputEvent::Piece(Piece::Output { stream, bytes, .. }) => {
                    let text = match stream {
                        OutputStream::Stdout => out.take(&bytes),
                        OutputStream::Stderr => err.take(&bytes),
                    };
                    keep_tail(&mut tail, text.as_bytes());
                    self.output(numbered, stream, text).await?;
                }
                OutputEvent::Piece(Piece::Gap { .. }) => {}
                OutputEvent::End { exit, .. } => {
                    for (stream, text) in
                        [(OutputStream::Stdout, out.rest()), (OutputStream::Stderr, err.rest())]
                    {
                        keep_tail(&mut tail, text.as_bytes());
                        self.output(numbered, stream, text).await?;
                    }
                    let why = || refused(&before, &denials()).or_else(|| self.no_packages(step, sandbox));
                    return outcome(step, &exit, &tail, why);
                }
            }
        }
    }

    /// What to do when a step installed packages into the host's own files, where the program says only that its files
    /// are missing.
    fn no_packages(&self, step: &Step, sandbox: &SandboxId) -> Option<String> {
        let record = self.engine.sandbox(sandbox).ok()?;
        (record.spec.image == HOST && installs_packages(&step.text)).then(|| NO_PACKAGES.to_owned())
    }

    /// Output on its way into the log, which has none of the build's secrets.
    fn text(&self) -> Text {
        let secrets = self.live.secrets.values().map(|value| value.reveal().trim_end());
        let found = secrets.filter(|value| value.len() >= SECRET_VALUE_MIN_BYTES);
        Text {
            held: Vec::new(),
            masks: Replacer::masking(found.map(|value| value.as_bytes().to_vec().into())),
        }
    }

    pub(super) async fn output(
        &self,
        numbered: &Numbered<'_>,
        stream: OutputStream,
        text: String,
    ) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let event = BuildEvent::Output { at_ms: self.clock().now_ms(), step: numbered.number, stream, text };
        self.live.journal.write(&event).await
    }
}

/// What the network refused while a command ran, and what would allow it. Programs say only "could not resolve host".
fn refused(before: &[DenialView], after: &[DenialView]) -> Option<String> {
    let refused = after.iter().filter(|denial| !denial.observed && !before.contains(denial));
    let (mut whats, mut asks): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for denial in refused.take(REFUSED_SHOWN_MAX_COUNT) {
        whats.push(&denial.what);
        if let Some(ask) = denial.ask.as_deref().filter(|ask| !asks.contains(ask)) {
            asks.push(ask);
        }
    }
    let what = format!("the network policy of the build refused {}", whats.join(", "));
    match (whats.is_empty(), asks.is_empty()) {
        (true, _) => None,
        (false, true) => Some(what),
        (false, false) => Some(format!("{what}; this would allow it: {}", asks.join(" "))),
    }
}

/// Whether a command names a program that installs packages of a system.
fn installs_packages(command: &str) -> bool {
    let mut words = command.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.any(|word| PACKAGE_MANAGERS.contains(&word))
}

/// How a command ended. `why` says what may help, and is asked only when it failed.
fn outcome(
    step: &Step,
    exit: &Exit,
    tail: &[u8],
    why: impl FnOnce() -> Option<String>,
) -> Result<(), BuildFailure> {
    if exit.code == Some(0) && exit.reason == ExitReason::Exited {
        return Ok(());
    }
    let how = match (exit.reason, exit.code, exit.signal) {
        (ExitReason::OutOfMemory, ..) => "was killed: the sandbox was out of memory".to_owned(),
        (ExitReason::NotStarted, ..) => {
            "could not be started: there is no such program, or it cannot run".to_owned()
        }
        (ExitReason::SandboxDied, ..) => "ended with its sandbox, which died".to_owned(),
        (_, _, Some(signal)) => format!("was ended by signal {signal}"),
        (_, Some(code), None) => format!("exited with code {code}"),
        (_, None, None) => "ended without an exit code".to_owned(),
    };
    let error = Error::new(Code::BuildStepFailed, format!("{}: '{}' {how}", step.place, step.text));
    let error = if exit.reason == ExitReason::OutOfMemory {
        error.hint("give the build more memory")
    } else if exit.reason == ExitReason::NotStarted {
        error.hint("is the shell or program in the image?")
    } else if let Some(why) = why() {
        error.hint(why)
    } else {
        error
    };
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(TAIL_MAX_LINES)..].join("\n");
    Err(BuildFailure {
        step: Some(step.text.clone()),
        exit_code: exit.code,
        output: (!last.is_empty()).then_some(last),
        ..BuildFailure::from(error)
    })
}

fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    let over = tail.len().saturating_sub(TAIL_MAX_BYTES);
    tail.drain(..over);
}

/// Bytes to text, piece by piece: a character that is cut in two waits for its other half, and what may be the beginning of a
/// secret for its end.
#[derive(Debug)]
struct Text {
    held: Vec<u8>,
    masks: Replacer,
}

impl Text {
    fn take(&mut self, bytes: &[u8]) -> String {
        let bytes = self.masks.push(bytes);
        self.held.extend_from_slice(&bytes);
        let whole = match std::str::from_utf8(&self.held) {
            Ok(_) => self.held.len(),
            // Without a length the error is that the end is missing.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.held.len(),
        };
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    fn rest(&mut self) -> String {
        let bytes = self.masks.finish();
        self.held.extend_from_slice(&bytes);
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Text {
        Text { held: Vec::new(), masks: Replacer::masking([]) }
    }

    #[test]
    fn a_secret_is_masked_wherever_it_is_cut() {
        let mut text = Text { held: Vec::new(), masks: Replacer::masking([b"hunter22".to_vec().into()]) };
        let all: String = "say hunter22, hunt".bytes().map(|byte| text.take(&[byte])).collect();
        assert_eq!(all + &text.rest(), "say ********, hunt");
    }

    #[test]
    fn a_character_in_two_pieces_is_one() {
        let mut text = plain();
        let bytes = "aü€".as_bytes();
        let all: String = bytes.iter().map(|byte| text.take(&[*byte])).collect();
        assert_eq!((all.as_str(), text.rest().as_str()), ("aü€", ""));
        assert_eq!(text.take(b"\xffx"), "\u{fffd}x");
        assert_eq!((text.take(&bytes[..2]), text.rest()), ("a".to_owned(), "\u{fffd}".to_owned()));
    }

    #[test]
    fn package_managers_are_words() {
        for command in
            ["apt-get update && apt-get install -y jq", "RUN set -e;apt install x", "/usr/bin/dpkg -i x"]
        {
            assert!(installs_packages(command), "{command}");
        }
        for command in ["pip install apt-get-helper", "cat adapt", "make"] {
            assert!(!installs_packages(command), "{command}");
        }
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Vec::new();
        for _ in 0..100 {
            keep_tail(&mut tail, &[b'x'; 1000]);
        }
        assert_eq!(tail.len(), TAIL_MAX_BYTES);
    }
}
