//! A program in Python, TypeScript or JavaScript.

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_core::spec::{Command, ExecDraft};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::execute::{ended, seconds};
use super::output::exit_code;
use super::shell::feed;
use crate::error::{Failure, Result};
use crate::request::Json;
use crate::who::Inside;

/// Finds the program that runs a language, and lets it read the code from its input: `code.sh LANGUAGE CHARTS
/// ARGUMENT…`.
const SCRIPT: &str = include_str!("../../guest/code.sh");
/// Runs a program in Python and reports the charts that it shows.
const CHARTS: &str = include_str!("../../guest/charts.py");
/// Every program that shows a chart contains this text.
const SHOWS: &str = "show(";
/// Most charts of one program.
const CHARTS_MAX_COUNT: usize = 1000;
/// Most arguments of a program.
const ARGV_MAX_COUNT: usize = 1000;

/// A program.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Run {
    code: String,
    language: Option<String>,
    argv: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    timeout: Option<i64>,
}

/// Runs a program to its end.
pub(super) async fn run(inside: Inside, Json(request): Json<Run>) -> Result<Response> {
    let language = match request.language.as_deref().unwrap_or("python") {
        "python" => "python",
        "javascript" => "javascript",
        "typescript" => "typescript",
        other => {
            let other = atoll_core::error::shorten(other);
            return Err(Failure::bad_daemon(format!(
                "language: '{other}' is none of python, typescript and javascript"
            )));
        }
    };
    let arguments = request.argv.unwrap_or_default();
    if arguments.len() > ARGV_MAX_COUNT {
        return Err(Failure::bad_daemon(format!("argv: more than {ARGV_MAX_COUNT} arguments")));
    }
    let charts = if language == "python" && request.code.contains(SHOWS) { CHARTS } else { "" };
    let argv =
        ["/bin/sh", "-c", SCRIPT, "code", language, charts].map(str::to_owned).into_iter().chain(arguments);
    let draft = ExecDraft {
        env: request.envs.unwrap_or_default(),
        stdin: true,
        timeout_ms: seconds(request.timeout).map(|seconds| seconds.saturating_mul(1000)),
        ..ExecDraft::new(Command::Argv(argv.collect()))
    };
    let fail = |error: Error| Failure::of_daemon(&error);
    let view = inside.engine().create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    let exec = view.record.id.as_str();
    // Both at once: a program may write much before it has read all of its code.
    let (fed, ended) = tokio::join!(feed(&inside, exec, Bytes::from(request.code)), ended(&inside, exec));
    let (output, exit) = ended?;
    fed.map_err(fail)?;
    // The program's two streams are one here; the other stream carries the charts.
    let (result, told) = (output.stdout(), output.stderr());
    let artifacts = Artifacts { charts: charts_in(&told) };
    Ok(output.answer(&Ran { exit_code: exit_code(&exit), result: &result, artifacts }))
}

/// What a program did.
#[derive(Serialize)]
struct Ran<'a> {
    #[serde(rename = "exitCode")]
    exit_code: i32,
    result: &'a str,
    artifacts: Artifacts<'a>,
}

/// What it made beside its output.
#[derive(Serialize)]
struct Artifacts<'a> {
    /// As the program wrote them: values that were read could take thirty times as much memory.
    charts: Vec<&'a RawValue>,
}

/// Charts, one on each line. Other lines are left out: programs in the sandbox may write there.
fn charts_in(told: &str) -> Vec<&RawValue> {
    let charts = told.lines().filter_map(|line| serde_json::from_str::<&RawValue>(line).ok());
    charts.filter(|chart| chart.get().starts_with('{')).take(CHARTS_MAX_COUNT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_objects() {
        let told = "[the beginning]\n{\"type\":\"line\"}\n\n1\n{\"type\":\"bar\"}\n{\"type\"";
        let charts: Vec<&str> = charts_in(told).into_iter().map(RawValue::get).collect();
        assert_eq!(charts, [r#"{"type":"line"}"#, r#"{"type":"bar"}"#]);
        let nested = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let told = format!("  {nested} \n");
        assert_eq!(charts_in(&told).into_iter().map(RawValue::get).collect::<Vec<_>>(), [nested.as_str()]);
    }
}
