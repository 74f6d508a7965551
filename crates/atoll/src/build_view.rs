//! Shows the progress of a build on the screen.
//!
//! On a terminal a step that runs has a line with its time and the last lines of its output below; finished steps
//! stay above. Elsewhere every entry is a line of its own, with the number of its step in front. With `--json`
//! every entry is a document.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_core::build::{BuildEvent, StepState};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Result;
use crate::output::{Printer, clean};

/// Lines of output below a step that runs.
const TAIL_LINES: usize = 6;
/// Characters of such a line.
const TAIL_CHARS: usize = 100;
/// The clock of a step that runs is redrawn this often.
const TICK: Duration = Duration::from_millis(100);

/// A step that runs, on a terminal.
struct Running {
    head: ProgressBar,
    tail: ProgressBar,
    lines: VecDeque<String>,
}

/// Shows the entries of a build's log.
pub(crate) struct View {
    printer: Printer,
    bars: MultiProgress,
    running: Option<Running>,
    /// When the step that runs began, milliseconds since the epoch.
    since_ms: u64,
    /// The part of an output line that has arrived so far; its line break has not.
    line: String,
    /// When the newest part of it arrived, milliseconds since the epoch.
    line_at_ms: u64,
}

impl View {
    pub(crate) fn new(printer: Printer) -> Self {
        let target =
            if printer.draws() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            printer,
            bars: MultiProgress::with_draw_target(target),
            running: None,
            since_ms: 0,
            line: String::new(),
            line_at_ms: 0,
        }
    }

    /// Shows the next entry.
    pub(crate) fn show(&mut self, event: &BuildEvent) -> Result<()> {
        if self.printer.is_json() {
            return self.printer.stream_item(event);
        }
        match event {
            BuildEvent::Note { text, .. } => self.say(text),
            BuildEvent::Step { at_ms, step, total, stage, text, state, took_ms } => {
                let stage = stage.as_ref().map(|stage| format!("{stage} ")).unwrap_or_default();
                let text = format!("[{stage}{step}/{total}] {text}");
                match state {
                    StepState::Started => self.begin(*at_ms, *step, &text),
                    StepState::Cached => self.say(&self.with_number(*step, &format!("CACHED {text}"))),
                    StepState::Done => self.close(*step, &text, "DONE", *took_ms),
                    StepState::Failed => self.close(*step, &text, "FAILED", *took_ms),
                }
            }
            BuildEvent::Output { at_ms, step, text, .. } => self.output(*at_ms, *step, text),
            BuildEvent::End { .. } => {}
        }
        Ok(())
    }

    /// Removes the lines of the running step from the screen.
    pub(crate) fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.head.finish_and_clear();
            running.tail.finish_and_clear();
        }
    }

    fn with_number(&self, step: u32, text: &str) -> String {
        if self.printer.draws() { format!("=> {text}") } else { format!("#{step} {text}") }
    }

    fn say(&self, text: &str) {
        if self.printer.draws() {
            let text = clean(text);
            // A line that cannot be drawn is dropped.
            drop(self.bars.println(text));
        } else {
            self.printer.note(text);
        }
    }

    fn begin(&mut self, at_ms: u64, step: u32, text: &str) {
        self.since_ms = at_ms;
        if !self.printer.draws() {
            self.printer.note(&format!("#{step} {text}"));
            return;
        }
        let style = ProgressStyle::with_template("=> {msg}  {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let head = self.bars.add(ProgressBar::new_spinner().with_style(style).with_message(clean(text)));
        head.enable_steady_tick(TICK);
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let tail = self.bars.add(ProgressBar::new_spinner().with_style(style));
        self.running = Some(Running { head, tail, lines: VecDeque::new() });
    }

    fn close(&mut self, step: u32, text: &str, word: &str, took_ms: Option<u64>) {
        self.flush(step);
        self.end();
        let took = took_ms.map(|ms| format!(" {}", seconds(ms))).unwrap_or_default();
        if self.printer.draws() {
            let mark = if word == "DONE" { "" } else { "FAILED " };
            self.say(&format!("=> {mark}{text}{took}"));
        } else {
            self.printer.note(&format!("#{step} {word}{took}"));
        }
    }

    fn output(&mut self, at_ms: u64, step: u32, text: &str) {
        self.line.push_str(text);
        self.line_at_ms = at_ms;
        while let Some(end) = self.line.find('\n') {
            let line: String = self.line.drain(..=end).collect();
            self.output_line(at_ms, step, line.trim_end_matches(['\n', '\r']));
        }
    }

    /// Shows the rest of the output, which has no line break at its end.
    fn flush(&mut self, step: u32) {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.output_line(self.line_at_ms, step, &line);
        }
    }

    fn output_line(&mut self, at_ms: u64, step: u32, line: &str) {
        // A progress bar of the command overwrites its line with `\r`: only its last state is shown.
        let line = line.rsplit('\r').next().unwrap_or_default();
        match &mut self.running {
            Some(running) => {
                if running.lines.len() == TAIL_LINES {
                    running.lines.pop_front();
                }
                running.lines.push_back(clean(line).chars().take(TAIL_CHARS).collect());
                let lines: Vec<_> = running.lines.iter().map(|line| format!("   {line}")).collect();
                running.tail.set_message(lines.join("\n"));
            }
            None => {
                let at = at_ms.saturating_sub(self.since_ms);
                self.printer.note(&format!("#{step} {} {line}", seconds(at).trim_end_matches('s')));
            }
        }
    }
}

/// As BuildKit writes it.
fn seconds(ms: u64) -> String {
    format!("{}.{:01}s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!([seconds(0), seconds(1250), seconds(61_999)], ["0.0s", "1.2s", "61.9s"]);
    }
}
