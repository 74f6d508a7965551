//! What one request has of the places, from its beginning to the end of its answer; also of one that another node answers.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use atoll_core::Error;
use atoll_core::id::{KeyId, SandboxId};
use atoll_engine::Grant;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Version};
use http_body::{Frame, SizeHint};

use super::links::LinkPlace;
use super::{Linked, Owner, Place, Streams, Whose};
use crate::error::ApiError;
use crate::hangup;
use crate::revocation::GrantSlot;
use crate::serve::Slot;
use crate::shared::App;

/// Answers of at most so many bytes are not counted: they are there as a whole, and soon gone.
const SHORT_MAX_BYTES: u64 = 64 << 10;
/// One in so many places is there beyond the others for requests that may change something, so that a client that has
/// too much open can still stop what it started. As many again are there for `DELETE`: an answer to another change may be
/// one that goes on, as those of many dialects are that start a command.
const RESERVED: usize = 16;

/// What one request has of the places. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Turn(Arc<Taking>);

#[derive(Debug)]
struct Taking {
    streams: Streams,
    most: usize,
    /// Places that the request may take beyond `most`.
    reserve: usize,
    /// The request takes its place before it is served.
    early: bool,
    /// A client that does not read leaves even a short answer in memory: it has hundreds of streams, each with a window of
    /// its own, which may be zero. A connection of HTTP/1 has one answer at a time.
    keeps_short_ones: bool,
    place: OnceLock<Place>,
    /// The request came by a link, or by an address that a key signed.
    link: OnceLock<LinkPlace>,
    /// Anybody may have sent it: it takes no place of the key that stands behind it, also when there is none for it.
    of_anybody: AtomicBool,
}

impl Turn {
    fn new(streams: Streams, most: usize, method: &Method, headers: &HeaderMap, version: Version) -> Self {
        let changes = hangup::may_change(method);
        Self(Arc::new(Taking {
            streams,
            most,
            reserve: match *method {
                Method::DELETE => 2 * (most / RESERVED),
                _ if changes => most / RESERVED,
                _ => 0,
            },
            early: changes || headers.contains_key(UPGRADE),
            keeps_short_ones: version == Version::HTTP_2,
            place: OnceLock::new(),
            link: OnceLock::new(),
            of_anybody: AtomicBool::new(false),
        }))
    }

    /// The turn of a request. The request carries it, and so does what keeps its connection.
    pub(crate) fn begin(app: &App, request: &mut Request) -> Self {
        let (streams, most) = (app.streams.clone(), app.config.streams_of_key_max);
        let turn = Self::new(streams, most, request.method(), request.headers(), request.version());
        let extensions = request.extensions_mut();
        if let Some(slot) = extensions.get::<Slot>().map(|slot| slot.with(turn.clone())) {
            extensions.insert(slot);
        }
        extensions.insert(turn.clone());
        turn
    }

    /// The turn of a client's request that is passed on to another node. `None` when the client showed no key: then only the
    /// other node knows whose places count.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub(crate) fn elsewhere(
        app: &App,
        parts: &Parts,
        key: Option<KeyId>,
    ) -> Result<Option<Elsewhere>, Error> {
        let (streams, most) = (app.streams.clone(), app.config.streams_of_key_max);
        key.map(|key| Elsewhere::begin(streams, most, parts, key)).transpose()
    }

    /// The turn of a request by a link to a file of a sandbox, which this owner has.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub(crate) fn by_link(app: &App, sandbox: &SandboxId, owner: Owner<'_>) -> Result<Self, Error> {
        let (streams, most) = (app.streams.clone(), app.config.streams_of_key_max);
        let linked = Linked::Sandbox(sandbox.clone());
        let (own, link) = streams.take_for_link(&linked, owner, most)?;
        Ok(Self(Arc::new(Taking {
            streams,
            most,
            reserve: 0,
            early: true,
            keeps_short_ones: true,
            place: OnceLock::from(own),
            link: OnceLock::from(link),
            of_anybody: AtomicBool::new(true),
        })))
    }

    /// Takes the place of a request by an address that a key signed, of a file of a sandbox or of an object that this owner
    /// has: one of the links', whatever comes of it. Anybody may have such an address.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub(crate) fn admit_signed(&self, linked: &Linked, owner: Owner<'_>) -> Result<(), Error> {
        let Taking { streams, most, place, link, of_anybody, .. } = &*self.0;
        of_anybody.store(true, Ordering::Relaxed);
        if place.get().is_none() {
            let (own, of_link) = streams.take_for_link(linked, owner, *most)?;
            // Second ones of the same request are given back.
            drop((place.set(own), link.set(of_link)));
        }
        Ok(())
    }

    /// Takes the request's place if it needs one before it is served, now that its right is known.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub(crate) fn admit(&self, grant: &Grant) -> Result<(), Error> {
        match Whose::of(grant) {
            Some(whose) if self.0.early => self.take(&whose),
            Some(_) | None => Ok(()),
        }
    }

    fn take(&self, whose: &Whose) -> Result<(), Error> {
        let Taking { streams, most, reserve, place, of_anybody, .. } = &*self.0;
        if place.get().is_none() && !of_anybody.load(Ordering::Relaxed) {
            let taken = streams.take(whose, most + reserve).ok_or_else(|| whose.refused(*most))?;
            // A second one of the same request is given back.
            drop(place.set(taken));
        }
        Ok(())
    }

    /// The answer, with the place for as long as it goes on, if it does; a refusal in its stead if there is no place.
    pub(crate) fn answered(self, response: Response, grant: &GrantSlot) -> Response {
        let (bytes, whose) = (response.body().size_hint().exact(), grant.grant().and_then(Whose::of));
        let held = self.hold(response, bytes, whose.as_ref());
        held.unwrap_or_else(|error| ApiError(error).into_response())
    }

    /// The answer, of so many bytes if that is known, with the place for as long as it goes on, if it does.
    fn hold(self, response: Response, bytes: Option<u64>, whose: Option<&Whose>) -> Result<Response, Error> {
        let short = if self.0.keeps_short_ones { 0 } else { SHORT_MAX_BYTES };
        if bytes.is_some_and(|bytes| bytes <= short) {
            return Ok(response);
        }
        if let Some(whose) = whose {
            self.take(whose)?;
        }
        Ok(response.map(|body| Body::new(Placed { body, _until_the_end: self })))
    }
}

/// The turn of a request that another node answers.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    turn: Turn,
    whose: Whose,
}

impl Elsewhere {
    fn begin(streams: Streams, most: usize, parts: &Parts, key: KeyId) -> Result<Self, Error> {
        let turn = Turn::new(streams, most, &parts.method, &parts.headers, parts.version);
        let whose = Whose::Key(key);
        if turn.0.early {
            turn.take(&whose)?;
        }
        Ok(Self { turn, whose })
    }

    /// For what keeps the client's connection.
    pub(crate) fn turn(&self) -> Turn {
        self.turn.clone()
    }

    /// The other node's answer, with the place for as long as it goes on, if it does.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub(crate) fn answered(self, response: Response) -> Result<Response, Error> {
        // The body comes in pieces, also where the other node says how long it is.
        let said =
            response.headers().get(CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        let bytes = response.body().size_hint().exact().or(said);
        self.turn.hold(response, bytes, Some(&self.whose))
    }
}

/// A body with its place.
struct Placed {
    body: Body,
    _until_the_end: Turn,
}

impl HttpBody for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
