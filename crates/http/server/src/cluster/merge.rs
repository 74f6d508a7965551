//! Server-sent events of several nodes as one stream.

use std::time::Duration;

use atoll_core::id::NodeId;
use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, Interval, interval_at};

use crate::shared::App;

/// Longest event of another node, bytes.
const EVENT_MAX_BYTES: usize = 4 << 20;
/// How often this node looks whether there are other nodes than at the beginning.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What ends an event.
const END: &[u8] = b"\n\n";

struct Merge {
    app: App,
    nodes: Vec<NodeId>,
    /// Ticks every [`LOOK_EVERY`], also while events come faster than that.
    look: Interval,
    /// `None` where one of them ends.
    all: SelectAll<BoxStream<'static, Option<Bytes>>>,
}

fn living(app: &App) -> Vec<NodeId> {
    app.engine.other_nodes().iter().map(|node| node.id.clone()).collect()
}

/// Whole events of all bodies, as they come. The stream ends with the first body that ends, and when other nodes live
/// than at its beginning: the client then asks again, and reaches all nodes that there are then.
pub(crate) fn merged(app: App, bodies: Vec<Body>) -> impl Stream<Item = Bytes> + Send + 'static {
    let ending =
        |body: Body| events(body.into_data_stream()).map(Some).chain(stream::once(async { None })).boxed();
    let look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    let merge =
        Merge { nodes: living(&app), app, look, all: stream::select_all(bodies.into_iter().map(ending)) };
    stream::unfold(merge, |mut merge| async move {
        loop {
            tokio::select! {
                event = merge.all.next() => return event.flatten().map(|event| (event, merge)),
                _ = merge.look.tick() => {
                    if living(&merge.app) != merge.nodes {
                        return None;
                    }
                }
            }
        }
    })
}

/// The events of one body, each with its end.
fn events(body: BodyDataStream) -> impl Stream<Item = Bytes> + Send + 'static {
    stream::unfold((body, BytesMut::new()), |(mut body, mut read)| async move {
        loop {
            if let Some(at) = read.windows(END.len()).position(|bytes| bytes == END) {
                return Some((read.split_to(at + END.len()).freeze(), (body, read)));
            }
            if read.len() > EVENT_MAX_BYTES {
                return None;
            }
            match body.next().await {
                Some(Ok(more)) => read.extend_from_slice(&more),
                // Half an event is dropped.
                Some(Err(_)) | None => return None,
            }
        }
    })
}

/// What an event carries, if anything.
pub(crate) fn data(event: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(event).ok()?;
    text.lines().find_map(|line| line.strip_prefix("data:")).map(str::trim_start)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The events of a body that comes in pieces.
    fn found(body: &[u8], piece: usize) -> Vec<Bytes> {
        let pieces: Vec<_> = body.chunks(piece).map(Bytes::copy_from_slice).collect();
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)));
        events(body.into_data_stream()).collect::<Vec<_>>().now_or_never().unwrap()
    }

    #[test]
    fn no_event_is_cut_or_joined_however_it_comes() {
        bolero::check!().for_each(|body: &[u8]| {
            let whole = found(body, body.len().max(1));
            assert_eq!(found(body, 1 + body.len() % 5), whole);
            for event in &whole {
                assert!(
                    event.ends_with(END) && !event[..event.len() - 1].windows(2).any(|bytes| bytes == END)
                );
                assert!(data(event).is_none_or(|data| !data.contains('\n')));
            }
            let rest = body.strip_prefix(whole.concat().as_slice()).unwrap();
            assert!(!rest.windows(2).any(|bytes| bytes == END), "{rest:?} is left");
        });
    }

    #[test]
    fn events_are_whole_however_they_come() {
        let text = "event: event\nid: 1\ndata: {\"a\":1}\n\n: still there\n\ndata: 2\n\nhalf";
        for size in [1, 3, 1000] {
            let found = found(text.as_bytes(), size);
            let carried: Vec<_> = found.iter().map(|event| data(event)).collect();
            assert_eq!(carried, [Some("{\"a\":1}"), None, Some("2")], "{size}");
        }
    }
}
