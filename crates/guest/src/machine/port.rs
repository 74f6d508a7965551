//! Connections over the machine's serial port: see [`atoll_guest_protocol::serial`].
//!
//! Two threads carry bytes between the port and a socket pair whose other end the agent serves like any
//! connection. The reading thread lives as long as the machine; the writing one as long as a connection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_guest_protocol::serial::{Deframer, Frame, Kind, Open, Opened, PAYLOAD_MAX_BYTES, encode, encode_message};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use super::Machine;
use crate::sys;

/// Name of the port, given by the host.
const NAME: &str = "atoll";
/// How long the port may take to appear.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two looks for the port, and for a host that has just gone: it may be back at once, and
/// a machine that was saved and restored is in this state.
const LOOK_SOON: Duration = Duration::from_millis(2);
/// Pause between two looks for a host that has been away for longer than [`SOON`]. A port that nobody is
/// at cannot be waited for.
const LOOK_LATER: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(5);
/// Stack of a thread.
const STACK_BYTES: usize = 128 << 10;

/// A connection, and which sandbox the host says this is.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: UnixStream,
    pub(crate) sandbox_id: String,
}

/// The port to the host.
#[derive(Debug)]
pub(crate) struct Port {
    reader: File,
    writer: Arc<Mutex<File>>,
}

impl Port {
    /// Finds the port by its name.
    pub(super) fn find() -> io::Result<Self> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            for entry in std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
                let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
                if name.trim_end() == NAME {
                    let path = std::path::Path::new("/dev").join(entry.file_name());
                    let reader = File::options().read(true).write(true).open(path)?;
                    let writer = Arc::new(Mutex::new(reader.try_clone()?));
                    return Ok(Self { reader, writer });
                }
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("the machine has no port to its host"));
            }
            std::thread::sleep(LOOK_SOON);
        }
    }

    /// Starts carrying; connections come out of the channel. The machine gets its sandbox with the first.
    pub(crate) fn carry(self, machine: Machine) -> io::Result<mpsc::UnboundedReceiver<Arrival>> {
        let (arrivals, received) = mpsc::unbounded_channel();
        let carrier = Carrier { writer: self.writer, machine: Some(machine), broken: String::new(), host: None, arrivals };
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || carrier.run(self.reader))?;
        Ok(received)
    }
}

struct Carrier {
    writer: Arc<Mutex<File>>,
    /// Until it has become a sandbox.
    machine: Option<Machine>,
    /// Why it could not become one.
    broken: String,
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
                // Nobody is at the other end.
                Ok(0) => {
                    self.close();
                    let gone_at = *gone_at.get_or_insert_with(Instant::now);
                    std::thread::sleep(if gone_at.elapsed() < SOON { LOOK_SOON } else { LOOK_LATER });
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
            Kind::Close | Kind::Opened => self.close(),
        }
    }

    fn open(&mut self, open: &Open) {
        self.close();
        sys::reseed(&open.seed);
        // A clock that cannot be set stays wrong; that is no reason to be unreachable.
        sys::set_clock(open.clock_unix_ns).unwrap_or_default();
        if let Some(machine) = self.machine.take()
            && let Err(error) = machine.become_sandbox()
        {
            self.broken = error.to_string();
        }
        let connected = if self.broken.is_empty() { self.connect(open) } else { Err(io::Error::other(self.broken.clone())) };
        if let Err(error) = connected {
            send_message(&self.writer, &Opened { nonce: open.nonce, error: error.to_string() });
        }
    }

    fn connect(&mut self, open: &Open) -> io::Result<()> {
        let (near, far) = UnixStream::pair()?;
        far.set_nonblocking(true)?;
        let reading = near.try_clone()?;
        let writer = Arc::clone(&self.writer);
        send_message(&writer, &Opened { nonce: open.nonce, error: String::new() });
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || send_all(reading, &writer))?;
        self.host = Some(near);
        let arrival = Arrival { stream: far, sandbox_id: open.sandbox_id.clone() };
        self.arrivals.send(arrival).or(Err(io::Error::other("the agent is gone")))
    }

    /// Ends the connection. Waits for nobody: its writing thread notices.
    fn close(&mut self) {
        if let Some(host) = self.host.take() {
            host.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        }
    }
}

/// The writing thread: what the agent says goes to the port until either end closes.
fn send_all(mut agent: UnixStream, port: &Mutex<File>) {
    let mut buffer = vec![0; PAYLOAD_MAX_BYTES];
    let mut frame = Vec::new();
    while let Ok(read @ 1..) = agent.read(&mut buffer) {
        frame.clear();
        encode(Kind::Data, &buffer[..read], &mut frame);
        send(port, &frame);
    }
    frame.clear();
    encode(Kind::Close, &[], &mut frame);
    send(port, &frame);
}

fn send_message(port: &Mutex<File>, opened: &Opened) {
    // A zero first: it ends whatever an earlier connection left unfinished.
    let mut frame = vec![0];
    encode_message(Kind::Opened, opened, &mut frame);
    send(port, &frame);
}

/// Writes a frame whole, or not at all once nobody is at the other end.
fn send(port: &Mutex<File>, mut frame: &[u8]) {
    let port = port.lock().unwrap_or_else(PoisonError::into_inner);
    while !frame.is_empty() {
        match (&*port).write(frame) {
            Ok(0) => return,
            Ok(written) => frame = &frame[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
        // A port without a host takes nothing, and says so only here.
        let mut ready = [PollFd::new(&*port, PollFlags::OUT)];
        if poll(&mut ready, None).is_err() || ready[0].revents().contains(PollFlags::HUP) {
            return;
        }
    }
}
