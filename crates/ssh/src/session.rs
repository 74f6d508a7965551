//! Sessions: a command or shell, or SFTP.
//!
//! A command is an exec of the engine. Its output is read from its log, so a slow client holds nothing up
//! inside and loses nothing; the record stays when the connection breaks. As with any SSH server, what runs
//! is told by SIGHUP that its client went away, and may go on if it does not mind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use atoll_core::exec::{Exit, OutputStream};
use atoll_core::limits::{OUTPUT_KEEP_MAX_BYTES, STDIN_CHUNK_MAX_BYTES};
use atoll_core::spec::{Command, ExecDraft, TtySize};
use atoll_core::{Code, Error, Result};
use atoll_engine::{Engine, OutputEvent, OutputReader, Piece, READ_MAX_BYTES};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio_util::sync::CancellationToken;

use crate::handler::size;
use crate::login::Login;

/// How long the end of standard input may take to reach a command whose client went away.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Exit status of a session that did not come to run anything, as clients have it for their own failures.
const FAILED: u32 = 255;
/// The channel's second stream to the client.
const STDERR: u32 = 1;

/// Runs a line, or a login shell, with the user's shell. `nologin` and the like are no shells.
const SHELL: &str = "case \"${SHELL:-}\" in ''|*/nologin|*/false) SHELL=/bin/sh;; esac; \
[ -x \"$SHELL\" ] || SHELL=/bin/sh; export SHELL; \
if [ $# -gt 0 ]; then exec \"$SHELL\" -c \"$1\"; else exec \"$SHELL\" -l; fi";

/// What a session is for.
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
    /// Fires with the connection.
    pub(crate) gone: CancellationToken,
}

type Writer = ChannelWriteHalf<Msg>;

/// Serves a session until its end.
pub(crate) async fn run(engine: Engine, login: Login, wanted: Wanted, channel: Channel<Msg>, handle: Handle) {
    if matches!(wanted.what, What::Sftp) {
        return sftp(&engine, &login, channel).await;
    }
    let id = channel.id();
    let (mut reader, writer) = channel.split();
    let wanted_gone = wanted.gone.clone();
    match start(&engine, &login, wanted).await {
        Ok((exec, output)) => {
            let session = Running { engine: &engine, sandbox: login.sandbox.as_str(), exec: &exec };
            let exit = tokio::select! {
                exit = session.outgoing(&writer, output) => exit,
                () = session.incoming(&mut reader) => return session.hang_up().await,
                // What the client sent last may still wait for a program that does not read.
                () = wanted_gone.cancelled() => return session.hang_up().await,
            };
            match exit {
                Ok(exit) => tell_exit(&writer, &handle, id, &exit).await,
                Err(error) => fail(&writer, &error).await,
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
    let mut argv: Vec<String> = ["/bin/sh", "-c", SHELL, "sh"].map(str::to_owned).to_vec();
    if let What::Line(line) = wanted.what {
        argv.push(line);
    }
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
        // What a slow client did not take yet must not be dropped: it would be a hole in a copied file.
        keep_output_bytes: wanted.tty.is_none().then_some(OUTPUT_KEEP_MAX_BYTES),
        ..ExecDraft::new(Command::Argv(argv))
    };
    let view = engine.create_exec(login.sandbox.as_str(), draft, &login.caller).await?;
    let exec = view.record.id.to_string();
    let output = engine.output(login.sandbox.as_str(), &exec, 0, true).await?;
    Ok((exec, output))
}

struct Running<'a> {
    engine: &'a Engine,
    sandbox: &'a str,
    exec: &'a str,
}

impl Running<'_> {
    /// Sends output until the end of the exec.
    async fn outgoing(&self, writer: &Writer, mut output: OutputReader) -> Result<Exit> {
        loop {
            match output.next(READ_MAX_BYTES).await? {
                OutputEvent::Piece(Piece::Output { stream, bytes, .. }) => {
                    let sent = match stream {
                        OutputStream::Stdout => writer.data_bytes(bytes).await,
                        OutputStream::Stderr => writer.extended_data_bytes(STDERR, bytes).await,
                    };
                    sent.map_err(|_gone| Error::new(Code::InvalidState, "the client went away"))?;
                }
                OutputEvent::Piece(Piece::Gap { .. }) => {
                    return Err(Error::new(
                        Code::LimitExceeded,
                        "the client is too slow: output was dropped",
                    ));
                }
                OutputEvent::End { exit, .. } => return Ok(exit),
            }
        }
    }

    /// Does what the client sends, one after the other; returns when it went away.
    async fn incoming(&self, reader: &mut ChannelReadHalf) {
        let (engine, sandbox, exec) = (self.engine, self.sandbox, self.exec);
        while let Some(message) = reader.wait().await {
            let done = match message {
                ChannelMsg::Data { mut data } => {
                    let mut done = Ok(());
                    while !data.is_empty() && done.is_ok() {
                        let part = data.split_to(data.len().min(STDIN_CHUNK_MAX_BYTES));
                        done = engine.write_stdin(sandbox, exec, part, false).await.map(drop);
                    }
                    done
                }
                ChannelMsg::Eof => {
                    engine.write_stdin(sandbox, exec, Default::default(), true).await.map(drop)
                }
                ChannelMsg::WindowChange { col_width, row_height, .. } => {
                    engine.resize_exec(sandbox, exec, size(col_width, row_height)).await
                }
                ChannelMsg::Signal { signal } => {
                    engine.signal_exec(sandbox, exec, signal_name(&signal), false).await
                }
                ChannelMsg::Close => return,
                _ => Ok(()),
            };
            // A program that does not read its input, or has ended, is nothing out of the ordinary.
            if let Err(error) = done {
                tracing::debug!(%error, exec, "what an SSH client sent was not taken");
            }
        }
    }

    /// The client went away: the command is told, and nothing more comes.
    async fn hang_up(&self) {
        let told = self.engine.signal_exec(self.sandbox, self.exec, "HUP", false).await;
        let close = self.engine.write_stdin(self.sandbox, self.exec, Default::default(), true);
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

/// Says why it did not work.
async fn fail(writer: &Writer, error: &Error) {
    let hint = error.hint.as_deref().map(|hint| format!("hint: {hint}\r\n")).unwrap_or_default();
    let text = format!("atoll: {}\r\n{hint}", error.message);
    drop(writer.extended_data_bytes(STDERR, text.into_bytes()).await);
    drop(writer.exit_status(FAILED).await);
}

/// Passes the packets of an SFTP session on to the guest.
async fn sftp(engine: &Engine, login: &Login, channel: Channel<Msg>) {
    let begun = engine.sftp(login.sandbox.as_str(), login.user.as_deref()).await;
    match begun {
        Ok((lease, mut session)) => {
            let dead = lease.dead();
            let mut stream = channel.into_stream();
            tokio::select! {
                ended = tokio::io::copy_bidirectional(&mut stream, &mut session) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "an SFTP session ended");
                    }
                }
                () = dead => {}
            }
        }
        Err(error) => {
            let (_reader, writer) = channel.split();
            fail(&writer, &error).await;
            drop(writer.close().await);
        }
    }
}
