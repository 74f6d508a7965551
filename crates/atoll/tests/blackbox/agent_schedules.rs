//! Messages to agents by time.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::agents::{JSONL, agent, until};
use crate::common::code;
use atoll_api::{AgentEvent, CreateAgentSchedule, PauseSandbox, TakeLease};
use atoll_blackbox::{Server, wait_until};
use atoll_core::Code;
use atoll_core::agent::{Adapter, EventKind};
use atoll_core::sandbox::{PauseMode, SandboxState};

fn every(every_ms: u64, thread: &str) -> CreateAgentSchedule {
    let (thread, text) = (Some(thread.to_owned()), "tick".to_owned());
    CreateAgentSchedule { every_ms: Some(every_ms), thread, text, ..CreateAgentSchedule::default() }
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Waits until a thread has so many messages; gives the events.
async fn messages(server: &Server, thread: &str, count: usize) -> Vec<AgentEvent> {
    wait_until("messages by time", async || {
        let (mut messages, mut after) = (Vec::new(), 0);
        loop {
            let page = match server.client.agent_events("bob", thread, after, 0).await {
                Err(error) if error.code() == Some(Code::SessionNotFound) => return None,
                page => page.unwrap(),
            };
            if page.items.is_empty() {
                return (messages.len() >= count).then_some(messages);
            }
            after = page.next_after;
            messages.extend(page.items.into_iter().filter(|event| event.kind == EventKind::Message));
        }
    })
    .await
}

fn due(messages: &[AgentEvent]) -> Vec<u64> {
    messages.iter().map(|message| message.data["due_at_ms"].as_u64().unwrap()).collect()
}

fn is_strictly_rising(times: &[u64]) -> bool {
    times.is_sorted_by(|before, after| before < after)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_come_by_time_once_each_whatever_happens_to_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let made = server.client.create_agent_schedule("bob", &every(1000, "ticks")).await.unwrap();
    assert_eq!(made.next_at_ms, made.created_at_ms + 1000);
    let first = messages(&server, "ticks", 2).await;
    assert!(first[0].data["text"] == "tick" && first[0].data["schedule"] == made.id.as_str(), "{first:?}");
    assert!(due(&first)[0] >= made.next_at_ms && is_strictly_rising(&due(&first)), "{first:?}");
    until(&server, "bob", "ticks", 0, EventKind::Done).await;
    let known = server.client.get_agent_schedule("bob", &made.id).await.unwrap();
    assert!(known.last.is_some_and(|last| last.message.is_some()) && known.next_at_ms > made.next_at_ms);

    // A server that dies after it sent a message and before it recorded that sends nothing twice.
    server.kill();
    server.restart_to_die("engine.schedule.sent=kill");
    server.restart();
    let before = messages(&server, "ticks", first.len() + 2).await;
    assert!(is_strictly_rising(&due(&before)), "{:?}", due(&before));

    // Of the messages that are missed at most one is made up for.
    server.kill();
    let killed = now_ms();
    let back = killed + 3500;
    wait_until("some to be missed", async || (now_ms() > back).then_some(())).await;
    server.restart();
    let after = messages(&server, "ticks", before.len() + 3).await;
    let due = due(&after);
    assert!(is_strictly_rising(&due), "{due:?}");
    assert!(due.iter().all(|due| (due - made.created_at_ms).is_multiple_of(1000)), "{due:?}");
    let missed = due.iter().filter(|due| (killed + 1..=back).contains(*due)).count();
    assert!(missed <= 1, "{killed} {due:?}");

    // After the schedule's end it sends nothing, though another schedule does.
    server.client.delete_agent_schedule("bob", &made.id).await.unwrap();
    let last = messages(&server, "ticks", 0).await.len();
    server.client.create_agent_schedule("bob", &every(1000, "others")).await.unwrap();
    messages(&server, "others", 3).await;
    assert_eq!(messages(&server, "ticks", 0).await.len(), last);
    assert_eq!(code(server.client.delete_agent_schedule("bob", &made.id).await), Code::ScheduleNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_sandbox_is_woken_and_what_cannot_be_is_refused() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let frozen = PauseSandbox { mode: Some(PauseMode::Frozen) };
    server.client.pause_sandbox(&sandbox, &frozen).await.unwrap();
    server.client.create_agent_schedule("bob", &every(1500, "main")).await.unwrap();
    messages(&server, "main", 1).await;
    until(&server, "bob", "main", 0, EventKind::Done).await;
    assert_eq!(server.client.get_sandbox(&sandbox).await.unwrap().state, SandboxState::Running);

    let create =
        async |create: &CreateAgentSchedule| server.client.create_agent_schedule("bob", create).await;
    let cron = |cron: &str, zone: &str| CreateAgentSchedule {
        every_ms: None,
        cron: Some(cron.to_owned()),
        time_zone: Some(zone.to_owned()),
        ..every(0, "main")
    };
    let never = CreateAgentSchedule { every_ms: None, ..every(0, "main") };
    let both = CreateAgentSchedule { every_ms: Some(5000), ..cron("0 9 * * *", "UTC") };
    let mute = CreateAgentSchedule { text: String::new(), ..every(5000, "main") };
    for wrong in [
        never,
        both,
        mute,
        every(999, "main"),
        every(5000, "a b"),
        cron("0 9 * *", "UTC"),
        cron("0 9 30 2 *", "UTC"),
        cron("0 9 * * *", "Mars/Olympus"),
    ] {
        assert_eq!(code(create(&wrong).await), Code::InvalidArgument, "{wrong:?}");
    }
    let long = CreateAgentSchedule { text: "x".repeat((16 << 10) + 1), ..every(5000, "main") };
    assert_eq!(code(create(&long).await), Code::TooLarge);
    for _ in 1..32 {
        create(&every(3_600_000, "main")).await.unwrap();
    }
    assert_eq!(code(create(&every(3_600_000, "main")).await), Code::LimitExceeded);
    // With the agent they are gone.
    server.client.delete_agent("bob").await.unwrap();
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    assert_eq!(server.client.list_agent_schedules("bob").await.unwrap().items, []);

    let line = [
        "agent",
        "schedule",
        "create",
        "--cron",
        "0 9 * * 1-5",
        "--time-zone",
        "Europe/Berlin",
        "bob",
        "good",
        "day",
    ];
    let id = server.cli(&line).ok().stdout.trim().to_owned();
    let listed = server.cli(&["agent", "schedule", "ls", "bob"]).ok().stdout;
    assert!(
        listed.contains(&id) && listed.contains("0 9 * * 1-5 Europe/Berlin") && listed.contains("good day"),
        "{listed}"
    );
    server.cli(&["agent", "schedule", "rm", "bob", &id]).ok();
    let id = server
        .cli(&["agent", "schedule", "create", "--every", "2h", "bob", "x"])
        .ok()
        .stdout
        .trim()
        .to_owned();
    let listed = server.cli(&["agent", "schedule", "ls", "--json", "bob"]).ok().json();
    assert!(
        listed["items"][0]["every_ms"] == 7_200_000 && listed["items"][0]["id"] == id.as_str(),
        "{listed}"
    );
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_begun_by_time_in_a_sandbox_that_somebody_has_for_itself() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    server.client.take_lease(&sandbox, &TakeLease { ttl_ms: 600_000, holder: None }).await.unwrap();
    let made = server.client.create_agent_schedule("bob", &every(1000, "main")).await.unwrap();
    let last = wait_until("it is due", async || {
        server.client.get_agent_schedule("bob", &made.id).await.unwrap().last
    })
    .await;
    assert_eq!((last.message, last.error.as_deref()), (None, Some("sandbox_leased")));
    assert_eq!(server.client.list_agent_sessions("bob").await.unwrap().items.len(), 0);
    server.client.release_lease(&sandbox, false).await.unwrap();
    messages(&server, "main", 1).await;
    server.finish().await;
}
