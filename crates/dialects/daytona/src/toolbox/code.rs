//! A program in Python, TypeScript or JavaScript.

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_core::spec::{Command, ExecDraft};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

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
pub(super) async fn run(inside: Inside, Json(request): Json<Run>) -> Result<Json<Value>> {
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
    let charts = charts_in(&output.stderr());
    Ok(Json(
        json!({"exitCode": exit_code(&exit), "result": output.stdout(), "artifacts": {"charts": charts}}),
    ))
}

/// Charts, one on each line. Other lines are left out: programs in the sandbox may write there.
fn charts_in(told: &str) -> Vec<Value> {
    let charts = told.lines().filter_map(|line| serde_json::from_str(line).ok());
    charts.filter(Value::is_object).take(CHARTS_MAX_COUNT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_objects() {
        let told = "[the beginning]\n{\"type\":\"line\"}\n\n1\n{\"type\":\"bar\"}\n{\"type\"";
        assert_eq!(charts_in(told), [json!({"type": "line"}), json!({"type": "bar"})]);
    }
}
