//! Sessions: a command or shell, or SFTP.
//!
//! A command is an exec of the engine. Its output is read from its log, so a slow client holds nothing up inside and
//! loses nothing; the record stays when the connection breaks. As with any SSH server, the command is told by SIGHUP
//! that its client went away; it goes on if it ignores that.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use atoll_core::exec::{Exit, OutputStream};
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft, TtySize};
use atoll_core::{Code, Error, Result};
use atoll_engine::{Engine, OutputEvent, OutputReader, Piece, READ_MAX_BYTES};
use russh::server::{Handle, Msg};
use russh::{ChannelWriteHalf, Sig};
use tokio::io::{AsyncWriteExt as _, BufReader};

use crate::forward::Ends;
use crate::handler::size;
use crate::inbox::{Event, Inbox};
use crate::login::Login;

/// How long the end of standard input may take to reach a command whose client went away.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Exit status of a session that did not come to run anything, as clients have it for their own failures.
const FAILED: u32 = 255;
/// Bytes of answers of an SFTP session that are passed on at once.
const SFTP_PIECE_BYTES: usize = 32 << 10;
/// The channel's second stream to the client.
pub(crate) const STDERR: u32 = 1;

/// The purpose of a session.
#[derive(Debug)]
pub(crate) enum What {
    Shell,
    Line(String),
    Sftp,
}

/// A session as the client asked for it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) what: What,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) tty: Option<TtySize>,
    pub(crate) peer: Option<SocketAddr>,
}

pub(crate) type Writer = ChannelWriteHalf<Msg>;

/// Serves a session until its end.
pub(crate) async fn run(engine: Engine, login: Login, wanted: Wanted, ends: Ends, handle: Handle) {
    if matches!(wanted.what, What::Sftp) {
        return sftp(&engine, &login, ends).await;
    }
    let Ends { mut inbox, writer } = ends;
    let id = writer.id();
    let closed = inbox.closed();
    match start(&engine, &login, wanted).await {
        Ok((exec, output)) => {
            let session = Running { engine: &engine, login: &login, exec: &exec };
            let exit = tokio::select! {
                exit = session.outgoing(&writer, output) => exit,
                () = session.incoming(&mut inbox) => return session.hang_up().await,
                // The client's last input may still wait for a program that does not read.
                () = closed => return session.hang_up().await,
            };
            match exit {
                Ok(Some(exit)) => tell_exit(&writer, &handle, id, &exit).await,
                Ok(None) => return session.hang_up().await,
                Err(error) => {
                    session.hang_up().await;
                    fail(&writer, &error).await;
                }
            }
        }
        Err(error) => fail(&writer, &error).await,
    }
    // The client may have gone.
    drop(writer.eof().await);
    drop(writer.close().await);
}

/// Starts the command; gives its id and its output.
async fn start(engine: &Engine, login: &Login, wanted: Wanted) -> Result<(String, OutputReader)> {
    login.check(engine)?;
    let line = match wanted.what {
        What::Line(line) => Some(line),
        What::Shell | What::Sftp => None,
    };
    let mut env = wanted.env;
    if let Some(peer) = wanted.peer {
        env.insert("SSH_CLIENT".to_owned(), format!("{} {} 22", peer.ip(), peer.port()));
        env.insert("SSH_CONNECTION".to_owned(), format!("{} {} 127.0.0.1 22", peer.ip(), peer.port()));
    }
    let draft = ExecDraft {
        env,
        user: login.user.clone(),
        tty: wanted.tty,
        stdin: true,
        ..ExecDraft::new(Command::login(line))
    };
    let view = engine.create_exec(&login.sandbox, draft, &login.caller).await?;
    let exec = view.record.id.to_string();
    // Output that a slow client did not take yet must not be dropped: it would be a hole in a copied file.
    let output = engine.output_whole(&login.sandbox, &exec).await?;
    Ok((exec, output.read_by(login.caller.key())))
}

struct Running<'a> {
    engine: &'a Engine,
    login: &'a Login,
    exec: &'a str,
}

impl Running<'_> {
    /// Sends output until the end of the exec, or until the client went away (`None`).
    async fn outgoing(&self, writer: &Writer, mut output: OutputReader) -> Result<Option<Exit>> {
        loop {
            match output.next(READ_MAX_BYTES).await? {
                OutputEvent::Piece(Piece::Output { stream, bytes, .. }) => {
                    let sent = match stream {
                        OutputStream::Stdout => writer.data_bytes(bytes).await,
                        OutputStream::Stderr => writer.extended_data_bytes(STDERR, bytes).await,
                    };
                    if sent.is_err() {
                        return Ok(None);
                    }
                }
                OutputEvent::Piece(Piece::Gap { .. }) => {
                    return Err(Error::new(
                        Code::LimitExceeded,
                        "the client is too slow: output was dropped",
                    ));
                }
                OutputEvent::End { exit, .. } => return Ok(Some(exit)),
            }
        }
    }

    /// Handles the client's events, one after the other; returns when the client went away.
    async fn incoming(&self, inbox: &mut Inbox) {
        while let Some(event) = inbox.next().await {
            // A program that does not read its input, or has ended, is nothing out of the ordinary.
            if let Err(error) = self.take(event).await {
                tracing::debug!(%error, self.exec, "what an SSH client sent was not taken");
            }
        }
    }

    async fn take(&self, event: Event) -> Result<()> {
        let (engine, sandbox, exec) = (self.engine, &self.login.sandbox, self.exec);
        match event {
            Event::Data(mut data) => {
                self.login.check(engine)?;
                while !data.is_empty() {
                    let part = data.split_to(data.len().min(STDIN_CHUNK_MAX_BYTES));
                    engine.write_stdin_by(Some(&self.login.caller), sandbox, exec, part, false).await?;
                }
                Ok(())
            }
            Event::Eof => engine.write_stdin(sandbox, exec, Default::default(), true).await.map(drop),
            Event::Resize { cols, rows } => engine.resize_exec(sandbox, exec, size(cols, rows)).await,
            Event::Signal(signal) => {
                self.login.check(engine)?;
                engine.signal_exec(sandbox, exec, signal_name(&signal), false).await
            }
            // No client sends these.
            Event::Stderr(_) | Event::Exited(_) | Event::Killed(..) => Ok(()),
        }
    }

    /// The client went away: the command is told, and nothing more comes.
    async fn hang_up(&self) {
        let sandbox = &self.login.sandbox;
        let told = self.engine.signal_exec(sandbox, self.exec, "HUP", false).await;
        let close = self.engine.write_stdin(sandbox, self.exec, Default::default(), true);
        // A program that does not read may keep this waiting.
        let closed = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
        if told.is_err() || !matches!(closed, Ok(Ok(_))) {
            tracing::debug!(exec = self.exec, "an exec did not hear that its client went away");
        }
    }
}

fn signal_name(signal: &Sig) -> &str {
    match signal {
        Sig::ABRT => "ABRT",
        Sig::ALRM => "ALRM",
        Sig::FPE => "FPE",
        Sig::HUP => "HUP",
        Sig::ILL => "ILL",
        Sig::INT => "INT",
        Sig::KILL => "KILL",
        Sig::PIPE => "PIPE",
        Sig::QUIT => "QUIT",
        Sig::SEGV => "SEGV",
        Sig::TERM => "TERM",
        Sig::USR1 => "USR1",
        Sig::Custom(name) => name,
    }
}

async fn tell_exit(writer: &Writer, handle: &Handle, id: russh::ChannelId, exit: &Exit) {
    let by_signal = exit.signal.and_then(signal_of);
    let told = match (by_signal, exit.code) {
        (Some(signal), _) => {
            let reason = format!("{:?}", exit.reason);
            handle.exit_signal_request(id, signal, false, reason, String::new()).await
        }
        (None, Some(code)) => writer.exit_status(code.cast_unsigned()).await.or(Err(())),
        (None, None) => return fail(writer, &Error::new(Code::SandboxFailed, "the sandbox died")).await,
    };
    if told.is_err() {
        tracing::debug!("an SSH client went away before it heard of the end");
    }
}

/// The signals that the protocol has names for.
fn signal_of(number: i32) -> Option<Sig> {
    Some(match number {
        1 => Sig::HUP,
        2 => Sig::INT,
        3 => Sig::QUIT,
        4 => Sig::ILL,
        6 => Sig::ABRT,
        8 => Sig::FPE,
        9 => Sig::KILL,
        10 => Sig::USR1,
        11 => Sig::SEGV,
        13 => Sig::PIPE,
        14 => Sig::ALRM,
        15 => Sig::TERM,
        _ => return None,
    })
}

/// Ends a session that did not begin, and says why.
pub(crate) async fn refuse(writer: &Writer, error: &Error) {
    fail(writer, error).await;
    // The client may have gone.
    drop(writer.eof().await);
    drop(writer.close().await);
}

/// Says why it did not work.
async fn fail(writer: &Writer, error: &Error) {
    let hint = error.hint.as_deref().map(|hint| format!("hint: {hint}\r\n")).unwrap_or_default();
    let text = format!("atoll: {}\r\n{hint}", error.message);
    drop(writer.extended_data_bytes(STDERR, text.into_bytes()).await);
    drop(writer.exit_status(FAILED).await);
}

/// Passes the packets of an SFTP session on to the guest.
async fn sftp(engine: &Engine, login: &Login, ends: Ends) {
    let Ends { mut inbox, writer } = ends;
    match sftp_session(engine, login, &mut inbox, &writer).await {
        // 'scp' fails without one.
        Ok(()) => drop(writer.exit_status(0).await),
        Err(error) => fail(&writer, &error).await,
    }
    // The client may have gone.
    drop(writer.eof().await);
    drop(writer.close().await);
}

async fn sftp_session(engine: &Engine, login: &Login, inbox: &mut Inbox, writer: &Writer) -> Result<()> {
    login.check(engine)?;
    let (lease, session) = engine.sftp(&login.sandbox, login.user.as_deref()).await?;
    let (answers, mut requests) = tokio::io::split(session);
    let closed = inbox.closed();
    let up = async {
        while let Some(event) = inbox.next().await {
            match event {
                Event::Data(data) => {
                    login.check(engine)?;
                    requests.write_all(&data).await.map_err(broken)?;
                }
                Event::Eof => break,
                _ => {}
            }
        }
        requests.shutdown().await.map_err(broken)
    };
    let mut out = writer.make_writer();
    let mut answers = BufReader::with_capacity(SFTP_PIECE_BYTES, answers);
    let mut down =
        std::pin::pin!(async { tokio::io::copy_buf(&mut answers, &mut out).await.map_err(broken) });
    tokio::select! {
        // Answers still come after the client's last request.
        ended = up => match ended {
            Ok(()) => down.await.map(drop),
            Err(error) => Err(error),
        },
        ended = &mut down => ended.map(drop),
        () = closed => Ok(()),
        () = lease.dead() => Err(Error::new(Code::SandboxFailed, "the sandbox died, or sleeps")),
    }
}

fn broken(error: io::Error) -> Error {
    tracing::debug!(%error, "an SFTP session broke");
    Error::new(Code::GuestUnavailable, "the SFTP session broke")
}
