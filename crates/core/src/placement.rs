//! Which node of a cluster gets a new sandbox.
//!
//! The node that a client asks decides, by the last reports of the nodes and by what it has given them since. It keeps
//! the sandbox unless it cannot have it or another is clearly better off ([`MARGIN`]). The node that gets it has the
//! last word: only it knows how many it has, so two that choose the same one at the same moment do no harm.
//!
//! Of many nodes only a few are compared, drawn anew each time ([`SAMPLE_COUNT`]): if every node took the best of all,
//! all sandboxes that are asked for between two signs of life would go there.

use std::collections::BTreeMap;

use crate::draw::Draw;
use crate::id::NodeId;
use crate::node::{NodeFacts, NodeLoad};
use crate::spec::IsolationLevel;

/// By how much another node must be better off before a sandbox is given away, in the thousandths of [`Candidate::cost`].
pub const MARGIN: u32 = 500;
/// Nodes that are compared, where there are more.
pub const SAMPLE_COUNT: usize = 8;
/// Costs that differ by less than this are the same.
const STEP: u32 = 25;
/// The part of its memory that a node keeps free, as one in so many.
const SPARE_PART: u64 = 20;
/// The least part of its allowed memory that a sandbox is expected to use, in thousandths, however little other
/// sandboxes use.
const USE_MIN: u64 = 125;
/// Cost of each creation under way, divided by the creations that the node does at once.
const QUEUE_COST: u64 = 250;
/// Cost of a node that has all the sandboxes that it may.
const SPREAD_COST: u64 = 500;
/// Cost of the memory of a node that does not report how much it has.
const UNKNOWN_COST: u32 = 500;
/// Cost of fetching the image first: a little more than [`MARGIN`], so that a node that has it gets the sandbox unless
/// it has more to do.
pub const FETCH_COST: u32 = 600;
/// What it takes off a node's cost when the sandbox can come from a warm pool there.
const WARM_WORTH: u32 = 500;

/// The needs of a sandbox that is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its isolation level.
    pub level: IsolationLevel,
    /// The memory that it may use, bytes.
    pub memory_bytes: u64,
    /// Its image, as [`NodeFacts::images`] has it; `None` when every node has it.
    pub image: Option<u64>,
    /// A node without the image can fetch it: a node that has it is only better off ([`FETCH_COST`]).
    pub image_is_shared: bool,
    /// Labels that the node must have.
    pub labels: &'a BTreeMap<String, String>,
}

/// The sandboxes that were given to a node since its last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handed {
    /// Sandboxes.
    pub sandboxes: u64,
    /// Memory that they are expected to use, bytes.
    pub memory_bytes: u64,
    /// Those of them that are being made at this moment.
    pub underway: u64,
}

/// A node, as far as it matters for the choice of the node that gets a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Which.
    pub id: &'a NodeId,
    /// Its facts.
    pub facts: &'a NodeFacts,
    /// Its load, as it reported.
    pub load: &'a NodeLoad,
    /// The sandboxes that it was given since.
    pub handed: Handed,
    /// It takes no new ones.
    pub is_draining: bool,
    /// A warm pool there has a member that can become the sandbox.
    pub is_warm: bool,
}

/// Where a sandbox is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement<'a> {
    /// On the node that was asked.
    Here,
    /// On another.
    On(&'a NodeId),
    /// No node can have it.
    Nowhere,
}

/// The memory that a new sandbox is expected to use, by what part of theirs the node's sandboxes use. So a node is
/// given more sandboxes than would fit if each used all that it may, as long as they do not.
#[must_use]
pub fn expected_bytes(load: &NodeLoad, memory_bytes: u64) -> u64 {
    let (total, promised) = (load.memory_total_bytes, load.memory_promised_bytes);
    if total == 0 || promised == 0 {
        return memory_bytes;
    }
    let used = u128::from(total.saturating_sub(load.memory_available_bytes));
    let share = (used * 1000 / u128::from(promised)).clamp(u128::from(USE_MIN), 1000);
    u64::try_from(u128::from(memory_bytes) * share / 1000).unwrap_or(memory_bytes)
}

impl Candidate<'_> {
    /// Whether the node has what the sandbox needs, and may take it.
    #[must_use]
    pub fn can(&self, wanted: &Wanted<'_>) -> bool {
        let facts = self.facts;
        !self.is_draining
            && facts.levels.contains(&wanted.level)
            && self.load.sandboxes.saturating_add(self.handed.sandboxes) < facts.sandboxes_max
            && (wanted.image_is_shared || self.has_image(wanted))
            && self.has_labels(wanted)
    }

    fn has_image(&self, wanted: &Wanted<'_>) -> bool {
        wanted.image.is_none_or(|image| self.facts.images.binary_search(&image).is_ok())
    }

    /// Whether it has the labels that are wanted.
    #[must_use]
    pub fn has_labels(&self, wanted: &Wanted<'_>) -> bool {
        wanted.labels.iter().all(|(key, value)| self.facts.labels.get(key) == Some(value))
    }

    /// Memory that is left when the sandbox is there; `None` when there is not enough.
    fn left_bytes(&self, wanted: &Wanted<'_>) -> Option<u64> {
        let taken = expected_bytes(self.load, wanted.memory_bytes).saturating_add(self.handed.memory_bytes);
        let left = self.load.memory_available_bytes.checked_sub(taken)?;
        (left > self.load.memory_total_bytes / SPARE_PART).then_some(left)
    }

    /// Whether it can have the sandbox and has the memory for it.
    #[must_use]
    pub fn fits(&self, wanted: &Wanted<'_>) -> bool {
        self.can(wanted) && self.left_bytes(wanted).is_some()
    }

    /// How loaded the node would be with the sandbox: memory in use, time that tasks wait for a processor, and
    /// creations that wait, up to a thousand each; and up to half of that for the part of its allowed sandboxes that it
    /// has.
    #[must_use]
    pub fn cost(&self, wanted: &Wanted<'_>) -> u32 {
        let (facts, load) = (self.facts, self.load);
        let memory = match (load.memory_total_bytes, self.left_bytes(wanted)) {
            (0, _) => UNKNOWN_COST,
            (_, None) => 1000,
            (total, Some(left)) => 1000 - per_mille(left, total),
        };
        let underway = load.creating.saturating_add(self.handed.underway);
        let queue = (underway.saturating_mul(QUEUE_COST) / facts.creates_max.max(1)).min(1000);
        let sandboxes = load.sandboxes.saturating_add(self.handed.sandboxes);
        let spread = u64::from(per_mille(sandboxes, facts.sandboxes_max)) * SPREAD_COST / 1000;
        let cost = u64::from(memory + load.cpu_pressure.min(1000)) + queue + spread;
        let worth = if self.is_warm { WARM_WORTH } else { 0 };
        let fetch = if self.has_image(wanted) { 0 } else { FETCH_COST };
        u32::try_from(cost).unwrap_or(u32::MAX).saturating_sub(worth).saturating_add(fetch)
    }
}

fn per_mille(part: u64, whole: u64) -> u32 {
    let share = u128::from(part) * 1000 / u128::from(whole.max(1));
    u32::try_from(share.min(1000)).unwrap_or(1000)
}

/// The best of the nodes that have room, or of a few of them that are drawn. `draw` is any number, a new one each time.
#[must_use]
pub fn best<'a, 'b>(wanted: &Wanted<'_>, nodes: &'b [Candidate<'a>], draw: u64) -> Option<&'b Candidate<'a>> {
    let mut draw = Draw::new(draw);
    let fits = |node: &&'b Candidate<'a>| node.fits(wanted);
    let mut some: Vec<&Candidate<'a>> = if nodes.len() <= SAMPLE_COUNT {
        nodes.iter().filter(fits).collect()
    } else {
        let drawn = (0..2 * SAMPLE_COUNT).map(|_| &nodes[draw.below(nodes.len())]);
        drawn.filter(fits).take(SAMPLE_COUNT).collect()
    };
    if nodes.len() > SAMPLE_COUNT && some.len() < SAMPLE_COUNT {
        // Few nodes have room. Nodes that choose at the same moment must not all choose the same one of these.
        let all: Vec<&Candidate<'a>> = nodes.iter().filter(fits).collect();
        some = (0..SAMPLE_COUNT).filter_map(|_| all.get(draw.below(all.len())).copied()).collect();
    }
    let sandboxes = |node: &Candidate<'_>| node.load.sandboxes.saturating_add(node.handed.sandboxes);
    some.into_iter().min_by_key(|node| (node.cost(wanted) / STEP, sandboxes(node), draw.number()))
}

/// Where a sandbox is to be made that `home` was asked for. `draw` is any number, a new one each time.
#[must_use]
pub fn place<'a>(
    wanted: &Wanted<'_>,
    home: &Candidate<'_>,
    others: &[Candidate<'a>],
    draw: u64,
) -> Placement<'a> {
    let other = best(wanted, others, draw);
    let is_better = |other: &Candidate<'_>| other.cost(wanted).saturating_add(MARGIN) < home.cost(wanted);
    match other {
        None if home.can(wanted) => Placement::Here,
        None => Placement::Nowhere,
        Some(other) if !home.fits(wanted) || is_better(other) => Placement::On(other.id),
        Some(_) => Placement::Here,
    }
}

/// The form of an image in [`NodeFacts::images`]: a number that follows from its digest or name (FNV-1a).
#[must_use]
pub fn image_mark(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |mark, byte| {
        (mark ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
