//! A random walk over the life of sandboxes, with `kill -9` in between, against a model.
//!
//! The model knows what was acknowledged: which sandboxes there are, what each one's file says, what each snapshot and
//! checkpoint holds. After every step, and after every kill and restart, the server has to agree. What was under way
//! when the server was killed has either happened or not: nothing in between. At the end nothing may be left on the
//! host, nor in the storage pool. The seed is printed; `ATOLL_WALK_SEED` and `ATOLL_WALK_STEPS` repeat or lengthen a
//! walk.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_blackbox::{Server, wait_until};
use atoll_core::draw::Draw;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// Steps of a walk in the ordinary run of the tests.
const STEPS: u64 = 300;
/// Most sandboxes at once.
const SANDBOXES_MAX: usize = 6;
/// Most snapshots at once.
const SNAPSHOTS_MAX: usize = 5;
/// Most checkpoints of a sandbox that the walk makes.
const CHECKPOINTS_MAX: usize = 3;
/// Of so many steps one is cut off by `kill -9`.
const KILL_EVERY: usize = 25;
/// The server is killed within this after the request went out, microseconds.
const KILL_WITHIN_US: u64 = 40_000;
/// The file that each sandbox's steps append to.
const FILE: &str = "/root/walk";

fn pick<K: Clone, V>(draw: &mut Draw, from: &BTreeMap<K, V>) -> Option<K> {
    from.keys().nth(draw.below(from.len())).cloned()
}

/// A call to the server.
#[derive(Debug, Clone)]
enum Op {
    Create { snapshot: Option<String> },
    Append { sandbox: String, line: String },
    Pause { sandbox: String, mode: &'static str },
    Resume { sandbox: String },
    Snapshot { sandbox: String },
    DeleteSnapshot { snapshot: String },
    Fork { sandbox: String, count: usize },
    Checkpoint { sandbox: String },
    Rollback { sandbox: String, to: u64 },
    Delete { sandbox: String },
}

impl Op {
    /// The sandbox it is asked of: every use wakes one that is paused.
    fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Create { .. } | Self::DeleteSnapshot { .. } => None,
            Self::Append { sandbox, .. }
            | Self::Pause { sandbox, .. }
            | Self::Resume { sandbox }
            | Self::Snapshot { sandbox }
            | Self::Fork { sandbox, .. }
            | Self::Checkpoint { sandbox }
            | Self::Rollback { sandbox, .. }
            | Self::Delete { sandbox } => Some(sandbox),
        }
    }

    /// Method, path below `/v1` and body.
    fn request(&self) -> (&'static str, String, Value) {
        let of = |sandbox: &str, what: &str| format!("/sandboxes/{sandbox}{what}");
        match self {
            Self::Create { snapshot: None } => ("POST", "/sandboxes".into(), json!({})),
            Self::Create { snapshot } => ("POST", "/sandboxes".into(), json!({ "snapshot": snapshot })),
            Self::Append { sandbox, line } => {
                let shell = format!("printf '{line}\\n' >> {FILE} && sync {FILE}");
                ("POST", of(sandbox, "/execs"), json!({ "shell": shell, "wait_ms": 60_000 }))
            }
            Self::Pause { sandbox, mode } => ("POST", of(sandbox, "/pause"), json!({ "mode": mode })),
            Self::Resume { sandbox } => ("POST", of(sandbox, "/resume"), json!({})),
            Self::Snapshot { sandbox } => ("POST", of(sandbox, "/snapshots"), json!({})),
            Self::DeleteSnapshot { snapshot } => ("DELETE", format!("/snapshots/{snapshot}"), json!({})),
            Self::Fork { sandbox, count } => ("POST", of(sandbox, "/fork"), json!({ "count": count })),
            Self::Checkpoint { sandbox } => ("POST", of(sandbox, "/checkpoints"), json!({})),
            Self::Rollback { sandbox, to } => {
                ("POST", of(sandbox, "/rollback"), json!({ "to": to.to_string() }))
            }
            Self::Delete { sandbox } => ("DELETE", of(sandbox, ""), json!({})),
        }
    }
}

/// What the server has acknowledged about one sandbox.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The content of its file.
    text: String,
    paused: bool,
    /// Content by number.
    checkpoints: BTreeMap<u64, String>,
}

struct Walk {
    server: Server,
    draw: Draw,
    sandboxes: BTreeMap<String, Known>,
    snapshots: BTreeMap<String, String>,
    step: u64,
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("no id: {value}")).to_owned()
}

impl Walk {
    fn known(&mut self, sandbox: &str) -> &mut Known {
        self.sandboxes.get_mut(sandbox).unwrap()
    }

    fn send(&self, op: &Op) -> RequestBuilder {
        let (method, path, body) = op.request();
        self.server.request(method, &format!("/v1{path}")).json(&body)
    }

    async fn list(&self, what: &str) -> Vec<Value> {
        let request = self.server.request("GET", &format!("/v1/{what}?limit=1000"));
        let answer = self.server.send(request).await;
        answer.json()["items"].as_array().unwrap_or_else(|| panic!("{what}: {}", answer.text())).clone()
    }

    async fn read(&self, sandbox: &str) -> String {
        let output = self.server.sh(sandbox, &format!("cat {FILE} 2>/dev/null || true")).await;
        assert_eq!(output.code, Some(0), "step {}: {output:?}", self.step);
        output.stdout
    }

    /// Looks into a sandbox, which wakes it.
    async fn assert_agrees(&mut self, sandbox: &str) {
        let text = self.read(sandbox).await;
        let step = self.step;
        let known = self.known(sandbox);
        known.paused = false;
        assert_eq!(text, known.text, "step {step}: {sandbox}");
    }

    /// The next call; `None` when there is no object for it.
    fn choose(&mut self) -> Option<Op> {
        let draw = &mut self.draw;
        let what = draw.below(100);
        let room = SANDBOXES_MAX - self.sandboxes.len();
        if what < 20 && room > 0 {
            let snapshot = if draw.below(3) == 0 { pick(draw, &self.snapshots) } else { None };
            return Some(Op::Create { snapshot });
        }
        if (80..84).contains(&what) || (66..72).contains(&what) && self.snapshots.len() == SNAPSHOTS_MAX {
            return Some(Op::DeleteSnapshot { snapshot: pick(draw, &self.snapshots)? });
        }
        let sandbox = pick(draw, &self.sandboxes)?;
        let known = &self.sandboxes[&sandbox];
        Some(match what {
            20..44 => Op::Append { sandbox, line: self.step.to_string() },
            44..54 => {
                let mode = if draw.below(2) == 0 { "frozen" } else { "filesystem" };
                Op::Pause { sandbox, mode }
            }
            54..60 => Op::Resume { sandbox },
            60..66 if room > 0 => Op::Fork { sandbox, count: room.min(2) },
            66..72 => Op::Snapshot { sandbox },
            72..80 if known.checkpoints.len() < CHECKPOINTS_MAX => Op::Checkpoint { sandbox },
            84..92 => Op::Rollback { to: pick(draw, &known.checkpoints)?, sandbox },
            _ => Op::Delete { sandbox },
        })
    }

    /// Takes note of a call that the server has acknowledged; gives the sandboxes to look into.
    fn note(&mut self, op: &Op, answer: &Value) -> Vec<String> {
        let step = self.step;
        match op {
            Op::Create { snapshot } => {
                let text = snapshot.as_ref().map(|snapshot| self.snapshots[snapshot].clone());
                let known = Known { text: text.unwrap_or_default(), ..Known::default() };
                self.sandboxes.insert(id(answer), known);
                vec![id(answer)]
            }
            Op::Append { sandbox, line } => {
                assert_eq!(answer["exec"]["exit"]["code"], 0, "step {step}: {answer}");
                let known = self.known(sandbox);
                known.text.push_str(line);
                known.text.push('\n');
                known.paused = false;
                vec![sandbox.clone()]
            }
            Op::Pause { sandbox, .. } => {
                self.known(sandbox).paused = true;
                Vec::new()
            }
            Op::Resume { sandbox } => {
                self.known(sandbox).paused = false;
                vec![sandbox.clone()]
            }
            Op::Snapshot { sandbox } => {
                let known = self.known(sandbox);
                known.paused = false;
                let text = known.text.clone();
                self.snapshots.insert(id(answer), text);
                Vec::new()
            }
            Op::DeleteSnapshot { snapshot } => {
                self.snapshots.remove(snapshot);
                Vec::new()
            }
            Op::Fork { sandbox, count } => {
                let known = self.known(sandbox);
                known.paused = false;
                let text = known.text.clone();
                let children =
                    answer["results"].as_array().unwrap_or_else(|| panic!("step {step}: {answer}"));
                let children: Vec<String> = children.iter().map(|child| id(&child["sandbox"])).collect();
                assert_eq!(children.len(), *count, "step {step}: {answer}");
                for child in &children {
                    self.sandboxes.insert(child.clone(), Known { text: text.clone(), ..Known::default() });
                }
                children
            }
            Op::Checkpoint { sandbox } => {
                let number = answer["checkpoint"].as_u64().unwrap_or_else(|| panic!("step {step}: {answer}"));
                let known = self.known(sandbox);
                known.paused = false;
                let before = known.checkpoints.insert(number, known.text.clone());
                assert_eq!(before, None, "step {step}: {answer}");
                Vec::new()
            }
            Op::Rollback { sandbox, to } => {
                let known = self.known(sandbox);
                known.text = known.checkpoints[to].clone();
                known.paused = false;
                vec![sandbox.clone()]
            }
            Op::Delete { sandbox } => {
                self.sandboxes.remove(sandbox);
                Vec::new()
            }
        }
    }

    async fn step(&mut self) {
        let Some(op) = self.choose() else { return };
        if self.draw.below(KILL_EVERY) == 0 {
            return self.kill_during(&op).await;
        }
        let answer = self.server.send(self.send(&op)).await;
        assert!(answer.status < 300, "step {}: {op:?}: {} {}", self.step, answer.status, answer.text());
        for sandbox in self.note(&op, &answer.json()) {
            self.assert_agrees(&sandbox).await;
        }
    }

    /// `kill -9` while a call is under way, then a restart.
    async fn kill_during(&mut self, op: &Op) {
        let under_way = tokio::spawn(self.send(op).send());
        let wait = self.draw.number() % KILL_WITHIN_US;
        tokio::time::sleep(Duration::from_micros(wait)).await;
        self.server.kill();
        // The whole answer, or none.
        let answer = match under_way.await.unwrap() {
            Ok(answer) if answer.status().is_success() => answer.bytes().await.ok(),
            Ok(_) | Err(_) => None,
        };
        self.server.restart();
        match answer {
            Some(bytes) => {
                drop(self.note(op, &serde_json::from_slice(&bytes).unwrap_or(Value::Null)));
                self.assert_all_there().await;
            }
            None => self.find_out(op).await,
        }
        for sandbox in self.sandboxes.keys().cloned().collect::<Vec<_>>() {
            self.assert_agrees(&sandbox).await;
        }
        self.forget_the_unknown().await;
    }

    /// Sandboxes by id, with their states, once none is on its way from one to another.
    async fn settled(&self) -> BTreeMap<String, String> {
        wait_until("sandboxes to settle", async || {
            let listed = self.list("sandboxes").await;
            let states: BTreeMap<String, String> =
                listed.iter().map(|item| (id(item), item["state"].as_str().unwrap().to_owned())).collect();
            states
                .values()
                .all(|state| ["running", "paused", "failed"].contains(&state.as_str()))
                .then_some(states)
        })
        .await
    }

    /// Everything that was acknowledged is there.
    async fn assert_all_there(&self) {
        let states = self.settled().await;
        for (sandbox, known) in &self.sandboxes {
            let wanted = if known.paused { "paused" } else { "running" };
            let state = states.get(sandbox).map(String::as_str);
            assert_eq!(state, Some(wanted), "step {}: {sandbox} after a restart", self.step);
        }
        let listed: Vec<String> = self.list("snapshots").await.iter().map(id).collect();
        for snapshot in self.snapshots.keys() {
            assert!(listed.contains(snapshot), "step {}: {snapshot} is lost", self.step);
        }
    }

    /// The client was not told how a call ended: it happened, or it did not.
    async fn find_out(&mut self, op: &Op) {
        let states = self.settled().await;
        if let Some(sandbox) = op.sandbox() {
            self.known(sandbox).paused = states.get(sandbox).is_some_and(|state| state == "paused");
        }
        match op {
            Op::Append { sandbox, line } => {
                let after = format!("{}{line}\n", self.sandboxes[sandbox].text);
                self.either(sandbox, after).await;
            }
            Op::Rollback { sandbox, to } => {
                let after = self.sandboxes[sandbox].checkpoints[to].clone();
                self.either(sandbox, after).await;
            }
            Op::DeleteSnapshot { snapshot } => {
                let listed: Vec<String> = self.list("snapshots").await.iter().map(id).collect();
                if !listed.contains(snapshot) {
                    self.snapshots.remove(snapshot);
                }
            }
            Op::Delete { sandbox } => {
                if !states.contains_key(sandbox) {
                    self.sandboxes.remove(sandbox);
                }
            }
            Op::Create { .. }
            | Op::Pause { .. }
            | Op::Resume { .. }
            | Op::Fork { .. }
            | Op::Snapshot { .. }
            | Op::Checkpoint { .. } => {}
        }
        self.assert_all_there().await;
    }

    /// A sandbox's file has the content that it had, or `after`.
    async fn either(&mut self, sandbox: &str, after: String) {
        let text = self.read(sandbox).await;
        let step = self.step;
        let known = self.known(sandbox);
        known.paused = false;
        assert!(text == known.text || text == after, "step {step}: {sandbox}: {text:?}");
        known.text = text;
    }

    /// Objects of which the client was not told may be there all the same: they are deleted, so that the walk stays
    /// small.
    async fn forget_the_unknown(&self) {
        for sandbox in self.settled().await.keys().filter(|id| !self.sandboxes.contains_key(*id)) {
            self.server.client.delete_sandbox(sandbox).await.unwrap();
        }
        for snapshot in self.list("snapshots").await.iter().map(id) {
            if !self.snapshots.contains_key(&snapshot) {
                self.server.client.delete_snapshot(&snapshot).await.unwrap();
            }
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_walk_agrees_with_its_model() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let seed = setting("ATOLL_WALK_SEED").unwrap_or(u64::try_from(clock).unwrap());
    eprintln!("ATOLL_WALK_SEED={seed}");
    let mut walk = Walk {
        server: Server::start(),
        draw: Draw::new(seed),
        sandboxes: BTreeMap::new(),
        snapshots: BTreeMap::new(),
        step: 0,
    };
    for step in 0..setting("ATOLL_WALK_STEPS").unwrap_or(STEPS) {
        walk.step = step;
        walk.step().await;
    }
    for snapshot in walk.snapshots.keys() {
        walk.server.client.delete_snapshot(snapshot).await.unwrap();
    }
    walk.server.finish().await;
}
