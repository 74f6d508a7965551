//! Open requests and streams end with the right by which they were opened: bodies of requests and answers break off,
//! and handlers that only wait are given up.
//!
//! The caller is not known before a handler's extractor has verified the key, and the bodies are wrapped before that.
//! So a request carries a [`GrantSlot`] that the extractor fills in. A route cannot forget it; only a task that goes on
//! after an upgrade (a WebSocket) has to wait for [`atoll_engine::Engine::until_revoked`] itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_core::{Code, Error};
use atoll_engine::{Caller, Engine, Grant};
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Extensions;
use http_body::{Frame, SizeHint};
use tokio::sync::SetOnce;

use crate::streams::{Linked, Owner, Turn};

/// The right by which a request is answered, once it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantSlot(Arc<SetOnce<Grant>>);

impl GrantSlot {
    /// A slot in which the right is known.
    pub(crate) fn of(grant: Grant) -> Self {
        Self(Arc::new(SetOnce::new_with(Some(grant))))
    }

    /// Notes the right for the request to which `extensions` belong, and takes the request's place among the answers
    /// that its key may have open: see [`Turn`].
    ///
    /// # Errors
    /// [`Code::LimitExceeded`].
    pub(crate) fn fill(extensions: &Extensions, grant: Grant) -> Result<(), Error> {
        let admitted = extensions.get::<Turn>().map_or(Ok(()), |turn| turn.admit(&grant));
        Self::note(extensions, grant);
        admitted
    }

    /// The same for a request by an address of a file of a sandbox, with the right of the key that signed it. The place is
    /// one of those that the links to the sandbox's files have.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`]; [`Code::SandboxNotFound`].
    pub(crate) fn fill_signed(extensions: &Extensions, grant: Grant, engine: &Engine) -> Result<(), Error> {
        let Some(sandbox) = grant.sandbox() else { return Self::fill(extensions, grant) };
        let (record, linked) = (engine.sandbox(sandbox)?, Linked::Sandbox(sandbox.clone()));
        let owner = Owner { key: record.owner.as_ref(), project: record.project.as_ref() };
        Self::fill_linked(extensions, grant, &linked, owner)
    }

    /// The same for a request by an address of an object that a dialect keeps, with the right of the key that signed it and
    /// that has the object. The place is one of those that the object's addresses have.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`].
    pub(crate) fn fill_signed_object(
        extensions: &Extensions,
        grant: Grant,
        object: &str,
    ) -> Result<(), Error> {
        let signer = grant.caller().cloned();
        let signer = signer.as_ref();
        let owner = Owner { key: signer.and_then(Caller::key), project: signer.and_then(Caller::project) };
        Self::fill_linked(extensions, grant, &Linked::Object(object.into()), owner)
    }

    fn fill_linked(
        extensions: &Extensions,
        grant: Grant,
        linked: &Linked,
        owner: Owner<'_>,
    ) -> Result<(), Error> {
        let admitted = extensions.get::<Turn>().map_or(Ok(()), |turn| turn.admit_signed(linked, owner));
        Self::note(extensions, grant);
        admitted
    }

    fn note(extensions: &Extensions, grant: Grant) {
        if let Some(slot) = extensions.get::<Self>() {
            // A second extractor of the same request asks for no more than the first.
            drop(slot.0.set(grant));
        }
    }

    /// The right, if it is known.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.0.get()
    }

    /// Resolves when the right has ended; not before it is known.
    pub(crate) async fn until_revoked(&self, engine: &Engine) {
        engine.until_revoked(self.0.wait().await).await;
    }
}

/// The error for a client whose right ended meanwhile.
pub(crate) fn revoked() -> Error {
    Error::new(Code::Unauthorized, "the right by which this was opened has ended")
        .hint("the key, the access or its role on the sandbox is gone, or has run out")
}

/// A body that breaks off when the right by which it is sent has ended.
pub(crate) struct UntilRevoked<B> {
    body: B,
    slot: GrantSlot,
    engine: Engine,
    /// Absent until the body has shown that it has more than one piece, or that its reader has to wait: most bodies do
    /// neither.
    over: Option<BoxFuture<'static, ()>>,
    begun: bool,
}

impl<B> UntilRevoked<B>
where
    B: HttpBody<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static,
{
    pub(crate) fn body(body: B, slot: &GrantSlot, engine: &Engine) -> Body {
        Body::new(Self { body, slot: slot.clone(), engine: engine.clone(), over: None, begun: false })
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let over = self.over.get_or_insert_with(|| {
            let (slot, engine) = (self.slot.clone(), self.engine.clone());
            Box::pin(async move { slot.until_revoked(&engine).await })
        });
        over.as_mut().poll(cx)
    }
}

impl<B> HttpBody for UntilRevoked<B>
where
    B: HttpBody<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let cut = || Poll::Ready(Some(Err(axum::Error::new(revoked()))));
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
