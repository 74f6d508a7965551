//! The desktop of a sandbox: `/computeruse`. Execs of one script run and drive the programs that the image has (`Xvfb`,
//! `xdotool`, `scrot`, and Xfce and a viewer if there are any), as the sandbox's user. If the image has no desktop, the
//! answer says so.

mod input;
mod keys;
mod processes;
mod screen;

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_core::spec::{Command, ExecDraft};
use axum::Router;
use axum::routing::{any, get, post};
use bytes::Bytes;

use super::execute::ended;
use super::output::exit_code;
use super::shell::feed;
use crate::App;
use crate::error::{Failure, Result};
use crate::who::Inside;

const SCRIPT: &str = include_str!("../../../guest/desktop.sh");
/// The script's exit codes for a program that the image lacks, and for a desktop that does not run.
const NO_PROGRAM: i32 = 100;
const NOT_RUNNING: i32 = 101;
/// Time of one call, milliseconds: typing with pauses takes long.
const TIMEOUT_MS: u64 = 600 * 1000;
/// Largest coordinate of an X screen.
const COORDINATE_MAX: i64 = 32_767;

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/computeruse/start", post(processes::start))
        .route("/computeruse/stop", post(processes::stop))
        .route("/computeruse/status", get(processes::status))
        .route("/computeruse/process-status", get(processes::status))
        .route("/computeruse/process/{process}/status", get(processes::one))
        .route("/computeruse/process/{process}/restart", post(processes::restart))
        .route("/computeruse/process/{process}/logs", get(processes::logs))
        .route("/computeruse/process/{process}/errors", get(processes::errors))
        .route("/computeruse/mouse/position", get(input::position))
        .route("/computeruse/mouse/move", post(input::move_to))
        .route("/computeruse/mouse/click", post(input::click))
        .route("/computeruse/mouse/drag", post(input::drag))
        .route("/computeruse/mouse/scroll", post(input::scroll))
        .route("/computeruse/mouse/down", post(input::button_down))
        .route("/computeruse/mouse/up", post(input::button_up))
        .route("/computeruse/keyboard/type", post(input::type_text))
        .route("/computeruse/keyboard/key", post(input::press))
        .route("/computeruse/keyboard/hotkey", post(input::hotkey))
        .route("/computeruse/keyboard/down", post(input::key_down))
        .route("/computeruse/keyboard/up", post(input::key_up))
        .route("/computeruse/screenshot", get(screen::whole))
        .route("/computeruse/screenshot/region", get(screen::region))
        .route("/computeruse/screenshot/compressed", get(screen::compressed))
        .route("/computeruse/screenshot/region/compressed", get(screen::compressed_region))
        .route("/computeruse/display/info", get(screen::displays))
        .route("/computeruse/display/windows", get(screen::windows))
        .route("/computeruse/{*rest}", any(unserved))
}

/// Recordings and the tree of controls.
async fn unserved(_: Inside) -> Failure {
    crate::unsupported("this part of computer use", "take screenshots; record inside with ffmpeg")
}

/// Runs the script; gives the text that it wrote on its standard output.
///
/// # Errors
/// 501 for an image without a desktop, 400 for a desktop that does not run, and other failures of the script.
async fn desktop(inside: &Inside, arguments: &[&str]) -> Result<String> {
    run(inside, arguments, None).await
}

async fn run(inside: &Inside, arguments: &[&str], input: Option<Bytes>) -> Result<String> {
    let fail = |error: Error| Failure::of_daemon(&error);
    let argv = ["/bin/sh", "-c", SCRIPT, "desktop"].iter().chain(arguments).map(|part| (*part).to_owned());
    let draft = ExecDraft {
        env: BTreeMap::from([("LC_ALL".to_owned(), "C.UTF-8".to_owned())]),
        stdin: input.is_some(),
        timeout_ms: Some(TIMEOUT_MS),
        ..ExecDraft::new(Command::Argv(argv.collect()))
    };
    let view = inside.engine().create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    if let Some(input) = input {
        feed(inside, view.record.id.as_str(), input).await.map_err(fail)?;
    }
    let (output, exit) = ended(inside, view.record.id.as_str()).await?;
    let said = || output.stderr().trim().to_owned();
    match exit_code(&exit) {
        0 => Ok(output.stdout()),
        NO_PROGRAM => {
            let instead = format!(
                "{}: make the sandbox from an image with a desktop, such as the template 'desktop'",
                said()
            );
            Err(crate::unsupported("computer use in this sandbox", &instead))
        }
        NOT_RUNNING => Err(Failure::bad_daemon(said())),
        code => Err(Failure::internal(format!("the desktop failed ({code}): {}", said()))
            .from(crate::error::Source::Daemon)),
    }
}

/// A coordinate, checked: xdotool would take a text that begins with a hyphen for an option.
fn coordinate(field: &str, value: Option<i64>) -> Result<String> {
    let fits = value.filter(|value| (0..=COORDINATE_MAX).contains(value));
    let bad = || Failure::bad_daemon(format!("{field}: must be a number from 0 to {COORDINATE_MAX}"));
    fits.map(|value| value.to_string()).ok_or_else(bad)
}

/// Lines of `NAME=VALUE`, as `xdotool --shell` writes them.
fn number(text: &str, name: &str) -> i64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(number("X=12\nY=-3\nWINDOW=9\n", "Y"), -3);
        assert_eq!(number("X=", "X"), 0);
        assert_eq!(coordinate("x", Some(7)).unwrap(), "7");
        for bad in [None, Some(-1), Some(i64::MAX)] {
            assert!(coordinate("x", bad).is_err());
        }
    }
}
