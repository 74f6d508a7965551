//! What must hold for agents, their sessions and events.

use atoll_core::agent::{
    Adapter, AgentSpec, EventKind, ModelBudget, ModelUsage, NewEvent, ScheduleRun, ScheduleSpec,
    ScheduleStatus, SessionStatus, When,
};
use atoll_core::build::CommandText;
use atoll_core::id::{AgentId, ScheduleId, SessionId};
use serde_json::json;

use crate::{AgentRecord, ScheduleRecord, SessionRecord, Store, StoreError};

pub(super) fn agent(n: u8, sandbox: &crate::SandboxRecord, name: &str) -> AgentRecord {
    AgentRecord {
        id: AgentId::from_parts(n.into(), n.into()),
        name: name.to_owned(),
        sandbox: sandbox.id.clone(),
        spec: AgentSpec {
            command: Some(CommandText::Argv(vec!["x".to_owned()])),
            serves: None,
            adapter: Adapter::Acp,
            env: [("A".to_owned(), "ü".to_owned())].into(),
            cwd: None,
            user: None,
            profile: (n == 2).then(|| "agent".to_owned()),
            layer: (n == 2).then(|| "bot".to_owned()),
            own_sandbox: n == 2,
            budget: (n == 1).then_some(ModelBudget { requests: Some(7), tokens: None }),
            session_budget: None,
            spent: ModelUsage::default(),
        },
        created_ms: n.into(),
    }
}

pub(super) fn session(n: u8, agent: &AgentRecord, thread: Option<&str>) -> SessionRecord {
    SessionRecord {
        id: SessionId::from_parts(n.into(), n.into()),
        agent: agent.id.clone(),
        thread: thread.map(str::to_owned),
        status: SessionStatus::new(Adapter::Acp),
        events: 0,
        created_ms: n.into(),
    }
}

pub(super) async fn sessions(store: &Store) {
    let (one, two) = (super::sandbox(1, 1), super::sandbox(2, 2));
    store.insert_sandbox(&one).await.unwrap();
    store.insert_sandbox(&two).await.unwrap();
    let (ann, bob) = (agent(1, &one, "ann"), agent(2, &two, "bob"));
    store.insert_agent(&ann).await.unwrap();
    store.insert_agent(&bob).await.unwrap();
    assert_eq!(store.list_agents().await.unwrap(), [ann.clone(), bob.clone()]);
    assert!(matches!(store.insert_agent(&agent(3, &two, "ann")).await, Err(StoreError::NameTaken)));
    let mut spender = ann.clone();
    spender.spec.spent = ModelUsage { requests: 3, input_tokens: u64::MAX, ..ModelUsage::default() };
    store.update_agent(&spender).await.unwrap();
    assert_eq!(store.list_agents().await.unwrap(), [spender, bob.clone()]);
    store.update_agent(&ann).await.unwrap();
    store.update_agent(&agent(5, &one, "gone")).await.unwrap();
    assert_eq!(store.list_agents().await.unwrap(), [ann.clone(), bob.clone()]);
    let nowhere = agent(4, &super::sandbox(9, 9), "eve");
    assert!(matches!(store.insert_agent(&nowhere).await, Err(StoreError::NotFound)));
    let all = [
        session(1, &ann, Some("t")),
        session(2, &ann, None),
        session(3, &ann, None),
        session(4, &bob, Some("t")),
    ];
    for one in &all {
        store.insert_agent_session(one).await.unwrap();
    }
    assert_eq!(store.list_agent_sessions().await.unwrap(), all);
    let taken = store.insert_agent_session(&session(5, &ann, Some("t"))).await;
    assert!(matches!(taken, Err(StoreError::NameTaken)));
    let nobody = store.insert_agent_session(&session(6, &nowhere, None)).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)));
    assert!(store.delete_agent_session(&all[1].id).await.unwrap());
    assert!(!store.delete_agent_session(&all[1].id).await.unwrap());
    assert!(store.delete_sandbox(&two.id).await.unwrap());
    assert_eq!(store.list_agents().await.unwrap(), std::slice::from_ref(&ann), "they go with their sandbox");
    assert_eq!(store.list_agent_sessions().await.unwrap().len(), 2);
    assert!(store.delete_agent(&ann.id).await.unwrap());
    assert!(!store.delete_agent(&ann.id).await.unwrap());
    assert_eq!(store.list_agent_sessions().await.unwrap(), []);
}

pub(super) async fn events(store: &Store) {
    let sandbox = super::sandbox(1, 1);
    store.insert_sandbox(&sandbox).await.unwrap();
    let agent = agent(1, &sandbox, "ann");
    store.insert_agent(&agent).await.unwrap();
    let mut record = session(1, &agent, None);
    store.insert_agent_session(&record).await.unwrap();
    let id = record.id.clone();
    let message = async |key, text: &str, delivered, most| {
        let data = json!({ "text": text });
        store.append_agent_message(&id, key, &data, 5, delivered, most).await.unwrap()
    };
    let (first, new) = message(Some("k"), "a\0ü", 0, 2).await.unwrap();
    assert_eq!((first.number, new, &first.data), (1, true, &json!({ "text": "a\0ü" })));
    assert_eq!(message(Some("k"), "b", 0, 0).await, Some((first.clone(), false)), "the first with its key");
    assert!(message(None, "c", 0, 2).await.is_some_and(|(event, new)| event.number == 2 && new));
    assert_eq!(message(None, "d", 0, 2).await, None, "two wait");
    assert!(message(None, "e", 1, 2).await.is_some_and(|(event, _)| event.number == 3));
    record.status.begin_turn(1);
    let said: Vec<NewEvent> =
        (0..5).flat_map(|n| NewEvent::texts(EventKind::Text, &format!("t{n}"))).collect();
    assert_eq!(store.append_agent_events(&id, &said, &record.status, 6).await.unwrap(), 8);
    assert_eq!(store.append_agent_events(&id, &[], &record.status, 6).await.unwrap(), 8);
    let kept = store.list_agent_sessions().await.unwrap();
    assert_eq!((&kept[0].status, kept[0].events), (&record.status, 8));
    let all = store.agent_events(&id, 0, 100).await.unwrap();
    let numbers: Vec<u64> = all.iter().map(|event| event.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((&all[0], all[7].kind, all[7].at_ms), (&first, EventKind::Text, 6));
    assert_eq!(store.agent_events(&id, 3, 2).await.unwrap(), all[3..5]);
    assert_eq!(store.agent_messages(&id, 1, 9).await.unwrap(), all[1..3]);
    // The oldest go, but for messages that wait.
    store.prune_agent_events(&id, 3, 1 << 20, 1).await.unwrap();
    assert_eq!(store.agent_events(&id, 0, 100).await.unwrap(), all[1..]);
    store.prune_agent_events(&id, 3, 1 << 20, 8).await.unwrap();
    assert_eq!(store.agent_events(&id, 0, 100).await.unwrap(), all[5..]);
    store.prune_agent_events(&id, 9, 20, 8).await.unwrap();
    assert_eq!(store.agent_events(&id, 0, 100).await.unwrap(), all[7..], "the last stays whatever its size");
    let gone = SessionId::from_parts(9, 9);
    let none = store.append_agent_events(&gone, &said, &record.status, 6).await;
    assert!(matches!(none, Err(StoreError::NotFound)));
    let none = store.append_agent_message(&gone, None, &json!({}), 6, 0, 9).await;
    assert!(matches!(none, Err(StoreError::NotFound)));
}

pub(super) async fn schedules(store: &Store) {
    let home = super::sandbox(1, 1);
    store.insert_sandbox(&home).await.unwrap();
    let ann = agent(1, &home, "ann");
    store.insert_agent(&ann).await.unwrap();
    let schedule = |n: u8, when| ScheduleRecord {
        id: ScheduleId::from_parts(n.into(), n.into()),
        agent: ann.id.clone(),
        spec: ScheduleSpec { when, thread: "main".to_owned(), text: "ü".to_owned() },
        status: ScheduleStatus { next_ms: 7, last: None },
        created_ms: n.into(),
    };
    let cron = When::Cron { expression: "0 9 * * 1-5".to_owned(), time_zone: "Europe/Berlin".to_owned() };
    let (mut first, second) = (schedule(1, When::EveryMs(5000)), schedule(2, cron));
    store.insert_schedule(&second).await.unwrap();
    store.insert_schedule(&first).await.unwrap();
    assert_eq!(store.list_schedules().await.unwrap(), [first.clone(), second.clone()]);
    first.status = ScheduleStatus {
        next_ms: 12,
        last: Some(ScheduleRun { due_at_ms: 7, message: Some(3), error: None }),
    };
    store.update_schedule(&first.id, &first.status).await.unwrap();
    assert_eq!(store.list_schedules().await.unwrap(), [first.clone(), second.clone()]);
    assert!(store.delete_schedule(&first.id).await.unwrap());
    assert!(!store.delete_schedule(&first.id).await.unwrap());
    store.update_schedule(&first.id, &first.status).await.unwrap();
    assert_eq!(store.list_schedules().await.unwrap(), [second]);
    // Schedules go with their agent, and none can be added to an agent that is gone.
    store.delete_agent(&ann.id).await.unwrap();
    assert_eq!(store.list_schedules().await.unwrap(), []);
    assert!(matches!(store.insert_schedule(&first).await, Err(StoreError::NotFound)));
}
