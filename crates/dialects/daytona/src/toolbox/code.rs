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

/// Finds what runs a language and lets it read the program from its input: `code.sh LANGUAGE ARGUMENT…`.
const SCRIPT: &str = include_str!("../../guest/code.sh");
/// Arguments of a program.
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
    let argv = ["/bin/sh", "-c", SCRIPT, "code", language].map(str::to_owned).into_iter().chain(arguments);
    let draft = ExecDraft {
        env: request.envs.unwrap_or_default(),
        stdin: true,
        timeout_ms: seconds(request.timeout).map(|seconds| seconds.saturating_mul(1000)),
        ..ExecDraft::new(Command::Argv(argv.collect()))
    };
    let fail = |error: Error| Failure::of_daemon(&error);
    let view = inside.engine().create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    let exec = view.record.id.as_str();
    // Both at once: a program may say much before all of it was read.
    let (fed, ended) = tokio::join!(feed(&inside, exec, Bytes::from(request.code)), ended(&inside, exec));
    let (output, exit) = ended?;
    fed.map_err(fail)?;
    Ok(Json(json!({"exitCode": exit_code(&exit), "result": output.both(), "artifacts": {"charts": []}})))
}
