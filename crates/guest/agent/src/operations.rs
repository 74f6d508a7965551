//! Which name means which operation.

use std::rc::Rc;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Done, GetMetrics, ListExecs, ListPorts};
use atoll_guest_protocol::wire::{Kind, encode_message};
use bytes::Bytes;
use prost::Message;

use crate::agent::Agent;
use crate::failing::{Stop, invalid};
use crate::{exec, files, net, sftp, system, trust, watch};

/// How an operation ends well.
pub(crate) enum Answer {
    /// With these final records.
    Records(Bytes),
    /// With nothing more.
    End,
}

impl Answer {
    /// With a message as its only answer.
    pub(crate) fn message(message: &impl Message) -> Self {
        Self::Records(encode_message(Kind::Message, message))
    }

    /// With a closing message.
    pub(crate) fn last(message: &impl Message) -> Self {
        Self::Records(encode_message(Kind::Last, message))
    }

    /// With nothing to say but success.
    pub(crate) fn done(bytes: u64) -> Self {
        Self::last(&Done { bytes })
    }
}

/// Runs one operation. Streamed records go to `response`; the final answer is returned. `announced` is what the host says
/// that the request will be about.
pub(crate) async fn run(
    agent: &Rc<Agent>,
    name: &str,
    announced: Option<&str>,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    match name {
        "configure" => system::configure(&request.message().await?),
        "trust" => trust::install(&request.message().await?),
        "metrics" => {
            let GetMetrics {} = request.message().await?;
            Ok(Answer::message(&system::metrics(agent.started)))
        }
        "exec-start" => Box::pin(exec::start(agent, announced, request, response)).await,
        "exec-attach" => Box::pin(exec::attach(agent, request, response)).await,
        "exec-stdin" => exec::write_stdin(agent, request).await,
        "exec-signal" => agent.execs.signal(&request.message().await?),
        "exec-resize" => agent.execs.resize(&request.message().await?),
        "exec-forget" => agent.execs.forget(&request.message().await?),
        "exec-list" => {
            let ListExecs {} = request.message().await?;
            Ok(Answer::message(&agent.execs.list()))
        }
        "stat" => files::stat(&request.message().await?),
        "list" => files::list(&agent.threads, request.message().await?, response).await,
        "find" => files::find(&agent.threads, request.message().await?, response).await,
        "read" => files::read(&agent.threads, request.message().await?, response).await,
        "write" => files::write(&agent.threads, request).await,
        "mkdir" => files::mkdir(&request.message().await?),
        "remove" => files::remove(&agent.threads, request.message().await?).await,
        "rename" => files::rename(&agent.threads, request.message().await?).await,
        "chmod" => files::chmod(&request.message().await?),
        "describe" => files::describe(&agent.threads, request.message().await?, response).await,
        "attributes" => files::set_attributes(&request.message().await?),
        "pack" => files::pack(&agent.threads, request.message().await?, response).await,
        "unpack" => files::unpack(&agent.threads, request).await,
        "watch" => Box::pin(watch::watch(agent, request.message().await?, response)).await,
        "watch-mark" => Ok(watch::mark(agent, &request.message().await?)),
        "dial" => Box::pin(net::dial(request, response)).await,
        "listen" => net::listen(&agent.waiting, request, response).await,
        "accept" => Box::pin(net::accept(&agent.waiting, request, response)).await,
        "sftp" => Box::pin(sftp::sftp(agent, request, response)).await,
        "ports" => {
            let ListPorts {} = request.message().await?;
            Ok(Answer::message(&net::ports()))
        }
        _ => Err(invalid("unknown operation").into()),
    }
}
