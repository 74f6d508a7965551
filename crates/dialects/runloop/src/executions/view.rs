//! An execution as the clients read it.

use atoll_core::Error;
use atoll_core::exec::{ExecState, OutputStream};
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use atoll_engine::ExecView;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::ids;

/// Output of each stream in one answer, bytes. If there is more, the clients read the streams.
const OUTPUT_MAX_BYTES: usize = 4 << 20;
/// Exit code of a command whose end the server did not see: that of a killed command.
const KILLED: i32 = 137;

/// The end of a stream's output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) text: String,
    pub(super) truncated: bool,
}

impl Tail {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        if self.text.len() > 2 * OUTPUT_MAX_BYTES {
            self.cut();
        }
    }

    /// Keeps the last bytes, from a whole character on.
    fn cut(&mut self) {
        let Some(mut at) = self.text.len().checked_sub(OUTPUT_MAX_BYTES).filter(|at| *at > 0) else { return };
        while !self.text.is_char_boundary(at) {
            at += 1;
        }
        self.text.drain(..at);
        self.truncated = true;
    }

    /// Keeps the last lines.
    fn last_lines(&mut self, count: usize) {
        let body = self.text.strip_suffix('\n').unwrap_or(&self.text);
        let Some(before) = count.checked_sub(1) else {
            self.truncated |= !self.text.is_empty();
            self.text.clear();
            return;
        };
        if let Some((at, _)) = body.rmatch_indices('\n').nth(before) {
            self.text.drain(..=at);
            self.truncated = true;
        }
    }
}

/// The output of a command so far.
async fn output(app: &App, view: &ExecView) -> Result<(Tail, Tail), Error> {
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let engine = app.host.engine();
    let mut feed = Feed::open(engine, view, &app.marks, Counting::Text, Offsets::default()).await?;
    while let Some(event) = feed.next_now().await? {
        match event {
            Event::Text { stream: OutputStream::Stdout, text, .. } => stdout.push(&text),
            Event::Text { text, .. } => stderr.push(&text),
            Event::Raw { .. } => {}
            Event::End(_) => break,
        }
    }
    stdout.cut();
    stderr.cut();
    Ok((stdout, stderr))
}

pub(super) const fn status(view: &ExecView) -> &'static str {
    match view.record.state {
        ExecState::Starting => "queued",
        ExecState::Running => "running",
        ExecState::Exited | ExecState::Lost => "completed",
    }
}

pub(super) fn exit_status(view: &ExecView) -> i32 {
    view.record.exit.as_ref().and_then(|exit| exit.code).unwrap_or(KILLED)
}

/// How many of the last lines the client wants; all that fit when it gives no number.
pub(super) fn lines(asked: Option<&str>) -> Result<Option<usize>> {
    let parse = |text: &str| {
        text.parse::<usize>().map_err(|_not_a_number| Failure::bad("last_n: must be a number of lines"))
    };
    asked.filter(|text| !text.is_empty()).map(parse).transpose()
}

/// An execution with its output.
pub(super) async fn view(app: &App, exec: &ExecView, last: Option<usize>) -> Result<Value> {
    let (mut stdout, mut stderr) = output(app, exec).await.map_err(|error| Failure::of(&error))?;
    if let Some(count) = last {
        stdout.last_lines(count);
        stderr.last_lines(count);
    }
    let mut view = json!({
        "devbox_id": ids::of_sandbox(&exec.record.sandbox),
        "execution_id": ids::of_exec(&exec.record.id),
        "status": status(exec),
        "stdout": stdout.text,
        "stderr": stderr.text,
        "stdout_truncated": stdout.truncated,
        "stderr_truncated": stderr.truncated,
    });
    if status(exec) == "completed" {
        view["exit_status"] = exit_status(exec).into();
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(text: &str, count: usize) -> (String, bool) {
        let mut tail = Tail { text: text.to_owned(), truncated: false };
        tail.last_lines(count);
        (tail.text, tail.truncated)
    }

    #[test]
    fn last_lines() {
        assert_eq!(last("a\nb\nc\n", 2), ("b\nc\n".to_owned(), true));
        assert_eq!(last("a\nb\nc", 1), ("c".to_owned(), true));
        assert_eq!(last("a\nb\n", 2), ("a\nb\n".to_owned(), false));
        assert_eq!(last("a\n", 0), (String::new(), true));
        assert_eq!(last("", 0), (String::new(), false));
    }

    #[test]
    fn much_is_cut_at_a_character() {
        let mut tail = Tail::default();
        for _ in 0..OUTPUT_MAX_BYTES {
            tail.push("€");
        }
        tail.cut();
        assert!(tail.truncated && tail.text.len() <= OUTPUT_MAX_BYTES && tail.text.starts_with('€'));
    }
}
