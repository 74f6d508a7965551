//! Signals that ask this program to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

/// One of the signals that ask to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// The polite request.
    Terminate,
    /// The terminal has gone.
    HangUp,
    /// Ctrl-\.
    Quit,
}

impl Stop {
    /// Its name, as the API takes it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
            Self::HangUp => "HUP",
            Self::Quit => "QUIT",
        }
    }

    /// The failure of a command that this signal ended.
    pub(crate) const fn failure(self) -> Failure {
        Failure::Interrupted(match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
            Self::HangUp => 1,
            Self::Quit => 3,
        })
    }
}

/// Catches them from now on, for the rest of the program's life.
#[derive(Debug)]
pub(crate) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
}

impl Stops {
    /// Begins to catch.
    pub(crate) fn catch() -> Result<Self> {
        let catch = |kind| signal(kind).map_err(|error| Failure::io("cannot catch signals", error));
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
            quit: catch(SignalKind::quit())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hang_up.recv() => Stop::HangUp,
            _ = self.quit.recv() => Stop::Quit,
        }
    }
}
