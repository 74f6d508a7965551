//! The only place that prints.
//!
//! Results go to standard output, everything else to standard error. With `--json` a result is one
//! JSON document, a stream is one document per line, and an error is the body that the server would
//! send. Text, JSON and errors go through [`crate::printable`] before they meet a terminal: a sandbox
//! does not drive the terminal by its names and arguments. The output of commands is passed on as it
//! is, as docker does.

use std::io::{self, IsTerminal as _, Write as _};

use atoll_core::exec::OutputStream;
use bytes::Bytes;
use comfy_table::Table;
use owo_colors::{OwoColorize as _, Style};
use serde::Serialize;

use crate::failure::{Failure, Result};
pub(crate) use crate::printable::clean;
use crate::printable::{escaped, styled};
use crate::words;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    json: bool,
    color: bool,
    /// Whether progress may be drawn, on a terminal.
    draws: bool,
}

impl Printer {
    /// Colours are used only on a terminal, and only if the user does not turn them off (`color`).
    pub(crate) fn new(json: bool, color: bool) -> Self {
        Self { json, color: color && io::stderr().is_terminal(), draws: !json }
    }

    /// One that shows no documents of what is only on the way to the result.
    pub(crate) fn quiet(self) -> Self {
        Self { json: false, draws: !self.json, ..self }
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Whether standard error takes colours.
    pub(crate) fn colors(self) -> bool {
        self.color
    }

    /// Whether progress may be drawn: on a terminal, for people.
    pub(crate) fn draws(self) -> bool {
        self.draws && io::stderr().is_terminal()
    }

    /// A result: `value` as JSON, or `text` for people.
    pub(crate) fn result<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { self.document(value) } else { self.line(&text()) }
    }

    /// One JSON document, for people and machines alike.
    pub(crate) fn document<T: Serialize>(self, value: &T) -> Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))?;
        write_out(&escaped(text))
    }

    /// One document of a stream.
    pub(crate) fn stream_item<T: Serialize>(self, value: &T) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|error| Failure::Output(error.into()))?;
        write_out(&escaped(text))
    }

    /// A list: as JSON, as names only, one in a line, or as a table.
    pub(crate) fn names_or<'a, T: Serialize>(
        self,
        list: &T,
        names: Option<impl Iterator<Item = &'a str>>,
        table: impl FnOnce() -> String,
    ) -> Result<()> {
        self.result(list, || names.map_or_else(table, |names| names.collect::<Vec<_>>().join("\n")))
    }

    /// What was removed, which is said with `--json` only.
    pub(crate) fn removed<T: Serialize>(self, what: &T) -> Result<()> {
        self.done(&serde_json::json!({ "removed": what }))
    }

    /// What was done, which is said with `--json` only.
    pub(crate) fn done<T: Serialize>(self, value: &T) -> Result<()> {
        self.result(value, String::new)
    }

    /// A list, in the form that the API's lists have.
    pub(crate) fn list<T: Serialize>(self, items: &[T], text: impl FnOnce() -> String) -> Result<()> {
        self.result(&serde_json::json!({ "items": items }), text)
    }

    /// A line, or several, of a result.
    pub(crate) fn line(self, text: &str) -> Result<()> {
        if text.is_empty() { Ok(()) } else { write_out(&clean(text)) }
    }

    /// Prints a note besides the result, but not with `--json`. If it cannot be printed, it is dropped.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            drop(writeln!(io::stderr(), "{}", clean(text)));
        }
    }

    /// Warns the user, but not with `--json`.
    pub(crate) fn warn(self, text: &str) {
        if !self.json {
            let label = self.paint("warning:", Style::new().yellow().bold());
            // `\r`: the terminal may be raw.
            drop(write!(io::stderr(), "\r{label} {}\r\n", clean(text)));
        }
    }

    /// Says why the command failed.
    pub(crate) fn failure(self, failure: &Failure) {
        if failure.is_silent() {
            return;
        }
        let mut text = String::new();
        if self.json {
            text.push_str(&escaped(serde_json::to_string(&failure.to_body()).unwrap_or_default()));
        } else {
            text.push_str(&self.paint("error:", Style::new().red().bold()));
            text.push(' ');
            text.push_str(&clean(&words::for_people(&failure.message())));
            if let Some(hint) = failure.hint().map(|hint| words::for_people(&hint)) {
                text.push('\n');
                text.push_str(&self.paint("hint:", Style::new().cyan().bold()));
                text.push(' ');
                text.push_str(&clean(&hint));
            }
        }
        drop(writeln!(io::stderr(), "{text}"));
    }

    /// Says what is wrong with the arguments, in the words and styles of their parser.
    pub(crate) fn misuse(self, error: &clap::Error) {
        drop(write!(io::stderr(), "{}", styled(&error.render().ansi().to_string(), self.color)));
    }

    /// Says what to do about an error that was printed.
    pub(crate) fn hint(self, text: &str) {
        drop(writeln!(io::stderr(), "{} {}", self.paint("hint:", Style::new().cyan().bold()), clean(text)));
    }

    fn paint(self, text: &str, style: Style) -> String {
        if self.color { text.style(style).to_string() } else { text.to_owned() }
    }

    /// A piece of a command's output, to where it belongs. It is passed on as it is, with what a
    /// terminal obeys: the user asked to see what this command writes, as with `docker exec`. On a
    /// thread that may block: a pipe or terminal that takes nothing must not keep signals from being
    /// seen.
    pub(crate) async fn exec_output(self, stream: OutputStream, data: Bytes) -> Result<()> {
        let write = move || match stream {
            OutputStream::Stdout => write_raw(io::stdout().lock(), &data),
            OutputStream::Stderr => write_raw(io::stderr().lock(), &data),
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(written) => written.map_err(Failure::Output),
            Err(error) => Err(Failure::Output(io::Error::other(error))),
        }
    }
}

fn write_raw(mut out: impl io::Write, data: &[u8]) -> io::Result<()> {
    out.write_all(data)?;
    out.flush()
}

fn write_out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

/// A table without lines. Empty when there are no rows but the header.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    for row in rows {
        // A cell is one line.
        table.add_row(row.map(|cell| clean(&cell).replace(['\n', '\t'], " ")));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Names and values, one below the other.
pub(crate) fn fields<const N: usize>(rows: [(&str, String); N]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = rows
        .into_iter()
        .map(|(name, value)| format!("{name:width$}  {}", clean(&value).replace('\n', " ")))
        .collect();
    lines.join("\n")
}

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// How long ago something was, for a table.
pub(crate) fn age(at_ms: u64) -> String {
    crate::units::format_duration_ms(now_ms().saturating_sub(at_ms) / 1000 * 1000)
}

/// How long until something is, for a table.
pub(crate) fn until(at_ms: Option<u64>) -> String {
    let now = now_ms();
    at_ms.map_or_else(
        || "never".to_owned(),
        |at| match at.saturating_sub(now) {
            0 => "now".to_owned(),
            left => format!("in {}", crate::units::format_duration_ms(left)),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[31m\x07b\nc"), "a\u{fffd}[31m\u{fffd}b\nc");
        let shown = table(["A"], [["x\x1b]0;t\x07\ny".to_owned()]]);
        assert_eq!(shown, "A\nx\u{fffd}]0;t\u{fffd} y");
    }
}
