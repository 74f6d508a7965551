//! Tasks of one intercepted connection: they end with it, however it ends.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;

/// Spawns tasks of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    fn set(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set();
        while set.try_join_next().is_some() {}
        set.spawn(task);
    }

    /// Waits until all have ended.
    pub(super) async fn join(&self) {
        loop {
            let mut set = std::mem::take(&mut *self.set());
            if set.is_empty() {
                return;
            }
            while set.join_next().await.is_some() {}
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// Ends the tasks when it goes.
#[derive(Debug)]
pub(super) struct EndTasks(pub(super) Tasks);

impl EndTasks {
    /// Waits until all have ended.
    pub(super) async fn join(&self) {
        self.0.join().await;
    }
}

impl Drop for EndTasks {
    fn drop(&mut self) {
        self.0.set().abort_all();
    }
}
