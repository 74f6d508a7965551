//! Builds of templates.

use atoll_api::{
    Build, BuildCacheList, BuildCachePruned, BuildList, BuildLogPage, CreateBuild, PruneBuildCache,
};
use atoll_core::build::{BuildEvent, BuildState};
use atoll_core::limits::WAIT_MAX_MS;
use bytes::Bytes;
use futures::Stream;
use http::Method;

use crate::resume::Attempts;
use crate::{Client, ClientError, Result, ResumePolicy};

/// Largest answer to an upload, bytes: a build with its failure.
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// Which builds to list.
#[derive(Debug, Clone, Default)]
pub struct ListBuilds {
    /// Only in this state.
    pub state: Option<BuildState>,
    /// Size of the page.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Begins a build. One that needs a context waits for it.
    pub async fn create_build(&self, create: &CreateBuild) -> Result<Build> {
        self.submit(Method::POST, self.target(["v1", "builds"]), create).await
    }

    /// Sends the context of a build.
    pub async fn put_build_context(
        &self,
        build: &str,
        tar: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<Build> {
        let target = self.target(["v1", "builds", build, "context"]);
        let body = reqwest::Body::wrap_stream(tar);
        let response = self.send(self.request(Method::PUT, target).body(body)).await?;
        let body = self.body(response, ANSWER_MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// One page of builds, newest first.
    pub async fn list_builds(&self, list: &ListBuilds) -> Result<BuildList> {
        let target = self
            .target(["v1", "builds"])
            .maybe("state", list.state)
            .maybe("limit", list.limit)
            .maybe("cursor", list.cursor.as_deref());
        self.call(self.request(Method::GET, target)).await
    }

    /// One build.
    pub async fn get_build(&self, build: &str) -> Result<Build> {
        self.call(self.request(Method::GET, self.target(["v1", "builds", build]))).await
    }

    /// Ends a build.
    pub async fn cancel_build(&self, build: &str) -> Result<Build> {
        self.call(self.request(Method::POST, self.target(["v1", "builds", build, "cancel"]))).await
    }

    /// The log of a build from an offset on. Waits up to `wait_ms` (at most 60,000) while there is nothing.
    pub async fn build_log(&self, build: &str, offset: u64, wait_ms: u64) -> Result<BuildLogPage> {
        let target =
            self.target(["v1", "builds", build, "log"]).query("offset", offset).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }

    /// What the cache of steps holds.
    pub async fn build_cache(&self) -> Result<BuildCacheList> {
        self.call(self.request(Method::GET, self.target(["v1", "build-cache"]))).await
    }

    /// Takes the longest unused steps out of the cache.
    pub async fn prune_build_cache(&self, keep_bytes: u64) -> Result<BuildCachePruned> {
        let target = self.target(["v1", "build-cache", "prune"]);
        self.submit(Method::POST, target, &PruneBuildCache { keep_bytes }).await
    }
}

/// Reads the log of a build in order, over as many requests as it takes.
#[derive(Debug)]
pub struct BuildFollower {
    client: Client,
    build: String,
    offset: u64,
    attempts: Attempts,
    wait: bool,
    ready: std::collections::VecDeque<BuildEvent>,
    over: bool,
}

impl Client {
    /// Reads the log of a build from its start. With `wait` until the build has ended, otherwise what there is now.
    #[must_use]
    pub fn follow_build(&self, build: &str, wait: bool, resume: ResumePolicy) -> BuildFollower {
        BuildFollower {
            client: self.clone(),
            build: build.to_owned(),
            offset: 0,
            attempts: Attempts::new(resume),
            wait,
            ready: std::collections::VecDeque::new(),
            over: false,
        }
    }
}

impl BuildFollower {
    /// The next entry; `None` when there is none any more.
    ///
    /// # Errors
    /// [`ClientError`], after which the next call tries again at the same offset.
    pub async fn next(&mut self) -> Result<Option<BuildEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            let wait_ms = if self.wait { WAIT_MAX_MS } else { 0 };
            match self.client.build_log(&self.build, self.offset, wait_ms).await {
                Ok(page) => {
                    self.attempts.progressed();
                    self.over = page.over || (!self.wait && page.entries.is_empty());
                    self.offset = page.next_offset;
                    self.ready.extend(page.entries);
                }
                Err(error) if error.worth_another_connection() => match self.attempts.next() {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }
}
