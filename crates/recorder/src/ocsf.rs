//! Events in the Open Cybersecurity Schema Framework, version 1.5.0 (<https://schema.ocsf.io/1.5.0>).
//!
//! | event | class |
//! |---|---|
//! | processes, execs | Process Activity (1007) |
//! | files | File System Activity (1001) |
//! | connections, policy decisions | Network Activity (4001) |
//! | requests | HTTP Activity (4002) |
//! | names | DNS Activity (4003) |
//! | calls of the API | API Activity (6003) |
//! | everything else | Application Lifecycle (6002) |
//!
//! The witness of an event is in `metadata.log_provider`; the whole event is in `unmapped`.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use crate::Numbered;
use crate::event::{Call, Event, FileAction, FileEvent, Http, PolicyDecision, RecorderEvent, Socket, What};

/// The version of the schema.
pub const VERSION: &str = "1.5.0";

const SYSTEM: u64 = 1;
const NETWORK: u64 = 4;
const APPLICATION: u64 = 6;
const INFORMATIONAL: u64 = 1;
const MEDIUM: u64 = 3;
const OTHER: u64 = 99;

/// A class of the schema, what was done in its terms, and its own fields.
struct Mapped {
    category: u64,
    class: u64,
    activity: u64,
    severity: u64,
    fields: Value,
}

fn mapped(category: u64, class: u64, activity: u64, fields: Value) -> Mapped {
    Mapped { category, class, activity, severity: INFORMATIONAL, fields }
}

/// An event of a sandbox as an object of the schema.
#[must_use]
pub fn convert(sandbox: &str, numbered: &Numbered) -> Value {
    let event = &numbered.event;
    let Mapped { category, class, activity, severity, fields } = map(sandbox, event);
    let mut object = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let whole = serde_json::to_value(numbered).unwrap_or_default();
    let provider = whole.get("witness").cloned().unwrap_or_default();
    object.extend([
        ("category_uid".to_owned(), category.into()),
        ("class_uid".to_owned(), class.into()),
        ("activity_id".to_owned(), activity.into()),
        ("type_uid".to_owned(), (class * 100 + activity).into()),
        ("severity_id".to_owned(), severity.into()),
        ("time".to_owned(), (event.at_us / 1000).into()),
        (
            "metadata".to_owned(),
            json!({
                "version": VERSION,
                "product": {"name": "Atoll", "vendor_name": "Atoll"},
                "log_provider": provider,
                "sequence": numbered.number,
                "uid": format!("{sandbox}/{}", numbered.number),
            }),
        ),
        ("unmapped".to_owned(), whole),
    ]);
    Value::Object(object)
}

fn map(sandbox: &str, event: &Event) -> Mapped {
    match &event.what {
        What::ProcessStarted(_)
        | What::ProcessForked { .. }
        | What::ProcessExited(_)
        | What::ExecStarted(_)
        | What::ExecEnded(_) => process_activity(sandbox, event),
        What::File(file) => file_activity(sandbox, event, file),
        What::Connect(socket) => mapped(NETWORK, 4001, 1, ends(sandbox, socket, 2)),
        What::Accept(socket) => mapped(NETWORK, 4001, 1, ends(sandbox, socket, 1)),
        What::Listen(socket) => mapped(NETWORK, 4001, 7, ends(sandbox, socket, 1)),
        What::Connection(connection) => {
            let (sent, received) = (connection.sent_bytes, connection.received_bytes);
            let fields = json!({
                "src_endpoint": source(sandbox),
                "dst_endpoint": endpoint(connection.host.as_deref(), connection.address),
                "duration": connection.duration_us / 1000,
                "traffic": {"bytes_out": sent, "bytes_in": received, "bytes": sent.saturating_add(received)},
            });
            mapped(NETWORK, 4001, 2, fields)
        }
        What::Policy(decision) => policy(sandbox, event, decision),
        What::Dns(dns) => {
            let rdata = |address: &IpAddr| json!({"rdata": address.to_string()});
            let fields = json!({
                "src_endpoint": source(sandbox),
                "query": {"hostname": dns.name, "type": dns.record},
                "rcode": dns.answer,
                "answers": dns.addresses.iter().map(rdata).collect::<Vec<_>>(),
            });
            mapped(NETWORK, 4003, 6, fields)
        }
        What::Http(http) => mapped(NETWORK, 4002, verb(&http.method), request(sandbox, http)),
        What::Call(call) => api_activity(sandbox, call),
        what => lifecycle(sandbox, what),
    }
}

fn device(sandbox: &str) -> Value {
    json!({"type_id": 6, "type": "Virtual", "uid": sandbox, "hostname": sandbox})
}

fn source(sandbox: &str) -> Value {
    json!({"uid": sandbox, "hostname": sandbox})
}

fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn process_activity(sandbox: &str, event: &Event) -> Mapped {
    let own = || json!({"process": process(event, None)});
    let (activity, program, actor) = match &event.what {
        What::ProcessStarted(started) => {
            let program = (started.argv.as_slice(), started.path.as_str());
            (1, Some(program), actor_of(started.parent.map(|parent| parent.pid), event))
        }
        What::ExecStarted(started) => {
            let program = (started.argv.as_slice(), started.argv.first().map_or("", String::as_str));
            (1, Some(program), user(started.by.as_deref()))
        }
        What::ProcessForked { parent } => (1, None, actor_of(Some(parent.pid), event)),
        _ => (2, None, own()),
    };
    let mut fields = json!({"process": process(event, program), "actor": actor, "device": device(sandbox)});
    match &event.what {
        What::ProcessExited(exited) => {
            let code = exited.code.or(exited.signal.map(|signal| 128 + signal));
            fields["exit_code"] = code.unwrap_or_default().into();
        }
        What::ExecEnded(ended) => {
            fields["exit_code"] = ended.code.unwrap_or(-1).into();
            fields["message"] = json!(ended.reason);
        }
        _ => {}
    }
    mapped(SYSTEM, 1007, activity, fields)
}

fn file_activity(sandbox: &str, event: &Event, file: &FileEvent) -> Mapped {
    let activity = match file.action {
        FileAction::Created => 1,
        FileAction::Written => 3,
        FileAction::Deleted => 4,
        FileAction::Renamed => 5,
    };
    let named = |path: &str| json!({"name": last_of(path), "path": path, "type_id": 1});
    let mut fields = json!({
        "file": named(&file.path), "actor": {"process": process(event, None)}, "device": device(sandbox),
    });
    if let Some(to) = &file.to {
        fields["file_result"] = named(to);
    }
    mapped(SYSTEM, 1001, activity, fields)
}

/// A decision about a program is one about a process, any other one about the network.
fn policy(sandbox: &str, event: &Event, decision: &PolicyDecision) -> Mapped {
    let mut fields = json!({
        "message": format!("{}: {}", decision.subject, decision.rule),
        "status_id": if decision.allowed { 1 } else { 2 }, "status_detail": decision.rule,
    });
    let severity = if decision.allowed { INFORMATIONAL } else { MEDIUM };
    if decision.stage == "exec" {
        fields["process"] = process(event, Some((&[], &decision.subject)));
        fields["actor"] = json!({"process": process(event, None)});
        fields["device"] = device(sandbox);
        return Mapped { severity, ..mapped(SYSTEM, 1007, 1, fields) };
    }
    fields["src_endpoint"] = source(sandbox);
    Mapped { severity, ..mapped(NETWORK, 4001, if decision.allowed { 1 } else { 5 }, fields) }
}

fn api_activity(sandbox: &str, call: &Call) -> Mapped {
    let activity = match call.method.as_str() {
        "POST" => 1,
        "GET" | "HEAD" => 2,
        "PUT" | "PATCH" => 3,
        "DELETE" => 4,
        _ => OTHER,
    };
    let fields = json!({
        "actor": caller(call),
        "api": {"operation": format!("{} {}", call.method, call.path), "service": {"name": call.protocol},
            "request": {"uid": call.request_id}, "response": {"code": call.status}},
        // The caller's address is not recorded; the holder names the client that works with the key.
        "src_endpoint": {"name": call.holder.as_deref().unwrap_or("unknown")},
        "resources": [{"uid": sandbox, "type": "sandbox"}],
        "status_id": if call.status < 400 { 1 } else { 2 },
    });
    mapped(APPLICATION, 6003, activity, fields)
}

fn lifecycle(sandbox: &str, what: &What) -> Mapped {
    let activity = match what {
        What::Created(_) => 1,
        What::State { state, .. } if state == "running" => 3,
        What::State { .. } => 4,
        What::Limits { .. } => 8,
        What::Recorder(RecorderEvent::Ended) => 2,
        _ => OTHER,
    };
    let mut fields = json!({
        "app": {"name": "sandbox", "uid": sandbox, "vendor_name": "Atoll"}, "message": what.kind(),
    });
    if activity == OTHER {
        fields["activity_name"] = what.kind().into();
    }
    let lost = matches!(what, What::Lost(_) | What::OutOfMemory | What::BudgetExhausted { .. });
    let severity = if lost { MEDIUM } else { INFORMATIONAL };
    Mapped { severity, ..mapped(APPLICATION, 6002, activity, fields) }
}

fn process(event: &Event, program: Option<(&[String], &str)>) -> Value {
    let mut process = Map::new();
    if let Some(of) = event.process {
        process.insert("pid".to_owned(), of.pid.into());
    }
    // Where no witness saw a pid, the exec names the process.
    if let Some(exec) = &event.exec {
        process.insert("uid".to_owned(), exec.to_string().into());
    }
    if process.is_empty() {
        process.insert("uid".to_owned(), "unknown".into());
    }
    if let Some((argv, path)) = program {
        process.insert("cmd_line".to_owned(), argv.join(" ").into());
        process.insert("name".to_owned(), last_of(path).into());
    }
    Value::Object(process)
}

fn actor_of(parent: Option<u32>, event: &Event) -> Value {
    match parent {
        Some(pid) => json!({"process": {"pid": pid}}),
        None => json!({"process": process(event, None)}),
    }
}

/// The caller: the API key, and the person, if one had logged in.
fn caller(call: &Call) -> Value {
    let mut actor = user(call.key.as_deref());
    if let Some(subject) = &call.subject {
        actor["user"]["type"] = "person".into();
        actor["user"]["name"] = subject.as_str().into();
    }
    if let Some(email) = &call.email {
        actor["user"]["email_addr"] = email.as_str().into();
    }
    actor
}

fn user(key: Option<&str>) -> Value {
    json!({"user": {"uid": key.unwrap_or("nobody"), "type_id": 99, "type": "API key"}})
}

fn endpoint(host: Option<&str>, address: Option<SocketAddr>) -> Value {
    let mut endpoint = Map::new();
    if let Some(host) = host {
        endpoint.insert("hostname".to_owned(), host.into());
    }
    if let Some(address) = address {
        endpoint.insert("ip".to_owned(), address.ip().to_string().into());
        endpoint.insert("port".to_owned(), address.port().into());
    }
    if endpoint.is_empty() {
        endpoint.insert("name".to_owned(), "unknown".into());
    }
    Value::Object(endpoint)
}

/// `direction`: 1 in, 2 out.
fn ends(sandbox: &str, socket: &Socket, direction: u64) -> Value {
    let mut own = endpoint(None, socket.local);
    own["uid"] = sandbox.into();
    let peer = endpoint(None, socket.peer);
    let (source, target) = if direction == 2 { (own, peer) } else { (peer, own) };
    json!({"src_endpoint": source, "dst_endpoint": target, "connection_info": {"direction_id": direction}})
}

fn request(sandbox: &str, http: &Http) -> Value {
    let (scheme, host, port, path) = (&http.scheme, &http.host, http.port, &http.path);
    let mut fields = json!({
        "src_endpoint": {"uid": sandbox, "hostname": sandbox},
        "dst_endpoint": {"hostname": host, "port": port},
        "http_request": {"http_method": http.method, "url": {"scheme": scheme, "hostname": host, "port": port, "path": path,
            "url_string": format!("{scheme}://{host}:{port}{path}")}, "length": http.sent_bytes},
        "traffic": {"bytes_out": http.sent_bytes, "bytes_in": http.received_bytes},
        "duration": http.latency_us / 1000,
    });
    // The schema has a closed list; the whole event is in `unmapped` anyway.
    if verb(&http.method) == OTHER {
        fields["activity_name"] = http.method.clone().into();
        if let Some(request) = fields["http_request"].as_object_mut() {
            request.remove("http_method");
        }
    }
    if let Some(status) = http.status {
        fields["http_response"] = json!({"code": status, "length": http.received_bytes});
    }
    fields
}

fn verb(method: &str) -> u64 {
    match method {
        "CONNECT" => 1,
        "DELETE" => 2,
        "GET" => 3,
        "HEAD" => 4,
        "OPTIONS" => 5,
        "POST" => 6,
        "PUT" => 7,
        "TRACE" => 8,
        _ => OTHER,
    }
}
