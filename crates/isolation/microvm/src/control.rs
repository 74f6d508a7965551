//! Asks a machine over its control port: the host's side of [`atoll_guest_protocol::control`].

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_guest_protocol::control::{Answer, Ask, Moment, Question};
use atoll_guest_protocol::serial::{Deframer, Kind, encode_message};
use atoll_isolation::IsolationError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::step::failed;
use crate::stream::random;

/// Bytes read at once: answers are short.
const READ_BYTES: usize = 4 << 10;
/// Most of a machine's words that is kept, characters.
const SAID_MAX: usize = 300;

/// A connection to the control port, which takes no other connection meanwhile.
#[derive(Debug)]
pub(crate) struct Control {
    stream: UnixStream,
    deframer: Deframer,
}

impl Control {
    pub(crate) async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(socket).await?, deframer: Deframer::new() })
    }

    /// Asks, and waits for the answer. After an error the connection is to be dropped.
    pub(crate) async fn ask(
        &mut self,
        question: Question,
        within: Duration,
    ) -> Result<Answer, IsolationError> {
        let answer = tokio::time::timeout(within, self.ask_here(question)).await;
        let answer = answer.unwrap_or_else(|_late| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the machine does not answer"))
        });
        let answer = answer.map_err(|error| failed("ask a machine".to_owned(), error))?;
        if answer.error.is_empty() {
            return Ok(answer);
        }
        let said: String = answer.error.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
        if answer.bad_root {
            return Err(IsolationError::BadRoot(said));
        }
        Err(failed("ask a machine".to_owned(), io::Error::other(format!("it says: {said}"))))
    }

    async fn ask_here(&mut self, question: Question) -> io::Result<Answer> {
        let nonce = random()?;
        // A zero first: it ends a frame that an earlier connection left unfinished.
        let mut wire = vec![0];
        encode_message(Kind::Ask, &Ask { nonce, question: Some(question) }, &mut wire);
        self.stream.write_all(&wire).await?;
        let mut buffer = [0; READ_BYTES];
        loop {
            let read = self.stream.read(&mut buffer).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut found = None;
            self.deframer.push(&buffer[..read], |frame| {
                let answer = frame.message::<Answer>().ok().filter(|_| frame.kind == Kind::Answer);
                found = answer.filter(|answer| answer.nonce == nonce).or(found.take());
            });
            if let Some(answer) = found {
                return Ok(answer);
            }
        }
    }
}

/// The present time, with random bytes that no other machine gets.
pub(crate) fn moment() -> io::Result<Moment> {
    let mut seed = vec![0; 32];
    getrandom::fill(&mut seed).map_err(|_none| io::Error::other("the host has no random bytes"))?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(Moment { clock_unix_ns: u64::try_from(clock).unwrap_or(u64::MAX), seed })
}
