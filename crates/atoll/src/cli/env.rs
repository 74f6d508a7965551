//! Variables for commands in sandboxes, in arguments and files.

use std::path::Path;

use crate::config;
use crate::units::parse_pair;

/// Longest name in a file, bytes: the server takes no longer one, and would say it in its error.
const NAME_MAX_BYTES: usize = 256;

/// Reads a variable for a command: `KEY=VALUE`, or `KEY` alone for the value that it has here.
pub(super) fn parse_env(text: &str) -> Result<(String, String), String> {
    if text.contains('=') || text.is_empty() {
        return parse_pair(text);
    }
    let value = config::variable(text).map_err(|failure| failure.message())?;
    let value =
        value.ok_or_else(|| format!("'{text}' is not KEY=VALUE, and no variable {text} is set here"))?;
    Ok((text.to_owned(), value))
}

/// The variables of one file.
#[derive(Debug, Clone)]
pub(crate) struct EnvFile(pub(crate) Vec<(String, String)>);

/// Reads a file of variables, `KEY=VALUE` in each line. `#` begins a line that says nothing; `export` before a name and
/// quotes around a value are taken off, as shells would.
///
/// A name alone is an error, other than with `-e` and in docker: the file may come from an agent or a repository, and
/// does not choose which of the caller's variables go into a sandbox. Errors name the line by its number and never say
/// what is in it: it may be a piece of a key, and logs keep what is said here.
pub(super) fn parse_env_file(path: &str) -> Result<EnvFile, String> {
    let text = config::env_file(Path::new(path)).map_err(|failure| failure.message())?;
    let mut variables = Vec::new();
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        variables.push(variable(line).ok_or_else(|| {
            let number = at + 1;
            format!("line {number} of {path} is not KEY=VALUE; -e KEY passes on the value that KEY has here")
        })?);
    }
    Ok(EnvFile(variables))
}

/// The variable of one line, if it is one.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let (name, value) = (name.trim(), value.trim_start());
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name.contains(odd) {
        return None;
    }
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let value = inner('"').or_else(|| inner('\'')).unwrap_or(value);
    Some((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_has_the_value_that_it_has_here() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_env("PATH").unwrap().0, "PATH");
        let absent = parse_env("ATOLL_TEST_NEVER_SET").unwrap_err();
        assert!(absent.contains("no variable ATOLL_TEST_NEVER_SET is set here"), "{absent}");
        assert!(parse_env("=x").is_err() && parse_env("").is_err());
    }

    #[test]
    fn files_are_read_as_shells_write_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "# keys\n\nA=1\n export B = two\nC=\"a b\"\nD='x=\"y\"'\nE=\"open\nF=\n")
            .unwrap();
        let read = parse_env_file(path).unwrap().0;
        let want = [("A", "1"), ("B", "two"), ("C", "a b"), ("D", "x=\"y\""), ("E", "\"open"), ("F", "")];
        assert_eq!(read, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(parse_env_file("/nowhere/env").is_err());
    }

    #[test]
    fn files_take_nothing_from_here_and_errors_do_not_say_what_is_in_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let long = format!("{}=", "MIIE".repeat(100));
        // PATH is set where the test runs.
        for line in ["PATH", "export PATH", "just words", "two words=x", "=x", "a\x1b]0;b=c", long.as_str()] {
            std::fs::write(path, format!("# keys\n\nA=1\n{line}\n")).unwrap();
            let said = parse_env_file(path).unwrap_err();
            assert!(said.starts_with(&format!("line 4 of {path} is not KEY=VALUE")), "{said}");
            assert!(!said.contains(line.trim_start_matches("export ")), "{said}");
        }
    }
}
