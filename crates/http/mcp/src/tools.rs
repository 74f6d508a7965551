//! The tools, as clients see them.

use std::borrow::Cow;
use std::sync::Arc;

use atoll_api::{CreateAccess, CreateCheckpoint, Sandbox};
use rmcp::handler::server::tool::ToolRouter;
use rmcp::handler::server::wrapper::{Json, Parameters};
use rmcp::model::{
    Implementation, JsonObject, ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};

use crate::error::Result;
use crate::run::name;
use crate::session::Session;
use crate::types::{
    Changes, CreateParams, DeleteParams, Deleted, DiffParams, Ended, ExposeParams, Exposed, FileChange,
    FileContent, FileWritten, Files, ListFilesParams, Output, ReadFileParams, ReadOutputParams,
    RollbackParams, RunParams, SandboxInfo, SandboxInfos, SnapshotParams, Snapshotted, StartParams, Started,
    StopParams, Stopped, WriteFileParams,
};
use crate::{files, resources, run};

/// What a model is told about the tools as a whole.
const INSTRUCTIONS: &str = "Atoll gives you a computer of your own, cut off from the user's: a sandbox with a shell, files and \
ports. It is made when you first use a tool, and removed at the end of the session: what shall stay must be copied out. Use 'run' for \
commands that end soon, and 'start', 'read_output' and 'stop' for servers and long work. Take a 'snapshot' before \
something risky, 'rollback' undoes it. What the network lets through, the image and the limits are set by the user.";

/// Default and longest life of an address of a port, minutes.
const PORT_MINUTES: u32 = 60;
const PORT_MAX_MINUTES: u32 = 24 * 60;
/// Changes that are shown, and bytes of their texts together.
const CHANGES_COUNT: usize = 200;
const CHANGES_TEXT_BYTES: usize = 32 << 10;

/// The tools for one session.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    session: Arc<Session>,
    router: ToolRouter<Self>,
    /// The newest version of the protocol that is spoken.
    newest: ProtocolVersion,
}

impl Tools {
    /// Tools over a session, in versions of the protocol up to `newest`.
    pub(crate) fn new(session: Arc<Session>, newest: ProtocolVersion) -> Self {
        let mut router = Self::tool_router();
        for route in router.map.values_mut() {
            route.attr.input_schema = without_widths(&route.attr.input_schema);
            route.attr.output_schema = route.attr.output_schema.as_ref().map(without_widths);
        }
        Self { session, router, newest }
    }
}

/// A schema without the widths of integers: they are no formats of JSON Schema, and validators complain of them.
fn without_widths(schema: &Arc<JsonObject>) -> Arc<JsonObject> {
    fn strip(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                if fields
                    .get("format")
                    .and_then(|format| format.as_str())
                    .is_some_and(|format| format.contains("int"))
                {
                    fields.remove("format");
                }
                fields.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = schema.as_ref().clone();
    schema.values_mut().for_each(strip);
    Arc::new(schema)
}

fn info(sandbox: Sandbox, default: bool) -> SandboxInfo {
    SandboxInfo {
        id: sandbox.id,
        name: sandbox.name,
        state: sandbox.state.to_string(),
        image: sandbox.image,
        isolation: sandbox.isolation.to_string(),
        default,
    }
}

#[tool_router]
impl Tools {
    /// Makes a further sandbox. You need this only for a second one: the first is made by itself when a tool needs it.
    #[tool(annotations(
        title = "Create a sandbox",
        read_only_hint = false,
        destructive_hint = false,
        open_world_hint = false
    ))]
    async fn create_sandbox(
        &self,
        Parameters(params): Parameters<CreateParams>,
    ) -> Result<Json<SandboxInfo>> {
        let (sandbox, default) = self.session.create(params.name).await?;
        Ok(Json(info(sandbox, default)))
    }

    /// Lists the sandboxes of this session.
    #[tool(annotations(title = "List sandboxes", read_only_hint = true, open_world_hint = false))]
    async fn list_sandboxes(&self) -> Result<Json<SandboxInfos>> {
        let list = self.session.list().await?;
        Ok(Json(SandboxInfos {
            sandboxes: list.into_iter().map(|(sandbox, default)| info(sandbox, default)).collect(),
        }))
    }

    /// Removes a sandbox with everything in it.
    #[tool(annotations(
        title = "Delete a sandbox",
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn delete_sandbox(&self, Parameters(params): Parameters<DeleteParams>) -> Result<Json<Deleted>> {
        self.session.delete(&params.sandbox).await?;
        Ok(Json(Deleted { sandbox: params.sandbox }))
    }

    /// Runs a command line in a shell, waits until it ends, and gives its output and exit code. Of long output the
    /// beginning and the end are shown.
    #[tool(annotations(title = "Run a command", destructive_hint = true, open_world_hint = true))]
    async fn run(
        &self,
        Parameters(params): Parameters<RunParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<Json<Ended>> {
        run::run(&self.session, params, &context).await.map(Json)
    }

    /// Starts a command line in a shell and does not wait: for servers and long work. It goes on between calls.
    #[tool(annotations(title = "Start a command", destructive_hint = true, open_world_hint = true))]
    async fn start(&self, Parameters(params): Parameters<StartParams>) -> Result<Json<Started>> {
        run::start(&self.session, params).await.map(Json)
    }

    /// Reads output of a command from an offset on, also after it has ended.
    #[tool(annotations(title = "Read output", read_only_hint = true, open_world_hint = false))]
    async fn read_output(
        &self,
        Parameters(params): Parameters<ReadOutputParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<Json<Output>> {
        run::read_output(&self.session, params, &context).await.map(Json)
    }

    /// Kills a command with everything it started, or sends it a signal.
    #[tool(annotations(
        title = "Stop a command",
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn stop(&self, Parameters(params): Parameters<StopParams>) -> Result<Json<Stopped>> {
        run::stop(&self.session, params).await.map(Json)
    }

    /// Reads a file, or a piece of one.
    #[tool(annotations(title = "Read a file", read_only_hint = true, open_world_hint = false))]
    async fn read_file(&self, Parameters(params): Parameters<ReadFileParams>) -> Result<Json<FileContent>> {
        files::read(&self.session, params).await.map(Json)
    }

    /// Writes a file, in place of what is there.
    #[tool(annotations(
        title = "Write a file",
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn write_file(&self, Parameters(params): Parameters<WriteFileParams>) -> Result<Json<FileWritten>> {
        files::write(&self.session, params).await.map(Json)
    }

    /// Lists a directory.
    #[tool(annotations(title = "List files", read_only_hint = true, open_world_hint = false))]
    async fn list_files(&self, Parameters(params): Parameters<ListFilesParams>) -> Result<Json<Files>> {
        files::list(&self.session, params).await.map(Json)
    }

    /// Gives an address under which a TCP port of the sandbox is reached from outside, for whoever has the address.
    #[tool(annotations(title = "Expose a port", destructive_hint = false, open_world_hint = true))]
    async fn expose_port(&self, Parameters(params): Parameters<ExposeParams>) -> Result<Json<Exposed>> {
        let sandbox = self.session.sandbox(params.sandbox.as_deref()).await?;
        let minutes = params.minutes.unwrap_or(PORT_MINUTES).clamp(1, PORT_MAX_MINUTES);
        let create = CreateAccess {
            port: Some(params.port),
            name: Some("mcp".to_owned()),
            ttl_ms: Some(u64::from(minutes) * 60_000),
            ..CreateAccess::default()
        };
        match self.session.client.create_access(&sandbox, &create).await {
            Ok(created) => Ok(Json(Exposed {
                link: created.link.reveal().to_owned(),
                url: created.access.url,
                header: "X-Atoll-Token".to_owned(),
                token: created.token.map(|token| token.reveal().to_owned()),
            })),
            Err(error) => Err(self.session.explain(&sandbox, error).await),
        }
    }

    /// Notes the state of the sandbox's files, to compare with it or go back to it. Running commands go on.
    #[tool(annotations(
        title = "Take a snapshot",
        read_only_hint = false,
        destructive_hint = false,
        open_world_hint = false
    ))]
    async fn snapshot(&self, Parameters(params): Parameters<SnapshotParams>) -> Result<Json<Snapshotted>> {
        let sandbox = self.session.sandbox(params.sandbox.as_deref()).await?;
        let create = CreateCheckpoint { comment: params.comment };
        match self.session.client.create_checkpoint(&sandbox, &create).await {
            Ok(taken) => Ok(Json(Snapshotted { sandbox, snapshot: taken.checkpoint })),
            Err(error) => Err(self.session.explain(&sandbox, error).await),
        }
    }

    /// Puts the sandbox's files back to a snapshot. What runs in it ends, and what was written since is gone.
    #[tool(annotations(
        title = "Roll back",
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn rollback(&self, Parameters(params): Parameters<RollbackParams>) -> Result<Json<Snapshotted>> {
        let sandbox = self.session.sandbox(params.sandbox.as_deref()).await?;
        match self.session.client.rollback_sandbox(&sandbox, Some(&params.to.to_string())).await {
            Ok(back) => Ok(Json(Snapshotted { sandbox, snapshot: back.to.checkpoint })),
            Err(error) => Err(self.session.explain(&sandbox, error).await),
        }
    }

    /// Shows which files were added, changed and removed since a snapshot, or between two.
    #[tool(annotations(title = "Compare", read_only_hint = true, open_world_hint = false))]
    async fn diff(&self, Parameters(params): Parameters<DiffParams>) -> Result<Json<Changes>> {
        let sandbox = self.session.sandbox(params.sandbox.as_deref()).await?;
        let from = params.from.to_string();
        let to = params.to.map_or_else(|| "now".to_owned(), |to| to.to_string());
        let found = self.session.client.diff_sandbox(&sandbox, Some(&from), Some(&to), params.text).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => return Err(self.session.explain(&sandbox, error).await),
        };
        let mut truncated = found.truncated || found.changes.len() > CHANGES_COUNT;
        let mut room = CHANGES_TEXT_BYTES;
        let changes = found.changes.into_iter().take(CHANGES_COUNT).map(|change| {
            let text = change.text.filter(|text| {
                let fits = text.len() <= room;
                room = room.saturating_sub(text.len());
                truncated |= !fits;
                fits
            });
            FileChange { path: change.path, change: name(&change.kind), kind: name(&change.entry), text }
        });
        let changes = changes.collect();
        Ok(Json(Changes { changes, truncated }))
    }
}

#[tool_handler(router = self.router)]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let server = Implementation::new("atoll", env!("CARGO_PKG_VERSION")).with_title("Atoll");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&self.newest))
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        let resources = resources::list(&self.session).await.map_err(|error| error.protocol())?;
        Ok(ListResourcesResult { resources, ..ListResourcesResult::default() })
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult {
            resource_templates: resources::templates(),
            ..ListResourceTemplatesResult::default()
        })
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        let contents =
            resources::read(&self.session, &request.uri).await.map_err(|error| error.protocol())?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}
