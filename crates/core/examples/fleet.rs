//! Simulates a cluster whose nodes choose with [`atoll_core::placement`], each by the last report that it had of the
//! others: `bench/fleet` runs it.
//!
//! ```text
//! fleet [--nodes 1000] [--sandboxes 1000000] [--burst 10000] [--seed 1]
//! ```
//!
//! Time passes in steps of a tenth of a second. Every two seconds a node reports what it has; the other nodes know it
//! from the next step on. A sandbox that a node is given waits for its turn there and is made at the pace of the node's
//! processors.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the lines are what it is for, and it has no input"
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use atoll_core::id::NodeId;
use atoll_core::node::{NodeFacts, NodeLoad};
use atoll_core::placement::{Candidate, Handed, Placement, Wanted, expected_bytes, image_mark, place};
use atoll_core::spec::IsolationLevel;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Steps between two signs of life of a node: two seconds.
const BEAT_STEPS: u64 = 20;
/// Creations that a processor makes in a step: one takes 20 ms.
const MADE_BY_CPU: usize = 5;
/// Signs of life after which a node's report includes the sandboxes that it was given, as in the engine.
const TOLD_AFTER: u64 = 2;
/// Nodes that one request comes to at most.
const TURNS_MAX: usize = 4;
/// What a sandbox may use, bytes.
const ALLOWED: u64 = 512 * MIB;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    /// What a sandbox really uses: most little, some all that they may.
    fn used(&mut self) -> u64 {
        let some = 16 * MIB + self.next() % (64 * MIB);
        if self.next().is_multiple_of(16) { some + self.next() % (ALLOWED - 80 * MIB) } else { some }
    }
}

struct Node {
    id: NodeId,
    facts: NodeFacts,
    cpus: usize,
    total: u64,
    used: u64,
    sandboxes: u64,
    is_draining: bool,
    /// For each sandbox that waits here: which node gave it, and how much memory it will use.
    queue: VecDeque<(usize, u64)>,
    busy: u32,
    said: NodeLoad,
    beats: u64,
    given: HashMap<usize, Given>,
}

#[derive(Default)]
struct Given {
    at: u64,
    handed: Handed,
}

impl Node {
    fn load(&self) -> NodeLoad {
        NodeLoad {
            // As in the engine: sandboxes that are being made count as there.
            sandboxes: self.sandboxes + self.queue.len() as u64,
            memory_available_bytes: self.total.saturating_sub(self.used),
            memory_total_bytes: self.total,
            memory_promised_bytes: self.sandboxes * ALLOWED,
            cpu_pressure: self.busy,
            creating: self.queue.len() as u64,
        }
    }
}

#[derive(Default)]
struct Counts {
    asked: u64,
    kept: u64,
    given: u64,
    refused: u64,
    failed: u64,
    deciding: Duration,
}

struct Fleet {
    nodes: Vec<Node>,
    random: Random,
    step: u64,
    counts: Counts,
    /// Whether nodes give anything away.
    places: bool,
}

impl Fleet {
    fn new(count: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let nodes = (0..count).map(|number| {
            let size = [1, 2, 4][random.below(3)];
            let cpus = 8 * size;
            let facts = NodeFacts {
                levels: vec![IsolationLevel::Container],
                sandboxes_max: 2000,
                labels: BTreeMap::new(),
                creates_max: 2 * cpus as u64,
                images: if number % 10 == 0 { vec![image_mark("rare")] } else { Vec::new() },
                machines: None,
            };
            let total = 64 * GIB * size as u64;
            Node {
                id: NodeId::from_parts(number as u64, number as u64),
                facts,
                cpus,
                total,
                used: 2 * GIB,
                sandboxes: 0,
                is_draining: false,
                queue: VecDeque::new(),
                busy: 0,
                said: NodeLoad::default(),
                beats: number as u64 % BEAT_STEPS,
                given: HashMap::new(),
            }
        });
        let nodes = nodes.collect();
        let mut fleet = Self { nodes, random, step: 0, counts: Counts::default(), places: true };
        for node in &mut fleet.nodes {
            node.said = node.load();
        }
        fleet
    }

    /// A client asks a node for a sandbox.
    fn create(&mut self, asked: usize, image: Option<u64>) {
        self.counts.asked += 1;
        let mut tried = Vec::new();
        for _ in 0..TURNS_MAX {
            let chosen = if self.places { self.choose(asked, image, &tried) } else { Some(asked) };
            let Some(chosen) = chosen else { break };
            if chosen != asked {
                self.hand(asked, chosen);
            }
            let node = &self.nodes[chosen];
            let waits = node.queue.len() as u64;
            // The node that gets it has the last word.
            if !node.is_draining && node.sandboxes + waits < node.facts.sandboxes_max {
                if chosen == asked {
                    self.counts.kept += 1;
                } else {
                    self.counts.given += 1;
                }
                let used = self.random.used();
                self.nodes[chosen].queue.push_back((asked, used));
                return;
            }
            if chosen == asked {
                break;
            }
            self.counts.refused += 1;
            self.done(asked, chosen);
            tried.push(chosen);
        }
        self.counts.failed += 1;
    }

    fn choose(&mut self, asked: usize, image: Option<u64>, tried: &[usize]) -> Option<usize> {
        let draw = self.random.next();
        let began = Instant::now();
        let labels = BTreeMap::new();
        let wanted = Wanted {
            level: IsolationLevel::Container,
            memory_bytes: ALLOWED,
            image,
            image_is_shared: false,
            labels: &labels,
        };
        let home = &self.nodes[asked];
        let load = home.load();
        let others: Vec<Candidate<'_>> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != asked && !tried.contains(number))
            .map(|(number, node)| {
                let handed = home.given.get(&number).map(|given| given.handed).unwrap_or_default();
                candidate(node, &node.said, handed)
            })
            .collect();
        let home = candidate(home, &load, Handed::default());
        let chosen = match place(&wanted, &home, &others, draw) {
            Placement::Here => Some(asked),
            Placement::On(id) => Some(usize::try_from(id.parts().0).unwrap()),
            Placement::Nowhere => None,
        };
        self.counts.deciding += began.elapsed();
        chosen
    }

    fn hand(&mut self, asked: usize, to: usize) {
        let (beats, expected) = (self.nodes[to].beats, expected_bytes(&self.nodes[to].said, ALLOWED));
        let given = self.nodes[asked].given.entry(to).or_default();
        if given.handed.sandboxes == 0 || beats >= given.at + TOLD_AFTER {
            given.at = beats;
            (given.handed.sandboxes, given.handed.memory_bytes) = (0, 0);
        }
        given.handed.sandboxes += 1;
        given.handed.memory_bytes += expected;
        given.handed.underway += 1;
    }

    fn done(&mut self, asked: usize, to: usize) {
        if let Some(given) = self.nodes[asked].given.get_mut(&to) {
            given.handed.underway = given.handed.underway.saturating_sub(1);
        }
    }

    /// A tenth of a second passes.
    fn pass(&mut self) {
        self.step += 1;
        let mut done = Vec::new();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let room = node.cpus * MADE_BY_CPU;
            let made = room.min(node.queue.len());
            for (asked, used) in node.queue.drain(..made) {
                node.sandboxes += 1;
                node.used += used;
                done.push((asked, number));
            }
            // As the kernel counts it, over ten seconds.
            let now = u32::try_from(made * 1000 / room).unwrap();
            node.busy = (node.busy * 99 + now) / 100;
            if (self.step + number as u64).is_multiple_of(BEAT_STEPS) {
                node.said = node.load();
                node.beats += 1;
            }
        }
        for (asked, number) in done {
            if asked != number {
                self.done(asked, number);
            }
        }
        if self.step.is_multiple_of(BEAT_STEPS) {
            let beats: Vec<u64> = self.nodes.iter().map(|node| node.beats).collect();
            for node in &mut self.nodes {
                for (to, given) in &mut node.given {
                    if beats[*to] >= given.at + TOLD_AFTER {
                        (given.handed.sandboxes, given.handed.memory_bytes) = (0, 0);
                    }
                }
                node.given.retain(|_, given| given.handed != Handed::default());
            }
        }
    }

    /// Lets everything that waits be made; gives how many steps that took.
    fn settle(&mut self) -> u64 {
        let began = self.step;
        while self.nodes.iter().any(|node| !node.queue.is_empty()) {
            self.pass();
        }
        self.step - began
    }

    /// Up to `count` of the living sandboxes end.
    fn end(&mut self, count: u64) {
        for _ in 0..count {
            let number = self.random.below(self.nodes.len());
            let used = self.random.used();
            let node = &mut self.nodes[number];
            if node.sandboxes > 0 {
                node.sandboxes -= 1;
                node.used = node.used.saturating_sub(used).max(2 * GIB);
            }
        }
    }

    /// Thirty seconds in which nothing is asked for.
    fn rest(&mut self) {
        for _ in 0..300 {
            self.pass();
        }
    }

    fn begin(&mut self) {
        self.counts = Counts::default();
    }

    fn row(&self, what: &str, longest: usize, steps: u64) {
        let counts = &self.counts;
        let share = |count: u64| count as f64 * 100.0 / counts.asked.max(1) as f64;
        let decisions = (counts.kept + counts.given + counts.refused).max(1);
        println!(
            "| {what} | {} | {:.1} % | {:.1} % | {} | {} | {longest} | {:.1} s | {:.1} µs |",
            counts.asked,
            share(counts.kept),
            share(counts.given),
            counts.refused,
            counts.failed,
            steps as f64 / 10.0,
            counts.deciding.as_secs_f64() * 1e6 / decisions as f64,
        );
    }

    fn burst(&mut self, what: &str, count: usize, at: Option<usize>, image: Option<u64>) {
        self.rest();
        self.begin();
        for _ in 0..count {
            let asked = at.unwrap_or_else(|| self.random.below(self.nodes.len()));
            self.create(asked, image);
        }
        let longest = self.nodes.iter().map(|node| node.queue.len()).max().unwrap_or_default();
        let steps = self.settle();
        self.row(what, longest, steps);
        self.end(count as u64);
    }

    fn spread(&self, what: &str) {
        let mut used: Vec<f64> = self.nodes.iter().map(|node| node.used as f64 / node.total as f64).collect();
        used.sort_by(f64::total_cmp);
        let mean = used.iter().sum::<f64>() / used.len() as f64;
        let deviation = (used.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / used.len() as f64).sqrt();
        let sandboxes: u64 = self.nodes.iter().map(|node| node.sandboxes).sum();
        let most = self.nodes.iter().map(|node| node.sandboxes).max().unwrap_or_default();
        let promised = self.nodes.iter().map(|node| node.sandboxes * ALLOWED).sum::<u64>();
        let total: u64 = self.nodes.iter().map(|node| node.total).sum();
        println!(
            "| {what} | {sandboxes} | {most} | {:.0} % | {:.0} % | {:.0} % | {:.1} % | {:.2} |",
            used[0] * 100.0,
            mean * 100.0,
            used[used.len() - 1] * 100.0,
            deviation * 100.0,
            promised as f64 / total as f64,
        );
    }
}

/// A candidate of a simulated node.
fn candidate<'a>(node: &'a Node, load: &'a NodeLoad, handed: Handed) -> Candidate<'a> {
    Candidate {
        id: &node.id,
        facts: &node.facts,
        load,
        handed,
        is_draining: node.is_draining,
        is_warm: false,
    }
}

fn argument(name: &str, otherwise: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().map_or(otherwise, |text| text.parse().expect("a number"))
}

fn main() {
    let nodes = usize::try_from(argument("--nodes", 1000)).unwrap();
    let sandboxes = argument("--sandboxes", 1_000_000);
    let burst = usize::try_from(argument("--burst", 10_000)).unwrap();
    let seed = argument("--seed", 1);
    println!("{nodes} nodes, {sandboxes} sandboxes, bursts of {burst}, seed {seed}\n");

    let mut fleet = Fleet::new(nodes, seed);
    // As with a load balancer: each node is asked as often as any other. A step's worth at a time.
    fleet.begin();
    let began = fleet.step;
    for number in 0..sandboxes {
        let asked = fleet.random.below(nodes);
        fleet.create(asked, None);
        if number % 1000 == 999 {
            fleet.pass();
        }
    }
    fleet.settle();
    let steps = fleet.step - began;
    println!(
        "| asked for | creations | kept | given away | refused on the way | failed | longest queue | until all are made | a decision |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    fleet.row("all of them, anywhere", 0, steps);
    fleet.burst("a burst, anywhere", burst, None, None);
    fleet.burst("a burst at one node", burst, Some(5), None);
    fleet.places = false;
    fleet.burst("the same, were all kept", burst.min(1000), Some(5), None);
    fleet.places = true;
    fleet.burst("a burst of an image that a tenth has", burst, None, Some(image_mark("rare")));
    for number in 0..nodes / 10 {
        fleet.nodes[number * 10 + 1].is_draining = true;
    }
    fleet.burst("a burst while a tenth drains", burst, None, None);
    for node in &mut fleet.nodes {
        node.is_draining = false;
        // Nearly full: every node has room for a few.
        node.facts.sandboxes_max = node.sandboxes + 15;
    }
    fleet.burst("a burst into two thirds of the last room", burst, None, None);

    println!(
        "\n| | sandboxes | most on one | memory used: least | mean | most | deviation | promised to had |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    fleet.spread("in the end");
}
