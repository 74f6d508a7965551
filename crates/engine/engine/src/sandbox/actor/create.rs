//! Coming into being: made, gone on from a template's memory, or taken over from a pool.

use super::*;
use crate::projects::stored_in;
use crate::sandbox::teardown::remove_logs;

impl Actor {
    /// Publishes how the creation ended; undoes what failed. Says whether nothing is left of it.
    pub(super) async fn undone(&mut self, made: Result<()>) -> bool {
        let Err(error) = made else {
            self.shared.set_made(Ok(()));
            return false;
        };
        tracing::info!(sandbox = %self.record.id, %error, "a sandbox could not be made");
        let undone = self.undo_create().await;
        self.shared.set_made(Err(error));
        undone
    }

    /// Gives a member of a pool its identity. No process, mount or namespace is made, and one small commit
    /// is waited for.
    pub(super) async fn claim(&mut self, member: Member, plan: &Plan) -> Result<()> {
        atoll_failpoint::fail_point!("engine.claim.taken");
        let spec = &self.record.spec;
        let driver = Arc::clone(self.shared.driver());
        let named = plan.hostname != member.id.as_str();
        let recipe = Arc::clone(&member.recipe);
        let exec = match member.ahead {
            Some(ahead) => {
                let exec = ahead.hand_over().await;
                let idempotency_key = self.shared.services.begin_start(&self.record.boot_id);
                Some(ExecRecord { started_by: self.record.owner.clone(), idempotency_key, ..exec })
            }
            None => None,
        };
        let identify = async {
            if named {
                driver.rename(&member.id, &plan.hostname).await.map_err(|error| isolation_error(&error))?;
            }
            if spec.resources != recipe.plan.resources {
                driver.update(&member.id, &spec.resources).await.map_err(|error| isolation_error(&error))?;
            }
            Ok(())
        };
        let configure = async {
            if named || recipe.differs_inside(spec) {
                self.configure(&member.client, plan).await
            } else {
                Ok(())
            }
        };
        let network = async {
            // Where something was started it is open, with the same policy.
            if member.started { Ok(()) } else { self.inner.open_network(&self.shared).await }
        };
        let identified = async { tokio::try_join!(identify, configure, network) };
        self.inner.disk.unless_full(identified).await?;
        atoll_failpoint::fail_point!("engine.claim.identified");
        let record = SandboxRecord { state: SandboxState::Running, ..self.record.clone() };
        self.insert(&record, exec.as_ref()).await?;
        self.inner.store_held_secrets(&record).await?;
        atoll_failpoint::fail_point!("engine.claim.committed");
        self.record = record;
        if member.started {
            usage::begin_claimed(&self.inner, &self.shared).await;
            self.shared.set_started_ahead();
        } else {
            usage::begin(&self.inner, &self.shared);
        }
        self.shared.publish(self.record.clone());
        self.start_link(member.client);
        if let Some(exec) = exec {
            self.enter_started(exec).await?;
        }
        Ok(())
    }

    /// The member could not be used: makes a sandbox in its place, under the same id.
    pub(super) async fn create_instead(&mut self, plan: &Plan, why: Error) -> Result<()> {
        tracing::warn!(sandbox = %self.record.id, error = %why, "a member of a pool could not be used");
        remove(&self.inner, self.shared.driver().as_ref(), &self.record.id).await?;
        self.create(plan, None).await
    }

    /// Writes a new sandbox down, with its visibility and the services that it begins with.
    async fn insert(&self, record: &SandboxRecord, exec: Option<&ExecRecord>) -> Result<()> {
        let visibility = self.inner.acl.get(&record.id).visibility;
        let services = self.shared.services.records();
        let stored = self.inner.store.insert_sandbox_with(record, visibility, exec, &services).await;
        stored.map_err(|error| stored_in(record.project.as_ref(), error))
    }

    /// The creation saga. Its only undo is [`Self::undo_create`], no matter which step failed.
    pub(super) async fn create(&mut self, plan: &Plan, saved: Option<Arc<Saved>>) -> Result<()> {
        atoll_failpoint::fail_point!("engine.create.before");
        let inner = Arc::clone(&self.inner);
        let _foreground = inner.pools.foreground();
        let _turn = inner
            .creates
            .acquire()
            .await
            .or(Err(Error::new(Code::ShuttingDown, "the server is shutting down")))?;
        self.insert(&self.record, None).await?;
        inner.store_held_secrets(&self.record).await?;
        atoll_failpoint::fail_point!("engine.create.journalled");
        let (client, running) = match saved {
            Some(saved) => self.boot_or_go_on(plan, saved).await?,
            None => (self.boot(plan).await?, None),
        };
        if let Some(exec) = &running {
            inner.store.insert_exec(exec).await.map_err(store_error)?;
            if let Some(start) = self.shared.services.start_record() {
                inner.store.set_service_status(&start.id, &start.status).await.map_err(store_error)?;
            }
            atoll_failpoint::fail_point!("engine.create.carried");
        }
        self.begin().await?;
        atoll_failpoint::fail_point!("engine.create.committed");
        usage::begin(&self.inner, &self.shared);
        self.start_link(client);
        if let Some(exec) = running {
            self.shared.set_started_ahead();
            self.enter_started(exec).await?;
        }
        Ok(())
    }

    /// It runs. Its life is counted from now: a level that takes seconds to start takes none of it.
    async fn begin(&mut self) -> Result<()> {
        let took_ms = self.inner.now_ms().saturating_sub(self.record.created_ms);
        let expires_ms = self.record.expires_ms.map(|end| end.saturating_add(took_ms));
        let generation =
            self.inner.store.begin_sandbox(&self.record.id, expires_ms).await.map_err(store_error)?;
        self.record.generation = generation;
        self.record.state = SandboxState::Running;
        self.record.expires_ms = expires_ms;
        self.shared.publish(self.record.clone());
        Ok(())
    }

    /// Makes the instance, opens its network and tells its guest what it is.
    async fn boot(&self, plan: &Plan) -> Result<GuestClient> {
        let inner = &self.inner;
        self.shared.driver().create(plan).await.map_err(|error| isolation_error(&error))?;
        atoll_failpoint::fail_point!("engine.create.isolated");
        inner.open_network(&self.shared).await?;
        atoll_failpoint::fail_point!("engine.create.networked");
        inner.disk.unless_full(self.meet(plan)).await
    }

    /// Connects to the guest of a new instance and tells it what it is.
    async fn meet(&self, plan: &Plan) -> Result<GuestClient> {
        let client = tokio::select! {
            client = link::connect(self.shared.driver().as_ref(), &self.record.id) => client?,
            () = self.inner.shutdown.cancelled() => {
                return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
            }
        };
        atoll_failpoint::fail_point!("engine.create.connected");
        self.introduce(&client, plan).await?;
        atoll_failpoint::fail_point!("engine.create.configured");
        Ok(client)
    }

    /// The same, from a memory in which what the template starts runs and is ready: that is an exec, whose row is given.
    /// Boots when the memory cannot be used.
    async fn boot_or_go_on(
        &self,
        plan: &Plan,
        saved: Arc<Saved>,
    ) -> Result<(GuestClient, Option<ExecRecord>)> {
        let error = match self.go_on_from(plan, &saved).await {
            Ok((client, exec)) => {
                self.inner.memories.worked(self.record.spec.template.as_deref());
                return Ok((client, Some(exec)));
            }
            Err(error) => error,
        };
        let id = &self.record.id;
        tracing::warn!(sandbox = %id, %error, "a sandbox cannot go on from its template's memory");
        self.inner.memories.failed(saved, &error, self.inner.now_ms());
        self.inner.gateway.detach(id);
        destroy(self.shared.driver().as_ref(), id).await?;
        remove_logs(&self.inner, id).await?;
        Ok((self.boot(plan).await?, None))
    }

    async fn go_on_from(&self, plan: &Plan, saved: &Saved) -> Result<(GuestClient, ExecRecord)> {
        let owner = self.record.owner.as_ref();
        let (plan, exec) = saved.begin(plan, &self.record.spec, owner, self.inner.now_ms())?;
        let client = self.boot(&plan).await?;
        saved.give_log(&self.inner, &exec).await?;
        let idempotency_key = self.shared.services.begin_start(&self.record.boot_id);
        Ok((client, ExecRecord { idempotency_key, ..exec }))
    }

    /// Takes up an exec that ran before its sandbox was there.
    async fn enter_started(&self, exec: ExecRecord) -> Result<()> {
        self.shared.meter.count_exec(exec.started_by.as_ref());
        self.shared.services.started_ahead(&exec.id);
        exec::enter_started(&self.inner, &self.shared, exec).await
    }

    /// Says whether nothing is left. If something is, it is a sandbox being deleted from now on.
    async fn undo_create(&mut self) -> bool {
        self.shared.dead.cancel();
        let id = self.record.id.clone();
        self.inner.gateway.detach(&id);
        let Err(error) = remove(&self.inner, self.shared.driver().as_ref(), &id).await else {
            self.inner.leave(&id);
            return true;
        };
        tracing::error!(sandbox = %id, %error, "a failed creation could not be undone yet");
        if let Err(error) = self.move_to(SandboxState::Deleting, None).await {
            // The row, if there is one, says `creating`: the next start would finish this, too.
            tracing::error!(sandbox = %id, %error, "nor could that be recorded");
            self.record.state = SandboxState::Deleting;
            self.shared.publish(self.record.clone());
        }
        false
    }
}
