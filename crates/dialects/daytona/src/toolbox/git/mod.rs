//! Git, as the sandbox's own `git` does it.

mod failure;
mod remote;
mod status;
mod work;

use std::collections::BTreeMap;

use atoll_core::secret::Secret;
use atoll_core::spec::{Command, ExecDraft};
use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;

use super::execute::ended;
use super::files::paths;
use super::output::exit_code;
use super::shell::feed;
use crate::App;
use crate::error::{Failure, Result};
use crate::who::Inside;

/// The script that runs git.
const SCRIPT: &str = include_str!("../../../guest/git.sh");
/// Time of one call, milliseconds.
const TIMEOUT_MS: u64 = 3600 * 1000;

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/git/clone", post(remote::clone))
        .route("/git/push", post(remote::push))
        .route("/git/pull", post(remote::pull))
        .route("/git/remotes", get(remote::list).post(remote::add))
        .route("/git/credentials", post(remote::authenticate))
        .route("/git/status", get(status::status))
        .route("/git/init", post(work::init))
        .route("/git/add", post(work::add))
        .route("/git/commit", post(work::commit))
        .route("/git/history", get(work::history))
        .route("/git/branches", get(work::branches).post(work::create_branch).delete(work::delete_branch))
        .route("/git/checkout", post(work::checkout))
        .route("/git/reset", post(work::reset))
        .route("/git/restore", post(work::restore))
        .route("/git/config", get(work::config).post(work::set_config))
        .route("/git/config/user", post(work::configure_user))
}

/// The input that git reads.
pub(super) enum Input {
    None,
    /// For any login that git asks for.
    Credentials(String, Secret),
    /// For its own protocol.
    Pass(Secret),
}

impl Input {
    /// User and password, where there are any.
    pub(super) fn credentials(user: Option<String>, password: Option<Secret>) -> Result<Self> {
        let Some(password) = password.filter(|password| !password.reveal().is_empty()) else {
            return Ok(Self::None);
        };
        // A token alone is a password: git hosts take any user name with it.
        let user = user.filter(|user| !user.is_empty()).unwrap_or_else(|| "git".to_owned());
        if user.contains(['\n', '\r', '\0']) || password.reveal().contains(['\n', '\r', '\0']) {
            return Err(Failure::bad_daemon("username, password: must be one line each"));
        }
        Ok(Self::Credentials(user, password))
    }
}

/// Runs git to its end; gives the text that it wrote on its standard output.
///
/// # Errors
/// The error of git, in the clients' terms.
pub(super) async fn git(inside: &Inside, input: Input, arguments: &[&str]) -> Result<String> {
    let (how, text) = match input {
        Input::None => ("none", None),
        Input::Credentials(user, password) => {
            ("credentials", Some(format!("{user}\n{}\n", password.reveal())))
        }
        Input::Pass(text) => ("pass", Some(text.reveal().to_owned())),
    };
    let shell = ["/bin/sh", "-c", SCRIPT, "git", how];
    let argv = shell.iter().chain(arguments);
    let env = [("GIT_TERMINAL_PROMPT", "0"), ("LC_ALL", "C.UTF-8"), ("LANGUAGE", "C")];
    let draft = ExecDraft {
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        stdin: text.is_some(),
        timeout_ms: Some(TIMEOUT_MS),
        ..ExecDraft::new(Command::Argv(argv.map(|part| (*part).to_owned()).collect()))
    };
    let fail = |error: atoll_core::Error| Failure::of_daemon(&error);
    let view = inside.engine().create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    if let Some(text) = text {
        feed(inside, view.record.id.as_str(), Bytes::from(text)).await.map_err(fail)?;
    }
    let (output, exit) = ended(inside, view.record.id.as_str()).await?;
    match exit_code(&exit) {
        0 => Ok(output.stdout()),
        code => Err(failure::of(code, &output.both())),
    }
}

/// Runs git in a repository.
pub(super) async fn within(inside: &Inside, path: &str, input: Input, arguments: &[&str]) -> Result<String> {
    let path = repository(inside, path).await?;
    let all: Vec<&str> = ["-C", path.as_str()].into_iter().chain(arguments.iter().copied()).collect();
    git(inside, input, &all).await
}

pub(super) async fn repository(inside: &Inside, path: &str) -> Result<String> {
    paths::absolute(inside, path).await.map_err(|error| Failure::of_file(&error))
}

/// A name or an address: git would take a text that begins with a hyphen for an option.
pub(super) fn plain<'a>(field: &str, text: &'a str) -> Result<&'a str> {
    if text.is_empty() || text.starts_with('-') || text.contains('\0') {
        return Err(Failure::bad_daemon(format!("{field}: is missing, or begins with a hyphen")));
    }
    Ok(text)
}
