//! One fact about a sandbox, written down as an empty file beside its record: the fact holds while the file is there.
//! Making and removing a name is atomic, so a server that is killed in between leaves the one or the other.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use atoll_isolation::IsolationError;

use crate::step::Step;

/// Such a file.
#[derive(Debug)]
pub struct Marker {
    path: PathBuf,
    fact: &'static str,
}

impl Marker {
    /// The marker at `path`; `fact` is what it says, in words for errors: it completes "write down that …".
    #[must_use]
    pub const fn new(path: PathBuf, fact: &'static str) -> Self {
        Self { path, fact }
    }

    /// Writes the fact down.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    pub fn set(&self) -> Result<(), IsolationError> {
        File::create(&self.path).step(format!("write down that {}", self.fact))?;
        Ok(())
    }

    /// Takes that back, if it was written down.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn clear(&self) -> Result<(), IsolationError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.step(format!("take back that {}", self.fact)),
        }
    }

    /// Whether it is written down, as far as that can be seen.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.path.try_exists().is_ok_and(|there| there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_set_and_cleared_any_number_of_times() {
        let dir = tempfile::Builder::new().prefix("atoll-marker-").tempdir().unwrap();
        let marker = Marker::new(dir.path().join("frozen"), "a sandbox is stopped");
        assert!(!marker.is_set());
        for _ in 0..2 {
            marker.set().unwrap();
            assert!(marker.is_set());
        }
        for _ in 0..2 {
            marker.clear().unwrap();
            assert!(!marker.is_set());
        }
    }

    #[test]
    fn what_fails_says_which_fact_is_not_written_down() {
        let dir = tempfile::Builder::new().prefix("atoll-marker-").tempdir().unwrap();
        let marker = Marker::new(dir.path().join("absent/frozen"), "a sandbox is stopped");
        let error = marker.set().unwrap_err().to_string();
        assert!(error.contains("write down that a sandbox is stopped"), "{error}");
        assert!(!marker.is_set());
    }
}
