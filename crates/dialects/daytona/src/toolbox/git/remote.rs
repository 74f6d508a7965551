//! Other repositories: clone, push, pull, and the login there.

use atoll_core::secret::Secret;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Input, git, plain, repository, within};
use crate::error::{Failure, Result};
use crate::request::{Json, Query};
use crate::who::Inside;

/// The remote when the client names none.
const ORIGIN: &str = "origin";

#[derive(Deserialize)]
pub(super) struct Clone {
    url: String,
    path: String,
    branch: Option<String>,
    commit_id: Option<String>,
    depth: Option<u32>,
    insecure_skip_tls: Option<bool>,
    username: Option<String>,
    password: Option<Secret>,
}

/// Clones a repository, at a branch or a commit.
pub(super) async fn clone(inside: Inside, Json(asked): Json<Clone>) -> Result<StatusCode> {
    let path = repository(&inside, &asked.path).await?;
    let depth = asked.depth.filter(|depth| *depth > 0).map(|depth| format!("--depth={depth}"));
    let commit = asked.commit_id.as_deref().filter(|commit| !commit.is_empty());
    let mut arguments = Vec::new();
    if asked.insecure_skip_tls == Some(true) {
        arguments.extend(["-c", "http.sslVerify=false"]);
    }
    arguments.extend(["clone", "--quiet"]);
    if let Some(branch) = asked.branch.as_deref().filter(|branch| !branch.is_empty()) {
        arguments.extend(["--branch", plain("branch", branch)?]);
    }
    // A commit may lie deeper than the depth.
    arguments.extend(depth.as_deref().filter(|_| commit.is_none()));
    arguments.extend(["--", plain("url", &asked.url)?, &path]);
    git(&inside, Input::credentials(asked.username, asked.password)?, &arguments).await?;
    if let Some(commit) = commit {
        git(&inside, Input::None, &["-C", &path, "checkout", "--quiet", plain("commit_id", commit)?, "--"])
            .await?;
    }
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
pub(super) struct Exchange {
    path: String,
    remote: Option<String>,
    branch: Option<String>,
    set_upstream: Option<bool>,
    username: Option<String>,
    password: Option<Secret>,
}

/// Pushes a branch: the current one when the client names none.
pub(super) async fn push(inside: Inside, Json(asked): Json<Exchange>) -> Result<StatusCode> {
    let mut arguments = vec!["push", "--quiet"];
    if asked.set_upstream == Some(true) {
        arguments.push("--set-upstream");
    }
    arguments
        .push(plain("remote", asked.remote.as_deref().filter(|name| !name.is_empty()).unwrap_or(ORIGIN))?);
    arguments
        .push(plain("branch", asked.branch.as_deref().filter(|name| !name.is_empty()).unwrap_or("HEAD"))?);
    within(
        &inside,
        &asked.path,
        Input::credentials(asked.username.clone(), asked.password.clone())?,
        &arguments,
    )
    .await?;
    Ok(StatusCode::OK)
}

/// Pulls a branch: when the client names none, the one that the current branch follows.
pub(super) async fn pull(inside: Inside, Json(asked): Json<Exchange>) -> Result<StatusCode> {
    let mut arguments = vec!["pull", "--quiet", "--no-rebase", "--no-edit"];
    let branch = asked.branch.as_deref().filter(|name| !name.is_empty());
    let remote = asked.remote.as_deref().filter(|name| !name.is_empty()).or(branch.map(|_| ORIGIN));
    if let Some(remote) = remote {
        arguments.push(plain("remote", remote)?);
    }
    if let Some(branch) = branch {
        arguments.push(plain("branch", branch)?);
    }
    within(
        &inside,
        &asked.path,
        Input::credentials(asked.username.clone(), asked.password.clone())?,
        &arguments,
    )
    .await?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
pub(super) struct At {
    path: String,
}

/// The remotes of a repository.
pub(super) async fn list(inside: Inside, Query(at): Query<At>) -> Result<Json<Value>> {
    let said = within(&inside, &at.path, Input::None, &["remote", "--verbose"]).await?;
    let mut remotes: Vec<Value> = Vec::new();
    for line in said.lines().filter(|line| line.ends_with("(fetch)")) {
        let mut words = line.trim_end_matches("(fetch)").split('\t');
        if let (Some(name), Some(url)) = (words.next(), words.next()) {
            remotes.push(json!({"name": name, "url": url.trim()}));
        }
    }
    Ok(Json(json!({"remotes": remotes})))
}

#[derive(Deserialize)]
pub(super) struct Add {
    path: String,
    name: String,
    url: String,
    fetch: Option<bool>,
    overwrite: Option<bool>,
}

/// Adds a remote, or changes it.
pub(super) async fn add(inside: Inside, Json(asked): Json<Add>) -> Result<StatusCode> {
    let (name, url) = (plain("name", &asked.name)?, plain("url", &asked.url)?);
    let added = within(&inside, &asked.path, Input::None, &["remote", "add", name, url]).await;
    match added {
        Err(failure) if failure.message.contains("already exists") => {
            if asked.overwrite != Some(true) {
                return Err(Failure::conflict(failure.message).from(crate::error::Source::Daemon));
            }
            within(&inside, &asked.path, Input::None, &["remote", "set-url", name, url]).await?;
        }
        added => drop(added?),
    }
    if asked.fetch == Some(true) {
        within(&inside, &asked.path, Input::None, &["fetch", "--quiet", name]).await?;
    }
    Ok(StatusCode::CREATED)
}

#[derive(Deserialize)]
pub(super) struct Authenticate {
    username: String,
    password: Secret,
    host: Option<String>,
    protocol: Option<String>,
}

/// Keeps credentials in the sandbox, where every program in it can read them: the call is for that.
pub(super) async fn authenticate(inside: Inside, Json(asked): Json<Authenticate>) -> Result<StatusCode> {
    let host = asked.host.filter(|host| !host.is_empty()).unwrap_or_else(|| "github.com".to_owned());
    let protocol =
        asked.protocol.filter(|protocol| !protocol.is_empty()).unwrap_or_else(|| "https".to_owned());
    let fields = [protocol.as_str(), &host, &asked.username, asked.password.reveal()];
    if fields.iter().any(|field| field.contains(['\n', '\r', '\0'])) {
        return Err(Failure::bad_daemon("host, protocol, username, password: must be one line each"));
    }
    git(&inside, Input::None, &["config", "--global", "credential.helper", "store"]).await?;
    let text = Secret::new(format!(
        "protocol={protocol}\nhost={host}\nusername={}\npassword={}\n\n",
        asked.username,
        asked.password.reveal()
    ));
    git(&inside, Input::Pass(text), &["credential", "approve"]).await?;
    Ok(StatusCode::OK)
}
