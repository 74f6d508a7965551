//! Running a line in a shell of the sandbox.

use std::collections::BTreeMap;

use atoll_core::limits::{ARG_MAX_BYTES, STDIN_CHUNK_MAX_BYTES};
use atoll_core::spec::{Command, ExecDraft};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::get_or_create;
use atoll_engine::ExecView;
use bytes::Bytes;

use super::files::paths;
use crate::who::Inside;

/// Lines up to this length are arguments; the shell reads longer ones from its input, bytes.
const LINE_MAX_BYTES: usize = ARG_MAX_BYTES - 1024;

/// The line to run, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub(crate) command: String,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout_s: Option<u64>,
}

impl Line {
    /// Starts the line.
    ///
    /// # Errors
    /// As [`atoll_engine::Engine::create_exec`].
    pub(crate) async fn start(&self, inside: &Inside) -> Result<ExecView, Error> {
        let long = self.command.len() > LINE_MAX_BYTES;
        let cwd = match self.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
            Some(cwd) => Some(paths::absolute(inside, cwd).await?),
            None => None,
        };
        let draft = |shell: &str| {
            let argv = match long {
                true => vec![shell.to_owned(), "-s".to_owned()],
                false => vec![shell.to_owned(), "-c".to_owned(), self.command.clone()],
            };
            Ok(ExecDraft {
                cwd: cwd.clone(),
                env: self.env.clone(),
                stdin: long,
                timeout_ms: self.timeout_s.map(|seconds| seconds.saturating_mul(1000)),
                ..ExecDraft::new(Command::Argv(argv))
            })
        };
        let view = get_or_create(inside.engine(), inside.id(), None, None, draft, inside.recorded()).await?;
        if long {
            feed(inside, view.record.id.as_str(), Bytes::from(self.command.clone())).await?;
        }
        Ok(view)
    }
}

/// Gives a command all of its input. A command that ends without reading all of it is no error.
pub(crate) async fn feed(inside: &Inside, exec: &str, mut input: Bytes) -> Result<(), Error> {
    loop {
        let piece = input.split_to(input.len().min(STDIN_CHUNK_MAX_BYTES));
        let last = input.is_empty();
        match inside.engine().write_stdin(inside.id(), exec, piece, last).await {
            Err(error) if matches!(error.code, Code::ExecEnded | Code::StdinClosed) => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) if last => return Ok(()),
            Ok(_) => {}
        }
    }
}
