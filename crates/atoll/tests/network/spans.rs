//! Spans of execs, at a collector of OpenTelemetry: the real protocol, from the real program.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::common::outside::{Outside, WEB, policy, sandbox};
use atoll_blackbox::{Server, wait_until};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A collector, with everything that it was sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    lines: Vec<LogRecord>,
}

impl Received {
    fn take(&mut self, path: &str, body: &[u8]) {
        match path {
            "/v1/traces" => {
                let request = ExportTraceServiceRequest::decode(body).unwrap();
                let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                self.spans.extend(scopes.flat_map(|scope| scope.spans));
            }
            "/v1/metrics" => {
                let request = ExportMetricsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
                self.metrics.extend(scopes.flat_map(|scope| scope.metrics));
            }
            "/v1/logs" => {
                let request = ExportLogsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_logs.into_iter().flat_map(|resource| resource.scope_logs);
                self.lines.extend(scopes.flat_map(|scope| scope.log_records));
            }
            other => panic!("nothing goes to {other}"),
        }
    }
}

impl Collector {
    fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (collector, address) = (Self::default(), listener.local_addr().unwrap());
        let own = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream));
            }
        });
        (collector, address)
    }

    fn serve(&self, mut stream: TcpStream) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 8192]);
        loop {
            while let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
                let whole = end + 4 + length.trim().parse::<usize>().unwrap();
                if bytes.len() < whole {
                    break;
                }
                assert!(head.contains("content-type: application/x-protobuf"), "{head}");
                let path = head.strip_prefix("post ").and_then(|rest| rest.split(' ').next()).unwrap();
                self.0.lock().unwrap().take(path, &bytes[end + 4..whole]);
                bytes.drain(..whole);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend(&buffer[..count]),
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// The spans of an exec, when they have these names among them.
    async fn of(&self, exec: &str, names: &[&str]) -> Vec<Span> {
        let found = async || {
            let all = self.0.lock().unwrap().spans.clone();
            let own: Vec<Span> =
                all.into_iter().filter(|span| text(span, "atoll.exec.id").as_deref() == Some(exec)).collect();
            names.iter().all(|name| own.iter().any(|span| span.name == *name)).then_some(own)
        };
        wait_until("the collector has the spans", found).await
    }
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    span.attributes.iter().find(|one| one.key == key)?.value.clone()?.value
}

fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(span, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap()
}

/// Runs a command with a header, and gives its id when it has ended.
async fn run(server: &Server, sandbox: &str, command: &str, traceparent: &str) -> String {
    let body = json!({"shell": command, "wait_ms": 20_000}).to_string();
    let request = server.request("POST", &format!("/v1/sandboxes/{sandbox}/execs"));
    let request =
        request.header("content-type", "application/json").header("traceparent", traceparent).body(body);
    let answer = server.send(request).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let answer: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
    answer["exec"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_is_a_span_of_its_caller_and_what_it_does_lies_below() {
    let (collector, address) = Collector::start();
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server_with(&["--otlp-endpoint", &format!("http://{address}")]);
    let id = sandbox(&server, policy(json!({"internet": "on"}))).await.id;
    let command = "curl -sS --max-time 20 -o /dev/null http://web.test/data; exit 3";
    let exec = run(&server, &id, command, &format!("00-{TRACE}-{CALLER}-01")).await;
    let connect = "connect web.test:80";
    let spans = collector.of(&exec, &["sh", "curl", connect, "GET"]).await;
    let root = spans.iter().find(|span| hex::encode(&span.parent_span_id) == CALLER).unwrap();
    assert!(spans.iter().all(|span| hex::encode(&span.trace_id) == TRACE));
    assert_eq!(attribute(root, "process.exit.code"), Some(Value::IntValue(3)));
    assert_eq!(text(root, "atoll.sandbox.id").unwrap(), id);
    assert!(matches!(attribute(root, "process.cpu.time"), Some(Value::DoubleValue(_))));
    assert!(matches!(attribute(root, "atoll.memory.peak"), Some(Value::IntValue(1..))));
    // curl ← shell ← exec ← caller; the request in its connection, which is curl's.
    let (curl, connection, get) = (named(&spans, "curl"), named(&spans, connect), named(&spans, "GET"));
    assert_eq!((&connection.parent_span_id, &get.parent_span_id), (&curl.span_id, &connection.span_id));
    let mut up = curl;
    let mut depth = 0;
    while up.span_id != root.span_id {
        up = spans.iter().find(|span| span.span_id == up.parent_span_id).unwrap();
        depth += 1;
    }
    assert!(depth >= 1, "{spans:#?}");
    assert_eq!(text(get, "url.full").unwrap(), "http://web.test:80/data");
    assert_eq!(attribute(get, "http.response.status_code"), Some(Value::IntValue(200)));
    for span in &spans {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
    }
    // A header of another form counts as none: the exec has a trace of its own.
    for bad in
        ["x".repeat(5000).as_str(), "00-0-0-01", &format!("00-{TRACE}-{CALLER}-01-{}", "y".repeat(3000))]
    {
        let exec = run(&server, &id, "true", bad).await;
        let spans = collector.of(&exec, &["sh"]).await;
        assert!(spans.iter().any(|span| span.parent_span_id.is_empty()), "{spans:#?}");
        assert!(spans.iter().all(|span| hex::encode(&span.trace_id) != TRACE));
    }
    // A caller whose trace is not kept wants no spans in it.
    let unwanted = run(&server, &id, "true", &format!("00-{TRACE}-{CALLER}-00")).await;
    let last = run(&server, &id, "true", &format!("00-{TRACE}-{CALLER}-01")).await;
    collector.of(&last, &["sh"]).await;
    assert!(collector.of(&unwanted, &[]).await.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_the_log_come_as_they_are_shown() {
    let (collector, address) = Collector::start();
    let mut server = Server::with(&["--otlp-endpoint", &format!("http://{address}")]);
    let id = server.sandbox().await.id;
    server.sh(&id, "true").await;
    let shown = server.send(server.request("GET", "/metrics")).await.text();
    let families = shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let families: BTreeMap<&str, &str> = families.collect();
    let all_there = async || {
        let received = collector.0.lock().unwrap();
        let names: Vec<&str> = received.metrics.iter().map(|metric| metric.name.as_str()).collect();
        families.keys().all(|name| names.contains(name)).then_some(())
    };
    wait_until("the collector has all metrics", all_there).await;
    let kinds: BTreeMap<String, &str> = {
        let received = collector.0.lock().unwrap();
        let kind = |metric: &Metric| match &metric.data {
            Some(Data::Sum(sum)) if sum.is_monotonic => "counter",
            Some(Data::Gauge(_)) => "gauge",
            Some(Data::Histogram(_)) => "histogram",
            other => panic!("{other:?}"),
        };
        received.metrics.iter().map(|metric| (metric.name.clone(), kind(metric))).collect()
    };
    for (name, kind) in families {
        assert_eq!(kinds[name], kind, "{name}");
    }
    server.stop();
    let log = server.log();
    let lines = collector.0.lock().unwrap().lines.clone();
    let said = |line: &LogRecord| match line.body.clone().and_then(|body| body.value) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(!lines.is_empty() && lines.iter().all(|line| line.severity_number > 0));
    // Everything that came is in the log, too, and no key is in either.
    for line in &lines {
        let text = said(line);
        assert!(log.contains(text.split('\n').next().unwrap()), "{text}");
    }
    assert!(!format!("{lines:?}").contains(&server.key));
    server.restart();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_holds_nobody_up_and_what_it_does_not_take_is_counted() {
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let server = Server::with(&["--otlp-endpoint", &format!("http://{address}")]);
    let id = server.sandbox().await.id;
    for _ in 0..20 {
        assert_eq!(server.sh(&id, "true").await.code, Some(0));
    }
    let dropped = async || {
        let answer = server.send(server.request("GET", "/metrics")).await;
        let text = answer.text();
        let line = text.lines().find_map(|line| line.strip_prefix("atoll_spans_dropped_total ")).unwrap();
        (line.parse::<u64>().unwrap() > 0).then_some(())
    };
    wait_until("what was dropped is counted", dropped).await;
    assert_eq!(server.sh(&id, "true").await.code, Some(0));
    server.finish().await;
}
