//! Answers the driver's questions: see [`atoll_guest_protocol::sentry`].

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use atoll_guest_protocol::control::{Answer, Ask, Limits, Question};
use atoll_guest_protocol::serial::{Deframer, Kind, encode_message};

use super::memory::Memory;
use super::processes::Processes;

/// Bytes read at once: questions are short.
const READ_BYTES: usize = 4 << 10;
/// How long a connection may take to ask and to listen: there is one at a time.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Control {
    pub(super) processes: &'static Processes,
    pub(super) memory: Arc<Memory>,
}

/// Answers, one connection after the other.
pub(super) fn run((listener, control): (UnixListener, Control)) {
    loop {
        match listener.accept() {
            // A host that does not hear the answer asks again.
            Ok((stream, _)) => control.serve(stream).unwrap_or_default(),
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

impl Control {
    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut deframer = Deframer::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            let mut asked = Vec::new();
            deframer.push(&buffer[..read], |frame| {
                asked.extend(frame.message::<Ask>().ok().filter(|_| frame.kind == Kind::Ask));
            });
            // One question to a connection: its end is not waited for, because other connections may be waiting.
            if let Some(ask) = asked.pop() {
                let mut wire = Vec::new();
                encode_message(Kind::Answer, &self.answer(ask), &mut wire);
                return stream.write_all(&wire);
            }
        }
    }

    fn answer(&self, ask: Ask) -> Answer {
        let mut answer = Answer { nonce: ask.nonce, ..Answer::default() };
        let done = match ask.question {
            Some(Question::Limit(limits)) => self.limit(&limits),
            Some(Question::Rename(hostname)) => {
                rustix::system::sethostname(hostname.as_bytes()).map_err(io::Error::from)
            }
            Some(Question::Measure(_)) => self.measure(&mut answer),
            Some(
                Question::Become(_)
                | Question::Still(_)
                | Question::Wake(_)
                | Question::Halt(_)
                | Question::BecomeAnother(_),
            )
            | None => Err(io::Error::other("only machines can do that")),
        };
        if let Err(error) = done {
            answer.error = error.to_string();
        }
        answer
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        self.memory.limit(limits.memory_bytes);
        self.processes.limit(limits.pids)
    }

    fn measure(&self, answer: &mut Answer) -> io::Result<()> {
        answer.pids = self.processes.count()?;
        answer.oom_kills = self.memory.kills();
        Ok(())
    }
}
