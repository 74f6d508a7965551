//! Trying a template out before there is a version of it: a sandbox is made as the template says, what it starts has to
//! get ready, and the sandbox goes away. So a start command that cannot work fails the build, with what it wrote, and
//! not every later creation of a sandbox.

use std::time::Duration;

use atoll_core::build::{BuildFailure, StepState};
use atoll_core::exec::OutputStream;
use atoll_core::id::{SandboxId, TemplateId};
use atoll_core::spec::{SandboxDraft, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_store::TemplateRecord;

use super::run::{Numbered, Run};
use crate::clock::random;

/// How long a start command is watched where nothing says when it is ready.
const LOOK: Duration = Duration::from_secs(1);
/// And where something does: what it wrote when it got ready may still be on its way, or its end.
const LOOK_READY: Duration = Duration::from_millis(100);

impl Run<'_> {
    /// Makes a sandbox of the template, and deletes it.
    ///
    /// # Errors
    /// [`Code::StartFailed`] with what the start command wrote last; any other error that keeps a sandbox from being
    /// made.
    pub(super) async fn verify(
        &self,
        template: &TemplateSpec,
        numbered: &Numbered<'_>,
    ) -> Result<(), BuildFailure> {
        self.step(numbered, StepState::Started, None).await?;
        let started = self.clock().instant();
        match self.try_out(template, numbered).await {
            Ok(()) => Ok(self.step(numbered, StepState::Done, Some(started)).await?),
            Err(error) => {
                self.step(numbered, StepState::Failed, Some(started)).await?;
                Err(BuildFailure { step: Some(numbered.text().to_owned()), ..BuildFailure::from(error) })
            }
        }
    }

    async fn try_out(&self, template: &TemplateSpec, numbered: &Numbered<'_>) -> Result<()> {
        let created_ms = self.clock().now_ms();
        let record = TemplateRecord {
            id: TemplateId::from_parts(created_ms, random()?),
            name: self.spec.name.clone(),
            // No version has this number.
            version: 0,
            spec: template.clone(),
            created_ms,
            created_by: self.caller.key.clone(),
        };
        // Known as this build's: it goes with the build, however that ends.
        let draft = SandboxDraft { build: Some(self.live.id.clone()), ..SandboxDraft::default() };
        let sandbox = Box::pin(self.engine.create_from(draft, Some(record), None, self.caller)).await?.id;
        let outcome = self.watch(&sandbox, template, numbered).await;
        self.engine.delete_sandbox(&sandbox).await?;
        outcome
    }

    /// What the start command wrote so far goes to the log; that it failed is an error.
    async fn watch(
        &self,
        sandbox: &SandboxId,
        template: &TemplateSpec,
        numbered: &Numbered<'_>,
    ) -> Result<()> {
        let Some(exec) = self.engine.start_exec(sandbox).await? else { return Ok(()) };
        let exec = exec.record.id.to_string();
        let look = if template.ready.is_some() { LOOK_READY } else { LOOK };
        let exit = self.engine.wait_exec(sandbox, &exec, look).await?.record.exit;
        if let Some(code) = exit.map(|exit| exit.code)
            && code != Some(0)
        {
            let how = code.map_or_else(|| "without a code".to_owned(), |code| format!("with code {code}"));
            let error = Error::new(Code::StartFailed, format!("the start command ended {how}"));
            return Err(self.engine.explain(sandbox, "the start command", &exec, error).await);
        }
        let mut said = self.engine.said_last(sandbox, &exec).await?;
        if !said.is_empty() {
            said.push('\n');
        }
        self.output(numbered, OutputStream::Stdout, said).await
    }
}
