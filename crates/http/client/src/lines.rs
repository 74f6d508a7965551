//! Progress as newline-delimited JSON.

use std::collections::VecDeque;

use atoll_api::ImageProgress;
use bytes::{Buf, BytesMut};
use futures::Stream;
use reqwest::Response;

use crate::{Client, ClientError, Result};

/// Longest line, bytes.
const LINE_MAX_BYTES: usize = 1 << 20;

struct Lines {
    client: Client,
    response: Response,
    buffer: BytesMut,
    ready: VecDeque<ImageProgress>,
    /// Why nothing after those that are ready can be read.
    failed: Option<ClientError>,
    /// An image is ready: the stream may end from now on.
    done: bool,
    finished: bool,
}

/// Reads a response line by line until its end, or `error`. There is a `done` for each thing that is ready.
pub(crate) fn lines(
    client: Client,
    response: Response,
) -> impl Stream<Item = Result<ImageProgress>> + Send + Unpin {
    let state = Lines {
        client,
        response,
        buffer: BytesMut::new(),
        ready: VecDeque::new(),
        failed: None,
        done: false,
        finished: false,
    };
    Box::pin(futures::stream::unfold(state, |mut state| async move {
        if state.finished {
            return None;
        }
        let item = state.next().await.transpose()?;
        state.done |= matches!(item, Ok(ImageProgress::Done { .. }));
        state.finished = matches!(item, Ok(ImageProgress::Error { .. }) | Err(_));
        Some((item, state))
    }))
}

impl Lines {
    async fn next(&mut self) -> Result<Option<ImageProgress>> {
        loop {
            if let Some(progress) = self.ready.pop_front() {
                return Ok(Some(progress));
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let chunk = self
                .response
                .chunk()
                .await
                .map_err(|error| self.client.no_connection(error.without_url()))?;
            let Some(chunk) = chunk else {
                if self.done {
                    return Ok(None);
                }
                return Err(ClientError::Protocol("the progress ended before the work did".into()));
            };
            self.buffer.extend_from_slice(&chunk);
            self.failed = self.split().err();
        }
    }

    fn split(&mut self) -> Result<()> {
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            if line.trim_ascii().is_empty() {
                continue;
            }
            let progress = serde_json::from_slice(&line)
                .map_err(|error| ClientError::Protocol(format!("a line of progress: {error}")))?;
            self.ready.push_back(progress);
        }
        if self.buffer.len() > LINE_MAX_BYTES {
            return Err(ClientError::Protocol(format!(
                "a line of progress is longer than {LINE_MAX_BYTES} bytes"
            )));
        }
        Ok(())
    }
}
