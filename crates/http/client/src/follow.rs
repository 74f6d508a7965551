//! Output of an exec by long-poll, without being attached to it.
//!
//! Unlike [`crate::attach`] this does not count as a client of the exec: an exec that is killed when
//! its last client goes away does not notice it. It only needs plain HTTP.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_api::OutputPage;
use atoll_core::limits::WAIT_MAX_MS;
use bytes::Bytes;

use crate::resume::Attempts;
use crate::{AttachEvent, Client, ClientError, OutputQuery, Result, ResumePolicy};

/// Pause after an answer without news, in case the server does not wait as it was asked to.
const IDLE_PAUSE: Duration = Duration::from_millis(50);

/// Reads output in order, each byte once, over as many requests as it takes.
#[derive(Debug)]
pub struct OutputFollower {
    client: Client,
    sandbox: String,
    exec: String,
    offset: u64,
    attempts: Attempts,
    wait: bool,
    ready: VecDeque<AttachEvent>,
    finished: bool,
}

impl Client {
    /// Reads output from `offset` on. With `wait` until the exit, otherwise what there is now.
    #[must_use]
    pub fn follow_output(
        &self,
        sandbox: &str,
        exec: &str,
        offset: u64,
        wait: bool,
        resume: ResumePolicy,
    ) -> OutputFollower {
        OutputFollower {
            client: self.clone(),
            sandbox: sandbox.to_owned(),
            exec: exec.to_owned(),
            offset,
            attempts: Attempts::new(resume),
            wait,
            ready: VecDeque::new(),
            finished: false,
        }
    }
}

impl OutputFollower {
    /// The next event; `None` after the exit or, without waiting, at the end of what there is.
    ///
    /// # Errors
    /// [`ClientError`], after which the next call tries again at the same offset.
    pub async fn next(&mut self) -> Result<Option<AttachEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.finished {
                return Ok(None);
            }
            let wait_ms = if self.wait { WAIT_MAX_MS } else { 0 };
            let query = OutputQuery { offset: self.offset, wait_ms, ..OutputQuery::default() };
            match self.client.exec_output(&self.sandbox, &self.exec, query).await {
                Ok(page) => {
                    self.take(page)?;
                    if self.ready.is_empty() && !self.finished {
                        tokio::time::sleep(IDLE_PAUSE).await;
                    }
                }
                Err(error) if error.worth_another_connection() => match self.attempts.next() {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, page: OutputPage) -> Result<()> {
        if let Some(to) = page.gap_until.filter(|&to| to > self.offset) {
            self.ready.push_back(AttachEvent::Gap { from: self.offset, to });
            self.offset = to;
        }
        let empty = page.chunks.is_empty();
        for chunk in page.chunks {
            let data = chunk.bytes().map_err(|error| ClientError::Protocol(error.message))?;
            if chunk.offset != self.offset {
                return Err(ClientError::Protocol(format!(
                    "output at {} where {} was due",
                    chunk.offset, self.offset
                )));
            }
            self.offset = self.offset.saturating_add(data.len() as u64);
            self.attempts.progressed();
            let data = Bytes::from(data);
            self.ready.push_back(AttachEvent::Output { stream: chunk.stream, offset: chunk.offset, data });
        }
        if page.next_offset != self.offset {
            return Err(ClientError::Protocol("the output's offsets do not add up".into()));
        }
        match page.exit {
            Some(exit) if empty && page.state.is_final() => {
                let offset = self.offset;
                self.ready.push_back(AttachEvent::Exit { state: page.state, exit, offset });
                self.finished = true;
            }
            _ if empty && (!self.wait || page.state.is_final()) => self.finished = true,
            _ => {}
        }
        Ok(())
    }
}
