//! The output of a command: as JSON so far, or as it comes, over a WebSocket.
//!
//! On the WebSocket it comes in binary messages; after the bytes `01 01 01` follows standard output, after `02 02 02`
//! standard error. The server closes the socket with 1000 only when the command has ended.

use atoll_core::Code;
use atoll_core::exec::OutputStream;
use atoll_engine::{ExecView, OutputEvent, OutputReader, Piece};
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocket, close_code};
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::commands::find;
use super::fail;
use crate::error::Result;
use crate::request::Path;
use crate::toolbox::output::so_far;
use crate::toolbox::socket::{self, Sink};
use crate::who::Inside;

/// Bytes of output in one message.
const CHUNK_BYTES: usize = 64 << 10;

/// Sends the output of a command.
pub(crate) async fn logs(
    inside: Inside,
    Path((_, session, command)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response> {
    let view = find(&inside, &session, &command).await?;
    tell(&inside, &view, request).await
}

/// The output of an exec, in the form that the client asks for.
pub(super) async fn tell(inside: &Inside, view: &ExecView, request: Request) -> Result<Response> {
    let exec = view.record.id.as_str();
    if !socket::is_wanted(&request) {
        return all(inside, exec).await;
    }
    let reader = inside.engine().output(inside.id(), exec, 0, false).await.map_err(fail)?;
    let reader = reader.read_by(inside.recorded().key());
    socket::open(inside, request, move |socket, draining| async move {
        follow(socket, reader, draining).await;
    })
    .await
}

async fn all(inside: &Inside, exec: &str) -> Result<Response> {
    let held = inside.app.outputs.hold(inside.recorded());
    let output = so_far(inside.engine(), inside.id(), exec, held).await.map_err(fail)?;
    let said = json!({"output": output.both(), "stdout": output.stdout(), "stderr": output.stderr()});
    Ok(output.answer(&said))
}

/// The mark before the output of a stream.
const fn mark(stream: OutputStream) -> [u8; 3] {
    match stream {
        OutputStream::Stdout => [1; 3],
        OutputStream::Stderr => [2; 3],
    }
}

fn marked(stream: OutputStream, bytes: &Bytes) -> Bytes {
    let mut message = BytesMut::with_capacity(bytes.len() + 3);
    message.put_slice(&mark(stream));
    message.put_slice(bytes);
    message.freeze()
}

/// Sends output until the end, or until no more comes from the client.
async fn follow(socket: WebSocket, reader: OutputReader, draining: CancellationToken) {
    let (mut sink, mut stream) = socket.split();
    let ended = tokio::select! {
        ended = send(&mut sink, reader, draining) => ended,
        left = socket::gone(&mut stream) => return left.tell(&mut sink).await,
    };
    if let Some(code) = ended {
        socket::close(&mut sink, &mut stream, code, "").await;
    }
}

/// The code to close the socket with; `None` when the client has gone.
async fn send(sink: &mut Sink, mut reader: OutputReader, draining: CancellationToken) -> Option<u16> {
    loop {
        let event = tokio::select! {
            event = reader.next(CHUNK_BYTES) => event,
            () = tokio::time::sleep(socket::PING_EVERY) => {
                sink.send(Message::Ping(Bytes::new())).await.ok()?;
                continue;
            }
            () = draining.cancelled() => return Some(close_code::AWAY),
        };
        match event {
            Ok(OutputEvent::Piece(Piece::Output { stream, bytes, .. })) => {
                sink.send(Message::Binary(marked(stream, &bytes))).await.ok()?;
            }
            Ok(OutputEvent::Piece(Piece::Gap { .. })) => {}
            Ok(OutputEvent::End { .. }) => return Some(close_code::NORMAL),
            Err(error) if error.code == Code::ShuttingDown => return Some(close_code::AWAY),
            Err(_) => return Some(close_code::ERROR),
        }
    }
}
