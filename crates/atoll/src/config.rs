//! Where the server is and what key to show: flags, then environment, then file.
//!
//! The only module that reads the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use serde::Deserialize;

use crate::cli::GlobalArgs;
use crate::failure::{Failure, Result};
use crate::presets::{self, Presets};

/// Largest configuration or key file, bytes.
const FILE_MAX_BYTES: u64 = 64 << 10;

/// `config.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    api_key: Option<Secret>,
    /// Lists of hosts, see [`crate::presets`].
    #[serde(default)]
    presets: Presets,
}

/// The settings that were found.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Address of the server, if one was named.
    pub(crate) url: Option<String>,
    /// Key for it, if there is one.
    pub(crate) api_key: Option<Secret>,
}

/// A variable that is set and not empty.
#[expect(clippy::disallowed_methods, reason = "this is the configuration module")]
pub(crate) fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::plain(Code::InvalidArgument, format!("{name} is not valid UTF-8")))
        }
    }
}

/// Where traces go, by the variable that every OpenTelemetry program reads.
pub(crate) fn otlp_endpoint() -> Result<Option<String>> {
    variable("OTEL_EXPORTER_OTLP_ENDPOINT")
}

/// Reads a secret from a file: the server's client secret at the OIDC issuer, or the key of an external ACME account.
pub(crate) fn secret_file(path: &Path) -> Result<Secret> {
    Ok(Secret::new(read_bounded(path)?.trim()))
}

/// Reads a file of variables for commands in sandboxes.
pub(crate) fn env_file(path: &Path) -> Result<String> {
    read_bounded(path)
}

/// The server's database: its address may hold a password, so not only a flag.
pub(crate) fn database() -> Result<Option<String>> {
    variable("ATOLL_DATABASE")
}

/// The proxy between sandboxes and the outside: it may hold a password, so not only a flag.
pub(crate) fn egress_proxy() -> Result<Option<String>> {
    variable("ATOLL_EGRESS_PROXY")
}

/// A key of the vault that is kept elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct VaultKey {
    /// With which values are sealed.
    pub(crate) current: Secret,
    /// With which they were sealed before, until the key was changed.
    pub(crate) previous: Option<Secret>,
}

/// The vault's key, if variables hold it.
pub(crate) fn vault_key() -> Result<Option<VaultKey>> {
    let previous = variable("ATOLL_VAULT_KEY_PREVIOUS")?.map(Secret::new);
    Ok(variable("ATOLL_VAULT_KEY")?.map(|key| VaultKey { current: Secret::new(key), previous }))
}

/// Settings of an object store in the environment.
pub(crate) struct Aws {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) credentials: Option<(String, Secret)>,
    pub(crate) token: Option<Secret>,
}

/// The variables that tools for S3 share.
pub(crate) fn aws() -> Result<Aws> {
    let key = variable("AWS_ACCESS_KEY_ID")?;
    let secret = variable("AWS_SECRET_ACCESS_KEY")?;
    Ok(Aws {
        endpoint: variable("AWS_ENDPOINT_URL")?,
        region: variable("AWS_REGION")?,
        credentials: key.zip(secret).map(|(key, secret)| (key, Secret::new(secret))),
        token: variable("AWS_SESSION_TOKEN")?.map(Secret::new),
    })
}

/// Arms fail points for the crash tests, from `ATOLL_FAILPOINTS="name=action;name=action"`.
///
/// `kill` is SIGKILL to this process, on the spot; `kill@N` at the Nth passing. Everything else is an
/// action of the crate `fail`, such as `panic` or `sleep(100)`.
#[cfg(debug_assertions)]
pub(crate) fn arm_failpoints() -> Result<()> {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    let wrong = |what: &str| {
        Failure::plain(Code::InvalidArgument, format!("ATOLL_FAILPOINTS: '{what}' is not name=action"))
    };
    for item in variable("ATOLL_FAILPOINTS")?.iter().flat_map(|text| text.split(';')) {
        let (name, action) = item.split_once('=').ok_or_else(|| wrong(item))?;
        let armed = match action.strip_prefix("kill") {
            None => atoll_failpoint::cfg(name, action),
            Some(passing) => {
                let nth = match passing.strip_prefix('@') {
                    None => 1,
                    Some(nth) => nth.parse::<u32>().or(Err(wrong(item)))?,
                };
                let passed = AtomicU32::new(0);
                atoll_failpoint::cfg_callback(name, move || {
                    if passed.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                        // It cannot fail: the process exists and is our own.
                        let _ = kill_process(getpid(), Signal::KILL);
                    }
                })
            }
        };
        armed.or(Err(wrong(item)))?;
    }
    Ok(())
}

/// Whether the user wants no colours.
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn file_path() -> Option<PathBuf> {
    state_dir().map(|dir| dir.join("config.toml"))
}

/// The directory in which this program keeps the user's own files.
pub(crate) fn state_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let base = match set("XDG_CONFIG_HOME") {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(set("HOME")?).join(".config"),
    };
    Some(base.join("atoll"))
}

/// Reads everything.
pub(crate) fn load(args: &GlobalArgs) -> Result<Settings> {
    let file = match (&args.config, file_path()) {
        (Some(path), _) => read_file(path, false)?,
        (None, Some(path)) => read_file(&path, true)?,
        (None, None) => File::default(),
    };
    presets::configure(file.presets);
    let url = match &args.url {
        Some(url) => Some(url.clone()),
        None => variable("ATOLL_URL")?.or(file.url),
    };
    let api_key = named_key(args)?.or(file.api_key);
    Ok(Settings { url, api_key })
}

/// The settings of the file alone.
pub(crate) fn load_file(args: &GlobalArgs) -> Result<Settings> {
    let file = match (&args.config, file_path()) {
        (Some(path), _) => read_file(path, true)?,
        (None, Some(path)) => read_file(&path, true)?,
        (None, None) => File::default(),
    };
    Ok(Settings { url: file.url, api_key: file.api_key })
}

/// The key that a flag or a variable holds.
pub(crate) fn named_key(args: &GlobalArgs) -> Result<Option<Secret>> {
    match &args.api_key_file {
        Some(path) => Ok(Some(Secret::new(read_bounded(path)?.trim()))),
        None => Ok(variable("ATOLL_API_KEY")?.map(Secret::new)),
    }
}

/// Writes address and key to the configuration file, or takes them out of it. All else in it stays as it is, comments too. Gives
/// the file's path.
///
/// # Errors
/// When there is no place for it, it is not valid, or cannot be written: then it is as before.
pub(crate) fn keep_login(args: &GlobalArgs, login: Option<(&str, &Secret)>) -> Result<PathBuf> {
    let path = args.config.clone().or_else(file_path).ok_or_else(|| {
        Failure::plain(
            Code::InvalidArgument,
            "there is no HOME to keep a configuration file in: name one with --config",
        )
    })?;
    let text = match read_bounded(&path) {
        Err(Failure::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    parse(&path, &text)?;
    // `parse` accepted the text above, so it is TOML and this does not fail.
    let mut document: toml_edit::DocumentMut = text.parse().unwrap_or_default();
    match login {
        Some((url, key)) => {
            document["url"] = toml_edit::value(url);
            document["api_key"] = toml_edit::value(key.reveal());
        }
        None => ["url", "api_key"].into_iter().for_each(|name| drop(document.remove(name))),
    }
    write_private(&path, &document.to_string())
        .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))?;
    Ok(path)
}

/// Puts a file that only its owner reads in place of another, all of it or nothing.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn read_bounded(path: &Path) -> Result<String> {
    use std::io::Read as _;
    let what = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).map_err(|error| Failure::io(what(), error))?;
    let mut text = String::new();
    let bytes = file
        .take(FILE_MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::io(what(), error))?;
    if bytes as u64 > FILE_MAX_BYTES {
        return Err(Failure::plain(Code::TooLarge, format!("{} is larger than 64 KiB", path.display())));
    }
    Ok(text)
}

fn read_file(path: &Path, may_be_absent: bool) -> Result<File> {
    match read_bounded(path) {
        Ok(text) => parse(path, &text),
        Err(Failure::Io { source, .. }) if may_be_absent && source.kind() == std::io::ErrorKind::NotFound => {
            Ok(File::default())
        }
        Err(failure) => Err(failure),
    }
}

/// Errors name file and line but never show the line: it may hold the key.
fn parse(path: &Path, text: &str) -> Result<File> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let why = error.message().lines().next().unwrap_or_default();
        Failure::Plain(
            Error::new(Code::InvalidArgument, format!("{}:{line}: {why}", path.display()))
                .hint("the file may hold: url = \"http://…\", api_key = \"…\", and a table [presets]"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_named_with_its_line_and_without_its_content() {
        let cases = [
            ("url = \"http://h\"\napi_key = \"sesame\"\nother = 1\n", ":3: unknown field"),
            ("\n\napi_key = sesame\n", ":3: "),
            ("url = 7\n", ":1: invalid type"),
        ];
        for (text, want) in cases {
            let message = parse(Path::new("/c.toml"), text).unwrap_err().message();
            assert!(message.contains(&format!("/c.toml{want}")), "{message}");
            assert!(!message.contains("sesame"), "{message}");
        }
        let file = parse(Path::new("/c.toml"), "url = \"http://h\"\napi_key = \"sesame\"\n").unwrap();
        assert_eq!(file.api_key.unwrap().reveal(), "sesame");
    }
}
