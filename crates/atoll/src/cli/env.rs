//! Variables for commands in sandboxes, in arguments and files.

use std::path::Path;

use crate::config;
use crate::units::parse_pair;

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

/// Reads a file of variables, one in a line as `-e` takes it. `#` begins a line that says nothing; `export` before a
/// name and quotes around a value are taken off, as shells would.
pub(super) fn parse_env_file(path: &str) -> Result<EnvFile, String> {
    let text = config::env_file(Path::new(path)).map_err(|failure| failure.message())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let variable = |line: &str| -> Result<(String, String), String> {
        let (name, value) = parse_env(line.strip_prefix("export ").unwrap_or(line).trim_start())?;
        let value = value.trim_start();
        let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
        let value = inner('"').or_else(|| inner('\'')).unwrap_or(value);
        Ok((name.trim_end().to_owned(), value.to_owned()))
    };
    lines.map(variable).collect::<Result<_, _>>().map(EnvFile)
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
        std::fs::write(path, "just words\n").unwrap();
        assert!(parse_env_file(path).unwrap_err().contains("just words"));
        assert!(parse_env_file("/nowhere/env").is_err());
    }
}
