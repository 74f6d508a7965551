//! The OpenAPI document: made from the routes, committed as `openapi/atoll.json`, kept equal by a test.

use atoll_core::Code;
use atoll_core::limits::IDEMPOTENCY_KEY_MAX_BYTES;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Object, ObjectBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

use crate::bounds::{Bounds, FOUND, WAIT};
use crate::{once, routes};

mod content;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Atoll",
        description = "Self-hosted computers for AI agents. Times end in `_at_ms` (milliseconds since the \
            epoch), durations in `_ms`, sizes in `_bytes`. Unknown fields are errors. The scope in an \
            operation's security is the least that a key needs: read, exec, manage, admin.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(
        atoll_api::ErrorBody,
        atoll_api::OutputChunk,
        atoll_api::AttachServerMessage,
        atoll_api::AttachClientMessage,
        atoll_api::SessionServerMessage,
        atoll_api::SessionClientMessage,
        atoll_api::WatchMessage,
        atoll_api::UsageGroup,
        atoll_api::TraceEvent,
    )),
    tags(
        (name = "sandboxes", description = "Isolated computers"),
        (name = "ports", description = "Ports of a sandbox, and who may reach them from outside"),
        (name = "ssh", description = "SSH keys, and where SSH clients connect"),
        (name = "execs", description = "Commands in a sandbox: durable, with their output"),
        (name = "code", description = "Code that is run cell by cell, in contexts that remember"),
        (name = "services", description = "Commands of a sandbox that should always run"),
        (name = "agents", description = "Agents that live in sandboxes, and sessions with them"),
        (name = "trace", description = "What sandboxes did and what was done with them: the flight recorder"),
        (name = "files", description = "Files in a sandbox"),
        (name = "snapshots", description = "Disks of sandboxes at one moment, to make sandboxes from"),
        (name = "templates", description = "Named, versioned recipes for sandboxes"),
        (name = "access", description = "Who may use a sandbox, and who has it for itself"),
        (name = "volumes", description = "Storage that outlives sandboxes, shared by several"),
        (name = "builds", description = "Templates from Dockerfiles and step lists"),
        (name = "pools", description = "Running sandboxes that wait to be handed out"),
        (name = "images", description = "OCI images and where they come from"),
        (name = "secrets", description = "Values that sandboxes use and never see"),
        (name = "projects", description = "Keys and what they make, apart from those of others, with quotas and defaults"),
        (name = "keys", description = "API keys"),
        (name = "usage", description = "What was used"),
        (name = "system", description = "The server itself"),
    )
)]
struct Document;

/// The document as JSON text, ending with a line break.
#[must_use]
pub fn openapi() -> String {
    let mut document = Document::openapi();
    document.merge(routes::documented().into_openapi());
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key. `X-API-Key: <key>` works too."))
        .build();
    document.components.get_or_insert_default().add_security_scheme("key", SecurityScheme::Http(key));
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The token of an access."))
        .build();
    document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(token));
    document.components.get_or_insert_default().schemas.insert("Code".to_owned(), codes().into());
    finish(&mut document);
    bound_fields(&mut document);
    let mut text = document.to_pretty_json().unwrap_or_else(|error| {
        // Plain data with string keys.
        tracing::error!(%error, "the OpenAPI document cannot be written");
        String::new()
    });
    text.push('\n');
    text
}

/// The codes as they are sent: their derived schema has the names that they have in Rust.
fn codes() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("Machine-readable reason of an error. More may come."))
        .enum_values(Some(Code::ALL.iter().map(|code| code.as_str())))
        .build()
}

/// What is the same for every operation.
fn finish(document: &mut OpenApi) {
    let paths = std::mem::take(&mut document.paths.paths);
    for (path, mut item) in paths {
        if let Some(operation) = item.post.as_mut().filter(|_| once::ROUTES.contains(&path.as_str())) {
            operation.parameters.get_or_insert_default().push(idempotency_key(&path).into());
        }
        for operation in operations(&mut item) {
            content::describe(&path, operation);
            describe(operation);
            let error = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
            let error =
                ResponseBuilder::new().description("An error").content("application/json", error).build();
            operation.responses.responses.insert("default".to_owned(), error.into());
        }
        // The router's way to write "the rest of the path".
        document.paths.paths.insert(path.replace("{*", "{"), item);
    }
}

/// The fields of bodies whose numbers have bounds.
const BOUND: [(&str, Bounds); 3] = [("CreateExec", WAIT), ("FindFiles", FOUND), ("RunCell", WAIT)];

fn bound_fields(document: &mut OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (name, bounds) in BOUND {
        if let Some(RefOr::T(Schema::Object(body))) = schemas.get_mut(name)
            && let Some(RefOr::T(Schema::Object(field))) = body.properties.get_mut(bounds.name())
        {
            field.minimum = Some(bounds.least().into());
            field.maximum = Some(bounds.most().into());
        }
    }
}

/// The header of requests that are answered once, and for how long.
fn idempotency_key(path: &str) -> Parameter {
    let forgotten = if once::KEPT_WITH_SANDBOXES.contains(&path) {
        "As long as the sandbox is there it is also found by its key when the server was started anew, or another node is \
         asked: then the answer is the sandbox as it is, and none is made."
            .to_owned()
    } else {
        format!(
            "The answer is kept in the memory of the server that gave it. The request is done again when it comes after \
             that server was started anew, to another node of a cluster that does not pass it on to that one, or when \
             the API key has {} newer answers, or more than {} MiB of them.",
            once::ANSWERS_MAX,
            once::ANSWERS_MAX_BYTES >> 20,
        )
    };
    ParameterBuilder::new()
        .name(once::HEADER)
        .parameter_in(ParameterIn::Header)
        .description(Some(format!(
            "1 to {IDEMPOTENCY_KEY_MAX_BYTES} printable ASCII characters. Sent again within a day by the same API key, \
             with the same key and body, the request does nothing and gets the first one's answer, with the header \
             `{}: true`; with another body it is refused (`idempotency_mismatch`). Only successes are kept. {forgotten}",
            once::REPLAYED,
        )))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

/// Every response needs a description; where ours would only repeat the status, this is it.
fn describe(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = match status.as_str() {
                "201" => "Made",
                "204" => "Done",
                "206" => "The range",
                "503" => "Not now",
                _ => "Success",
            }
            .to_owned();
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}
