use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

#[derive(Debug, Clone)]
struct Node {
    id: NodeId,
    facts: NodeFacts,
    load: NodeLoad,
    handed: Handed,
    is_draining: bool,
    is_warm: bool,
}

impl Node {
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            id: &self.id,
            facts: &self.facts,
            load: &self.load,
            handed: self.handed,
            is_draining: self.is_draining,
            is_warm: self.is_warm,
        }
    }
}

fn wanted() -> Wanted<'static> {
    Wanted {
        level: IsolationLevel::Container,
        memory_bytes: GIB,
        image: None,
        image_is_shared: false,
        labels: &NO_LABELS,
    }
}

/// A node of 64 GiB.
fn node(number: u64, free_gib: u64, sandboxes: u64) -> Node {
    let facts = NodeFacts {
        levels: vec![IsolationLevel::Container],
        sandboxes_max: 1000,
        creates_max: 4,
        ..NodeFacts::default()
    };
    let load = NodeLoad {
        sandboxes,
        memory_available_bytes: free_gib * GIB,
        memory_total_bytes: 64 * GIB,
        ..NodeLoad::default()
    };
    let id = NodeId::from_parts(number, number);
    Node { id, facts, load, handed: Handed::default(), is_draining: false, is_warm: false }
}

#[test]
fn a_node_that_has_just_started_takes_what_another_gives_away() {
    let load: NodeLoad = serde_json::from_str("{}").unwrap();
    let started = Node { load, ..node(2, 0, 0) };
    assert_eq!(best(&wanted(), &[started.candidate()], 7).map(|node| node.id), Some(&started.id));
    let draining = Node { is_draining: true, ..node(1, 60, 0) };
    assert_eq!(chosen(&wanted(), &draining, &[started], 7), Some(2));
}

/// The number of the node that gets it; 0 for the one that is asked.
fn chosen(wanted: &Wanted<'_>, home: &Node, others: &[Node], draw: u64) -> Option<u64> {
    let candidates: Vec<_> = others.iter().map(Node::candidate).collect();
    match place(wanted, &home.candidate(), &candidates, draw) {
        Placement::Here => Some(0),
        Placement::On(id) => Some(id.parts().0),
        Placement::Nowhere => None,
    }
}

#[test]
fn who_is_asked_keeps_what_it_can_have() {
    let home = node(9, 32, 5);
    assert_eq!(chosen(&wanted(), &home, &[], 1), Some(0));
    assert_eq!(chosen(&wanted(), &home, &[node(1, 40, 0)], 1), Some(0), "a little better is not enough");
    assert_eq!(chosen(&wanted(), &node(9, 10, 5), &[node(1, 60, 0)], 1), Some(1), "clearly better");
    let warm = Node { is_warm: true, ..node(9, 10, 5) };
    assert_eq!(chosen(&wanted(), &warm, &[node(1, 60, 0)], 1), Some(0), "it comes from a pool here");
}

#[test]
fn who_cannot_have_it_gives_it_away() {
    let others = [node(1, 20, 0)];
    let draining = Node { is_draining: true, ..node(9, 64, 0) };
    let full = node(9, 64, 1000);
    let mut other_level = node(9, 64, 0);
    other_level.facts.levels = vec![IsolationLevel::Gvisor];
    for home in [&draining, &full, &other_level, &node(9, 1, 0)] {
        assert_eq!(chosen(&wanted(), home, &others, 1), Some(1));
        let expected = if home.load.memory_available_bytes == GIB { Some(0) } else { None };
        // Memory may be found where it is needed; the rest may not.
        assert_eq!(chosen(&wanted(), home, &[], 1), expected);
    }
}

#[test]
fn images_and_labels_are_demands() {
    let mark = image_mark("sha256:abc");
    let (mut has, mut zone) = (node(1, 10, 900), node(2, 10, 900));
    has.facts.images = vec![mark];
    zone.facts.labels.insert("zone".to_owned(), "a".to_owned());
    let others = [has, zone, node(3, 60, 0)];
    let image = Wanted { image: Some(mark), ..wanted() };
    assert_eq!(chosen(&image, &node(9, 60, 0), &others, 1), Some(1));
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let labelled = Wanted { labels: &labels, ..wanted() };
    assert_eq!(chosen(&labelled, &node(9, 60, 0), &others, 1), Some(2));
    let elsewhere = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
    assert_eq!(chosen(&Wanted { labels: &elsewhere, ..wanted() }, &node(9, 60, 0), &others, 1), None);
}

#[test]
fn processors_and_creations_that_wait_count() {
    let mut busy = node(9, 60, 0);
    busy.load.cpu_pressure = 900;
    assert_eq!(chosen(&wanted(), &busy, &[node(1, 60, 0)], 1), Some(1));
    let mut waiting = node(9, 60, 0);
    waiting.load.creating = 12;
    assert_eq!(chosen(&wanted(), &waiting, &[node(1, 60, 0)], 1), Some(1));
    let mut as_many = node(1, 60, 0);
    as_many.handed.underway = 12;
    assert_eq!(chosen(&wanted(), &waiting, &[as_many], 1), Some(0));
}

#[test]
fn what_is_used_counts_and_not_what_may_be_used() {
    let mut load = node(1, 60, 0).load;
    assert_eq!(expected_bytes(&load, GIB), GIB, "nothing is known yet");
    // A hundred that may use 1 GiB each use four together.
    load.memory_promised_bytes = 100 * GIB;
    assert_eq!(expected_bytes(&load, GIB), GIB / 8, "never less than an eighth");
    load.memory_available_bytes = 14 * GIB;
    assert_eq!(expected_bytes(&load, GIB), GIB / 2);
    load.memory_promised_bytes = 10 * GIB;
    assert_eq!(expected_bytes(&load, GIB), GIB, "never more than it may");
}

#[test]
fn a_burst_is_spread_over_equals() {
    let mut nodes: Vec<Node> = (1..=100).map(|number| node(number, 60, 0)).collect();
    let home = Node { is_draining: true, ..node(999, 0, 0) };
    for draw in 0..1000 {
        let at = usize::try_from(chosen(&wanted(), &home, &nodes, draw).unwrap()).unwrap();
        nodes[at - 1].handed.sandboxes += 1;
        nodes[at - 1].handed.memory_bytes += GIB / 8;
    }
    let (least, most) =
        (nodes.iter().map(|n| n.handed.sandboxes).min(), nodes.iter().map(|n| n.handed.sandboxes).max());
    assert!(least >= Some(7) && most <= Some(13), "{least:?} {most:?}");
}

fn any_node(number: u64) -> impl Strategy<Value = Node> {
    let load = (0u64..70, 0u64..1100, 0u64..80, 0u32..1200, 0u64..30);
    (load, any::<bool>(), any::<bool>(), 0u64..8).prop_map(
        move |((free, sandboxes, promised, cpu_pressure, creating), is_draining, is_warm, handed)| {
            let mut node = node(number, free.min(64), sandboxes);
            node.load.memory_promised_bytes = promised * GIB;
            node.load.cpu_pressure = cpu_pressure;
            node.load.creating = creating;
            node.handed = Handed { sandboxes: handed, memory_bytes: handed * GIB, underway: handed };
            Node { is_draining: is_draining && number.is_multiple_of(2), is_warm, ..node }
        },
    )
}

fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
    (0u64..20).prop_flat_map(|count| (1..=count).map(any_node).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn who_gets_it_has_room(nodes in any_nodes(), home in any_node(99), draw: u64, gib in 0u64..8) {
        let wanted = Wanted { memory_bytes: gib * GIB, ..wanted() };
        let fits = |node: &Node| node.candidate().fits(&wanted);
        match chosen(&wanted, &home, &nodes, draw) {
            Some(0) => prop_assert!(home.candidate().can(&wanted)),
            Some(number) => prop_assert!(nodes.iter().any(|node| node.id.parts().0 == number && fits(node))),
            None => prop_assert!(!home.candidate().can(&wanted) && !nodes.iter().any(fits), "somebody had room"),
        }
    }

    #[test]
    fn nothing_is_given_to_who_is_worse_off(nodes in any_nodes(), home in any_node(99), draw: u64) {
        prop_assume!(home.candidate().fits(&wanted()));
        if let Some(number @ 1..) = chosen(&wanted(), &home, &nodes, draw) {
            let other = nodes.iter().find(|node| node.id.parts().0 == number).unwrap();
            prop_assert!(other.candidate().cost(&wanted()) + MARGIN < home.candidate().cost(&wanted()));
        }
    }

    #[test]
    fn the_same_question_has_the_same_answer(nodes in any_nodes(), home in any_node(99), draw: u64) {
        prop_assert_eq!(chosen(&wanted(), &home, &nodes, draw), chosen(&wanted(), &home, &nodes, draw));
    }

    #[test]
    fn more_to_do_never_costs_less(node in any_node(1), more in 1u64..100) {
        let before = node.candidate().cost(&wanted());
        let mut after = node.clone();
        after.handed.sandboxes += more;
        after.handed.memory_bytes += more * GIB;
        after.handed.underway += more;
        prop_assert!(after.candidate().cost(&wanted()) >= before);
    }
}
