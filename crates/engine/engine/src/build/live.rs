//! A build that has not ended, for all tasks but the one that drives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::Result;
use atoll_core::id::BuildId;
use atoll_core::secret::Secret;
use atoll_store::BuildRecord;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::journal::Journal;
use crate::engine::Inner;
use crate::rooms::Who;

/// Where the context is.
#[derive(Debug, Clone)]
pub(super) enum Upload {
    /// It has to come.
    Absent,
    /// It is coming.
    Coming,
    /// It is here, or there is none.
    Here(Arc<Context>),
}

/// The login of a build at the registry of one image. Used for that build, and kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLogin {
    /// A reference to the image. Other registries that the build names are not told.
    pub image: String,
    /// User name.
    pub username: String,
    /// Password or access token.
    pub password: Secret,
}

/// Secrets of a build, by the names that its Dockerfile has for them. Used for that build, and kept nowhere.
pub type BuildSecrets = BTreeMap<String, Secret>;

/// What a build is given that is not recorded.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Its login at one registry, whose host is named first.
    pub(super) login: Option<(String, ImageLogin)>,
    pub(super) secrets: BuildSecrets,
}

/// The published side of a build.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: BuildId,
    /// Whose it is.
    pub(super) owner: Who,
    record: watch::Sender<BuildRecord>,
    pub(super) upload: watch::Sender<Upload>,
    pub(super) journal: Journal,
    /// Fires when it is to end, and when it has ended: what still comes for it ends then.
    pub(super) cancel: CancellationToken,
    /// Its login at one registry, whose host is named first.
    pub(super) login: Option<(String, ImageLogin)>,
    /// What its commands may be told, by name.
    pub(super) secrets: BuildSecrets,
}

impl Live {
    pub(super) fn new(
        inner: &Inner,
        owner: Who,
        record: BuildRecord,
        needs_context: bool,
        given: Given,
    ) -> Arc<Self> {
        let upload = if needs_context { Upload::Absent } else { Upload::Here(Arc::default()) };
        Arc::new(Self {
            id: record.id.clone(),
            owner,
            journal: Journal::fresh(&inner.build_log_dir(&record.id), &inner.clock),
            record: watch::Sender::new(record),
            upload: watch::Sender::new(upload),
            cancel: CancellationToken::new(),
            login: given.login,
            secrets: given.secrets,
        })
    }

    pub(super) fn record(&self) -> BuildRecord {
        self.record.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<BuildRecord> {
        self.record.subscribe()
    }

    /// Publishes a changed record. Only the driving task calls this.
    pub(super) fn publish(&self, record: BuildRecord) {
        self.record.send_replace(record);
    }

    /// Claims the upload of the context for the caller; `false` when another caller uploads it, or it is here.
    pub(super) fn begin_upload(&self) -> bool {
        self.upload.send_if_modified(|upload| {
            let free = matches!(upload, Upload::Absent);
            if free {
                *upload = Upload::Coming;
            }
            free
        })
    }

    /// Waits until nobody sends its context.
    pub(super) async fn until_no_upload(&self) {
        let mut upload = self.upload.subscribe();
        // The sender is here: it does not go away.
        drop(upload.wait_for(|upload| !matches!(upload, Upload::Coming)).await);
    }

    pub(super) fn end_upload(&self, outcome: &Result<Arc<Context>>) {
        self.upload.send_replace(match outcome {
            Ok(context) => Upload::Here(Arc::clone(context)),
            Err(_) => Upload::Absent,
        });
    }
}
