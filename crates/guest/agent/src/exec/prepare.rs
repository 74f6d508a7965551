//! From a request to a program that can be started.

use std::ffi::CString;

use atoll_guest_protocol::messages::{Failure, Reason, StartExec};
use atoll_guest_protocol::server::failure;
use rustix::io::Errno;

use super::confine;
use super::spawn::{Program, Step};
use crate::failing::{errno, invalid};
use crate::users::{Database, Identity};

/// Where commands are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories of a `PATH` that are tried.
const PATH_DIRECTORIES_MAX: usize = 128;
/// The directory of `atoll-run`, for execs whose processes may ask for other profiles.
const RUN_PATH: &str = "/.atoll/bin";
/// Names the exec in its environment: how its processes are found where there are no cgroups.
pub(super) const MARKER: &str = "ATOLL_EXEC_ID";

/// Makes the program of a request.
pub(super) fn program(request: &StartExec) -> Result<Program, Failure> {
    let identity = Database::read().identity(&request.user)?;
    let Some(command) = request.argv.first() else {
        return Err(invalid("there is no command"));
    };
    if command.is_empty() {
        return Err(failure(Reason::CommandNotFound, "the command is empty"));
    }
    let argv = request.argv.iter().map(|part| text(part)).collect::<Result<_, _>>()?;
    let (cwd, cwd_optional) = if request.cwd.is_empty() {
        (if identity.home.is_empty() { "/" } else { identity.home.as_str() }, true)
    } else {
        (request.cwd.as_str(), false)
    };
    let ruleset = request.profiles.first().map(confine::ruleset).transpose();
    let ruleset = ruleset.map_err(|cause| errno("cannot confine it to its profile", cause))?;
    Ok(Program {
        candidates: candidates(command, &search_path(request))?,
        argv,
        env: environment(request, &identity)?,
        cwd: text(cwd)?,
        cwd_optional,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups,
        terminal: request.tty.is_some(),
        limits: request.profiles.first().map(confine::limits).unwrap_or_default(),
        ruleset,
        followed: request.profiles.first().is_some_and(|profile| !profile.steps.is_empty()),
    })
}

fn text(part: &str) -> Result<CString, Failure> {
    CString::new(part).map_err(|_nul| invalid("a text contains a NUL byte"))
}

/// Where the command may be. Relative ones are relative to the exec's working directory, which the
/// child has when it tries them.
fn candidates(command: &str, path: &str) -> Result<Vec<CString>, Failure> {
    if command.contains('/') {
        return Ok(vec![text(command)?]);
    }
    path.split(':')
        .take(PATH_DIRECTORIES_MAX)
        .map(
            |directory| {
                if directory.is_empty() { text(command) } else { text(&format!("{directory}/{command}")) }
            },
        )
        .collect()
}

/// Whether a process of the exec may ask for another profile.
fn asks(request: &StartExec) -> bool {
    request.profiles.iter().flat_map(|profile| &profile.steps).any(|step| step.door)
}

/// Where commands are looked for.
fn search_path(request: &StartExec) -> String {
    let path = request.env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    if asks(request) { format!("{path}:{RUN_PATH}") } else { path.to_owned() }
}

fn environment(request: &StartExec, identity: &Identity) -> Result<Vec<CString>, Failure> {
    let mut env = Vec::with_capacity(request.env.len() + 5);
    if asks(request) {
        env.push(text(&format!("PATH={}", search_path(request)))?);
    }
    for (name, value) in &request.env {
        if name == "PATH" && asks(request) {
            continue;
        }
        if name.is_empty() || name.contains('=') {
            return Err(invalid("an environment variable has no proper name"));
        }
        if name != MARKER {
            env.push(text(&format!("{name}={value}"))?);
        }
    }
    let home = if identity.home.is_empty() { "/" } else { &identity.home };
    let shell = if identity.shell.is_empty() { "/bin/sh" } else { &identity.shell };
    let user = if identity.name.is_empty() { identity.uid.to_string() } else { identity.name.clone() };
    for (name, value) in [("HOME", home), ("USER", &user), ("LOGNAME", &user), ("SHELL", shell)] {
        if !request.env.contains_key(name) {
            env.push(text(&format!("{name}={value}"))?);
        }
    }
    env.push(text(&format!("{MARKER}={}", request.exec_id))?);
    Ok(env)
}

/// Why a start failed, in the protocol's words.
pub(super) fn start_failure(request: &StartExec, step: Step, cause: Errno) -> Failure {
    let said = std::io::Error::from(cause);
    match (step, cause) {
        (_, Errno::AGAIN) => failure(Reason::NoProcesses, "the sandbox cannot have more processes"),
        (_, Errno::NOMEM) => failure(Reason::NoMemory, "the sandbox has no memory for another process"),
        (Step::Cwd, _) => {
            failure(Reason::CwdNotFound, format!("working directory '{}': {said}", request.cwd))
        }
        (Step::Identity, Errno::INVAL) => failure(
            Reason::UserNotFound,
            format!("user '{}' has an id that the sandbox does not have", request.user),
        ),
        (Step::Execute, _) => {
            let command = request.argv.first().map_or("", String::as_str);
            match cause {
                Errno::TOOBIG => invalid("arguments and environment are too long"),
                Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {
                    failure(Reason::CommandNotFound, format!("command '{command}' not found"))
                }
                _ => failure(Reason::CommandNotExecutable, format!("command '{command}': {said}")),
            }
        }
        (Step::Clone | Step::Setup | Step::Identity, _) => errno("cannot start a process", cause),
    }
}
