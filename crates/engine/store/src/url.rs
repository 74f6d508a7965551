//! Where the database is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use atoll_core::secret::Secret;

/// A database's address. `Debug` and `Display` never print a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:///path/file.db`: an embedded database in one file (and two beside it while open).
    SqliteFile(PathBuf),
    /// `sqlite::memory:`: gone when the store is closed.
    SqliteMemory,
    /// `postgres://user:password@host:port/database?…`
    Postgres(Secret),
}

/// The text is no database URL. The text itself is not repeated: it may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a database URL; write sqlite:///path/file.db or postgres://user@host/database")]
pub struct InvalidUrl;

impl FromStr for StoreUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        if text == "sqlite::memory:" {
            return Ok(Self::SqliteMemory);
        }
        if let Some(path) = text.strip_prefix("sqlite://") {
            // A relative path would depend on the directory the program was started in.
            return if path.starts_with('/') { Ok(Self::SqliteFile(path.into())) } else { Err(InvalidUrl) };
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(Secret::new(text)));
        }
        Err(InvalidUrl)
    }
}

impl StoreUrl {
    /// Whether several servers may share the database.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SqliteFile(path) => write!(f, "sqlite://{}", path.display()),
            Self::SqliteMemory => f.write_str("sqlite::memory:"),
            Self::Postgres(url) => f.write_str(&redact(url.reveal())),
        }
    }
}

/// Keeps scheme, user, host and database; drops the password, and the query, which may hold one too.
fn redact(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return "****".to_owned() };
    // The last '@' ends the credentials: a password may contain an '@' that is not escaped.
    match rest.rsplit_once('@') {
        Some((credentials, host)) => match credentials.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:****@{host}"),
            None => format!("{scheme}://{credentials}@{host}"),
        },
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_kind_and_refuses_the_rest() {
        assert_eq!("sqlite:///a b/c.db".parse(), Ok(StoreUrl::SqliteFile("/a b/c.db".into())));
        assert_eq!("sqlite::memory:".parse(), Ok(StoreUrl::SqliteMemory));
        assert!(matches!("postgresql://h/d".parse(), Ok(StoreUrl::Postgres(_))));
        for bad in ["", "sqlite://relative.db", "/a.db", "mysql://h/d", "sqlite:"] {
            assert_eq!(bad.parse::<StoreUrl>(), Err(InvalidUrl), "{bad}");
        }
    }

    #[test]
    fn never_prints_a_password() {
        for (text, shown) in [
            ("postgres://u:hunter2@h:5432/d", "postgres://u:****@h:5432/d"),
            ("postgres://u:hun@ter2@h/d", "postgres://u:****@h/d"),
            ("postgres://u@h/d?password=hunter2", "postgres://u@h/d"),
            ("postgres:///d?host=/tmp&password=hunter2", "postgres:///d"),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("hunter2"));
        }
    }
}
