//! A session with an agent that serves HTTP: finding its server, giving it messages, hearing what it says.
//!
//! The server is a service of the sandbox, one for all sessions. So a run of a session lasts for one message: it begins
//! when there is one, waits until the service is ready, and ends with it. What is asked of the server stands in the outbox, and one
//! request after the other goes; beside that one answer is listened to, line by line. When a connection breaks, or another process of
//! the server goes on, the adapter says how that is made good.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::agent::{EventKind, HttpRequest, Input, NewEvent, Serves, TurnEnd, joined};
use atoll_core::exec::Exit;
use atoll_core::service::ServiceState;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestPortStream;
use atoll_served::{Answer, Ask, Failure, Heard, LINE_MAX_BYTES, Stream};
use serde_json::json;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::sandbox::SandboxShared;
use crate::service::ServiceUse;

use super::Wish;
use super::driver::{CANCEL_WAIT, Driver, RETRY};
use super::run::{at, how_it_ended};

/// How long a server that is ready may refuse connections before the message counts as failed.
const UNREACHABLE: Duration = Duration::from_secs(60);
/// Pause before a service whose run has just ended is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Longest that a connection to a port may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Longest that one request of the outbox may take, and how often it is tried.
const ASK_WAIT: Duration = Duration::from_secs(60);
const ASK_TRIES: u32 = 3;
/// What a server is told at most when its session is removed.
const FAREWELL_WAIT: Duration = Duration::from_secs(5);
/// Lines that are taken at once.
const LINES_MAX_COUNT: usize = 200;

type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer that is listened to.
enum Ear {
    /// Not before this.
    Off(Instant),
    Connecting(Doing<Result<GuestPortStream>>),
    Asking(Doing<Result<Stream, Failure>>),
    Open(Box<Stream>),
}

/// What happened to it.
enum News {
    Try,
    Connected(Result<GuestPortStream>),
    Begun(Result<Stream, Failure>),
    Heard(Heard),
}

/// A run of a session with a server.
struct Served {
    /// The service's run that it is with.
    exec: String,
    ear: Ear,
    /// The first request of the outbox, under way.
    asking: Option<Doing<Answer>>,
    /// Since when nothing was reached.
    unreached: Instant,
    /// As long as it is held the service is not restarted for a new version of its program.
    _using: ServiceUse,
}

impl Ear {
    /// What happens next. To give up waiting loses nothing.
    async fn next(&mut self, wanted: bool) -> News {
        match self {
            Self::Off(_) if !wanted => std::future::pending().await,
            Self::Off(until) => {
                tokio::time::sleep_until(*until).await;
                News::Try
            }
            Self::Connecting(doing) => News::Connected(doing.await),
            Self::Asking(doing) => News::Begun(doing.await),
            Self::Open(stream) => News::Heard(stream.next().await),
        }
    }

    fn off() -> Self {
        Self::Off(Instant::now() + RETRY)
    }
}

impl Driver {
    /// Stays with the server until it is done with the message.
    pub(super) async fn attend_served(&mut self, serves: &Serves) -> ControlFlow<()> {
        self.take_up();
        let using = match self.until_ready(serves).await {
            Ok(using) => using,
            Err(next) => return next,
        };
        // The one that an earlier process of the server was with may have ended.
        let exec = self.status.serving.clone().filter(|_| self.status.turn.is_some());
        let exec = exec.unwrap_or_else(|| using.exec.to_string());
        self.status.serving = Some(exec.clone());
        let now = Instant::now();
        let mut served = Served { exec, ear: Ear::Off(now), asking: None, unreached: now, _using: using };
        let (engine, sandbox) = (self.engine.clone(), Arc::clone(&self.sandbox));
        let exec = served.exec.clone();
        let mut ended = std::pin::pin!(exec_end(&engine, &sandbox, &exec));
        loop {
            if !self.status.given {
                self.deliver(&served.exec).await;
            }
            if self.status.turn.is_none() {
                // It is done with the message, or that was not to be had.
                self.status.end_run();
                self.commit(Vec::new()).await;
                return ControlFlow::Continue(());
            }
            self.begin_asking(&mut served, serves.port);
            let wanted = self.status.adapter.listens().is_some();
            let Served { ear, asking, .. } = &mut served;
            let answered = async {
                match asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                wish = self.inbox.recv() => {
                    let Some(wish) = wish else { return ControlFlow::Break(()) };
                    if matches!(wish, Wish::Remove(_)) {
                        self.farewell(serves.port).await;
                    }
                    if self.obey(wish, None).await.is_break() {
                        return ControlFlow::Break(());
                    }
                }
                answer = answered => {
                    served.asking = None;
                    self.status.outbox.drain(..self.status.outbox.len().min(1));
                    let output = self.status.adapter.step(Input::Answered(answer.status, &answer.body));
                    let events = self.status.take(output);
                    self.tell(joined(events)).await;
                }
                news = ear.next(wanted) => self.listen(&mut served, serves.port, news).await,
                exit = &mut ended => {
                    let exit = exit.map(|exit| how_it_ended(&exit, self.agent.record.spec.adapter));
                    self.run_over(exit.unwrap_or_else(gone)).await;
                    return ControlFlow::Continue(());
                }
                () = at(self.cancel_at) => {
                    // All sessions share its server, which goes on.
                    self.cancel_at = None;
                    let why = "the agent does not end its work".to_owned();
                    self.run_over(TurnEnd::Failed("agent_error".to_owned(), why)).await;
                    return ControlFlow::Continue(());
                }
            }
        }
    }

    /// Waits until the service is ready, and obeys meanwhile. When there will be no run, gives how the driver goes on.
    async fn until_ready(&mut self, serves: &Serves) -> Result<ServiceUse, ControlFlow<()>> {
        let using = {
            let (engine, sandbox) = (self.engine.clone(), Arc::clone(&self.sandbox));
            let mut using = Box::pin(ready(engine, sandbox, serves.service.clone()));
            loop {
                tokio::select! {
                    biased;
                    using = &mut using => break using,
                    wish = self.inbox.recv() => {
                        let Some(wish) = wish else { return Err(ControlFlow::Break(())) };
                        if self.obey(wish, None).await.is_break() {
                            return Err(ControlFlow::Break(()));
                        }
                    }
                }
            }
        };
        match using {
            Ok(using) => Ok(using),
            Err(error) if error.code == Code::ShuttingDown => {
                tokio::time::sleep(RETRY).await;
                Err(ControlFlow::Continue(()))
            }
            Err(error) => {
                self.not_begun(&error).await;
                Err(ControlFlow::Continue(()))
            }
        }
    }

    /// What an earlier process of the server was about.
    pub(super) fn take_up(&mut self) {
        if self.status.turn.is_some() && self.using.is_none() {
            self.using = Some(self.sandbox.in_use());
        }
        if (self.status.cancelling || self.status.over_budget.is_some()) && self.cancel_at.is_none() {
            // It had asked for it.
            self.cancel_at = Some(Instant::now() + CANCEL_WAIT);
        }
    }

    async fn run_over(&mut self, end: TurnEnd) {
        self.heed();
        self.status.end_run();
        let events = self.status.end_turn(end).into_iter().collect();
        self.commit(events).await;
    }

    /// Asks the first of what is to be asked, if the server is heard.
    fn begin_asking(&self, served: &mut Served, port: u16) {
        if served.asking.is_some() || !matches!(served.ear, Ear::Open(_)) {
            return;
        }
        if let Some(line) = self.status.outbox.first() {
            let (sandbox, line) = (Arc::clone(&self.sandbox), line.clone());
            served.asking = Some(Box::pin(async move { insist(&sandbox, port, &line).await }));
        }
    }

    /// Goes on with what is listened to.
    async fn listen(&mut self, served: &mut Served, port: u16, news: News) {
        match news {
            News::Try => {
                let sandbox = Arc::clone(&self.sandbox);
                served.ear = Ear::Connecting(Box::pin(async move { dial(&sandbox, port).await }));
            }
            News::Connected(Ok(io)) => {
                let Some(request) = self.status.adapter.listens() else {
                    served.ear = Ear::off();
                    return;
                };
                // Recorded before the server is asked, so that it is known after a crash that it may have been asked.
                served.asking = None;
                self.step(Input::Dialing).await;
                served.ear = Ear::Asking(Box::pin(async move {
                    let body = request.body.as_ref().map(ToString::to_string);
                    atoll_served::listen(io, Ask { port, path: &request.path, body: body.as_deref() }).await
                }));
            }
            News::Connected(Err(error)) => self.unreached(served, &error.message).await,
            News::Begun(Ok(stream)) => {
                served.unreached = Instant::now();
                let status = stream.status();
                served.ear = Ear::Open(Box::new(stream));
                self.step(Input::Listening(status)).await;
            }
            News::Begun(Err(failure)) => {
                self.step(Input::Silent(false)).await;
                self.unreached(served, &failure.to_string()).await;
            }
            News::Heard(first) => {
                if self.hear_served(served, first).await {
                    served.asking = None;
                    served.ear = Ear::off();
                }
            }
        }
    }

    async fn step(&mut self, input: Input<'_>) {
        let output = self.status.adapter.step(input);
        let events = self.status.take(output);
        self.commit(events).await;
    }

    /// Nothing was reached: after a while the message has failed.
    async fn unreached(&mut self, served: &mut Served, why: &str) {
        served.ear = Ear::off();
        if served.unreached.elapsed() >= UNREACHABLE {
            let text = format!("the agent's server cannot be reached: {why}");
            let end = TurnEnd::Failed("agent_unreachable".to_owned(), text);
            let events = self.status.end_turn(end).into_iter().collect();
            self.commit(events).await;
        }
    }

    /// Takes what the server said; gives whether the answer has ended.
    async fn hear_served(&mut self, served: &mut Served, first: Heard) -> bool {
        self.heed();
        let mut events = Vec::new();
        let mut next = Some(first);
        let mut is_over = false;
        for _ in 0..LINES_MAX_COUNT {
            let Some(heard) = next.take() else { break };
            let output = match &heard {
                Heard::Line(line) if line.trim().is_empty() => None,
                Heard::Line(line) => Some(self.status.adapter.step(Input::Line(line))),
                Heard::TooLong => {
                    let text = format!("a line of more than {LINE_MAX_BYTES} bytes was left out");
                    events.push(NewEvent::new(EventKind::Log, json!({ "text": text })));
                    None
                }
                Heard::End { whole } => {
                    is_over = true;
                    Some(self.status.adapter.step(Input::Silent(*whole)))
                }
            };
            if let Some(output) = output {
                events.extend(self.status.take(output));
            }
            if is_over || self.status.turn.is_none() {
                break;
            }
            if let Ear::Open(stream) = &mut served.ear {
                next = stream.ready();
            }
        }
        self.tell(joined(events)).await;
        is_over
    }

    /// Tells the agent's server that its work is not wanted any more, if it hears that.
    async fn farewell(&mut self, port: u16) {
        if self.status.turn.is_none() {
            return;
        }
        let output = self.status.adapter.step(Input::Cancel);
        let lines = output.lines;
        let sandbox = Arc::clone(&self.sandbox);
        let said = async move {
            for line in lines {
                drop(ask(&sandbox, port, &line).await);
            }
        };
        drop(tokio::time::timeout(FAREWELL_WAIT, said).await);
    }
}

/// The service, used, once it is ready. Its sandbox is woken for that.
async fn ready(engine: Engine, sandbox: Arc<SandboxShared>, service: String) -> Result<ServiceUse> {
    let _awake = sandbox.usable().await?;
    let deadline = Instant::now() + UNREACHABLE;
    loop {
        let using = engine.use_service(&sandbox, &service).await?;
        if using.state != ServiceState::Running {
            let state = using.state.as_str();
            let why = format!("the service '{service}', which is the agent's server, is {state}");
            let hint = "'atoll service logs' shows what it wrote, 'atoll service restart' starts it";
            return Err(Error::new(Code::StartFailed, why).hint(hint));
        }
        // The keeper, which starts the service again, may not have noticed yet that its run has ended.
        let view = engine.exec(&sandbox.id, using.exec.as_str()).await;
        if view.is_ok_and(|view| !view.record.state.is_final()) || Instant::now() >= deadline {
            return Ok(using);
        }
        drop(using);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How an exec ended; `None` when that is not recorded any more.
async fn exec_end(engine: &Engine, sandbox: &SandboxShared, exec: &str) -> Option<Exit> {
    const LONG: Duration = Duration::from_secs(3600);
    loop {
        match engine.wait_exec(&sandbox.id, exec, LONG).await {
            Ok(view) if view.record.state.is_final() => return view.record.exit,
            Err(error) if error.code == Code::ExecNotFound => return None,
            Ok(_) | Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn gone() -> TurnEnd {
    TurnEnd::Failed("agent_crashed".to_owned(), "the agent's server has ended".to_owned())
}

async fn dial(sandbox: &SandboxShared, port: u16) -> Result<GuestPortStream> {
    let unavailable = || Error::new(Code::GuestUnavailable, "the sandbox does not answer");
    // By its present connection: to listen does not wake the sandbox.
    let client = sandbox.guest.borrow().as_ref().map(|guest| guest.client.clone()).ok_or_else(unavailable)?;
    match tokio::time::timeout(CONNECT_WAIT, client.dial(port)).await {
        Ok(dialed) => dialed.map_err(crate::errors::guest_error),
        Err(_) => Err(unavailable()),
    }
}

async fn ask(sandbox: &SandboxShared, port: u16, line: &str) -> Result<Answer> {
    // What cannot be read was written by another version.
    let request = HttpRequest::of_line(line).ok_or_else(|| Error::new(Code::Internal, "no request"))?;
    let io = dial(sandbox, port).await?;
    let body = request.body.as_ref().map(ToString::to_string);
    let asked = atoll_served::ask(io, Ask { port, path: &request.path, body: body.as_deref() });
    let broken = |why: String| Error::new(Code::PortBroken, why);
    match tokio::time::timeout(ASK_WAIT, asked).await {
        Ok(answer) => answer.map_err(|failure| broken(failure.to_string())),
        Err(_) => Err(broken("no answer in time".to_owned())),
    }
}

/// Asks until there is an answer, or it has been tried often enough: that is status 0.
async fn insist(sandbox: &SandboxShared, port: u16, line: &str) -> Answer {
    let mut why = String::new();
    for _ in 0..ASK_TRIES {
        match ask(sandbox, port, line).await {
            Ok(answer) => return answer,
            Err(error) => why = error.message,
        }
        tokio::time::sleep(RETRY).await;
    }
    Answer { status: 0, body: json!({ "message": why }).to_string() }
}
