//! What a creation with an idempotency key gives: a sandbox that is new, or the one that an earlier request made.

use atoll_store::SandboxRecord;

/// A sandbox that a caller asked for, perhaps not for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// This request made it. No client knows of it yet: the request may finish it, and delete it when that fails.
    New(SandboxRecord),
    /// An earlier request made it. Clients may have used it since, and changed what the earlier request asked for. The
    /// caller may read it; whatever else the request wants with it must be authorised like any other use.
    Before(SandboxRecord),
}

impl Made {
    /// The sandbox.
    #[must_use]
    pub const fn record(&self) -> &SandboxRecord {
        match self {
            Self::New(record) | Self::Before(record) => record,
        }
    }

    /// The sandbox.
    #[must_use]
    pub fn into_record(self) -> SandboxRecord {
        match self {
            Self::New(record) | Self::Before(record) => record,
        }
    }

    /// Whether this request made it.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}
