//! Package `process`.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json::{self, is_default};
use super::messages;

messages! {
    /// Size of a terminal.
    Size {
        #[prost(uint32, tag = "1")] pub(crate) cols: u32,
        #[prost(uint32, tag = "2")] pub(crate) rows: u32,
    }
    /// A terminal.
    Pty {
        #[prost(message, optional, tag = "1")] pub(crate) size: Option<Size>,
    }
    /// The command to run.
    ProcessConfig {
        #[serde(skip_serializing_if = "is_default")]
        #[prost(string, tag = "1")] pub(crate) cmd: String,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(string, repeated, tag = "2")] pub(crate) args: Vec<String>,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(btree_map = "string, string", tag = "3")] pub(crate) envs: BTreeMap<String, String>,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(string, optional, tag = "4")] pub(crate) cwd: Option<String>,
    }
    ListRequest {}
    ProcessInfo {
        #[prost(message, optional, tag = "1")] pub(crate) config: Option<ProcessConfig>,
        #[prost(uint32, tag = "2")] pub(crate) pid: u32,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(string, optional, tag = "3")] pub(crate) tag: Option<String>,
    }
    ListResponse {
        #[serde(skip_serializing_if = "is_default")]
        #[prost(message, repeated, tag = "1")] pub(crate) processes: Vec<ProcessInfo>,
    }
    StartRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessConfig>,
        #[prost(message, optional, tag = "2")] pub(crate) pty: Option<Pty>,
        #[prost(string, optional, tag = "3")] pub(crate) tag: Option<String>,
        /// Absent means yes.
        #[prost(bool, optional, tag = "4")] pub(crate) stdin: Option<bool>,
    }
    UpdateRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
        #[prost(message, optional, tag = "2")] pub(crate) pty: Option<Pty>,
    }
    /// An empty message.
    Empty {}
    StartEvent {
        #[prost(uint32, tag = "1")] pub(crate) pid: u32,
    }
    DataEvent {
        #[serde(flatten)]
        #[prost(oneof = "Output", tags = "1, 2, 3")] pub(crate) output: Option<Output>,
    }
    EndEvent {
        #[serde(skip_serializing_if = "is_default")]
        #[prost(sint32, tag = "1")] pub(crate) exit_code: i32,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(bool, tag = "2")] pub(crate) exited: bool,
        #[prost(string, tag = "3")] pub(crate) status: String,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(string, optional, tag = "4")] pub(crate) error: Option<String>,
    }
    ProcessEvent {
        #[serde(flatten)]
        #[prost(oneof = "Event", tags = "1, 2, 3, 4")] pub(crate) event: Option<Event>,
    }
    /// One message of `Start` and of `Connect`.
    Streamed {
        #[prost(message, optional, tag = "1")] pub(crate) event: Option<ProcessEvent>,
    }
    ConnectRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
    }
    ProcessInput {
        #[serde(flatten)]
        #[prost(oneof = "Input", tags = "1, 2")] pub(crate) input: Option<Input>,
    }
    SendInputRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
        #[prost(message, optional, tag = "2")] pub(crate) input: Option<ProcessInput>,
    }
    StreamStart {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
    }
    StreamData {
        #[prost(message, optional, tag = "2")] pub(crate) input: Option<ProcessInput>,
    }
    StreamInputRequest {
        #[serde(flatten)]
        #[prost(oneof = "StreamInput", tags = "1, 2, 3")] pub(crate) event: Option<StreamInput>,
    }
    SendSignalRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
        #[serde(with = "signal")]
        #[prost(enumeration = "Signal", tag = "2")] pub(crate) signal: i32,
    }
    CloseStdinRequest {
        #[prost(message, optional, tag = "1")] pub(crate) process: Option<ProcessSelector>,
    }
    ProcessSelector {
        #[serde(flatten)]
        #[prost(oneof = "Selector", tags = "1, 2")] pub(crate) selector: Option<Selector>,
    }
}

/// Output of a process.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Output {
    #[serde(with = "json::bytes")]
    #[prost(bytes = "bytes", tag = "1")]
    Stdout(Bytes),
    #[serde(with = "json::bytes")]
    #[prost(bytes = "bytes", tag = "2")]
    Stderr(Bytes),
    #[serde(with = "json::bytes")]
    #[prost(bytes = "bytes", tag = "3")]
    Pty(Bytes),
}

/// An event of a process.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Event {
    #[prost(message, tag = "1")]
    Start(StartEvent),
    #[prost(message, tag = "2")]
    Data(DataEvent),
    #[prost(message, tag = "3")]
    End(EndEvent),
    #[prost(message, tag = "4")]
    Keepalive(Empty),
}

/// Input for a process.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Input {
    #[serde(with = "json::bytes")]
    #[prost(bytes = "bytes", tag = "1")]
    Stdin(Bytes),
    #[serde(with = "json::bytes")]
    #[prost(bytes = "bytes", tag = "2")]
    Pty(Bytes),
}

/// One message of a client that streams input.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StreamInput {
    #[prost(message, tag = "1")]
    Start(StreamStart),
    #[prost(message, tag = "2")]
    Data(StreamData),
    #[prost(message, tag = "3")]
    Keepalive(Empty),
}

/// Names a process.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Selector {
    #[prost(uint32, tag = "1")]
    Pid(u32),
    #[prost(string, tag = "2")]
    Tag(String),
}

/// The signals that can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Signal {
    Unspecified = 0,
    Sigterm = 15,
    Sigkill = 9,
}

json::names!(signal, Signal {
    Unspecified = "SIGNAL_UNSPECIFIED",
    Sigterm = "SIGNAL_SIGTERM",
    Sigkill = "SIGNAL_SIGKILL",
});

impl Streamed {
    pub(crate) fn new(event: Event) -> Self {
        Self { event: Some(ProcessEvent { event: Some(event) }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_as_the_clients_write_and_read_it() {
        let start: StartRequest = serde_json::from_str(
            r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{"A":"1"},"cwd":"/tmp"},
                "stdin":false,"pty":{"size":{"cols":80,"rows":24}},"unknown":1}"#,
        )
        .unwrap();
        assert_eq!(start.process.as_ref().unwrap().args.len(), 3);
        assert_eq!(start.stdin, Some(false));
        let text = |event| serde_json::to_string(&Streamed::new(event)).unwrap();
        assert_eq!(text(Event::Start(StartEvent { pid: 42 })), r#"{"event":{"start":{"pid":42}}}"#);
        let data = DataEvent { output: Some(Output::Stdout(Bytes::from_static(b"hi\n"))) };
        assert_eq!(text(Event::Data(data)), r#"{"event":{"data":{"stdout":"aGkK"}}}"#);
        assert_eq!(text(Event::Keepalive(Empty {})), r#"{"event":{"keepalive":{}}}"#);
        let end = EndEvent { exited: true, status: "exit status 0".to_owned(), ..EndEvent::default() };
        assert_eq!(text(Event::End(end)), r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#);
        let signal: SendSignalRequest =
            serde_json::from_str(r#"{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}"#).unwrap();
        assert_eq!(signal.signal, 9);
        assert_eq!(signal.process.unwrap().selector, Some(Selector::Pid(7)));
        let input: StreamInputRequest = serde_json::from_str(r#"{"data":{"input":{"stdin":"YQ"}}}"#).unwrap();
        let Some(StreamInput::Data(data)) = input.event else { panic!("{input:?}") };
        assert_eq!(data.input.unwrap().input, Some(Input::Stdin(Bytes::from_static(b"a"))));
    }
}
