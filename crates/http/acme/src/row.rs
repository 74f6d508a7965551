//! The state of one certificate in the database.

use atoll_core::{Code, Error, Result};
use atoll_engine::{Engine, ToSeal};

use crate::state::State;

/// The place of a certificate's state in the database.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) engine: Engine,
    /// Which certificate: of this server of ACME, for these names.
    pub(crate) name: String,
}

impl Rows {
    /// The state and its version. A state that cannot be read counts as none: the server that orders writes a new one.
    pub(crate) async fn read(&self) -> Result<(State, i64)> {
        let (text, version) = self.engine.acme(&self.name).await?;
        let state = serde_json::from_str(&text).unwrap_or_else(|error| {
            if version > 0 {
                tracing::error!(%error, "the state of the certificate cannot be read");
            }
            State::default()
        });
        Ok((state, version))
    }

    /// Puts another in place of one of this version. Says whether it did.
    pub(crate) async fn write(&self, state: &State, version: i64, seal: Option<&ToSeal>) -> Result<bool> {
        let text =
            serde_json::to_string(state).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        self.engine.set_acme(&self.name, &text, version, seal).await
    }
}

/// The state while this server orders.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) rows: Rows,
    pub(crate) state: State,
    pub(crate) version: i64,
}

impl Book {
    /// Writes what was changed.
    ///
    /// # Errors
    /// As the store; [`Code::InvalidState`] when another node orders now.
    pub(crate) async fn save(&mut self, seal: Option<&ToSeal>) -> Result<()> {
        if !self.rows.write(&self.state, self.version, seal).await? {
            return Err(Error::new(Code::InvalidState, "another node has taken over"));
        }
        self.version += 1;
        Ok(())
    }
}
