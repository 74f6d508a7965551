//! What the actor finds when the server starts: a sandbox that an earlier process made. Its network and its execs are
//! taken up, and its guest is connected to, as far as the sandbox runs; one that was half way to disk is put there.

use super::*;

impl Actor {
    /// Takes up the execs of a sandbox that an earlier process froze. Nothing is asked of its guest, which could
    /// not answer: sessions wait for the connection that the resume makes.
    pub(super) async fn take_up_frozen(&mut self) {
        self.shared.set_frozen(true);
        self.unlinked = true;
        self.take_up_network().await;
        let taken_up = async {
            usage::load(&self.inner, &self.shared, &self.record).await?;
            exec::enter_open(&self.inner, &self.shared).await
        };
        if let Err(error) = taken_up.await.map(drop) {
            self.fail(&error.message).await;
        }
    }

    /// Makes sure that nothing but the disk, and the memory if that was kept, is there: an earlier process may have been about to put it there, or
    /// to wake it.
    pub(super) async fn take_up_hibernated(&mut self) {
        if let Err(error) = usage::load(&self.inner, &self.shared, &self.record).await {
            tracing::error!(sandbox = %self.record.id, %error, "what it used before is not known");
        }
        let mode = self.record.paused.unwrap_or(PauseMode::Filesystem);
        let put = if mode == PauseMode::Memory {
            // Nothing has a session yet, should it turn out that there is no memory any more.
            self.unentered = true;
            let put = self.put_to_sleep().await;
            if self.record.paused == Some(PauseMode::Memory) {
                self.take_up_asleep().await;
            } else {
                self.take_up_logs().await;
            }
            if put.is_ok() {
                self.begin_keeping();
            }
            put
        } else {
            let (id, now) = (&self.record.id, self.inner.now_ms());
            let ended = self.inner.store.end_execs(id, &Exit::sandbox_paused(), now).await;
            if let Err(error) = ended {
                tracing::error!(sandbox = %self.record.id, %error, "ended execs could not be recorded");
            }
            let put = self.put_to_disk(mode).await;
            self.take_up_logs().await;
            put
        };
        if let Err(error) = put {
            tracing::error!(sandbox = %self.record.id, %error, "a sandbox could not be put to disk");
            if error.code == Code::SandboxFailed {
                self.fail("its disk is gone").await;
            }
        }
    }

    /// Takes up the execs of a sandbox that is put to disk with its memory: they go on when it is woken. Their output must
    /// be here before, because each session goes on where that ends; without it they stay without sessions.
    async fn take_up_asleep(&mut self) {
        if !self.take_up_logs().await {
            return;
        }
        self.unentered = false;
        if let Err(error) = exec::enter_open(&self.inner, &self.shared).await {
            tracing::error!(sandbox = %self.record.id, %error, "its execs could not be taken up");
        }
    }

    /// Opens the network again, when it is this sandbox's turn: turns are given once the server has found all that there is.
    pub(super) async fn take_up_network(&self) {
        let turn = self.inner.shutdown.run_until_cancelled(self.inner.network_turns.acquire()).await;
        // It is not opened when the server stops before.
        let Some(Ok(_turn)) = turn else { return };
        if let Err(error) = self.inner.open_network(&self.shared).await {
            // It goes on without a network: closed, not open.
            tracing::error!(sandbox = %self.record.id, %error, "the network of a sandbox could not be taken up");
        }
    }

    /// Connects to a guest that an earlier process made and takes up its execs. The guest may let that take long: it is
    /// given up when somebody wants the sandbox deleted.
    pub(super) async fn take_up(&mut self) {
        self.take_up_network().await;
        let taken_up = tokio::select! {
            biased;
            // Nothing is lost: the next process takes it up.
            () = self.inner.shutdown.cancelled() => return,
            taken_up = async {
                // Also of one that is about to be deleted: what it used is told with its end.
                usage::load(&self.inner, &self.shared, &self.record).await?;
                self.shared.unless_unwanted(self.meet_guest()).await
            } => taken_up,
        };
        if let Err(error) = taken_up {
            self.fail(&error.message).await;
            // Execs that were not taken up have no session that ends them.
            exec::wait_ended(&self.shared).await;
            if let Err(error) = self.inner.store.lose_execs(&self.record.id, self.inner.now_ms()).await {
                tracing::error!(sandbox = %self.record.id, %error, "lost execs could not be recorded");
            }
        }
    }

    async fn meet_guest(&self) -> Result<()> {
        let client = link::connect_awake(&self.shared).await?;
        self.start_link(client);
        let open = exec::enter_open(&self.inner, &self.shared).await?;
        exec::tidy_up_but(&self.shared, &open).await
    }

    /// Takes up the rest of a sandbox that stands still with all others, once it does not. Says whether it was deleted
    /// before.
    pub(super) async fn go_on_when_there_is_room(&mut self) -> bool {
        let inner = Arc::clone(&self.inner);
        loop {
            let message = tokio::select! {
                biased;
                () = inner.shutdown.cancelled() => return true,
                message = self.inbox.next() => message,
                () = inner.disk.wait_for(false) => break,
            };
            match message {
                None => return true,
                Some(Message::Delete(reply)) => {
                    let outcome = self.delete().await;
                    let done = outcome.is_ok();
                    answer(reply, outcome);
                    if done {
                        return true;
                    }
                }
                Some(message) => message.refuse(inner.disk.check()),
            }
        }
        self.shared.set_frozen(false);
        let linked = async {
            let client = link::connect_awake(&self.shared).await?;
            self.start_link(client);
            exec::tidy_up(&self.inner, &self.shared).await
        };
        match linked.await {
            Ok(()) => self.unlinked = false,
            Err(error) => self.fail(&error.message).await,
        }
        false
    }
}
