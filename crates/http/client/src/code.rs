//! Contexts of a sandbox's code interpreter, and cells.

use atoll_api::{
    Cell, CellEventPage, CellList, CellWithEvents, Context, ContextList, CreateContext, RunCell,
};
use http::Method;

use crate::{Client, Result};

/// A context is named by its id or name, a cell by its id, a sandbox by id or name.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a context, or finds the one of its name.
    pub async fn create_context(&self, sandbox: &str, create: &CreateContext) -> Result<Context> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["contexts"]), create).await
    }

    /// All contexts of a sandbox.
    pub async fn list_contexts(&self, sandbox: &str) -> Result<ContextList> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["contexts"]))).await
    }

    /// One context.
    pub async fn get_context(&self, sandbox: &str, context: &str) -> Result<Context> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["contexts", context]))).await
    }

    /// Gives it a new kernel.
    pub async fn restart_context(&self, sandbox: &str, context: &str) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "restart"]);
        self.call_empty(self.request(Method::POST, target)).await
    }

    /// Interrupts its cells.
    pub async fn interrupt_context(&self, sandbox: &str, context: &str) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "interrupt"]);
        self.call_empty(self.request(Method::POST, target)).await
    }

    /// Ends it.
    pub async fn delete_context(&self, sandbox: &str, context: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.in_sandbox(sandbox, &["contexts", context]))).await
    }

    /// Runs code in it.
    pub async fn run_cell(&self, sandbox: &str, context: &str, run: &RunCell) -> Result<CellWithEvents> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "cells"]);
        let request = self.request(Method::POST, target).json(run);
        self.call_waiting(request, run.wait_ms.unwrap_or(0)).await
    }

    /// One page of its cells, newest first.
    pub async fn list_cells(&self, sandbox: &str, context: &str, cursor: Option<&str>) -> Result<CellList> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "cells"]).maybe("cursor", cursor);
        self.call(self.request(Method::GET, target)).await
    }

    /// One cell. Waits up to `wait_ms` (at most 60,000) for its end.
    pub async fn get_cell(&self, sandbox: &str, context: &str, cell: &str, wait_ms: u64) -> Result<Cell> {
        let target =
            self.in_sandbox(sandbox, &["contexts", context, "cells", cell]).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }

    /// Interrupts a cell.
    pub async fn interrupt_cell(&self, sandbox: &str, context: &str, cell: &str) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "cells", cell, "interrupt"]);
        self.call_empty(self.request(Method::POST, target)).await
    }

    /// Events after a number. Waits up to `wait_ms` (at most 60,000) when there are none yet.
    pub async fn cell_events(
        &self,
        sandbox: &str,
        context: &str,
        cell: &str,
        after: u64,
        wait_ms: u64,
    ) -> Result<CellEventPage> {
        let target = self.in_sandbox(sandbox, &["contexts", context, "cells", cell, "events"]);
        let target = target.query("after", after).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }
}
