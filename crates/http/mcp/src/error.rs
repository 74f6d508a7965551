//! Why a tool failed, as the model reads it.

use atoll_api::ErrorBody;
use atoll_client::ClientError;
use atoll_core::{Code, Error};
use rmcp::ErrorData;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, MetaObject};

/// Where the error stands for machines, in the result's `_meta`.
const META_KEY: &str = "atoll/error";

/// A failure of a tool: the call itself was well-formed, so it is a result with `isError`, which models see, and not an
/// error of the protocol, which they often do not.
#[derive(Debug)]
pub(crate) struct ToolError(ErrorBody);

/// Shorthand of the tools.
pub(crate) type Result<T, E = ToolError> = std::result::Result<T, E>;

impl ToolError {
    /// A failure that only this program knows.
    pub(crate) fn new(code: Code, message: impl Into<String>, hint: &str) -> Self {
        Self(Error::new(code, message).hint(hint).into())
    }

    /// Why, for machines.
    pub(crate) const fn code(&self) -> Code {
        self.0.code
    }

    /// The same failure with other advice.
    pub(crate) fn advise(mut self, hint: &str) -> Self {
        self.0.hint = Some(hint.to_owned());
        self
    }

    /// `code: message`, and in a second line what to do.
    pub(crate) fn text(&self) -> String {
        let ErrorBody { code, message, hint, .. } = &self.0;
        match hint {
            Some(hint) => format!("{code}: {message}\nhint: {hint}"),
            None => format!("{code}: {message}"),
        }
    }

    /// As an error of the protocol, for what is not a tool.
    pub(crate) fn protocol(&self) -> ErrorData {
        let data = serde_json::to_value(&self.0).ok();
        if matches!(self.0.code, Code::SandboxNotFound | Code::ExecNotFound | Code::FileNotFound) {
            return ErrorData::resource_not_found(self.text(), data);
        }
        ErrorData::invalid_params(self.text(), data)
    }
}

impl From<ClientError> for ToolError {
    fn from(error: ClientError) -> Self {
        Self(error.to_body())
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self(error.into())
    }
}

impl IntoCallToolResult for ToolError {
    fn into_call_tool_result(self) -> std::result::Result<CallToolResponse, ErrorData> {
        let mut result = CallToolResult::error(vec![ContentBlock::text(self.text())]);
        if let Ok(body) = serde_json::to_value(&self.0) {
            let mut meta = MetaObject::new();
            meta.0.insert(META_KEY.to_owned(), body);
            result.meta = Some(meta);
        }
        Ok(result.into())
    }
}
