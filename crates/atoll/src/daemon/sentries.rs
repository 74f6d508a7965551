//! The driver of sandboxes in gVisor: there where `runsc` is installed.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_core::{Code, Error};
use atoll_isolation::{Check, IsolationError, Status};
use atoll_isolation_gvisor::{GvisorConfig, GvisorIsolation, Runsc};
use atoll_isolation_storage::{Storage, StoredVolumes};
use atoll_network::SlotPool;

use super::DataDir;
use super::machines::SELF;
use crate::cli::GvisorArgs;
use crate::failure::{Failure, Result};

/// Where distributions install it.
const RUNSC: &str = "/usr/bin/runsc";
/// This program's hidden command that starts a sentry.
const LAUNCH: &str = "sentry";

/// Where gVisor is.
#[derive(Debug, Clone)]
pub(crate) struct Sentries {
    runsc: PathBuf,
    /// Whether the operator named this program with `--runsc`.
    named: bool,
}

impl Sentries {
    /// From the options of the command line.
    pub(crate) fn new(args: &GvisorArgs) -> Self {
        let named = args.runsc.is_some();
        Self { runsc: args.runsc.clone().unwrap_or_else(|| RUNSC.into()), named }
    }

    /// Asks the installed program what it is. Takes some tens of milliseconds.
    pub(crate) async fn find(&self) -> std::result::Result<Runsc, IsolationError> {
        let path = self.runsc.clone();
        tokio::task::spawn_blocking(move || Runsc::find(&path))
            .await
            .unwrap_or_else(|panicked| Err(IsolationError::Unavailable(panicked.to_string())))
    }

    /// Opens the driver, or says what is missing: gVisor is not installed, or the installed one cannot be used. `found` is
    /// what [`Self::find`] said.
    ///
    /// # Errors
    /// When the one that the operator named cannot be used.
    pub(crate) async fn open(
        &self,
        found: std::result::Result<Runsc, IsolationError>,
        dir: &DataDir,
        storage: Arc<Storage>,
        volumes: StoredVolumes,
        slots: Arc<SlotPool>,
    ) -> Result<std::result::Result<GvisorIsolation, Check>> {
        if !self.named && self.runsc.try_exists().is_ok_and(|there| !there) {
            return Ok(Err(self.missing(format!("{} is not installed", self.runsc.display()))));
        }
        let opened = match found {
            Ok(runsc) => self.open_with(runsc, dir, storage, volumes, slots).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(driver) => Ok(Ok(driver)),
            Err(error) if self.named => Err(Failure::Plain(
                Error::new(Code::IsolationUnavailable, crate::failure::chain(&error))
                    .hint("give a runsc of 2023 or newer, or leave --runsc out"),
            )),
            Err(error) => {
                let error = crate::failure::chain(&error);
                tracing::warn!(error, "no isolation level 'gvisor'");
                Ok(Err(self.missing(error)))
            }
        }
    }

    /// What the doctor says of a host without gVisor.
    pub(crate) fn missing(&self, why: String) -> Check {
        Check::new("gvisor", Status::Missing, why)
            .hint(format!("install runsc as {}, or name it with --runsc", self.runsc.display()))
    }

    /// The same; says why not.
    pub(crate) async fn try_open(
        &self,
        dir: &DataDir,
        storage: Arc<Storage>,
        volumes: StoredVolumes,
        slots: Arc<SlotPool>,
    ) -> std::result::Result<GvisorIsolation, IsolationError> {
        self.open_with(self.find().await?, dir, storage, volumes, slots).await
    }

    async fn open_with(
        &self,
        runsc: Runsc,
        dir: &DataDir,
        storage: Arc<Storage>,
        volumes: StoredVolumes,
        slots: Arc<SlotPool>,
    ) -> std::result::Result<GvisorIsolation, IsolationError> {
        GvisorIsolation::open(GvisorConfig {
            dir: dir.path().join("gvisor"),
            instance: dir.installation().to_owned(),
            agent: atoll_guest_binary::GUEST,
            launcher: vec![SELF.into(), LAUNCH.into()],
            runsc,
            storage,
            volumes,
            slots,
        })
        .await
    }
}
