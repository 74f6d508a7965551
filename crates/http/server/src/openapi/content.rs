//! Bodies that are not JSON, as well as OpenAPI 3.1 can describe them: streams of events and of lines of JSON are text
//! whose `contentSchema` is the list of what comes, one after the other; bytes have a media type, and no type of JSON.

use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Content, ContentBuilder, Ref, RefOr};

const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";
const BYTES: [&str; 3] = ["application/octet-stream", "application/x-tar", "application/zstd"];

/// An event of a stream: its name, if it is not the kind of what it carries; and what its data is, if it is not an empty
/// object.
type Event = (Option<&'static str>, Option<&'static str>);

const ERROR: Event = (Some("error"), Some("ErrorBody"));
const TRACED: [Event; 2] = [(Some("event"), Some("TraceEvent")), ERROR];

/// The streams of server-sent events, by path.
const STREAMS: [(&str, &[Event]); 7] = [
    (
        "/v1/agents/{agent}/sessions/{session}/stream",
        &[(None, Some("AgentEvent")), (Some("gap"), None), (Some("problem"), Some("ErrorBody"))],
    ),
    ("/v1/builds/{build}/events", &[(Some("entry"), Some("BuildEvent")), (Some("over"), None), ERROR]),
    ("/v1/events", &TRACED),
    (
        "/v1/sandboxes/{sandbox}/contexts/{context}/cells/{cell}/stream",
        &[(None, Some("CellEvent")), (Some("failure"), Some("ErrorBody"))],
    ),
    ("/v1/sandboxes/{sandbox}/events", &TRACED),
    (
        "/v1/sandboxes/{sandbox}/execs/{exec}/events",
        &[
            (Some("output"), Some("OutputChunk")),
            (Some("gap"), Some("AttachServerMessage")),
            (Some("exit"), Some("AttachServerMessage")),
            ERROR,
        ],
    ),
    (
        "/v1/sandboxes/{sandbox}/watch",
        &[(Some("ready"), None), (Some("change"), Some("WatchMessage")), ERROR],
    ),
];

/// Describes the bodies of an operation that are not JSON.
pub(super) fn describe(path: &str, operation: &mut Operation) {
    let stream = STREAMS.iter().find(|(of, _)| *of == path);
    if let Some(RefOr::T(success)) = operation.responses.responses.get_mut("200")
        && let Some((_, events)) = stream
    {
        // Also where it is another form of what JSON says.
        let content = ContentBuilder::new().schema(Some(sse(events))).build();
        success.content.insert(SSE.to_owned(), content.into());
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.iter_mut().for_each(|(media_type, content)| body(media_type, content));
        }
    }
    if let Some(RefOr::T(request)) = &mut operation.request_body {
        request.content.iter_mut().for_each(|(media_type, content)| body(media_type, content));
    }
}

fn body(media_type: &str, content: &mut RefOr<Content>) {
    let RefOr::T(content) = content else { return };
    if media_type == NDJSON {
        content.schema = content.schema.take().map(|line| text(media_type, line).into());
    } else if BYTES.contains(&media_type) {
        let bytes = ObjectBuilder::new().schema_type(SchemaType::AnyValue).content_media_type(media_type);
        content.schema = Some(bytes.into());
    }
}

/// Text that is a sequence of items.
fn text(media_type: &str, item: RefOr<Schema>) -> ObjectBuilder {
    let sequence = ArrayBuilder::new().items(item);
    ObjectBuilder::new()
        .schema_type(Type::String)
        .content_media_type(media_type)
        .content_schema(Some(sequence))
}

fn sse(events: &[Event]) -> ObjectBuilder {
    let string = || ObjectBuilder::new().schema_type(Type::String);
    let event = |(name, data): &Event| {
        let name = match name {
            Some(name) => string().enum_values(Some([*name])),
            None => string(),
        };
        let data = match data {
            Some(of) => string()
                .content_media_type("application/json")
                .content_schema(Some(RefOr::<Schema>::from(Ref::from_schema_name(*of)))),
            None => string().enum_values(Some(["{}"])),
        };
        let event =
            ObjectBuilder::new().property("event", name).property("id", string()).property("data", data);
        event.required("event").required("data")
    };
    let any = events.iter().fold(OneOfBuilder::new(), |any, one| any.item(event(one)));
    text(SSE, RefOr::T(Schema::from(any.build())))
}
