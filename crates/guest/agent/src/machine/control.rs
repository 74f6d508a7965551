//! Answers the questions that the host asks the machine: see [`atoll_guest_protocol::control`]. This is a thread of its
//! own, which touches no file system while it holds the disk still.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use atoll_guest_protocol::control::{Answer, Ask, Become, Limits, Moment, Question};
use atoll_guest_protocol::serial::{Deframer, Frame, Kind, encode_message};

use super::port::{Port, STACK_BYTES, pause_without_host, send};
use super::root::Disks;
use super::{Identity, Who, at, root};
use crate::sys;

/// Bytes read at once: questions are short.
const READ_BYTES: usize = 4 << 10;

/// How long processes may take to stand still, and the pause between two looks.
const HALT_DEADLINE: Duration = Duration::from_secs(2);
const HALT_LOOK: Duration = Duration::from_millis(1);

/// Starts answering.
pub(super) fn listen(port: Port, identity: Identity, disks: Disks) -> io::Result<()> {
    let control = Control { identity, disks, disk: None, still: false, halted: false, limits: None };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || control.run(port.file))?;
    Ok(())
}

struct Control {
    identity: Identity,
    disks: Disks,
    /// The root of the writable disk, once there is one.
    disk: Option<OwnedFd>,
    /// Whether the disk is held still.
    still: bool,
    /// Whether the sandbox's processes stand still.
    halted: bool,
    /// The limits that the sandbox's cgroup has been given.
    limits: Option<Limits>,
}

impl Control {
    fn run(mut self, mut port: File) {
        let mut deframer = Deframer::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut gone_at = None;
        loop {
            match port.read(&mut buffer) {
                Ok(read @ 1..) => {
                    gone_at = None;
                    let mut frames = Vec::new();
                    deframer.push(&buffer[..read], |frame| frames.push(frame));
                    for frame in frames {
                        self.take(&frame, &port);
                    }
                }
                // No host is at the other end, so no host is left that would let the disk go on.
                Ok(_) | Err(_) => {
                    self.set_still(false).unwrap_or_default();
                    self.set_halted(false).unwrap_or_default();
                    pause_without_host(*gone_at.get_or_insert_with(Instant::now));
                }
            }
        }
    }

    fn take(&mut self, frame: &Frame, port: &File) {
        let Some(ask) = frame.message::<Ask>().ok().filter(|_| frame.kind == Kind::Ask) else { return };
        let mut answer = Answer { nonce: ask.nonce, ..Answer::default() };
        if let Some(question) = ask.question {
            let becomes = matches!(question, Question::Become(_));
            if let Err(error) = self.answer(question, &mut answer) {
                let in_the_way = [io::ErrorKind::NotADirectory, io::ErrorKind::IsADirectory];
                answer.bad_root = becomes && in_the_way.contains(&error.kind());
                answer.error = error.to_string();
            }
        }
        // A zero first: it ends a frame that an earlier host did not hear to its end.
        let mut wire = vec![0];
        encode_message(Kind::Answer, &answer, &mut wire);
        send(port, &wire);
    }

    fn answer(&mut self, question: Question, answer: &mut Answer) -> io::Result<()> {
        match question {
            Question::Become(who) => self.become_sandbox(who),
            Question::Limit(limits) => self.limit(limits),
            Question::Rename(hostname) => {
                rustix::system::sethostname(hostname.as_bytes()).map_err(io::Error::from)
            }
            Question::Still(still) => self.set_still(still),
            Question::Measure(_) => {
                answer.pids = number("pids.current", "")?.saturating_add(1).try_into().unwrap_or(u32::MAX);
                answer.oom_kills = number("memory.events", "oom_kill ")?;
                Ok(())
            }
            Question::Wake(moment) => {
                be_now(&moment);
                self.set_still(false)
            }
            Question::Halt(true) => {
                self.set_halted(true)?;
                self.set_still(true)
            }
            Question::Halt(false) => {
                self.set_still(false)?;
                self.set_halted(false)
            }
            Question::BecomeAnother(who) => self.become_another(who),
        }
    }

    fn become_sandbox(&mut self, who: Become) -> io::Result<()> {
        if self.identity.get().is_some() {
            return Err(io::Error::other("the machine is a sandbox already"));
        }
        if let Some(moment) = &who.moment {
            be_now(moment);
        }
        let limits = who.limits.clone().unwrap_or_default();
        self.disk = Some(root::enter(&self.disks, limits.memory_bytes)?);
        self.limit(limits)?;
        root::write_files(&who)?;
        rustix::system::sethostname(who.hostname.as_bytes())
            .map_err(|error| at("set the host name", error.into()))?;
        self.identity.set(Who { sandbox_id: who.sandbox_id, carried: None });
        Ok(())
    }

    /// Fresh randomness before anything else, and nothing of the sandbox runs before all of it is done.
    fn become_another(&mut self, who: Become) -> io::Result<()> {
        if self.identity.get().is_none() {
            return Err(io::Error::other("the machine is no sandbox that could become another"));
        }
        if let Some(moment) = &who.moment {
            be_now(moment);
        }
        // Halted processes may have connections, which belong to the machine that this one was copied from.
        if self.halted {
            super::net::reset_connections();
        }
        self.set_still(false)?;
        self.limit(who.limits.clone().unwrap_or_default())?;
        root::write_files(&who)?;
        rustix::system::sethostname(who.hostname.as_bytes())
            .map_err(|error| at("set the host name", error.into()))?;
        self.identity.set(Who { sandbox_id: who.sandbox_id, carried: who.carried });
        self.set_halted(false)
    }

    /// Idempotent: a copy has the limits that its original was given.
    fn limit(&mut self, limits: Limits) -> io::Result<()> {
        if self.limits.as_ref() == Some(&limits) {
            return Ok(());
        }
        self.limits = None;
        // The agent is not in the cgroup, but it counts.
        let pids = limits.pids.saturating_sub(1).max(1);
        for (file, value) in [("memory.max", limits.memory_bytes), ("pids.max", u64::from(pids))] {
            let path = format!("{}/{file}", root::SANDBOX_CGROUP);
            std::fs::write(&path, value.to_string()).map_err(|error| at(&format!("write {path}"), error))?;
        }
        self.limits = Some(limits);
        Ok(())
    }

    /// Idempotent.
    fn set_halted(&mut self, halted: bool) -> io::Result<()> {
        if self.halted == halted {
            return Ok(());
        }
        let path = format!("{}/cgroup.freeze", root::SANDBOX_CGROUP);
        std::fs::write(&path, if halted { "1" } else { "0" })
            .map_err(|error| at(&format!("write {path}"), error))?;
        self.halted = halted;
        let deadline = Instant::now() + HALT_DEADLINE;
        // A process that waits in the kernel may not be stoppable: it is waited for until the deadline only.
        while halted && number("cgroup.events", "frozen ")? == 0 && Instant::now() < deadline {
            std::thread::sleep(HALT_LOOK);
        }
        Ok(())
    }

    /// Holding the disk still writes everything out, empties its journal and says so on it: a copy that the host makes
    /// meanwhile is like a disk that was unmounted. Idempotent.
    fn set_still(&mut self, still: bool) -> io::Result<()> {
        if self.still == still {
            return Ok(());
        }
        let disk = self.disk.as_ref().ok_or_else(|| io::Error::other("the machine has no disk yet"))?;
        if still {
            sys::freeze(disk).map_err(|error| at("hold the disk still", error.into()))?;
        } else {
            sys::thaw(disk).map_err(|error| at("let the disk go on", error.into()))?;
        }
        self.still = still;
        Ok(())
    }
}

/// A clock that cannot be set stays wrong; that is no reason to be unusable.
fn be_now(moment: &Moment) {
    sys::reseed(&moment.seed);
    sys::set_clock(moment.clock_unix_ns).unwrap_or_default();
}

/// The number behind `key` in a file of the sandbox's cgroup.
fn number(file: &str, key: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("{}/{file}", root::SANDBOX_CGROUP))?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        .ok_or_else(|| io::Error::other(format!("{file} holds no number")))
}
