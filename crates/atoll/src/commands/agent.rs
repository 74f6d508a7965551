//! Agents: `atoll agent …`

use std::io::Read as _;
use std::path::Path;

use atoll_api::{
    Agent, AgentEvent, AgentEventPage, AgentSession, AnswerApproval, CreateAgent, CreateAgentSession,
    PauseSandbox, SendAgentMessage, SessionClientMessage, SessionServerMessage,
};
use atoll_client::{Client, ResumePolicy, SessionUpdate};
use atoll_core::Code;
use atoll_core::agent::{EventKind, ModelBudget, SessionState};
use atoll_core::build::CommandText;
use atoll_core::exec::OutputStream;
use atoll_core::limits::WAIT_MAX_MS;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{agent_fork, agent_layer, agent_recipe, agent_schedule};
use crate::cli::{AgentCommand, SessionArg, UpArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, table};

/// Characters of a command that a table shows.
const COMMAND_CHARS: usize = 60;

/// `atoll agent …`
pub(super) async fn agent(client: &Client, printer: Printer, command: AgentCommand) -> Result<u8> {
    match command {
        AgentCommand::Up(args) => up(client, printer, *args).await?,
        AgentCommand::Recipes => agent_recipe::list(printer)?,
        AgentCommand::Ls => {
            let list = client.list_agents().await?;
            let header = ["NAME", "SANDBOX", "FORK OF", "ADAPTER", "REQUESTS", "TOKENS", "AGE", "COMMAND"];
            printer.result(&list, || table(header, list.items.iter().map(row)))?;
        }
        AgentCommand::Sessions { agent } => {
            let list = client.list_agent_sessions(&agent).await?;
            let header = ["ID", "THREAD", "STATE", "EVENTS", "REQUESTS", "TOKENS", "AGE"];
            printer.result(&list, || table(header, list.items.iter().map(session_row)))?;
        }
        AgentCommand::Send { session, key, detach, text } => {
            return send(client, printer, &session, key, detach, text).await;
        }
        AgentCommand::Attach { session, after } => attach(client, printer, &session, after).await?,
        AgentCommand::Logs { session, after, follow } => {
            logs(client, printer, &session, after, follow).await?;
        }
        AgentCommand::Pause { agents } => {
            for agent in agents {
                let sandbox = client.get_agent(&agent).await?.sandbox;
                client.pause_sandbox(&sandbox, &PauseSandbox::default()).await?;
            }
        }
        AgentCommand::Cancel { session: SessionArg { session, agent } } => {
            client.cancel_agent_session(&agent, &session).await?;
        }
        AgentCommand::Answer { session: SessionArg { session, agent }, approval, option } => {
            client.answer_approval(&agent, &session, &approval, &AnswerApproval { option }).await?;
        }
        AgentCommand::Build(args) => agent_layer::build(client, printer, args).await?,
        AgentCommand::Versions { name } => agent_layer::versions(client, printer, name.as_deref()).await?,
        AgentCommand::Update(args) => return agent_layer::update(client, printer, args).await,
        AgentCommand::Fork(args) => return agent_fork::fork(client, printer, *args).await,
        AgentCommand::Schedule(command) => agent_schedule::schedule(client, printer, command).await?,
        AgentCommand::Rm { agents } => {
            for agent in &agents {
                client.delete_agent(agent).await?;
            }
            printer.removed(&agents)?;
        }
    }
    Ok(0)
}

async fn up(client: &Client, printer: Printer, mut args: UpArgs) -> Result<()> {
    if let Some(name) = args.recipe.made.take() {
        return up_recipe(client, printer, args, name).await;
    }
    let mut create = match &args.file {
        Some(file) => read(file)?,
        None => CreateAgent::default(),
    };
    create.name = args.name;
    (create.sandbox, create.template) = (args.sandbox, args.template);
    if !args.argv.is_empty() {
        (create.argv, create.shell, create.service) = (Some(args.argv), None, None);
    }
    if let Some(service) = args.service {
        (create.argv, create.shell, create.service) = (None, None, Some(service));
    }
    create.port = args.port.or(create.port);
    create.adapter = args.adapter.or(create.adapter);
    create.env.extend(args.env);
    create.cwd = args.workdir.or(create.cwd);
    create.user = args.user.or(create.user);
    create.profile = args.profile.or(create.profile);
    if let Some(layer) = args.layer {
        let (name, version) = match layer.split_once(':') {
            Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
            None => (layer, None),
        };
        (create.layer, create.version) = (Some(name), version);
    }
    create.budget = budget(create.budget, args.budget_requests, args.budget_tokens);
    create.session_budget = budget(create.session_budget, args.session_requests, args.session_tokens);
    let agent = client.create_agent(&create).await?;
    printer.result(&agent, || agent.name.clone())
}

/// `agent up` with a recipe: it stands in the place of the agent's name.
async fn up_recipe(client: &Client, printer: Printer, args: UpArgs, name: String) -> Result<()> {
    let create = CreateAgent {
        env: args.env.into_iter().collect(),
        user: args.user,
        profile: args.profile,
        budget: budget(None, args.budget_requests, args.budget_tokens),
        session_budget: budget(None, args.session_requests, args.session_tokens),
        ..CreateAgent::default()
    };
    let made = agent_recipe::up(client, printer, &args.name, args.recipe, name, args.workdir, create);
    let agent = Box::pin(made).await?;
    printer.result(&agent, || agent.name.clone())?;
    printer.note(&format!(
        "talk to it: atoll agent attach {0}; over HTTP: {1}/v1/agents/{0}",
        agent.name,
        client.url()
    ));
    Ok(())
}

fn read(file: &Path) -> Result<CreateAgent> {
    let name = file.display();
    let text = std::fs::read(file).map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::plain(Code::InvalidArgument, format!("{name} is no agent: {error}")))
}

fn budget(known: Option<ModelBudget>, requests: Option<u64>, tokens: Option<u64>) -> Option<ModelBudget> {
    let known = known.unwrap_or_default();
    let budget = ModelBudget { requests: requests.or(known.requests), tokens: tokens.or(known.tokens) };
    (budget != ModelBudget::default()).then_some(budget)
}

fn row(agent: &Agent) -> [String; 8] {
    let command = match &agent.command {
        Some(CommandText::Shell(line)) => line.clone(),
        Some(CommandText::Argv(argv)) => argv.join(" "),
        None => format!("service {}", agent.service.as_deref().unwrap_or_default()),
    };
    [
        agent.name.clone(),
        agent.sandbox.clone(),
        agent.fork_of.clone().unwrap_or_default(),
        agent.adapter.as_str().to_owned(),
        agent.usage.requests.to_string(),
        agent.usage.tokens().to_string(),
        age(agent.created_at_ms),
        clean(&command).chars().take(COMMAND_CHARS).collect(),
    ]
}

fn session_row(session: &AgentSession) -> [String; 7] {
    [
        session.id.clone(),
        session.thread.clone().unwrap_or_default(),
        session.state.as_str().replace('_', " "),
        session.last_event.to_string(),
        session.usage.requests.to_string(),
        session.usage.tokens().to_string(),
        age(session.created_at_ms),
    ]
}

/// The session that is meant: by its id, or by its thread, which is begun if there is none.
async fn open(client: &Client, arg: &SessionArg) -> Result<AgentSession> {
    let SessionArg { session, agent } = arg;
    if session.parse::<atoll_core::id::SessionId>().is_ok() {
        return Ok(client.get_agent_session(agent, session).await?);
    }
    let create = CreateAgentSession { thread: Some(session.clone()) };
    Ok(client.create_agent_session(agent, &create).await?)
}

async fn page(client: &Client, agent: &str, session: &str, after: u64) -> Result<AgentEventPage> {
    Ok(client.agent_events(agent, session, after, WAIT_MAX_MS).await?)
}

/// Sends a message and stays until it has ended; the exit code says how.
async fn send(
    client: &Client,
    printer: Printer,
    arg: &SessionArg,
    key: Option<String>,
    detach: bool,
    words: Vec<String>,
) -> Result<u8> {
    let text = match words.as_slice() {
        [one] if one == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|error| Failure::io("cannot read standard input", error))?;
            text
        }
        words => words.join(" "),
    };
    let session = open(client, arg).await?;
    let message = SendAgentMessage { text, key };
    let sent = client.send_agent_message(&arg.agent, &session.id, &message).await?;
    if detach {
        printer.result(&sent, || sent.number.to_string())?;
        return Ok(0);
    }
    let mut after = sent.number;
    loop {
        let page = page(client, &arg.agent, &session.id, after).await?;
        for event in &page.items {
            // Of the messages before it.
            let about = event.data.get("message").and_then(Value::as_u64);
            show(printer, event).await?;
            if about == Some(sent.number) {
                return Ok(u8::from(event.kind == EventKind::Error));
            }
        }
        after = page.next_after;
    }
}

/// Shows an event: what the agent says as it is, everything else beside it.
async fn show(printer: Printer, event: &AgentEvent) -> Result<()> {
    if printer.is_json() {
        return printer.stream_item(event);
    }
    let field = |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default();
    match event.kind {
        EventKind::Text => {
            let text = clean(field("text")).into_bytes();
            printer.exec_output(OutputStream::Stdout, text.into()).await?;
        }
        EventKind::Done => printer.exec_output(OutputStream::Stdout, "\n".into()).await?,
        EventKind::Message => printer.note(&format!("> {}", field("text"))),
        EventKind::Tool => {
            let named = [field("title"), field("name"), field("toolCallId")];
            let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or("a tool");
            printer.note(&format!("[{name} {}]", field("status")));
        }
        EventKind::Log => printer.note(field("text")),
        EventKind::Approval => {
            let options = event.data.get("options").and_then(Value::as_array);
            let ids = options.into_iter().flatten().filter_map(|option| option.get("id")?.as_str());
            let ids = ids.collect::<Vec<_>>().join(", ");
            printer.note(&format!("approval {}: {} [{ids}]", field("id"), field("title")));
        }
        EventKind::Answer => printer.note(&format!("approval {}: {}", field("id"), field("option"))),
        EventKind::Error => printer.warn(&format!("{}: {}", field("code"), field("text"))),
        EventKind::State | EventKind::Thought | EventKind::Plan | EventKind::Data => {}
    }
    Ok(())
}

/// Shows the events of a session so far, and those that follow.
async fn logs(
    client: &Client,
    printer: Printer,
    arg: &SessionArg,
    mut after: u64,
    follow: bool,
) -> Result<()> {
    let session = client.get_agent_session(&arg.agent, &arg.session).await?;
    let wait_ms = if follow { WAIT_MAX_MS } else { 0 };
    loop {
        let page = client.agent_events(&arg.agent, &session.id, after, wait_ms).await?;
        if page.gap {
            printer.warn("earlier events are not kept any more");
        }
        for event in &page.items {
            show(printer, event).await?;
        }
        if page.items.is_empty() && !follow {
            return Ok(());
        }
        after = page.next_after;
    }
}

/// Shows a session and sends the lines that the user types. Ends when the input has ended and no message is under way.
async fn attach(client: &Client, printer: Printer, arg: &SessionArg, after: u64) -> Result<()> {
    let session = open(client, arg).await?;
    let resume = ResumePolicy::default();
    let mut attached = client.attach_agent_session(&arg.agent, &session.id, after, resume).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    // Once the input has ended the server is asked for the session again when its events up to `known` were shown.
    let (mut after, mut ended, mut known) = (after, false, 0);
    let mut approval: Option<(String, Vec<String>)> = None;
    loop {
        if ended && attached.unanswered() == 0 && after >= known {
            let now = client.get_agent_session(&arg.agent, &session.id).await?;
            let busy = matches!(now.state, SessionState::Working | SessionState::WaitingForApproval);
            if !busy && now.last_event <= after {
                return Ok(());
            }
            known = now.last_event.max(after + 1);
        }
        tokio::select! {
            update = attached.next() => match update? {
                SessionUpdate::Said(SessionServerMessage::Event { event }) => {
                    show(printer, &event).await?;
                    after = event.number;
                    match event.kind {
                        EventKind::Approval => approval = asked(&event),
                        EventKind::Answer | EventKind::Done | EventKind::Error => approval = None,
                        _ => {}
                    }
                }
                SessionUpdate::Said(SessionServerMessage::Error { error, .. }) => printer.warn(&error.message),
                SessionUpdate::Said(SessionServerMessage::Gap {}) => {
                    printer.warn("earlier events are not kept any more");
                }
                SessionUpdate::Lost(_) => printer.warn("the connection broke; the answer may not have arrived"),
                SessionUpdate::Said(_) => {}
            },
            line = lines.next_line(), if !ended => {
                match line.map_err(|error| Failure::io("cannot read standard input", error))? {
                    None => ended = true,
                    Some(line) if line.trim().is_empty() => {}
                    Some(line) => drop(attached.send(typed(line, approval.as_ref())).await?),
                }
            }
        }
    }
}

/// The message for a typed line: an answer, if the agent waits for one and the line is one of its options.
fn typed(line: String, approval: Option<&(String, Vec<String>)>) -> SessionClientMessage {
    let option = line.trim().to_owned();
    match approval {
        Some((id, options)) if options.contains(&option) => {
            SessionClientMessage::Answer { id: None, approval: id.clone(), option }
        }
        _ => SessionClientMessage::Message { id: None, text: line, key: None },
    }
}

/// An approval that waits, with the ids of its options.
fn asked(event: &AgentEvent) -> Option<(String, Vec<String>)> {
    let id = event.data.get("id")?.as_str()?.to_owned();
    let options = event.data.get("options")?.as_array()?.iter();
    Some((id, options.filter_map(|option| option.get("id")?.as_str().map(str::to_owned)).collect()))
}
