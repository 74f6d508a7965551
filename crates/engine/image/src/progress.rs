//! What a pull or load reports while it works.

use crate::digest::Digest;

/// Where a layer is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It comes from the registry.
    Download,
    /// It is being unpacked.
    Extract,
    /// It is prepared.
    Done,
}

/// One step of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerEvent<'a> {
    /// The layer, by the digest of its packed form.
    pub layer: &'a Digest,
    /// Where it is.
    pub phase: Phase,
    /// Packed bytes that are through this phase.
    pub done_bytes: u64,
    /// Packed bytes of the layer.
    pub total_bytes: u64,
}

/// Receives events. Called from async code: it must be quick and must not block.
pub trait Progress: Send + Sync {
    /// One layer got on. Called at least once with [`Phase::Done`] for each layer of the image.
    fn layer(&self, event: LayerEvent<'_>);
}

/// Reports nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn layer(&self, _event: LayerEvent<'_>) {}
}
