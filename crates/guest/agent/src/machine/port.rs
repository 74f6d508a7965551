//! Connections over the machine's serial port: see [`atoll_guest_protocol::serial`].
//!
//! Two threads, which live as long as the machine, carry bytes between the port and a socket pair whose other end the
//! agent serves like any connection. Only the writing thread sends to the host, so the host never hears the end of a
//! connection after the beginning of the next.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use atoll_guest_protocol::serial::{
    Deframer, Frame, Kind, Open, Opened, PAYLOAD_MAX_BYTES, encode, encode_message,
};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use super::{Identity, Who};

/// How long the port may take to appear.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two looks for the port, and for a host that has just gone: it may be back at once, and
/// a machine that was saved and restored is in this state.
const LOOK_SOON: Duration = Duration::from_millis(2);
/// Pause between two looks for a host that has been away for longer than [`SOON`]. A thread cannot wait for a port that
/// no host is at.
const LOOK_LATER: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);
/// How long a host may be away before the bytes for it are dropped.
const GRACE: Duration = Duration::from_secs(10);
/// Stack of a thread.
pub(super) const STACK_BYTES: usize = 128 << 10;

/// A connection, and which sandbox the host says this is.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: UnixStream,
    pub(crate) who: Who,
}

/// A port to the host.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) file: File,
}

impl Port {
    /// Finds a port by its name.
    pub(super) fn find(name: &str) -> io::Result<Self> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            for entry in std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
                let said = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
                if said.trim_end() == name {
                    let path = Path::new("/dev").join(entry.file_name());
                    return Ok(Self { file: File::options().read(true).write(true).open(path)? });
                }
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("the machine has no port {name}")));
            }
            std::thread::sleep(LOOK_SOON);
        }
    }

    /// Starts carrying; connections come out of the channel.
    pub(super) fn carry(self, identity: Identity) -> io::Result<mpsc::UnboundedReceiver<Arrival>> {
        let (arrivals, received) = mpsc::unbounded_channel();
        let (turns, taken) = std_mpsc::channel();
        let writer = self.file.try_clone()?;
        let carrier = Carrier { turns, identity, host: None, arrivals };
        let thread = || std::thread::Builder::new().stack_size(STACK_BYTES);
        thread().spawn(move || carrier.run(self.file))?;
        thread().spawn(move || send_all(&taken, &writer))?;
        Ok(received)
    }
}

/// Waits a little for a host that has been away since `gone_at`.
pub(super) fn pause_without_host(gone_at: Instant) {
    std::thread::sleep(if gone_at.elapsed() < SOON { LOOK_SOON } else { LOOK_LATER });
}

/// The next work of the writing thread: an answer, and the bytes of the agent on the connection that is open with it.
struct Turn {
    opened: Opened,
    agent: Option<UnixStream>,
}

struct Carrier {
    turns: std_mpsc::Sender<Turn>,
    identity: Identity,
    /// The near end of the connection that is open.
    host: Option<UnixStream>,
    arrivals: mpsc::UnboundedSender<Arrival>,
}

impl Carrier {
    fn run(mut self, mut port: File) {
        let mut deframer = Deframer::new();
        let mut buffer = vec![0; PAYLOAD_MAX_BYTES];
        let mut gone_at = None;
        loop {
            match port.read(&mut buffer) {
                // No host is at the other end.
                Ok(0) => {
                    self.close();
                    pause_without_host(*gone_at.get_or_insert_with(Instant::now));
                }
                Ok(read) => {
                    gone_at = None;
                    deframer.push(&buffer[..read], |frame| self.take(&frame));
                }
                Err(_) => std::thread::sleep(LOOK_LATER),
            }
        }
    }

    fn take(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Open => {
                if let Ok(open) = frame.message::<Open>() {
                    self.open(&open);
                }
            }
            Kind::Data => {
                if let Some(host) = &mut self.host
                    && host.write_all(&frame.payload).is_err()
                {
                    self.close();
                }
            }
            Kind::Close | Kind::Opened | Kind::Ask | Kind::Answer => self.close(),
        }
    }

    fn open(&mut self, open: &Open) {
        self.close();
        let opened = Opened { nonce: open.nonce, error: String::new() };
        let connected = match self.identity.get() {
            Some(who) => self.connect(who, opened.clone()),
            None => Err(io::Error::other("the machine is no sandbox yet")),
        };
        if let Err(error) = connected {
            let refused = Opened { error: error.to_string(), ..opened };
            // The writing thread lives as long as this one.
            self.turns.send(Turn { opened: refused, agent: None }).unwrap_or_default();
        }
    }

    fn connect(&mut self, who: Who, opened: Opened) -> io::Result<()> {
        let gone = || io::Error::other("the agent is gone");
        let (near, far) = UnixStream::pair()?;
        far.set_nonblocking(true)?;
        let agent = Some(near.try_clone()?);
        self.turns.send(Turn { opened, agent }).map_err(|_gone| gone())?;
        self.host = Some(near);
        self.arrivals.send(Arrival { stream: far, who }).map_err(|_gone| gone())
    }

    /// Ends the connection without waiting: the writing thread notices it by itself.
    fn close(&mut self) {
        if let Some(host) = self.host.take() {
            host.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        }
    }
}

/// The writing thread: passes the agent's bytes to the port until either end closes, one connection after the other.
fn send_all(turns: &std_mpsc::Receiver<Turn>, port: &File) {
    let mut buffer = vec![0; PAYLOAD_MAX_BYTES];
    let mut frame = Vec::new();
    while let Ok(Turn { opened, agent }) = turns.recv() {
        frame.clear();
        // A zero first: it ends a frame that an earlier connection left unfinished.
        frame.push(0);
        encode_message(Kind::Opened, &opened, &mut frame);
        send(port, &frame);
        let Some(mut agent) = agent else { continue };
        while let Ok(read @ 1..) = agent.read(&mut buffer) {
            frame.clear();
            encode(Kind::Data, &buffer[..read], &mut frame);
            send(port, &frame);
        }
        frame.clear();
        encode(Kind::Close, &[], &mut frame);
        send(port, &frame);
    }
}

/// Writes a frame whole, or gives up when no host has been at the other end for a while.
pub(super) fn send(mut port: &File, mut frame: &[u8]) {
    let mut gone_at = None;
    while !frame.is_empty() {
        // A port without a host takes nothing, and says so only here.
        let mut ready = [PollFd::new(&port, PollFlags::OUT)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if ready[0].revents().contains(PollFlags::HUP) {
            // Bytes of a new host may be here before the port reports that there is a host.
            let gone_at = *gone_at.get_or_insert_with(Instant::now);
            if gone_at.elapsed() > GRACE {
                return;
            }
            std::thread::sleep(LOOK_SOON);
            continue;
        }
        match port.write(frame) {
            Ok(0) => return,
            Ok(written) => frame = &frame[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
