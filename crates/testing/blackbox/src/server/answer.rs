//! What programs, execs and raw requests answered.

use atoll_api::ExecWithOutput;
use atoll_core::exec::OutputStream;
use serde_json::Value;

/// The output of a program, and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as a JSON document.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }

    /// Itself, if it succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// An answer over raw HTTP.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: reqwest::header::HeaderMap,
    /// The body as it is.
    pub bytes: Vec<u8>,
}

impl Answer {
    /// The body as JSON; `null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Code and outputs of an exec that was waited for.
pub(super) fn output_of(done: &ExecWithOutput) -> Output {
    let mut output = Output { code: None, stdout: String::new(), stderr: String::new() };
    output.code = done.exec.exit.as_ref().and_then(|exit| exit.code);
    for chunk in done.output.iter().flatten() {
        let bytes = chunk.bytes().expect("a chunk");
        let text = String::from_utf8_lossy(&bytes);
        match chunk.stream {
            OutputStream::Stdout => output.stdout.push_str(&text),
            OutputStream::Stderr => output.stderr.push_str(&text),
        }
    }
    output
}
