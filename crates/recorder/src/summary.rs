//! What a journal says in short: [`Summary`], and the [`tree`] of what ran.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::event::{Event, Process, What, Witness};
use crate::{Numbered, event};

/// Most different names that are counted of each kind; more are counted together.
const NAMES_MAX_COUNT: usize = 1000;
/// Where names beyond it are counted.
const OTHERS: &str = "(others)";

/// Counts over a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Events.
    pub events: u64,
    /// Time of the first and the last, microseconds since the epoch.
    pub from_us: u64,
    /// Time of the last, microseconds since the epoch.
    pub to_us: u64,
    /// How many events each witness saw.
    pub witnesses: BTreeMap<Witness, u64>,
    /// Programs that ran, by path: from the kernel where that is a witness, else the commands of execs.
    pub programs: BTreeMap<String, u64>,
    /// Hosts that were reached, with bytes.
    pub hosts: BTreeMap<String, Traffic>,
    /// Files that were changed.
    pub files: BTreeMap<String, u64>,
    /// What was refused, with the rule.
    pub refusals: BTreeMap<String, u64>,
    /// Secrets that were put into requests, by name.
    pub secrets: BTreeMap<String, u64>,
    /// Calls of the API, by key and protocol.
    pub callers: BTreeMap<String, u64>,
    /// Events that are missing, as far as a witness could count them.
    pub lost: u64,
    /// Gaps of which it is not known how much is missing.
    pub gaps: u64,
}

/// What went to and came from a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Connections that ended.
    pub connections: u64,
    /// Requests that the gateway could read.
    pub requests: u64,
    /// Bytes out of the sandbox.
    pub sent_bytes: u64,
    /// Bytes into it.
    pub received_bytes: u64,
}

fn entry<'a, T: Default>(map: &'a mut BTreeMap<String, T>, name: &str) -> &'a mut T {
    let known = map.len() < NAMES_MAX_COUNT || map.contains_key(name);
    map.entry(if known { name } else { OTHERS }.to_owned()).or_default()
}

impl Summary {
    /// Counts one more event.
    pub fn add(&mut self, event: &Event) {
        self.events += 1;
        self.from_us = if self.events == 1 { event.at_us } else { self.from_us.min(event.at_us) };
        self.to_us = self.to_us.max(event.at_us);
        *self.witnesses.entry(event.witness).or_default() += 1;
        match &event.what {
            What::ProcessStarted(started) => *entry(&mut self.programs, &started.path) += 1,
            // The kernel sees the same command, where there is one that looks.
            What::ExecStarted(started) if !self.witnesses.contains_key(&Witness::Host) => {
                *entry(&mut self.programs, started.argv.first().map_or("", String::as_str)) += 1;
            }
            What::Connection(connection) => {
                let address = connection.address.map(|address| address.to_string());
                let Some(name) = connection.host.clone().or(address) else { return };
                let traffic = entry(&mut self.hosts, &name);
                traffic.connections += 1;
                traffic.sent_bytes = traffic.sent_bytes.saturating_add(connection.sent_bytes);
                traffic.received_bytes = traffic.received_bytes.saturating_add(connection.received_bytes);
            }
            What::Http(http) => {
                entry(&mut self.hosts, &http.host).requests += 1;
                for secret in &http.secrets {
                    *entry(&mut self.secrets, secret) += 1;
                }
            }
            What::File(file) => *entry(&mut self.files, &file.path) += 1,
            What::Policy(decision) if !decision.allowed => {
                let name = format!("{} ({})", decision.subject, decision.rule);
                *entry(&mut self.refusals, &name) += decision.times.max(1);
            }
            What::Call(call) => {
                let name = format!("{} over {}", call.key.as_deref().unwrap_or("nobody"), call.protocol);
                *entry(&mut self.callers, &name) += 1;
            }
            What::Lost(event::Lost { count: Some(count), .. }) => {
                self.lost = self.lost.saturating_add(*count);
            }
            What::Lost(event::Lost { count: None, .. }) => self.gaps += 1,
            _ => {}
        }
    }
}

/// What ran, and what it did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Number of the event that began it.
    pub number: u64,
    /// Its command line.
    pub argv: Vec<String>,
    /// The exec, where it is one.
    pub exec: Option<String>,
    /// Pid, as its witness counts.
    pub pid: Option<u32>,
    /// How it ended, in words; empty while it runs.
    pub end: String,
    /// Where it connected to.
    pub connections: BTreeSet<String>,
    /// What it started.
    pub children: Vec<Self>,
}

/// The trees of what ran: processes where a kernel is a witness, else execs.
#[must_use]
pub fn tree(events: &[Numbered]) -> Vec<Node> {
    let mut forest = Forest::default();
    for event in events {
        forest.add(event);
    }
    forest.grow()
}

/// A process in the tree, or an exec whose processes no witness saw.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Process(Witness, Process),
    Exec(String),
}

#[derive(Debug, Default)]
struct Forest {
    nodes: BTreeMap<Key, Node>,
    parents: BTreeMap<Key, Key>,
    /// Which exec a process belongs to.
    execs: BTreeMap<Key, Key>,
}

impl Forest {
    fn add(&mut self, Numbered { number, event }: &Numbered) {
        let process = event.process.map(|process| Key::Process(event.witness, process));
        let exec = event.exec.as_ref().map(|exec| Key::Exec(exec.to_string()));
        match (&event.what, process, exec) {
            (What::ExecStarted(started), _, Some(key)) => {
                let Key::Exec(id) = &key else { return };
                let exec = Some(id.clone());
                let node = Node {
                    number: *number,
                    argv: started.argv.clone(),
                    exec,
                    pid: started.pid,
                    ..Node::default()
                };
                self.nodes.insert(key, node);
            }
            (What::ExecEnded(ended), _, Some(key)) => {
                if let Some(node) = self.nodes.get_mut(&key) {
                    node.end = end(ended.code, ended.signal, &ended.reason);
                }
            }
            (What::ProcessStarted(started), Some(key), exec) => {
                self.root(&key, started.parent.map(|parent| Key::Process(event.witness, parent)), exec);
                let node = self.node(key, *number);
                node.argv.clone_from(&started.argv);
            }
            (What::ProcessForked { parent }, Some(key), exec) => {
                let argv =
                    self.nodes.get(&Key::Process(event.witness, *parent)).map(|node| node.argv.clone());
                self.root(&key, Some(Key::Process(event.witness, *parent)), exec);
                self.node(key, *number).argv = argv.unwrap_or_default();
            }
            (What::ProcessExited(exited), Some(key), _) => {
                self.node(key, *number).end = end(exited.code, exited.signal, "");
            }
            (What::Connect(socket), Some(key), _) => {
                let peer = socket.peer.map(|peer| peer.to_string());
                self.node(key, *number).connections.extend(peer);
            }
            _ => {}
        }
    }

    fn node(&mut self, key: Key, number: u64) -> &mut Node {
        let pid = if let Key::Process(_, process) = &key { Some(process.pid) } else { None };
        self.nodes.entry(key).or_insert_with(|| Node { number, pid, ..Node::default() })
    }

    /// Enters below whom a process stands: its exec when the parent belongs to none, as the agent; else its parent.
    fn root(&mut self, key: &Key, parent: Option<Key>, exec: Option<Key>) {
        if let Some(exec) = &exec {
            self.execs.insert(key.clone(), exec.clone());
        }
        let known = parent.filter(|parent| parent != key && self.nodes.contains_key(parent));
        let begins = exec.is_some() && known.as_ref().is_none_or(|parent| !self.execs.contains_key(parent));
        if let Some(parent) = if begins { exec } else { known } {
            self.parents.entry(key.clone()).or_insert(parent);
        }
    }

    /// Puts children below their parents, the youngest first, so that each is whole when it is moved.
    fn grow(mut self) -> Vec<Node> {
        let mut order: Vec<_> = self.nodes.iter().map(|(key, node)| (node.number, key.clone())).collect();
        order.sort();
        let mut roots = Vec::new();
        for (_, key) in order.into_iter().rev() {
            let Some(mut node) = self.nodes.remove(&key) else { continue };
            node.children.reverse();
            match self.parents.get(&key).and_then(|parent| self.nodes.get_mut(parent)) {
                Some(parent) => parent.children.push(node),
                None => roots.push(node),
            }
        }
        roots.reverse();
        roots
    }
}

fn end(code: Option<i32>, signal: Option<i32>, reason: &str) -> String {
    match (code, signal) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), None) => format!("exit {code}"),
        (None, None) => reason.to_owned(),
    }
}
