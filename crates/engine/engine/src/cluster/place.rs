//! Which node makes a sandbox. The rules are [`atoll_core::placement`]'s.
//!
//! A request is given away whole, before anything was done for it: only where that can still be, and where what the sandbox is
//! made from is not bound to one node.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::id::NodeId;
use atoll_core::node::{NODE_IMAGES_MAX_COUNT, NodeFacts, NodeLoad};
use atoll_core::placement::{Candidate, Handed, Placement, Wanted, best, expected_bytes, image_mark, place};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{SandboxDraft, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_image::local_or_normal;
use atoll_store::{NodeRecord, SandboxRecord};

use super::{Asked, Cluster};
use crate::clock::random;
use crate::engine::{Engine, Inner};

/// Memory that a sandbox is taken to be allowed where nothing is said, bytes.
const MEMORY_BYTES: u64 = 512 << 20;

fn drains() -> Error {
    Error::new(Code::NodeUnavailable, "this node takes no new sandboxes, and no other can take it")
        .hint("'atoll node undrain' lets it take some again")
}

fn unlabelled() -> Error {
    Error::new(Code::NodeUnavailable, "no node that can take it has these labels")
        .hint("'atoll node ls --json' shows the labels of each node")
}

impl Engine {
    /// Refuses a creation that another node should make, and notes which. Where there is no other that can, this one tries.
    pub(crate) fn place(&self, draft: &SandboxDraft, template: Option<&TemplateSpec>) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else {
            let alone = || Error::invalid("node_labels", "this server is no node of a cluster");
            return if draft.node_labels.is_empty() { Ok(()) } else { Err(alone()) };
        };
        if self.inner.is_bound(draft, template) {
            return Ok(());
        }
        let nodes = cluster.nodes();
        let Some(this) = nodes.iter().find(|node| node.id == *cluster.id()) else { return Ok(()) };
        let level = draft.isolation.or_else(|| template?.isolation);
        let memory_bytes = draft.resources.memory_bytes.or_else(|| template?.resources.memory_bytes);
        let (image, image_is_here) = self.inner.image_wanted(draft, template);
        let is_shared = |mark| self.inner.shared_images.as_ref().is_some_and(|shared| shared.has(mark));
        let wanted = Wanted {
            level: level.unwrap_or(self.inner.config.defaults.isolation),
            memory_bytes: memory_bytes.unwrap_or(MEMORY_BYTES),
            image,
            image_is_shared: image.is_some_and(is_shared),
            labels: &draft.node_labels,
        };
        let load = self.inner.load_now(cluster);
        let facts = NodeFacts {
            levels: this.facts.levels.clone(),
            sandboxes_max: self.inner.config.sandboxes_max as u64,
            labels: this.facts.labels.clone(),
            creates_max: self.inner.config.creates_max as u64,
            // What is here at this moment, and not what was said of it.
            images: image.filter(|_| image_is_here).into_iter().collect(),
            machines: this.facts.machines,
        };
        let home = Candidate {
            id: &this.id,
            facts: &facts,
            load: &load,
            handed: Handed::default(),
            is_draining: this.is_draining,
            is_warm: self.inner.pools.is_warm(draft.template.as_deref(), draft.image.as_deref()),
        };
        match Asked::current() {
            Some(asked) if asked.may_go() => give_away(cluster, &asked, &nodes, &wanted, &home),
            // The node that gave it to this one chooses another.
            Some(asked) if asked.is_by_node() && !home.can(&wanted) => {
                asked.refuse();
                Err(Error::new(Code::NodeUnavailable, "this node cannot take it"))
            }
            _ if home.is_draining => Err(drains()),
            _ if !home.has_labels(&wanted) => Err(unlabelled()),
            // It says itself what is in the way.
            _ => Ok(()),
        }
    }

    /// Refuses what would be made from something that is on this node, when that takes no new sandboxes, or is not what is
    /// wanted.
    pub(crate) fn check_bound(&self, draft: &SandboxDraft, template: Option<&TemplateSpec>) -> Result<()> {
        let Some(cluster) = self.inner.cluster.as_ref().filter(|_| self.inner.is_bound(draft, template))
        else {
            return Ok(());
        };
        let Some(this) = cluster.any(cluster.id()) else { return Ok(()) };
        if this.is_draining {
            let why = "what it is made from is on a node that takes no new sandboxes";
            return Err(
                Error::new(Code::NodeUnavailable, why).hint("'atoll node undrain' lets it take some again")
            );
        }
        if draft.node_labels.iter().any(|(key, value)| this.facts.labels.get(key) != Some(value)) {
            let why = "what it is made from is on a node without these labels";
            return Err(Error::new(Code::NodeUnavailable, why).hint("leave the labels out"));
        }
        Ok(())
    }

    /// The node to which a sandbox of this one goes that takes nothing new: one that can use its memory, if it has some that
    /// can go, and that has its image, if there is one.
    pub(crate) fn place_away(&self, record: &SandboxRecord) -> Result<Option<NodeId>> {
        let Some(cluster) = &self.inner.cluster else { return Ok(None) };
        let nodes = cluster.nodes();
        let others: Vec<Candidate<'_>> = candidates(cluster, &nodes, |id| id != cluster.id());
        let machines = self.inner.machines_of(record);
        let alike = others.iter().filter(|node| machines.is_some() && node.facts.machines == machines);
        let alike: Vec<Candidate<'_>> = alike.copied().collect();
        let labels = BTreeMap::new();
        let image = record.image_digest.as_deref().map(image_mark);
        // Without its image a node pulls that; without its memory the sandbox begins anew on its disk.
        for (nodes, image) in [(&alike, image), (&alike, None), (&others, image), (&others, None)] {
            let wanted = Wanted {
                level: record.spec.isolation,
                memory_bytes: record.spec.resources.memory_bytes,
                image,
                image_is_shared: false,
                labels: &labels,
            };
            if let Some(node) = best(&wanted, nodes, random()?) {
                return Ok(Some(node.id.clone()));
            }
        }
        Ok(None)
    }

    /// Whether a sandbox of this node keeps its memory when it goes to another one.
    pub(crate) fn keeps_memory_at(&self, record: &SandboxRecord, node: &NodeId) -> bool {
        let Some(cluster) = &self.inner.cluster else { return false };
        let there = cluster.any(node).and_then(|node| node.facts.machines);
        there.is_some() && there == self.inner.machines_of(record)
    }

    /// How the other nodes that live run machines, as far as that is not how this one does.
    pub(crate) fn machines_elsewhere(&self) -> Vec<u64> {
        let Some(cluster) = &self.inner.cluster else { return Vec::new() };
        let here = cluster.any(cluster.id()).and_then(|node| node.facts.machines);
        let others = cluster.nodes().into_iter().filter(|node| node.is_alive && node.id != *cluster.id());
        others.filter_map(|node| node.facts.machines).filter(|machines| Some(*machines) != here).collect()
    }

    /// What this node says of itself from now on, when it is not what it said.
    pub(super) async fn say_facts(&self, cluster: &Cluster) -> Result<()> {
        let Some(this) = cluster.any(cluster.id()) else { return Ok(()) };
        let facts = self.inner.facts(&this.facts);
        if facts != this.facts {
            self.inner.store.set_facts(&facts).await.map_err(crate::errors::store_error)?;
        }
        Ok(())
    }
}

/// The nodes that live and are open, as far as is known of them.
fn candidates<'a>(
    cluster: &Cluster,
    nodes: &'a [Arc<NodeRecord>],
    open: impl Fn(&NodeId) -> bool,
) -> Vec<Candidate<'a>> {
    let open = nodes.iter().filter(|node| node.is_alive && open(&node.id));
    let candidate = |node: &'a Arc<NodeRecord>| Candidate {
        id: &node.id,
        facts: &node.facts,
        load: &node.load,
        handed: cluster.given.to(&node.id),
        is_draining: node.is_draining,
        is_warm: false,
    };
    open.map(candidate).collect()
}

fn give_away(
    cluster: &Cluster,
    asked: &Asked,
    nodes: &[Arc<NodeRecord>],
    wanted: &Wanted<'_>,
    home: &Candidate<'_>,
) -> Result<()> {
    let tried = asked.tried();
    let open = |id: &NodeId| id != home.id && !tried.contains(id);
    let others = candidates(cluster, nodes, open);
    match place(wanted, home, &others, random()?) {
        Placement::On(id) => {
            if let Some(node) = nodes.iter().find(|node| node.id == *id) {
                let expected = expected_bytes(&node.load, wanted.memory_bytes);
                asked.choose(node.id.clone(), cluster.given.one(node, expected));
            }
            Err(Error::new(Code::NodeUnavailable, "another node should make it").hint("ask another node"))
        }
        Placement::Nowhere if home.is_draining => Err(drains()),
        Placement::Nowhere if !home.has_labels(wanted) => Err(unlabelled()),
        // What is in the way, the creation says.
        Placement::Nowhere | Placement::Here => Ok(()),
    }
}

impl Inner {
    /// Whether what it is made from is on one node: then it is made there.
    fn is_bound(&self, draft: &SandboxDraft, template: Option<&TemplateSpec>) -> bool {
        let is_shared = |id| self.shared_images.as_ref().is_some_and(|shared| shared.has_snapshot(id));
        let disk = template.and_then(|template| template.snapshot.as_ref());
        draft.snapshot.is_some()
            || !draft.volumes.is_empty()
            || draft.image.is_none() && disk.is_some_and(|id| !is_shared(id))
    }

    /// The mark of the image that a sandbox stands on, if not every node has it, and whether this one does.
    fn image_wanted(&self, draft: &SandboxDraft, template: Option<&TemplateSpec>) -> (Option<u64>, bool) {
        let name = draft.image_name(template).unwrap_or(&self.config.defaults.image);
        if name == "host" {
            return (None, true);
        }
        match self.images.resolve(name) {
            // Exactly the image that this node has by this name, even if other nodes have another by it.
            Ok(image) => (Some(image_mark(image.digest.as_str())), true),
            Err(_) => (Some(image_mark(&local_or_normal(name).unwrap_or_else(|_| name.to_owned()))), false),
        }
    }

    /// How this node runs the machine of a sandbox whose memory is there or can be put to disk; `None` for one that has none.
    fn machines_of(&self, record: &SandboxRecord) -> Option<u64> {
        let driver = self.driver(record.spec.isolation).ok()?;
        let keeps = record.paused != Some(PauseMode::Filesystem) && driver.memory_pause().is_ok();
        keeps.then(|| driver.platform()).flatten().map(|platform| platform.mark())
    }

    /// What this node is, with what has changed since it entered.
    fn facts(&self, said: &NodeFacts) -> NodeFacts {
        let mut images: Vec<u64> = Vec::new();
        for image in self.images.list() {
            images.push(image_mark(image.digest.as_str()));
            images.extend(image.names.iter().map(|name| image_mark(name)));
        }
        images.truncate(NODE_IMAGES_MAX_COUNT);
        images.sort_unstable();
        let creates_max = self.config.creates_max as u64;
        NodeFacts { creates_max, images, ..said.clone() }
    }

    /// What this node has to do at this moment.
    fn load_now(&self, cluster: &Cluster) -> NodeLoad {
        let (sandboxes, creating) = (self.count_sandboxes(), self.pools.creating());
        NodeLoad { sandboxes, creating, ..*cluster.load.borrow() }
    }

    /// The same, measured.
    pub(super) async fn measure_load(&self) -> NodeLoad {
        let (mut available, mut total, mut cpu_pressure) = (None, None, None);
        for driver in self.drivers.values() {
            available = available.or(driver.memory_available().await);
            let host = driver.host_load().await;
            total = total.or(host.memory_total_bytes);
            cpu_pressure = cpu_pressure.or(host.cpu_pressure);
        }
        let all = self.all_sandboxes();
        let running = all.iter().filter(|sandbox| sandbox.state() == SandboxState::Running);
        NodeLoad {
            sandboxes: all.len() as u64,
            // One that cannot tell is not kept out.
            memory_available_bytes: available.unwrap_or(u64::MAX),
            memory_total_bytes: total.unwrap_or_default(),
            memory_promised_bytes: running.map(|sandbox| sandbox.memory_max_bytes()).sum(),
            cpu_pressure: cpu_pressure.unwrap_or_default(),
            creating: self.pools.creating(),
        }
    }
}
