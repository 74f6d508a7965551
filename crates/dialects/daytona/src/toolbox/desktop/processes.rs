//! The programs of the desktop: processes of the sandbox, which go on without a command of their own.

use serde_json::{Map, Value, json};

use super::desktop;
use crate::error::{Failure, Result};
use crate::request::{Json, Path};
use crate::who::Inside;

/// The processes, in the order in which they start.
const NAMES: [&str; 4] = ["xvfb", "xfce4", "x11vnc", "novnc"];

/// The programs that the image has, each with its process if it runs.
async fn statuses(inside: &Inside, what: &str) -> Result<Vec<(&'static str, Option<u32>)>> {
    let told = desktop(inside, &[what]).await?;
    let line = |line: &str| {
        let (name, pid) = line.split_once(' ')?;
        let name = NAMES.into_iter().find(|known| *known == name)?;
        Some((name, pid.trim().parse().ok()))
    };
    Ok(told.lines().filter_map(line).collect())
}

fn shown(all: &[(&str, Option<u32>)]) -> Value {
    let mut map = Map::new();
    for (number, name) in NAMES.into_iter().enumerate() {
        if let Some((_, pid)) = all.iter().find(|(known, _)| *known == name) {
            let mut status =
                json!({"running": pid.is_some(), "priority": (number + 1) * 100, "autoRestart": false});
            if let Some(pid) = pid {
                status["pid"] = (*pid).into();
            }
            map.insert(name.to_owned(), status);
        }
    }
    Value::Object(map)
}

fn name(text: &str) -> Result<&'static str> {
    NAMES.into_iter().find(|name| *name == text).ok_or_else(|| {
        let text = atoll_core::error::shorten(text);
        Failure::no_process(format!("process {text} not found: there are {}", NAMES.join(", ")))
    })
}

pub(super) async fn start(inside: Inside) -> Result<Json<Value>> {
    let all = statuses(&inside, "start").await?;
    Ok(Json(json!({"message": "Computer use processes started successfully", "status": shown(&all)})))
}

pub(super) async fn stop(inside: Inside) -> Result<Json<Value>> {
    let all = statuses(&inside, "stop").await?;
    Ok(Json(json!({"message": "Computer use processes stopped successfully", "status": shown(&all)})))
}

/// The state of the desktop in one word.
pub(super) async fn status(inside: Inside) -> Result<Json<Value>> {
    let all = statuses(&inside, "status").await?;
    let running = all.iter().filter(|(_, pid)| pid.is_some()).count();
    let status = match running {
        0 => "inactive",
        some if some == all.len() => "active",
        _ => "partial",
    };
    Ok(Json(json!({"status": status})))
}

pub(super) async fn one(inside: Inside, Path((_, text)): Path<(String, String)>) -> Result<Json<Value>> {
    let name = name(&text)?;
    let running =
        statuses(&inside, "status").await?.iter().any(|(known, pid)| *known == name && pid.is_some());
    Ok(Json(json!({"processName": name, "running": running})))
}

pub(super) async fn restart(inside: Inside, Path((_, text)): Path<(String, String)>) -> Result<Json<Value>> {
    let name = name(&text)?;
    desktop(&inside, &["restart", name]).await?;
    Ok(Json(json!({"message": format!("Process {name} restarted successfully"), "processName": name})))
}

pub(super) async fn logs(inside: Inside, Path((_, text)): Path<(String, String)>) -> Result<Json<Value>> {
    let name = name(&text)?;
    Ok(Json(json!({"processName": name, "logs": desktop(&inside, &["log", name, "log"]).await?})))
}

pub(super) async fn errors(inside: Inside, Path((_, text)): Path<(String, String)>) -> Result<Json<Value>> {
    let name = name(&text)?;
    Ok(Json(json!({"processName": name, "errors": desktop(&inside, &["log", name, "err"]).await?})))
}
