//! One repository: its branches, commits, files, settings.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Input, git, plain, repository, within};
use crate::error::{Failure, Result};
use crate::request::{Json, Query};
use crate::who::Inside;

/// Most commits of a history.
const HISTORY_MAX: &str = "--max-count=1000";

#[derive(Deserialize)]
pub(super) struct At {
    path: String,
}

#[derive(Deserialize)]
pub(super) struct Init {
    path: String,
    bare: Option<bool>,
    initial_branch: Option<String>,
}

/// Makes a repository.
pub(super) async fn init(inside: Inside, Json(asked): Json<Init>) -> Result<StatusCode> {
    let path = repository(&inside, &asked.path).await?;
    let branch = asked.initial_branch.as_deref().filter(|name| !name.is_empty()).unwrap_or("main");
    let branch = format!("--initial-branch={}", plain("initial_branch", branch)?);
    let mut arguments = vec!["init", "--quiet", &branch];
    if asked.bare == Some(true) {
        arguments.push("--bare");
    }
    arguments.extend(["--", &path]);
    git(&inside, Input::None, &arguments).await?;
    Ok(StatusCode::CREATED)
}

#[derive(Deserialize)]
pub(super) struct Files {
    path: String,
    files: Vec<String>,
    source: Option<String>,
    staged: Option<bool>,
    worktree: Option<bool>,
}

fn with_files<'a>(mut arguments: Vec<&'a str>, files: &'a [String]) -> Vec<&'a str> {
    arguments.push("--");
    arguments.extend(files.iter().map(String::as_str));
    arguments
}

/// Stages files.
pub(super) async fn add(inside: Inside, Json(asked): Json<Files>) -> Result<StatusCode> {
    within(&inside, &asked.path, Input::None, &with_files(vec!["add"], &asked.files)).await?;
    Ok(StatusCode::OK)
}

/// Restores the content that files have in the index or in a source.
pub(super) async fn restore(inside: Inside, Json(asked): Json<Files>) -> Result<StatusCode> {
    let source = match asked.source.as_deref().filter(|source| !source.is_empty()) {
        Some(source) => Some(format!("--source={}", plain("source", source)?)),
        None => None,
    };
    let mut arguments = vec!["restore"];
    arguments.extend(source.as_deref());
    if asked.staged == Some(true) {
        arguments.push("--staged");
    }
    if asked.worktree == Some(true) {
        arguments.push("--worktree");
    }
    within(&inside, &asked.path, Input::None, &with_files(arguments, &asked.files)).await?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
pub(super) struct Commit {
    path: String,
    message: String,
    author: String,
    email: String,
    allow_empty: Option<bool>,
}

/// Commits the staged changes.
pub(super) async fn commit(inside: Inside, Json(asked): Json<Commit>) -> Result<Json<Value>> {
    let (name, email) = (format!("user.name={}", asked.author), format!("user.email={}", asked.email));
    let mut arguments = vec!["-c", &name, "-c", &email, "commit", "--quiet", "--message", &asked.message];
    if asked.allow_empty == Some(true) {
        arguments.push("--allow-empty");
    }
    within(&inside, &asked.path, Input::None, &arguments).await?;
    let hash = within(&inside, &asked.path, Input::None, &["rev-parse", "HEAD"]).await?;
    Ok(Json(json!({"hash": hash.trim()})))
}

/// The commits before the current one, the newest first.
pub(super) async fn history(inside: Inside, Query(at): Query<At>) -> Result<Json<Vec<Value>>> {
    let format = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B%x1e";
    let said = within(&inside, &at.path, Input::None, &["log", HISTORY_MAX, format]).await?;
    let commit = |record: &str| {
        let mut fields = record.trim_start().split('\u{1f}');
        let (hash, author, email) = (fields.next()?, fields.next()?, fields.next()?);
        let (timestamp, message) = (fields.next()?, fields.next()?.trim_end());
        Some(
            json!({"hash": hash, "author": author, "email": email, "timestamp": timestamp, "message": message}),
        )
    };
    Ok(Json(said.split('\u{1e}').filter_map(commit).collect()))
}

/// The branches.
pub(super) async fn branches(inside: Inside, Query(at): Query<At>) -> Result<Json<Value>> {
    let said =
        within(&inside, &at.path, Input::None, &["for-each-ref", "--format=%(refname:short)", "refs/heads"])
            .await?;
    let current = within(&inside, &at.path, Input::None, &["branch", "--show-current"]).await?;
    let branches: Vec<&str> = said.lines().collect();
    Ok(Json(json!({"branches": branches, "current": current.trim()})))
}

#[derive(Deserialize)]
pub(super) struct Branch {
    path: String,
    #[serde(alias = "branch")]
    name: String,
}

/// Makes a branch and switches to it.
pub(super) async fn create_branch(inside: Inside, Json(asked): Json<Branch>) -> Result<StatusCode> {
    let name = plain("name", &asked.name)?;
    within(&inside, &asked.path, Input::None, &["checkout", "--quiet", "-b", name]).await?;
    Ok(StatusCode::CREATED)
}

/// Removes a branch.
pub(super) async fn delete_branch(inside: Inside, Json(asked): Json<Branch>) -> Result<StatusCode> {
    let name = plain("name", &asked.name)?;
    within(&inside, &asked.path, Input::None, &["branch", "--quiet", "-D", "--", name]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Switches to a branch or a commit.
pub(super) async fn checkout(inside: Inside, Json(asked): Json<Branch>) -> Result<StatusCode> {
    let name = plain("branch", &asked.name)?;
    within(&inside, &asked.path, Input::None, &["checkout", "--quiet", name, "--"]).await?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
pub(super) struct Reset {
    path: String,
    mode: Option<String>,
    target: Option<String>,
    files: Option<Vec<String>>,
}

/// Takes back commits, or staged changes.
pub(super) async fn reset(inside: Inside, Json(asked): Json<Reset>) -> Result<StatusCode> {
    let target =
        plain("target", asked.target.as_deref().filter(|target| !target.is_empty()).unwrap_or("HEAD"))?;
    let files = asked.files.unwrap_or_default();
    let mode = match asked.mode.as_deref().unwrap_or("") {
        "" | "mixed" => "--mixed",
        "soft" => "--soft",
        "hard" => "--hard",
        "merge" => "--merge",
        "keep" => "--keep",
        _ => return Err(Failure::bad_daemon("mode: must be soft, mixed, hard, merge or keep")),
    };
    let arguments = match files.is_empty() {
        true => vec!["reset", "--quiet", mode, target, "--"],
        false => with_files(vec!["reset", "--quiet", target], &files),
    };
    within(&inside, &asked.path, Input::None, &arguments).await?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Setting {
    key: String,
    value: String,
    path: Option<String>,
    scope: Option<String>,
    name: String,
    email: String,
}

impl Setting {
    /// The scope of a setting. A local setting needs a repository.
    fn scope(&self) -> Result<Option<&'static str>> {
        let path = self.path.as_deref().is_some_and(|path| !path.is_empty());
        match self.scope.as_deref().unwrap_or("") {
            "" if path => Ok(Some("--local")),
            "local" if path => Ok(Some("--local")),
            "local" => Err(Failure::bad_daemon("path: a local setting needs a repository")),
            "" | "global" => Ok(Some("--global")),
            "system" => Ok(Some("--system")),
            _ => Err(Failure::bad_daemon("scope: must be local, global or system")),
        }
    }

    async fn run(&self, inside: &Inside, arguments: &[&str]) -> Result<String> {
        match self.path.as_deref().filter(|path| !path.is_empty()) {
            Some(path) => within(inside, path, Input::None, arguments).await,
            None => git(inside, Input::None, arguments).await,
        }
    }

    async fn set(&self, inside: &Inside, key: &str, value: &str) -> Result<()> {
        let mut arguments = vec!["config"];
        arguments.extend(self.scope()?);
        arguments.extend([plain("key", key)?, value]);
        self.run(inside, &arguments).await.map(drop)
    }
}

/// A setting; without a value when there is none.
pub(super) async fn config(inside: Inside, Query(asked): Query<Setting>) -> Result<Json<Value>> {
    let mut arguments = vec!["config"];
    if asked.scope.as_deref().is_some_and(|scope| !scope.is_empty()) {
        arguments.extend(asked.scope()?);
    }
    arguments.extend(["--get", plain("key", &asked.key)?]);
    match asked.run(&inside, &arguments).await {
        Ok(value) => Ok(Json(json!({"value": value.trim_end_matches('\n')}))),
        // Git writes nothing when there is no such setting.
        Err(failure) if failure.message.is_empty() => Ok(Json(json!({}))),
        Err(failure) => Err(failure),
    }
}

/// Changes a setting.
pub(super) async fn set_config(inside: Inside, Json(asked): Json<Setting>) -> Result<StatusCode> {
    asked.set(&inside, &asked.key, &asked.value).await?;
    Ok(StatusCode::OK)
}

/// Sets the name and address of the author of commits.
pub(super) async fn configure_user(inside: Inside, Json(asked): Json<Setting>) -> Result<StatusCode> {
    asked.set(&inside, "user.name", &asked.name).await?;
    asked.set(&inside, "user.email", &asked.email).await?;
    Ok(StatusCode::OK)
}
