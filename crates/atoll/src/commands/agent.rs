//! Agents: `atoll agent …`

use std::io::Read as _;

use atoll_api::{
    Agent, AgentEvent, AgentEventPage, AgentSession, AnswerApproval, CreateAgent, CreateAgentSession,
    SendAgentMessage,
};
use atoll_client::Client;
use atoll_core::agent::{EventKind, SessionState};
use atoll_core::build::CommandText;
use atoll_core::exec::OutputStream;
use atoll_core::limits::WAIT_MAX_MS;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::cli::{AgentCommand, SessionArg, UpArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, table};

/// Characters of a command that a table shows.
const COMMAND_CHARS: usize = 60;

/// `atoll agent …`
pub(super) async fn agent(client: &Client, printer: Printer, command: AgentCommand) -> Result<u8> {
    match command {
        AgentCommand::Up(args) => up(client, printer, *args).await?,
        AgentCommand::Ls => {
            let list = client.list_agents().await?;
            let header = ["NAME", "SANDBOX", "ADAPTER", "AGE", "COMMAND"];
            printer.result(&list, || table(header, list.items.iter().map(row)))?;
        }
        AgentCommand::Sessions { agent } => {
            let list = client.list_agent_sessions(&agent).await?;
            let header = ["ID", "THREAD", "STATE", "EVENTS", "AGE"];
            printer.result(&list, || table(header, list.items.iter().map(session_row)))?;
        }
        AgentCommand::Send { session, key, detach, text } => {
            return send(client, printer, &session, key, detach, text).await;
        }
        AgentCommand::Attach { session, after } => attach(client, printer, &session, after).await?,
        AgentCommand::Cancel { session: SessionArg { session, agent } } => {
            client.cancel_agent_session(&agent, &session).await?;
        }
        AgentCommand::Answer { session: SessionArg { session, agent }, approval, option } => {
            client.answer_approval(&agent, &session, &approval, &AnswerApproval { option }).await?;
        }
        AgentCommand::Rm { agents } => {
            for agent in agents {
                client.delete_agent(&agent).await?;
            }
        }
    }
    Ok(0)
}

async fn up(client: &Client, printer: Printer, args: UpArgs) -> Result<()> {
    let create = CreateAgent {
        name: args.name,
        sandbox: args.sandbox,
        template: args.template,
        argv: Some(args.argv),
        adapter: Some(args.adapter),
        env: args.env.into_iter().collect(),
        cwd: args.workdir,
        user: args.user,
        ..CreateAgent::default()
    };
    let agent = client.create_agent(&create).await?;
    printer.result(&agent, || agent.name.clone())
}

fn row(agent: &Agent) -> [String; 5] {
    let command = match &agent.command {
        CommandText::Shell(line) => line.clone(),
        CommandText::Argv(argv) => argv.join(" "),
    };
    [
        agent.name.clone(),
        agent.sandbox.clone(),
        agent.adapter.as_str().to_owned(),
        age(agent.created_at_ms),
        clean(&command).chars().take(COMMAND_CHARS).collect(),
    ]
}

fn session_row(session: &AgentSession) -> [String; 5] {
    [
        session.id.clone(),
        session.thread.clone().unwrap_or_default(),
        session.state.as_str().replace('_', " "),
        session.last_event.to_string(),
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

/// Shows a session and sends what is typed. Ends when the input has, and nothing is under way.
async fn attach(client: &Client, printer: Printer, arg: &SessionArg, after: u64) -> Result<()> {
    let session = open(client, arg).await?;
    let (mut after, mut state) = (after, session.state);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut ended = false;
    let mut approval: Option<(String, Vec<String>)> = None;
    loop {
        let idle = !matches!(state, SessionState::Working | SessionState::WaitingForApproval);
        let known = client.get_agent_session(&arg.agent, &session.id);
        if ended && idle && known.await?.last_event <= after {
            return Ok(());
        }
        tokio::select! {
            page = page(client, &arg.agent, &session.id, after) => {
                let page = page?;
                for event in &page.items {
                    show(printer, event).await?;
                    match event.kind {
                        EventKind::Approval => approval = asked(event),
                        EventKind::Answer | EventKind::Done | EventKind::Error => approval = None,
                        _ => {}
                    }
                }
                (after, state) = (page.next_after, page.state);
            }
            line = lines.next_line(), if !ended => {
                match line.map_err(|error| Failure::io("cannot read standard input", error))? {
                    None => ended = true,
                    Some(line) if line.trim().is_empty() => {}
                    Some(line) => match &approval {
                        Some((id, options)) if options.iter().any(|option| option == line.trim()) => {
                            let answer = AnswerApproval { option: line.trim().to_owned() };
                            client.answer_approval(&arg.agent, &session.id, id, &answer).await?;
                        }
                        _ => {
                            let message = SendAgentMessage { text: line, key: None };
                            client.send_agent_message(&arg.agent, &session.id, &message).await?;
                            state = SessionState::Working;
                        }
                    }
                }
            }
        }
    }
}

/// An approval that waits, with the ids of its options.
fn asked(event: &AgentEvent) -> Option<(String, Vec<String>)> {
    let id = event.data.get("id")?.as_str()?.to_owned();
    let options = event.data.get("options")?.as_array()?.iter();
    Some((id, options.filter_map(|option| option.get("id")?.as_str().map(str::to_owned)).collect()))
}
