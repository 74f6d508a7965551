//! Answers that go on or are long: output that is followed, files, archives, pages of output, WebSockets. The server holds
//! bytes of each for a client that does not read, on a connection of HTTP/2 for hundreds at once, so a key has only so
//! many places for them, and so have the links to a sandbox's files, or to one object of a dialect, together. Of the places
//! that there are for all links, those to what one project or owner has have a share, and of that share those to one sandbox's
//! files, or to one object: anybody may have a link, and leaves places for the others. When many have ended, the memory that
//! they had goes back to the kernel.
//!
//! Each request has a [`Turn`]. When the request's right becomes known ([`GrantSlot::fill`]) and the request may change
//! something, or asks for another protocol, it takes a place: a request that gets none has done nothing. It gives the
//! place back when its answer turns out to be short, else with the answer's body, or with the task that serves the
//! switched connection: that holds the connection's [`Slot`], which holds the turn. A request that only reads takes its
//! place when its answer turns out to be long.
//!
//! What a node of a cluster passes on to another is counted at both: each holds bytes for the client.

mod links;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::{Code, Error};
use atoll_engine::Grant;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Version};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::hangup;
use crate::revocation::GrantSlot;
use crate::serve::Slot;
use crate::shared::App;

use links::{LinkPlace, Links};
pub(crate) use links::{Linked, Owner};

/// Answers of at most so many bytes are not counted: they are there as a whole, and soon gone.
const SHORT_MAX_BYTES: u64 = 64 << 10;
/// One in so many places is there beyond the others for requests that may change something, so that a client that has
/// too much open can still stop what it started. As many again are there for `DELETE`: an answer to another change may be
/// one that goes on, as those of many dialects are that start a command.
const RESERVED: usize = 16;
/// As many counts are kept before those of which nothing is open are removed.
const COUNTS_MIN: usize = 1024;
/// So many open answers are worth that memory is given back after them.
const MANY_COUNT: usize = 64;
/// Pause before memory is given back: when many answers have ended, others are ending.
const ENDING: Duration = Duration::from_secs(1);
/// How often memory is given back at most.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// Whose answers are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Key(KeyId),
    /// Anybody has these. They do not take the places of the key that made them.
    LinksTo(Linked),
}

impl Whose {
    fn of(grant: &Grant) -> Option<Self> {
        match grant.caller() {
            Some(caller) => caller.key().cloned().map(Self::Key),
            None => grant.sandbox().cloned().map(Linked::Sandbox).map(Self::LinksTo),
        }
    }

    fn refused(&self, most: usize) -> Error {
        let (whose, others) = match self {
            Self::Key(_) => ("the key has", "another key has places of its own"),
            Self::LinksTo(Linked::Sandbox(_)) => {
                ("the links to this sandbox have", "a key has places of its own")
            }
            Self::LinksTo(Linked::Object(_)) => {
                ("the addresses of this object have", "a key has places of its own")
            }
        };
        let message = format!("{whose} {most} answers open that go on or are long");
        Error::new(Code::LimitExceeded, message)
            .hint(format!("read or close some of those streams and downloads; {others}"))
    }
}

/// How many such answers are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams(Arc<All>);

#[derive(Debug, Default)]
struct All {
    table: RwLock<Counts>,
    /// Places that links have.
    links: Links,
    /// Places that are taken.
    open: AtomicUsize,
    /// The most that there were since memory was given back.
    most: AtomicUsize,
    /// Most of many answers have ended.
    many_ended: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    counts: HashMap<Whose, Arc<AtomicUsize>>,
    /// So many were left when they were swept last.
    left: usize,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
struct Place {
    count: Arc<AtomicUsize>,
    all: Arc<All>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let open = self.all.open.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        let most = self.all.most.load(Ordering::Relaxed);
        if most >= MANY_COUNT && open <= most / 4 {
            self.all.most.store(open, Ordering::Relaxed);
            self.all.many_ended.notify_one();
        }
    }
}

impl Streams {
    fn take(&self, whose: &Whose, most: usize) -> Option<Place> {
        let count = self.count(whose);
        let before = count.fetch_add(1, Ordering::Relaxed);
        let open = self.0.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(open, Ordering::Relaxed);
        // Dropped, and so given back, if it is one too many.
        let place = Place { count, all: Arc::clone(&self.0) };
        (before < most).then_some(place)
    }

    /// The places of a link to this, which this owner has. `most` are the places of a key.
    fn take_for_link(
        &self,
        linked: &Linked,
        owner: Owner<'_>,
        most: usize,
    ) -> Result<(Place, LinkPlace), Error> {
        let whose = Whose::LinksTo(linked.clone());
        let own = self.take(&whose, most).ok_or_else(|| whose.refused(most))?;
        let link = self.0.links.take(linked, owner, most).ok_or_else(|| {
            let message = match linked {
                Linked::Sandbox(_) => {
                    "the links to files of this sandbox, or of its owner's, have all downloads open that they may"
                }
                Linked::Object(_) => {
                    "the addresses of this object, or of its owner's, have all requests open that they may"
                }
            };
            Error::new(Code::LimitExceeded, message).hint("try again when some of these have ended")
        })?;
        Ok((own, link))
    }

    /// Calls `give_back` each time when most of many answers have ended.
    pub(crate) async fn give_memory_back(&self, give_back: fn()) {
        loop {
            self.0.many_ended.notified().await;
            tokio::time::sleep(ENDING).await;
            if let Err(error) = tokio::task::spawn_blocking(give_back).await {
                tracing::error!(%error, "memory is not given back");
            }
            tokio::time::sleep(GIVE_BACK_EVERY).await;
        }
    }

    fn count(&self, whose: &Whose) -> Arc<AtomicUsize> {
        // One map: a panic leaves it usable as it is.
        let known = self.0.table.read().unwrap_or_else(PoisonError::into_inner).counts.get(whose).cloned();
        if let Some(count) = known {
            return count;
        }
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.counts.len() >= COUNTS_MIN.max(2 * table.left) {
            // The map alone has the counts of which no place is taken.
            table.counts.retain(|_, count| Arc::strong_count(count) > 1);
            table.left = table.counts.len();
        }
        Arc::clone(table.counts.entry(whose.clone()).or_default())
    }
}

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
    /// [`Code::LimitExceeded`].
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
    /// [`Code::LimitExceeded`].
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
    /// [`Code::LimitExceeded`].
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
    /// [`Code::LimitExceeded`].
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
    /// [`Code::LimitExceeded`].
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
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_and_counts_of_nobody_are_removed() {
        let streams = Streams::default();
        let whose = |n: u64| Whose::Key(KeyId::from_parts(n, n));
        let (first, second) = (streams.take(&whose(0), 2), streams.take(&whose(0), 2));
        assert!(first.is_some() && second.is_some() && streams.take(&whose(0), 2).is_none());
        assert!(streams.take(&whose(1), 2).is_some(), "another key");
        drop(first);
        assert!(streams.take(&whose(0), 2).is_some());
        for n in 1..=COUNTS_MIN as u64 {
            assert!(streams.take(&whose(n), 1).is_some());
        }
        let kept = streams.0.table.read().unwrap().counts.len();
        assert!(kept < COUNTS_MIN, "{kept}");
        let one_more = streams.take(&whose(0), 2);
        assert!(one_more.is_some() && streams.take(&whose(0), 2).is_none(), "what is open is still counted");
    }

    #[test]
    fn what_another_node_answers_is_counted_here_too() {
        let streams = Streams::default();
        let begin = |method: &str, protocol: Option<&str>| {
            let mut request = http::Request::builder().method(method).uri("/v1/x");
            if let Some(protocol) = protocol {
                request = request.header(UPGRADE, protocol);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            Elsewhere::begin(streams.clone(), 1, &parts, KeyId::from_parts(1, 1))
        };
        let answer = |length: Option<&str>| {
            // Of no length that is known beforehand, as what comes from another node.
            let body = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
            let mut response = Response::new(body);
            if let Some(length) = length {
                response.headers_mut().insert(CONTENT_LENGTH, length.parse().unwrap());
            }
            response
        };
        let open = || streams.0.open.load(Ordering::Relaxed);
        let short = begin("GET", None).unwrap().answered(answer(Some("10"))).unwrap();
        assert_eq!(open(), 0, "a short answer has no place");
        let long = begin("GET", None).unwrap().answered(answer(None)).unwrap();
        assert_eq!(open(), 1);
        let refused = begin("GET", None).unwrap().answered(answer(Some("1000000"))).unwrap_err();
        assert_eq!(refused.code, Code::LimitExceeded);
        // What may change something, and what becomes another protocol, is refused before the other node is asked.
        for (method, protocol) in [("POST", None), ("GET", Some("websocket"))] {
            assert_eq!(begin(method, protocol).unwrap_err().code, Code::LimitExceeded, "{method}");
        }
        drop((long, short));
        let switched = begin("GET", Some("websocket")).unwrap();
        let kept = switched.turn();
        drop(switched);
        assert_eq!(open(), 1, "the connection that it became has the place");
        drop(kept);
        assert_eq!(open(), 0);
    }

    #[test]
    fn a_refusal_by_a_signed_address_takes_no_place_of_the_key_that_signed_it() {
        let streams = Streams::default();
        let (key, linked) = (KeyId::from_parts(1, 1), Linked::Object("obj_1".into()));
        let turn = || Turn::new(streams.clone(), 1, &Method::GET, &HeaderMap::new(), Version::HTTP_2);
        let (first, second) = (turn(), turn());
        first.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap();
        assert_eq!(
            second.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap_err().code,
            Code::LimitExceeded
        );
        let whose = Whose::Key(key);
        let told = "too many";
        let refusal =
            second.hold(Response::new(Body::from(told)), Some(told.len() as u64), Some(&whose)).unwrap();
        assert!(
            streams.take(&whose, 1).is_some(),
            "a client that does not read the refusal holds nothing of the key's"
        );
        drop((first, refusal));
        assert_eq!(streams.0.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_has_a_signed_address_takes_no_place_of_the_key_that_signed_it() {
        let streams = Streams::default();
        let key = KeyId::from_parts(1, 1);
        let turn = |method| Turn::new(streams.clone(), 1, &method, &HeaderMap::new(), Version::HTTP_11);
        for (method, linked) in [
            (Method::GET, Linked::Sandbox(SandboxId::from_parts(1, 1))),
            (Method::GET, Linked::Object("obj_1".into())),
            (Method::PUT, Linked::Object("obj_1".into())),
        ] {
            let (first, second) = (turn(method.clone()), turn(method.clone()));
            first.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap();
            assert_eq!(
                second.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap_err().code,
                Code::LimitExceeded
            );
            // A long answer, which would take the key's place otherwise.
            let whose = Whose::Key(key.clone());
            let answer = first.hold(Response::new(Body::empty()), None, Some(&whose)).unwrap();
            assert!(streams.take(&whose, 1).is_some(), "the key has all of its own");
            drop((answer, second));
            assert_eq!(streams.0.open.load(Ordering::Relaxed), 0);
            turn(method).admit_signed(&linked, Owner::default()).unwrap();
        }
    }

    #[test]
    fn what_deletes_finds_a_place_when_other_changes_have_taken_theirs() {
        let streams = Streams::default();
        let begin = |method: &str| {
            let (parts, ()) = http::Request::builder().method(method).body(()).unwrap().into_parts();
            Elsewhere::begin(streams.clone(), RESERVED, &parts, KeyId::from_parts(1, 1))
        };
        let changes: Vec<_> = std::iter::from_fn(|| begin("POST").ok()).collect();
        assert_eq!(changes.len(), RESERVED + 1);
        let deletes: Vec<_> = std::iter::from_fn(|| begin("DELETE").ok()).collect();
        assert_eq!(deletes.len(), 1);
        drop(deletes);
        assert!(begin("DELETE").is_ok() && begin("POST").is_err());
    }
}
