//! TCP connections to ports of a sandbox over one WebSocket: `tunnel`.
//!
//! ```text
//! WebSocket, binary messages = one byte stream ─ yamux ─ a stream for each connection:
//!     client: 0x01, port (2 bytes, big-endian)      server: one byte of status, then both ways
//! ```

use std::io;
use std::time::Duration;

use atoll_core::{Code, Error};
use atoll_engine::{Engine, guest_error};
use atoll_server::dialect::Held;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use futures::{AsyncReadExt as _, AsyncWriteExt as _, SinkExt as _, StreamExt as _};
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinSet;
use tokio_util::compat::{FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use yamux::{Config, Connection, Mode, Stream};

use crate::App;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Exec, Name};

/// Version of the header that begins a stream.
const VERSION: u8 = 1;
/// Connections of one tunnel at once.
const STREAMS_MAX_COUNT: usize = 512;
/// Bytes between the WebSocket and yamux that wait for the other side.
const PIPE_BYTES: usize = 256 << 10;
/// Largest message that is sent, bytes; the clients take 1 MiB.
const MESSAGE_BYTES: usize = 64 << 10;
/// Largest message that is taken, bytes.
const MESSAGE_MAX_BYTES: usize = 16 << 20;
/// How long a client may take to say which port it wants.
const HEADER_WAIT: Duration = Duration::from_secs(30);

/// First byte of an answer.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Status {
    Ok = 0,
    PortNotAllowed = 1,
    DialFailed = 2,
    UnsupportedVersion = 3,
}

/// Opens a tunnel.
pub(crate) async fn attach(
    _: Caller<Exec>,
    State(app): State<App>,
    Name(id): Name,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: http::Extensions,
) -> Result<Response> {
    let upgrade = upgrade.map_err(|rejection| {
        Failure::new(StatusCode::BAD_REQUEST, "InvalidRequest", format!("not a WebSocket: {rejection}"))
    })?;
    let engine = app.host.engine().clone();
    let record = engine.sandbox(&ids::sandbox(&id)).map_err(|error| Failure::handshake(&error))?;
    let sandbox = record.id.to_string();
    drop(engine.guest(&sandbox).await.map_err(|error| Failure::handshake(&error))?);
    let held = app.host.hold(&request);
    Ok(upgrade
        .max_message_size(MESSAGE_MAX_BYTES)
        .max_frame_size(MESSAGE_MAX_BYTES)
        .on_upgrade(move |socket| run(app, engine, sandbox, socket, held)))
}

async fn run(app: App, engine: Engine, sandbox: String, socket: WebSocket, _held: Held) {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let mut config = Config::default();
    config.set_max_num_streams(STREAMS_MAX_COUNT);
    let connection = Connection::new(near.compat(), config, Mode::Server);
    let ended = tokio::select! {
        ended = carry(socket, far) => ended,
        () = serve(connection, engine, sandbox) => Ok(()),
        () = app.host.draining() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a tunnel ended");
    }
}

/// Carries bytes between the WebSocket and yamux.
async fn carry(socket: WebSocket, far: DuplexStream) -> io::Result<()> {
    let (mut sink, mut stream) = socket.split();
    let (reader, writer) = tokio::io::split(far);
    let out = async move {
        let mut reader: ReadHalf<DuplexStream> = reader;
        let mut block = vec![0; MESSAGE_BYTES];
        loop {
            let len = reader.read(&mut block).await?;
            if len == 0 {
                return sink.close().await.map_err(io::Error::other);
            }
            let bytes = Bytes::copy_from_slice(&block[..len]);
            sink.send(Message::Binary(bytes)).await.map_err(io::Error::other)?;
        }
    };
    let into = async move {
        let mut writer: WriteHalf<DuplexStream> = writer;
        while let Some(message) = stream.next().await {
            match message.map_err(io::Error::other)? {
                Message::Binary(bytes) => writer.write_all(&bytes).await?,
                Message::Close(_) => return Ok(()),
                Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = out => ended,
        ended = into => ended,
    }
}

/// Takes streams until the connection ends; with it, all of them do.
async fn serve<T>(mut connection: Connection<T>, engine: Engine, sandbox: String)
where
    T: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    let mut streams = JoinSet::new();
    loop {
        let next = tokio::select! {
            next = std::future::poll_fn(|cx| connection.poll_next_inbound(cx)) => next,
            Some(_) = streams.join_next() => continue,
        };
        match next {
            Some(Ok(stream)) => {
                let (engine, sandbox) = (engine.clone(), sandbox.clone());
                streams.spawn(async move {
                    if let Err(error) = connect(stream, &engine, &sandbox).await {
                        tracing::debug!(%error, "a tunnelled connection ended");
                    }
                });
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a tunnel broke");
                return;
            }
            None => return,
        }
    }
}

/// One connection, from its header to its end.
async fn connect(mut stream: Stream, engine: &Engine, sandbox: &str) -> io::Result<()> {
    let mut header = [0; 3];
    tokio::time::timeout(HEADER_WAIT, stream.read_exact(&mut header)).await??;
    let [version, high, low] = header;
    let port = u16::from_be_bytes([high, low]);
    let refused = match (version, port) {
        (VERSION, 0) => Some(Status::PortNotAllowed),
        (VERSION, _) => None,
        _ => Some(Status::UnsupportedVersion),
    };
    if let Some(status) = refused {
        return refuse(stream, status).await;
    }
    // While the lease is held, the sandbox is not idle.
    let (_lease, mut inside) = match dial(engine, sandbox, port).await {
        Ok(dialled) => dialled,
        Err(error) => {
            tracing::debug!(%error, port, "a tunnelled connection was refused");
            return refuse(stream, Status::DialFailed).await;
        }
    };
    stream.write_all(&[Status::Ok as u8]).await?;
    stream.flush().await?;
    let mut outside = stream.compat();
    tokio::io::copy_bidirectional(&mut outside, &mut inside).await.map(drop)
}

async fn dial(
    engine: &Engine,
    sandbox: &str,
    port: u16,
) -> std::result::Result<
    (atoll_engine::GuestLease, impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    Error,
> {
    let lease = engine.guest(sandbox).await?;
    let inside = lease.dial(port).await.map_err(|error| match guest_error(error) {
        error if error.code == Code::PortClosed => error,
        error => Error::new(Code::PortClosed, error.message),
    })?;
    Ok((lease, inside))
}

async fn refuse(mut stream: Stream, status: Status) -> io::Result<()> {
    stream.write_all(&[status as u8]).await?;
    stream.close().await
}
