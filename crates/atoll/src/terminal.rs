//! The user's terminal: raw mode that is always taken back, its size, detach keys, hidden prompts.
//!
//! Raw mode ends when [`RawMode`] is dropped: at the end, on an error, on a signal (which becomes an
//! error), and on a panic while it unwinds. A panic hook ends it before the message is printed.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::{Mutex, Once, PoisonError};

use atoll_core::Code;
use atoll_core::limits::TTY_SIZE_MAX;
use atoll_core::secret::Secret;
use atoll_core::spec::TtySize;
use bytes::Bytes;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::failure::{Failure, Result};
use crate::printable::clean;

/// Bytes read from standard input at once.
const INPUT_BYTES: usize = 64 << 10;
/// Pieces of standard input that wait to be sent.
const INPUT_QUEUE_COUNT: usize = 4;
/// Longest password, bytes.
const PASSWORD_MAX_BYTES: u64 = 64 << 10;
/// Most keys in a detach sequence.
const DETACH_KEYS_MAX: usize = 8;

/// The terminal's attributes from before, while it is raw.
static SAVED: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

fn restore() {
    if let Some((fd, before)) = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // There is no place left to report a failure.
        let _ = tcsetattr(&fd, OptionalActions::Now, &before);
    }
}

/// Standard input is a raw terminal for as long as this lives.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// Makes the terminal raw.
    pub(crate) fn enable() -> Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        let failed = |error: rustix::io::Errno| Failure::io("cannot set up the terminal", error);
        let fd = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(failed)?;
        let before = tcgetattr(&fd).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        // Saved first: a signal between the two must find it.
        let kept = fd.try_clone().map_err(|error| Failure::io("cannot set up the terminal", error))?;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some((kept, before));
        let guard = Self(());
        tcsetattr(&fd, OptionalActions::Drain, &raw).map_err(failed)?;
        Ok(guard)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether standard input and output are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Whether there is a user at a terminal who can be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The terminal's size, within what the API takes.
pub(crate) fn size() -> TtySize {
    let (cols, rows) = tcgetwinsize(io::stdin()).map_or((80, 24), |size| (size.ws_col, size.ws_row));
    let within = |value: u16, usual: u16| if value == 0 { usual } else { value.min(TTY_SIZE_MAX) };
    TtySize { cols: within(cols, 80), rows: within(rows, 24) }
}

/// Reads standard input on a thread of its own, which ends with the program: a read cannot be
/// cancelled, and the runtime would wait for it. The queue ends at end-of-file.
pub(crate) fn read_stdin() -> Result<mpsc::Receiver<Bytes>> {
    let (queue, receiver) = mpsc::channel(INPUT_QUEUE_COUNT);
    let thread = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut buffer = vec![0; INPUT_BYTES];
        loop {
            let read = match rustix::io::read(io::stdin(), &mut *buffer) {
                Ok(0) | Err(_) => return,
                Ok(read) => Bytes::copy_from_slice(&buffer[..read]),
            };
            if queue.blocking_send(read).is_err() {
                return;
            }
        }
    });
    thread.map(|_detached| receiver).map_err(|error| Failure::io("cannot read standard input", error))
}

/// Keys that detach, such as `ctrl-p,ctrl-q`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keys = text.split(',').map(parse_key).collect::<Option<Vec<_>>>();
        match keys {
            Some(keys) if keys.len() <= DETACH_KEYS_MAX => Ok(Self(keys)),
            _ => Err(format!("'{text}' are not detach keys: write them like ctrl-p,ctrl-q or ctrl-a,d")),
        }
    }
}

fn parse_key(key: &str) -> Option<u8> {
    let control = key.strip_prefix("ctrl-");
    let mut chars = control.unwrap_or(key).chars();
    let byte = u8::try_from(chars.next()?).ok().filter(u8::is_ascii_graphic)?;
    match (control, chars.next()) {
        (_, Some(_)) => None,
        (None, None) => Some(byte),
        (Some(_), None) => match byte {
            b'a'..=b'z' => Some(byte - b'a' + 1),
            b'@'..=b'_' => Some(byte - b'@'),
            _ => None,
        },
    }
}

/// Looks for detach keys in what is typed. Keys that may be the beginning of the sequence are held
/// back until it is clear that they are not.
#[derive(Debug)]
pub(crate) struct DetachScanner {
    keys: Vec<u8>,
    matched: usize,
}

impl DetachScanner {
    /// A scanner for these keys.
    pub(crate) fn new(keys: &DetachKeys) -> Self {
        Self { keys: keys.0.clone(), matched: 0 }
    }

    /// The part of the input to pass on, and whether the detach keys were typed. After the keys nothing is passed on.
    pub(crate) fn scan(&mut self, input: &[u8]) -> (Vec<u8>, bool) {
        let mut pass = Vec::with_capacity(input.len() + self.matched);
        for &byte in input {
            // Fall back to the longest shorter beginning that still fits.
            while self.matched > 0 && byte != self.keys[self.matched] {
                let shorter = (0..self.matched)
                    .rev()
                    .find(|&len| self.keys[..len] == self.keys[self.matched - len..self.matched])
                    .unwrap_or(0);
                pass.extend_from_slice(&self.keys[..self.matched - shorter]);
                self.matched = shorter;
            }
            if byte != self.keys[self.matched] {
                pass.push(byte);
                continue;
            }
            self.matched += 1;
            if self.matched == self.keys.len() {
                return (pass, true);
            }
        }
        (pass, false)
    }
}

/// A terminal that does not show what is typed, for as long as this lives.
struct Silent(());

impl Silent {
    fn enable() -> Result<Self> {
        let failed = |error: io::Error| Failure::io("cannot set up the terminal", error);
        let fd = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(|error| failed(error.into()))?;
        let before = tcgetattr(&fd).map_err(|error| failed(error.into()))?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        let kept = fd.try_clone().map_err(failed)?;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some((kept, before));
        let guard = Self(());
        tcsetattr(&fd, OptionalActions::Flush, &silent).map_err(|error| failed(error.into()))?;
        Ok(guard)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        restore();
    }
}

/// Reads one line of standard input. On a terminal asks for it and does not show it.
pub(crate) fn read_secret(prompt: &str) -> Result<Secret> {
    use std::io::Read as _;
    let failed = |error| Failure::io("cannot read the password", error);
    let _silent = if can_ask() {
        let silent = Silent::enable()?;
        ask(prompt).map_err(failed)?;
        Some(silent)
    } else {
        None
    };
    let mut line = String::new();
    io::stdin().lock().take(PASSWORD_MAX_BYTES).read_line(&mut line).map_err(failed)?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(Failure::plain(Code::InvalidArgument, "the password is empty"));
    }
    Ok(Secret::new(password))
}

/// Reads the value of a secret: a line typed without showing it, or all of standard input without its last
/// line break.
///
/// # Errors
/// When there is nothing, too much, or text that is not UTF-8.
pub(crate) fn read_value(prompt: &str) -> Result<Secret> {
    use std::io::Read as _;
    if can_ask() {
        return read_secret(prompt);
    }
    let mut text = String::new();
    let limit = atoll_core::limits::SECRET_VALUE_MAX_BYTES as u64 + 2;
    let read = io::stdin().lock().take(limit).read_to_string(&mut text);
    read.map_err(|error| Failure::io("cannot read the value", error))?;
    let value = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if value.is_empty() {
        return Err(Failure::plain(Code::InvalidArgument, "the value is empty"));
    }
    Ok(Secret::new(value))
}

fn ask(prompt: &str) -> io::Result<()> {
    let mut err = io::stderr();
    write!(err, "{}", clean(prompt))?;
    err.flush()
}

/// Asks a question; only `y` and `yes` mean yes.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    let failed = |error| Failure::io("cannot ask", error);
    ask(&format!("{question} [y/N] ")).map_err(failed)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(text: &str) -> DetachKeys {
        text.parse().unwrap()
    }

    #[test]
    fn keys_are_read() {
        assert_eq!(keys("ctrl-p,ctrl-q"), DetachKeys(vec![16, 17]));
        assert_eq!(keys("ctrl-a,d"), DetachKeys(vec![1, b'd']));
        assert_eq!(keys("ctrl-]"), DetachKeys(vec![29]));
        for bad in ["", "ctrl-", "ctrl-pp", "ab", "ü", "a,", "a,b,c,d,e,f,g,h,i"] {
            assert!(bad.parse::<DetachKeys>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_beginning_that_leads_nowhere_is_passed_on() {
        let mut scanner = DetachScanner::new(&keys("a,a,b"));
        assert_eq!(scanner.scan(b"xa"), (b"x".to_vec(), false));
        assert_eq!(scanner.scan(b"ac"), (b"aac".to_vec(), false));
        assert_eq!(scanner.scan(b"aaab"), (b"a".to_vec(), true));
    }

    proptest! {
        /// However the input is cut into pieces, detaching happens where the sequence first stands, and all input
        /// before it is passed on.
        #[test]
        fn scanning_agrees_with_searching(input in "[abc]{0,40}", keys in "[ab]{1,4}", size in 1_usize..7) {
            let sequence = keys.as_bytes().to_vec();
            let mut scanner = DetachScanner::new(&DetachKeys(sequence.clone()));
            let (mut passed, mut detached) = (Vec::new(), false);
            for piece in input.as_bytes().chunks(size) {
                let (pass, done) = scanner.scan(piece);
                passed.extend(pass);
                if done {
                    detached = true;
                    break;
                }
            }
            match input.find(&keys) {
                Some(at) => {
                    prop_assert!(detached);
                    prop_assert_eq!(&passed[..], &input.as_bytes()[..at]);
                }
                None => {
                    prop_assert!(!detached);
                    passed.extend_from_slice(&sequence[..scanner.matched]);
                    prop_assert_eq!(&passed[..], input.as_bytes());
                }
            }
        }
    }
}
