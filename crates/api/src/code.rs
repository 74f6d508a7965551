//! Contexts of a sandbox's code interpreter, and cells: code that is run in them.

use std::collections::BTreeMap;

use atoll_core::Result;
use atoll_core::code::{CellDraft, CellEventKind, CellState, ContextSpec};
use atoll_core::spec::IdempotencyKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Makes a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateContext {
    /// A name of yours, unique in the sandbox: 1 to 63 lower-case letters, digits and hyphens. If the sandbox has the same
    /// context with it already, that is the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its language; `python` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Where its cells begin; the home of the interpreter's user when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables of each of its cells.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl CreateContext {
    /// The name, and the spec that this request means.
    #[must_use]
    pub fn into_spec(self) -> (Option<String>, ContextSpec) {
        let language = self.language.unwrap_or_else(|| "python".to_owned());
        (self.name, ContextSpec { language, cwd: self.cwd, env: self.env })
    }
}

/// A context: it remembers what its cells did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// Its id.
    pub id: String,
    /// The sandbox whose interpreter it is of.
    pub sandbox: String,
    /// The name that it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its language.
    pub language: String,
    /// Where its cells begin; the home of the interpreter's user when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// The contexts of a sandbox, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextList {
    /// All of them.
    pub items: Vec<Context>,
}

/// Runs code in a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCell {
    /// The code: at most 512 KiB.
    pub code: String,
    /// Variables on top of the context's, for this cell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Interrupt it this long after it was asked for; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// A second request with the same key in the same sandbox returns the first cell. Execs and cells share their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Wait up to this long for its end (at most 60,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

impl RunCell {
    /// What is to be run.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] for a key that is none.
    pub fn into_draft(self) -> Result<CellDraft> {
        let Self { code, env, timeout_ms, idempotency_key, wait_ms: _ } = self;
        let idempotency_key = idempotency_key.map(IdempotencyKey::client).transpose()?;
        Ok(CellDraft { code, env, timeout_ms, idempotency_key })
    }
}

/// A cell: code that a context runs, or has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cell {
    /// Its id, which is the one of the exec that it is.
    pub id: String,
    /// The context that runs it.
    pub context: String,
    /// Where it is.
    pub state: CellState,
    /// What ended a cell that `failed`: such as `interpreter_missing`, `killed`, `out_of_memory`, `sandbox_paused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many cells its kernel has run, with this one; once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<u64>,
    /// BLAKE3 of the code.
    pub code_digest: String,
    /// Length of the code.
    pub code_bytes: u64,
    /// When it was asked for.
    pub created_at_ms: u64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Id of the key that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
}

/// A cell, with its events where that was asked for and they are few.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellWithEvents {
    /// The cell.
    pub cell: Cell,
    /// All events, when the cell ended within `wait_ms` and said at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<CellEvent>>,
}

/// A page of cells, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellList {
    /// The page; it may be empty and not the last.
    pub items: Vec<Cell>,
    /// Pass it as `cursor` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Something that a cell said, or that happened to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellEvent {
    /// Rises from event to event, not by one.
    pub number: u64,
    /// What it is about.
    pub kind: CellEventKind,
    /// What it says: an object whose fields depend on the kind.
    #[schema(value_type = Object)]
    pub data: Value,
}

/// Events of a cell after a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellEventPage {
    /// The events, in order.
    pub items: Vec<CellEvent>,
    /// Ask after this number next.
    pub next_after: u64,
    /// Nothing more will come.
    pub ended: bool,
}
