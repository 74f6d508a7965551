//! What is open ends with the right by which it was opened: bodies of requests and answers break off, handlers
//! that only wait are given up.
//!
//! Who asks is not known before a handler's extractor has looked, and the bodies are around that. So a request
//! carries a [`Guest`] that the extractor fills in. A route cannot forget it; only what goes on after an upgrade
//! (WebSockets) has to wait for [`atoll_engine::Engine::until_unwelcome`] itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_core::{Code, Error};
use atoll_engine::{Engine, Pass};
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Extensions;
use http_body::{Frame, SizeHint};
use tokio::sync::SetOnce;

/// By what right a request is answered, once that is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guest(Arc<SetOnce<Pass>>);

impl Guest {
    /// Somebody whose right is known.
    pub(crate) fn of(pass: Pass) -> Self {
        Self(Arc::new(SetOnce::new_with(Some(pass))))
    }

    /// Notes it for the request to which `extensions` belong.
    pub(crate) fn admit(extensions: &Extensions, pass: Pass) {
        if let Some(guest) = extensions.get::<Self>() {
            // A second extractor of the same request asks for no more than the first.
            drop(guest.0.set(pass));
        }
    }

    /// The right, if it is known.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        self.0.get()
    }

    /// Resolves when the right has ended; not before it is known.
    pub(crate) async fn until_unwelcome(&self, engine: &Engine) {
        engine.until_unwelcome(self.0.wait().await).await;
    }
}

/// What somebody is told whose right ended meanwhile.
pub(crate) fn unwelcome() -> Error {
    Error::new(Code::Unauthorized, "the right by which this was opened has ended")
        .hint("the key, the access or its role on the sandbox is gone, or has run out")
}

/// A body that breaks off when who was let in is welcome no longer.
pub(crate) struct WhileWelcome<B> {
    body: B,
    guest: Guest,
    engine: Engine,
    /// Absent until the body has shown that it has more than one piece, or keeps one waiting: most have not.
    over: Option<BoxFuture<'static, ()>>,
    begun: bool,
}

impl<B> WhileWelcome<B>
where
    B: HttpBody<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static,
{
    pub(crate) fn body(body: B, guest: &Guest, engine: &Engine) -> Body {
        Body::new(Self { body, guest: guest.clone(), engine: engine.clone(), over: None, begun: false })
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let over = self.over.get_or_insert_with(|| {
            let (guest, engine) = (self.guest.clone(), self.engine.clone());
            Box::pin(async move { guest.until_unwelcome(&engine).await })
        });
        over.as_mut().poll(cx)
    }
}

impl<B> HttpBody for WhileWelcome<B>
where
    B: HttpBody<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let cut = || Poll::Ready(Some(Err(axum::Error::new(unwelcome()))));
        if self.begun && self.poll_over(cx).is_ready() {
            return cut();
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // Asked only now the first time, so that the wait is registered where it was not.
        if !self.begun && polled.is_pending() && self.poll_over(cx).is_ready() {
            return cut();
        }
        self.begun = true;
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
