//! How much has to move in a room that others wait for.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atoll_core::{Code, Error};
use tokio::time::{Instant, Sleep};

use super::Place;

/// After so much waiting for a client it is looked what came of it.
const WINDOW: Duration = Duration::from_secs(60);
/// So many bytes have to come, or be taken, in a [`WINDOW`] of waiting, for a room that others wait for: 140 kbit/s.
const WINDOW_MIN_BYTES: u64 = 1 << 20;

/// The pace of one client, which the holder of a room waits for. Only time counts that the client is waited for: that the
/// disk is slow is not its fault. A client that is slower keeps the room as long as no other key waits for it.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Absent where nobody can wait for it: the server's own rooms are among no key's.
    place: Option<Arc<Place>>,
    /// In this window.
    bytes: u64,
    /// In this window, before the wait that goes on.
    waited: Duration,
    /// The wait that goes on: since when, and until the window ends.
    waits: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Pace {
    pub(crate) fn new(place: Option<Arc<Place>>) -> Self {
        Self { place, bytes: 0, waited: Duration::ZERO, waits: None }
    }

    /// Notes that the client sent or took so many bytes: it is waited for no longer.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if let Some((since, _)) = self.waits.take() {
            self.waited = self.waited.saturating_add(since.elapsed());
        }
    }

    /// To be asked whenever the client is waited for. Ready with an error when the room is to be given up.
    pub(crate) fn poll_given_up(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let left = WINDOW.saturating_sub(self.waited);
            let begin = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
            let (_, ends) = self.waits.get_or_insert_with(begin);
            ready!(ends.as_mut().poll(context));
            let is_slow = self.bytes < WINDOW_MIN_BYTES;
            (self.bytes, self.waited, self.waits) = (0, Duration::ZERO, None);
            if is_slow && self.place.as_ref().is_some_and(|place| place.is_wanted()) {
                return Poll::Ready(given_up());
            }
        }
    }

    /// Waits for the client, by `work`.
    ///
    /// # Errors
    /// When the room is given up.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => {
                self.moved(0);
                Poll::Ready(Ok(done))
            }
            Poll::Pending => self.poll_given_up(context).map(Err),
        })
        .await
    }
}

/// The error of a transfer whose room was given to another.
fn given_up() -> io::Error {
    let message = format!(
        "less than {} MiB moved in {} seconds, and others wait for their turn",
        WINDOW_MIN_BYTES >> 20,
        WINDOW.as_secs()
    );
    io::Error::other(Error::new(Code::Timeout, message).hint("begin again over a faster connection"))
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, Rooms, Who};
    use super::*;
    use atoll_core::id::KeyId;

    fn who(n: u64) -> Who {
        Who::new(Some(&KeyId::from_parts(1, n)), None)
    }

    /// The only room, and its pace.
    fn only() -> (Rooms, Pace) {
        // One may have as much as it leaves to others.
        let rooms = Rooms::new(Limits { all: 2, of_key: 1 });
        let place = rooms.take(&who(0)).unwrap();
        (rooms, Pace::new(Some(Arc::new(place))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_room_in_which_little_moves_is_given_up_when_another_waits() {
        let (rooms, mut pace) = only();
        let begun = Instant::now();
        let trickle = async {
            for _ in 0..600 {
                let slept = tokio::time::sleep(Duration::from_secs(1));
                if let Err(error) = pace.during(slept).await {
                    return Some((error, begun.elapsed()));
                }
                pace.moved(100);
            }
            None
        };
        let other = async {
            tokio::time::sleep(Duration::from_secs(150)).await;
            rooms.wait(who(1)).await
        };
        let (error, after) = tokio::select! {
            ended = trickle => ended.unwrap(),
            _ = other => panic!("there was no room"),
        };
        assert_eq!(error.kind(), io::ErrorKind::Other);
        let told = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).unwrap();
        assert_eq!(told.code, Code::Timeout);
        // Nobody waited at the end of the first two windows.
        assert!((150..=181).contains(&after.as_secs()), "{after:?}");
        drop(pace);
        drop(rooms.wait(who(1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_enough_keeps_the_room_and_so_does_one_that_the_server_does_not_read() {
        let (rooms, mut pace) = only();
        let mut other = Box::pin(rooms.wait(who(1)));
        assert!(futures::poll!(&mut other).is_pending());
        for _ in 0..300 {
            pace.during(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
            pace.moved(20 << 10);
            // The server is busy with what came.
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let stands_still = pace.during(std::future::pending::<()>()).await;
        assert!(stands_still.is_err());
    }
}
