//! Pulling: manifest, configuration, layers; fetching ahead of unpacking.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::secret::Secret;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::fetch::Blob;
use crate::image::{Image, Record, chains};
use crate::layer::{Expected, Packed, Prepared, unpack};
use crate::limits::{
    CONFIG_MAX_BYTES, FETCH_PARALLEL_COUNT, INDEX_MAX_DEPTH, PROGRESS_INTERVAL, STALL_DEFAULT,
};
use crate::manifest::{Config, Descriptor, Manifest, Platform, select};
use crate::progress::{LayerEvent, Phase, Progress};
use crate::reference::Reference;
use crate::registry::Registry;
use crate::retry::retry;
use crate::shared::Came;
use crate::store::{Images, Inner, blocking};

/// How the server authenticates to a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Sent to the registry, or to its token server.
    Basic {
        /// User name.
        username: String,
        /// Password or access token.
        password: Secret,
    },
    /// Sent to the registry as it is.
    Bearer(Secret),
}

/// How to pull.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Credentials; `None` is anonymous.
    pub credentials: Option<Credentials>,
    /// Platform; `None` is this host's.
    pub platform: Option<Platform>,
    /// Speak plain HTTP. A registry on the loopback may do so without being asked.
    pub insecure_http: bool,
    /// Certificate authorities to trust besides the host's, PEM.
    pub extra_ca_pem: Option<String>,
    /// The operator has configured this registry: it may be reached even if its address is not public.
    pub known: bool,
    /// No byte for this long is a stall, and one attempt is over.
    pub stall: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            credentials: None,
            platform: None,
            insecure_http: false,
            extra_ca_pem: None,
            known: false,
            stall: STALL_DEFAULT,
        }
    }
}

/// One layer of an image that is being made.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) layer: Descriptor,
    pub(crate) diff_id: Digest,
    pub(crate) chain: Digest,
}

impl Planned {
    pub(crate) fn keys(&self) -> [String; 2] {
        Prepared::keys(&self.diff_id, &self.chain)
    }

    /// The layer, if it is there already. Blocking.
    pub(crate) fn find(&self, inner: &Inner) -> Result<Option<Prepared>> {
        find(inner, &self.diff_id, &self.chain)
    }

    pub(crate) fn report(&self, progress: &dyn Progress, phase: Phase, done_bytes: u64) {
        let (layer, total_bytes) = (&self.layer.digest, self.layer.size);
        progress.layer(LayerEvent { layer, phase, done_bytes, total_bytes });
    }
}

/// A layer on top of its stack, if it is there already. Blocking.
pub(crate) fn find(inner: &Inner, diff_id: &Digest, chain: &Digest) -> Result<Option<Prepared>> {
    for key in Prepared::keys(diff_id, chain) {
        if let Some(prepared) = Prepared::read(&inner.layers(), &key)? {
            return Ok(Some(prepared));
        }
    }
    Ok(None)
}

/// A layer that a pull has fetched.
struct Fetched {
    blob: Arc<Blob>,
    /// The layer as another node put it into the object store: then the blob was not fetched from the registry.
    elsewhere: Option<Came>,
    /// The layer is here already, and the blob was fetched for the other nodes.
    is_kept: bool,
}

/// Pairs the layers of a manifest with what the configuration says about them.
pub(crate) fn plan(layers: Vec<Descriptor>, config: &Config) -> Vec<Planned> {
    let ids = config.diff_ids.iter().zip(chains(&config.diff_ids));
    let pair = |(layer, (diff_id, chain)): (Descriptor, (&Digest, Digest))| Planned {
        layer,
        diff_id: diff_id.clone(),
        chain,
    };
    layers.into_iter().zip(ids).map(pair).collect()
}

impl Images {
    /// Fetches an image and prepares it. What is here already is not fetched; what an earlier attempt
    /// fetched is continued. Dropping the future stops it and keeps what came so far.
    ///
    /// # Errors
    /// Every reason of [`ImageError`] that starts with `Registry`, and `PlatformMismatch`, `Invalid`,
    /// `DigestMismatch`, `HostFull`, `BadReference`, `BadOption`.
    pub async fn pull(
        &self,
        reference: &str,
        options: &PullOptions,
        progress: &dyn Progress,
    ) -> Result<Arc<Image>> {
        let reference = Reference::parse(reference)?;
        let platform = options.platform.clone().unwrap_or_else(Platform::host);
        let host = reference.host();
        let reach = &self.inner.settings.reach;
        let reach = if options.known { reach.with(host) } else { reach.clone() };
        let registry = retry(host, async || Registry::connect(&reference, options, &reach).await).await?;
        let (digest, config, layers) = manifest(&registry, &reference, &platform).await?;
        if config.size > CONFIG_MAX_BYTES {
            return Err(ImageError::Invalid(format!("its configuration has {} bytes", config.size)));
        }
        let bytes = retry(host, async || registry.small_blob(&config.digest, config.size).await).await?;
        let config = Config::parse(&bytes)?;
        config.check(&platform, layers.len())?;
        let plan = plan(layers, &config);
        let _pin = self.inner.pin(plan.iter().flat_map(Planned::keys).collect());
        let prepared = self.layers(&registry, &plan, progress).await?;
        let (inner, name) = (Arc::clone(&self.inner), reference.name());
        blocking(move || inner.record(Record::new(digest, config, prepared), &[name])).await
    }

    /// Fetches several layers at once and unpacks them from the lowest to the highest.
    async fn layers(
        &self,
        registry: &Registry,
        plan: &[Planned],
        progress: &dyn Progress,
    ) -> Result<Vec<Prepared>> {
        // The channel is never full: if fetching waited for unpacking, a pause would look like a stall of the registry.
        let (sender, receiver) = mpsc::channel(plan.len());
        let fetch = self.fetch_layers(registry, plan, progress, sender);
        let unpack = self.unpack_layers(registry, plan, progress, receiver);
        let ((), done) = futures::try_join!(fetch, unpack)?;
        Ok(done)
    }

    /// Fetches layers, several at once, and sends them from the lowest to the highest. What the object store has does not
    /// come from the registry.
    async fn fetch_layers(
        &self,
        registry: &Registry,
        plan: &[Planned],
        progress: &dyn Progress,
        sender: mpsc::Sender<Fetched>,
    ) -> Result<()> {
        let mut first: BTreeMap<&Digest, Arc<Blob>> = BTreeMap::new();
        let jobs = plan.iter().map(|planned| {
            let blob = first.entry(&planned.layer.digest);
            Arc::clone(blob.or_insert_with(|| self.inner.blobs.get(registry.host(), &planned.layer.digest)))
        });
        let jobs: Vec<_> = plan.iter().zip(jobs).collect();
        futures::stream::iter(jobs)
            .map(|(planned, blob)| async move {
                let (inner, own) = (Arc::clone(&self.inner), planned.clone());
                if blocking(move || own.find(&inner)).await?.is_some() {
                    let is_kept = self.lacks_elsewhere(&planned.diff_id).await;
                    if is_kept {
                        blob.fetch(registry, &planned.layer, progress).await?;
                    }
                    return Ok(Fetched { blob, elsewhere: None, is_kept });
                }
                let elsewhere = self.fetch_elsewhere(&planned.diff_id).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, "a layer comes from its registry instead");
                    None
                });
                if elsewhere.is_none() {
                    blob.fetch(registry, &planned.layer, progress).await?;
                }
                Ok::<_, ImageError>(Fetched { blob, elsewhere, is_kept: false })
            })
            .buffered(FETCH_PARALLEL_COUNT)
            .try_for_each(async |fetched| {
                // The receiver only goes away when unpacking has failed; then that error is given.
                drop(sender.send(fetched).await);
                Ok(())
            })
            .await
    }

    /// Unpacks layers as they come, each on top of those below.
    async fn unpack_layers(
        &self,
        registry: &Registry,
        plan: &[Planned],
        progress: &dyn Progress,
        mut receiver: mpsc::Receiver<Fetched>,
    ) -> Result<Vec<Prepared>> {
        let mut done: Vec<Prepared> = Vec::with_capacity(plan.len());
        for planned in plan {
            let Some(Fetched { blob, elsewhere, is_kept }) = receiver.recv().await else {
                break;
            };
            let unpacked = match elsewhere {
                None => None,
                Some(came) => {
                    let unpacked = self.unpack_shared(planned, came, &done).await?;
                    if unpacked.is_none() {
                        blob.fetch(registry, &planned.layer, progress).await?;
                    }
                    unpacked
                }
            };
            let prepared = match unpacked {
                Some(prepared) => prepared,
                None => {
                    if is_kept {
                        let (inner, own, path) =
                            (Arc::clone(&self.inner), planned.diff_id.clone(), blob.path());
                        let keep = move || {
                            inner.keep_packed(&own, &path);
                            Ok(())
                        };
                        blocking(keep).await?;
                    }
                    self.extract(planned, blob, &done, progress).await?
                }
            };
            planned.report(progress, Phase::Done, planned.layer.size);
            done.push(prepared);
        }
        Ok(done)
    }

    /// Unpacks a layer that another node put into the object store; nothing when it is not that layer.
    async fn unpack_shared(
        &self,
        planned: &Planned,
        came: Came,
        below: &[Prepared],
    ) -> Result<Option<Prepared>> {
        match self.unpack_fetched(&planned.diff_id, &planned.chain, Some(came), below).await {
            Ok(prepared) => Ok(Some(prepared)),
            Err(error @ (ImageError::Invalid(_) | ImageError::DigestMismatch { .. })) => {
                tracing::warn!(%error, layer = %planned.diff_id, "a layer comes from its registry instead");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn extract(
        &self,
        planned: &Planned,
        blob: Arc<Blob>,
        below: &[Prepared],
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let counter = Arc::new(AtomicU64::new(0));
        let (inner, own, done) = (Arc::clone(&self.inner), planned.clone(), Arc::clone(&counter));
        let below = below.to_vec();
        let work = blocking(move || {
            if let Some(prepared) = own.find(&inner)? {
                // The layer is here already: the blob was not needed, or was not fetched.
                blob.consumed();
                return Ok(prepared);
            }
            let expected =
                Expected { blob: None, diff_id: Some(own.diff_id.clone()), chain: Some(own.chain) };
            let packed = Packed { reader: blob.open()?, done };
            let result = prepare(&inner, packed, &expected, &below);
            if result.is_ok() {
                inner.keep_packed(&own.diff_id, &blob.path());
            }
            if matches!(result, Ok(_) | Err(ImageError::Invalid(_) | ImageError::HostFull(_))) {
                blob.consumed();
            }
            result
        });
        watched(work, &counter, |bytes| planned.report(progress, Phase::Extract, bytes)).await
    }
}

/// Unpacks a layer on top of those below. Blocking.
pub(crate) fn prepare<R: std::io::Read>(
    inner: &Inner,
    packed: Packed<R>,
    expected: &Expected,
    below: &[Prepared],
) -> Result<Prepared> {
    let layers = inner.layers();
    let used: u64 = below.iter().map(|layer| layer.size_bytes).sum();
    let budget = inner.settings.unpacked_max_bytes.saturating_sub(used);
    let lowers: Vec<PathBuf> = below.iter().map(|layer| Prepared::root(&layers, &layer.key)).collect();
    unpack(packed, expected, (&inner.tmp(), &layers), &lowers, budget)
}

/// Waits for blocking work and reports its counter from time to time.
pub(crate) async fn watched<T>(
    work: impl Future<Output = Result<T>>,
    counter: &AtomicU64,
    report: impl Fn(u64),
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            result = &mut work => return result,
            _ = ticks.tick() => report(counter.load(Ordering::Relaxed)),
        }
    }
}

/// Follows indexes to the manifest for a platform.
async fn manifest(
    registry: &Registry,
    reference: &Reference,
    platform: &Platform,
) -> Result<(Digest, Descriptor, Vec<Descriptor>)> {
    let mut wanted = reference.wanted().to_owned();
    for _ in 0..INDEX_MAX_DEPTH {
        let (bytes, digest) = retry(reference.host(), async || registry.manifest(&wanted).await).await?;
        match Manifest::parse(&bytes)? {
            Manifest::Image { config, layers } => return Ok((digest, config, layers)),
            Manifest::Index(list) => wanted = select(&list, platform)?.digest.to_string(),
        }
    }
    Err(ImageError::Invalid("its indexes are nested too deep".into()))
}
