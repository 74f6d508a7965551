//! The shell of a command: a fresh login shell, or one with a name, which goes on where its last command left off.
//!
//! A named shell is no process. At the end of each command its working directory, variables, functions, aliases and
//! options are written to a file in the sandbox. The next command reads them at its beginning; it waits until the one
//! before has ended. So nothing is lost in a restart of the server, every command has an output and an end of its own,
//! and a command that calls `exit` or is killed takes no other with it.

use atoll_core::Error;
use atoll_core::spec::{Command, ExecDraft};

use crate::error::{Failure, Result};

/// Longest name, bytes.
const NAME_MAX_BYTES: usize = 128;
/// Runs the line `$2` in the shell whose state is kept under the name `$1`.
///
/// `flock` lets commands wait for each other; in an image without it they do not wait. The state belongs to the user:
/// the shell reads it as a script, and a program that can write it can run commands as that user anyway.
const NAMED: &str = r#"__dir=${XDG_STATE_HOME:-$HOME/.local/state}/devbox-shells
mkdir -p -- "$__dir" && chmod 700 -- "$__dir"
set -- "$__dir/$1" "$2"
if command -v flock >/dev/null 2>&1; then exec 9>"$1.lock" && flock 9; fi
if [ -e "$1" ]; then . "$1" 2>/dev/null; fi
__state=$1
__line=$2
shift 2
unset BASH_EXECUTION_STRING
__keep() {
  {
    if [ -n "$BASH_VERSION" ]; then declare -p; declare -f; alias -p; shopt -p; else export -p; fi
    printf "cd -- '%s'\n" "$(printf %s "$PWD" | sed "s/'/'\\\\''/g")"
  } >"$__state.new" 2>/dev/null && mv -f -- "$__state.new" "$__state"
}
[ -z "$BASH_VERSION" ] || shopt -s expand_aliases
trap __keep EXIT
eval "$__line" 9>&-
"#;

/// A shell's name, as the name of a file: a name may be any text.
fn file_name(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX_BYTES {
        return Err(Failure::bad(format!("shell_name: must have 1 to {NAME_MAX_BYTES} bytes")));
    }
    Ok(blake3::hash(name.as_bytes()).to_hex().chars().take(32).collect())
}

/// The draft of a command line for `shell`.
///
/// # Errors
/// 400 for a name that is not valid.
pub(super) fn draft(
    line: &str,
    named: Option<&str>,
) -> Result<impl Fn(&str) -> Result<ExecDraft, Error> + Send + Sync + use<>> {
    let file = named.map(file_name).transpose()?;
    let line = line.to_owned();
    Ok(move |shell: &str| {
        let mut argv = vec![shell.to_owned(), "-lc".to_owned()];
        match &file {
            None => argv.push(line.clone()),
            Some(file) => argv.extend([NAMED, "shell", file, &line].map(str::to_owned)),
        }
        Ok(ExecDraft::new(Command::Argv(argv)))
    })
}

/// The line that a client asked to run, from the exec's arguments.
pub(crate) fn line(argv: &[String]) -> &str {
    match argv {
        [_, _, script, _, _, line] if script == NAMED => line,
        [_, flag, line] if flag == "-lc" => line,
        argv => argv.first().map_or("", String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(named: Option<&str>) -> Vec<String> {
        match draft("echo 'a'", named).unwrap()("/bin/bash").unwrap().command {
            Command::Argv(argv) => argv,
            Command::Shell(_) => Vec::new(),
        }
    }

    #[test]
    fn names_are_no_paths() {
        let name = file_name("../../etc/passwd").unwrap();
        assert!(name.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(file_name("").is_err() && file_name(&"x".repeat(NAME_MAX_BYTES + 1)).is_err());
    }

    #[test]
    fn the_line_is_found_again() {
        assert_eq!(line(&argv(None)), "echo 'a'");
        assert_eq!(line(&argv(Some("main"))), "echo 'a'");
    }
}
