//! What a sandbox is when the caller does not say: a server's own choice.
//!
//! SDKs of other vendors have no word for an isolation level, and often none for an image; the server's operator
//! chooses for them.

use super::IsolationLevel;

/// What holds where neither caller nor template says anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The image.
    pub image: String,
    /// The isolation level. A sandbox from a snapshot has that of the snapshot.
    pub isolation: IsolationLevel,
}

impl Default for Defaults {
    /// The host's files, in a container.
    fn default() -> Self {
        Self { image: "host".to_owned(), isolation: IsolationLevel::Container }
    }
}
