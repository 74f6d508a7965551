//! Messages to agents by time: `atoll agent schedule …`

use atoll_api::{AgentSchedule, CreateAgentSchedule};
use atoll_client::Client;

use crate::cli::ScheduleCommand;
use crate::failure::Result;
use crate::output::{Printer, age, clean, table, until};
use crate::units::format_duration_ms;

/// Characters of a message that a table shows.
const TEXT_CHARS: usize = 60;

/// `atoll agent schedule …`
pub(super) async fn schedule(client: &Client, printer: Printer, command: ScheduleCommand) -> Result<()> {
    match command {
        ScheduleCommand::Create { agent, every, cron, time_zone, session, text } => {
            let text = text.join(" ");
            let create =
                CreateAgentSchedule { every_ms: every, cron, time_zone, thread: Some(session), text };
            let made = client.create_agent_schedule(&agent, &create).await?;
            printer.result(&made, || made.id.clone())
        }
        ScheduleCommand::Ls { agent } => {
            let list = client.list_agent_schedules(&agent).await?;
            let header = ["ID", "WHEN", "THREAD", "NEXT", "LAST", "TEXT"];
            printer.result(&list, || table(header, list.items.iter().map(row)))
        }
        ScheduleCommand::Rm { agent, schedules } => {
            for schedule in &schedules {
                client.delete_agent_schedule(&agent, schedule).await?;
            }
            printer.removed(&schedules)
        }
    }
}

fn row(schedule: &AgentSchedule) -> [String; 6] {
    let zone = schedule.time_zone.as_deref().unwrap_or_default();
    let when = match (&schedule.cron, schedule.every_ms) {
        (Some(cron), _) => format!("{cron} {zone}"),
        (None, every_ms) => format!("every {}", format_duration_ms(every_ms.unwrap_or_default())),
    };
    let last = schedule.last.as_ref().map(|last| match &last.error {
        Some(code) => code.clone(),
        None => format!("{} ago", age(last.due_at_ms)),
    });
    [
        schedule.id.clone(),
        when,
        schedule.thread.clone(),
        until(Some(schedule.next_at_ms)),
        last.unwrap_or_default(),
        clean(&schedule.text).chars().take(TEXT_CHARS).collect(),
    ]
}
