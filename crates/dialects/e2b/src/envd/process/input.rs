//! Input of processes.

use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use bytes::Bytes;

use super::running;
use crate::connect::{Fault, Kind, Once, Requests};
use crate::envd::Envd;
use crate::wire::process::{
    CloseStdinRequest, Empty, Input, ProcessInput, SendInputRequest, StreamInput, StreamInputRequest,
};
use atoll_engine::ExecView;

async fn write(envd: &Envd, view: &ExecView, input: Option<ProcessInput>) -> Result<(), Fault> {
    let mut bytes = match input.and_then(|input| input.input) {
        Some(Input::Stdin(bytes)) if view.record.spec.tty.is_none() => bytes,
        Some(Input::Pty(bytes)) if view.record.spec.tty.is_some() => bytes,
        Some(Input::Stdin(_)) => return Err(mismatch("the process runs on a terminal: send 'pty'")),
        Some(Input::Pty(_)) => return Err(mismatch("the process has no terminal: send 'stdin'")),
        None => return Err(mismatch("the input is missing")),
    };
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
        let written = envd.engine().write_stdin(envd.id(), view.record.id.as_str(), piece, false).await;
        written.map_err(|error| {
            let fault = envd.fault(&error);
            Fault::new(fault.kind, format!("error writing to stdin: {}", fault.message))
        })?;
    }
    Ok(())
}

fn mismatch(why: &str) -> Fault {
    Fault::new(Kind::InvalidArgument, why)
}

/// `SendInput`.
pub(super) async fn send(envd: &Envd, request: SendInputRequest) -> Result<Empty, Fault> {
    let view = running(envd, request.process).await?;
    write(envd, &view, request.input).await?;
    Ok(Empty {})
}

/// `CloseStdin`.
pub(super) async fn close(envd: &Envd, request: CloseStdinRequest) -> Result<Empty, Fault> {
    let view = running(envd, request.process).await?;
    if view.record.spec.tty.is_some() {
        return Err(Fault::new(
            Kind::FailedPrecondition,
            "a terminal's input cannot be closed: send Ctrl-D (0x04) to it",
        ));
    }
    let closed = envd.engine().write_stdin(envd.id(), view.record.id.as_str(), Bytes::new(), true).await;
    closed.map_err(|error| envd.fault(&error))?;
    Ok(Empty {})
}

/// `StreamInput`: first the name of the process, then its input as it comes.
pub(super) async fn stream(
    envd: &Envd,
    mut requests: Requests<StreamInputRequest>,
) -> Result<Once<Empty>, Fault> {
    let mut process = None;
    while let Some(request) = requests.next().await? {
        match request.event {
            Some(StreamInput::Start(start)) => process = Some(running(envd, start.process).await?),
            Some(StreamInput::Data(data)) => {
                let view =
                    process.as_ref().ok_or_else(|| mismatch("the first message must name the process"))?;
                // The right is checked each time: another client may lease the sandbox while the stream is open.
                envd.recheck().map_err(|error| Fault::of(&error))?;
                write(envd, view, data.input).await?;
            }
            Some(StreamInput::Keepalive(_)) | None => {}
        }
    }
    Ok(Once(Some(Empty {})))
}
