//! Images from files: `docker save` archives, OCI layouts (directory or archive), root file systems.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::image::{Image, Record};
use crate::layer::{Expected, Packed};
use crate::limits::{
    CONFIG_MAX_BYTES, INDEX_MAX_COUNT, INDEX_MAX_DEPTH, LAYERS_MAX_COUNT, MANIFEST_MAX_BYTES,
};
use crate::manifest::{Config, Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, Platform, select};
use crate::packed::Tee;
use crate::progress::{Phase, Progress};
use crate::pull::{Planned, plan, prepare, watched};
use crate::reference::local_or_normal;
use crate::source::Source;
use crate::store::{Images, PIN_ALL, blocking};

/// Annotations that may hold a whole name.
const NAME_ANNOTATIONS: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// An image found in a source, its layers not unpacked yet.
struct Found {
    digest: Digest,
    config: Config,
    plan: Vec<Planned>,
    /// Where each layer is in the source.
    files: Vec<String>,
    /// Whether the digests of the packed layers are the real ones.
    packed_digests: bool,
    names: Vec<String>,
}

/// One image in the `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Images {
    /// Loads the images of a `docker save` archive or an OCI layout, be it an archive (also compressed) or a
    /// directory. They get the names that they were saved with; `name` is for a single image without one.
    ///
    /// # Errors
    /// `Invalid`, `DigestMismatch`, `PlatformMismatch` when nothing in it is for this host, `HostFull`.
    pub async fn load(
        &self,
        path: &Path,
        name: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<Image>>> {
        let (path, tmp, limit) = (path.to_owned(), self.inner.tmp(), self.inner.settings.unpacked_max_bytes);
        let source = blocking(move || Source::open(&path, &tmp, limit)).await?;
        self.load_source(source, name, progress).await
    }

    /// [`Images::load`] from a stream, which is kept on disk while it is read.
    ///
    /// # Errors
    /// As [`Images::load`].
    pub async fn load_stream(
        &self,
        stream: impl AsyncRead + Send + Unpin + 'static,
        name: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<Image>>> {
        let (tmp, limit) = (self.inner.tmp(), self.inner.settings.unpacked_max_bytes);
        let bridge = SyncIoBridge::new(stream);
        let source = blocking(move || Source::spool(bridge, &tmp, limit)).await?;
        self.load_source(source, name, progress).await
    }

    /// Makes an image of one layer from the archive of a root file system (plain, gzip or zstd).
    ///
    /// # Errors
    /// `BadReference`, `Invalid`, `HostFull`.
    pub async fn import(
        &self,
        name: &str,
        stream: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Arc<Image>> {
        let (name, inner) = (local_or_normal(name)?, Arc::clone(&self.inner));
        let bridge = SyncIoBridge::new(stream);
        blocking(move || {
            let mut reader = Tee::new(bridge, &inner);
            let packed = Packed { reader: &mut reader, done: Arc::default() };
            let expected = Expected { blob: None, diff_id: None, chain: None };
            // The key of the layer is not known before it is unpacked.
            let _pin = inner.pin(vec![PIN_ALL.to_owned()]);
            let prepared = prepare(&inner, packed, &expected, &[])?;
            reader.keep(&inner, &prepared.diff_id);
            let platform = Platform::host();
            let config = json!({
                "architecture": platform.architecture,
                "os": platform.os,
                "config": {},
                "rootfs": { "type": "layers", "diff_ids": [prepared.diff_id.as_str()] },
            })
            .to_string();
            let layer = (prepared.diff_id.clone(), prepared.size_bytes);
            let digest = Digest::of(&made_up_manifest(config.as_bytes(), &[layer]));
            let config = Config::parse(config.as_bytes())?;
            inner.record(Record::new(digest, config, vec![prepared]), &[name])
        })
        .await
    }

    async fn load_source(
        &self,
        source: Source,
        name: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<Image>>> {
        let name = name.map(local_or_normal).transpose()?;
        let source = Arc::new(source);
        let from = Arc::clone(&source);
        let mut found = blocking(move || find(&from)).await?;
        if let Some(name) = name {
            let [only] = found.as_mut_slice() else {
                let why = "there are several images, which cannot all have one name".to_owned();
                return Err(ImageError::BadOption { field: "name", why });
            };
            only.names = vec![name];
        }
        let mut loaded = Vec::new();
        for image in found {
            loaded.push(self.load_one(&source, image, progress).await?);
        }
        Ok(loaded)
    }

    async fn load_one(
        &self,
        source: &Arc<Source>,
        found: Found,
        progress: &dyn Progress,
    ) -> Result<Arc<Image>> {
        let _pin = self.inner.pin(found.plan.iter().flat_map(Planned::keys).collect());
        let mut done = Vec::new();
        for (planned, file) in found.plan.iter().zip(found.files) {
            let counter = Arc::new(AtomicU64::new(0));
            let (inner, own, source) = (Arc::clone(&self.inner), planned.clone(), Arc::clone(source));
            let (below, bytes, checked) = (done.clone(), Arc::clone(&counter), found.packed_digests);
            let work = blocking(move || {
                if let Some(prepared) = own.find(&inner)? {
                    // The layer may have been prepared before packed layers were kept.
                    if let Some((reader, _)) = source.get(&file)?.filter(|_| inner.lacks_packed(&own.diff_id))
                    {
                        Tee::new(reader, &inner).keep_all(&inner, &own.diff_id);
                    }
                    return Ok(prepared);
                }
                let (reader, _) = source.get(&file)?.ok_or_else(|| lacks(&file))?;
                let mut reader = Tee::new(reader, &inner);
                let expected = Expected {
                    blob: checked.then(|| (own.layer.digest.clone(), own.layer.size)),
                    diff_id: Some(own.diff_id.clone()),
                    chain: Some(own.chain),
                };
                let prepared =
                    prepare(&inner, Packed { reader: &mut reader, done: bytes }, &expected, &below)?;
                reader.keep(&inner, &own.diff_id);
                Ok(prepared)
            });
            done.push(watched(work, &counter, |at| planned.report(progress, Phase::Extract, at)).await?);
            planned.report(progress, Phase::Done, planned.layer.size);
        }
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.record(Record::new(found.digest, found.config, done), &found.names)).await
    }
}

fn lacks(file: &str) -> ImageError {
    ImageError::Invalid(format!("the saved image lacks '{}'", atoll_core::error::shorten(file)))
}

fn find(source: &Source) -> Result<Vec<Found>> {
    if let Some(index) = source.small("index.json", MANIFEST_MAX_BYTES)? {
        return find_in_layout(source, &index);
    }
    let saved = source.small("manifest.json", MANIFEST_MAX_BYTES)?.ok_or_else(|| {
        ImageError::Invalid("it has neither index.json (OCI layout) nor manifest.json (docker save)".into())
    })?;
    let saved: Vec<Saved> = serde_json::from_slice(&saved)
        .map_err(|error| ImageError::Invalid(format!("its manifest.json cannot be read: {error}")))?;
    if saved.is_empty() || saved.len() > INDEX_MAX_COUNT {
        return Err(ImageError::Invalid(format!("it holds {} images", saved.len())));
    }
    saved.into_iter().map(|image| find_saved(source, image)).collect()
}

fn find_in_layout(source: &Source, index: &[u8]) -> Result<Vec<Found>> {
    let Manifest::Index(list) = Manifest::parse(index)? else {
        return Err(ImageError::Invalid("its index.json is no index".into()));
    };
    let wanted = Platform::host();
    let mut found = Vec::new();
    let mut mismatch = None;
    for entry in &list {
        // Each entry is an image of its own, so each is judged alone.
        match find_entry(source, entry, &wanted) {
            Ok(image) => found.push(image),
            Err(error @ ImageError::PlatformMismatch { .. }) => mismatch = Some(error),
            Err(error) => return Err(error),
        }
    }
    match (found.is_empty(), mismatch) {
        (true, Some(mismatch)) => Err(mismatch),
        (true, None) => Err(ImageError::Invalid("it holds no image".into())),
        (false, _) => Ok(found),
    }
}

fn find_entry(source: &Source, entry: &Descriptor, wanted: &Platform) -> Result<Found> {
    let mut descriptor = select(std::slice::from_ref(entry), wanted)?.clone();
    for _ in 0..INDEX_MAX_DEPTH {
        let bytes = blob(source, &descriptor, MANIFEST_MAX_BYTES)?;
        match Manifest::parse(&bytes)? {
            Manifest::Index(list) => descriptor = select(&list, wanted)?.clone(),
            Manifest::Image { config, layers } => {
                let config = Config::parse(&blob(source, &config, CONFIG_MAX_BYTES)?)?;
                config.check(wanted, layers.len())?;
                return Ok(Found {
                    digest: descriptor.digest,
                    files: layers.iter().map(|layer| blob_path(&layer.digest)).collect(),
                    plan: plan(layers, &config),
                    config,
                    packed_digests: true,
                    names: names_of(entry),
                });
            }
        }
    }
    Err(ImageError::Invalid("its indexes are nested too deep".into()))
}

fn find_saved(source: &Source, saved: Saved) -> Result<Found> {
    if saved.layers.is_empty() || saved.layers.len() > LAYERS_MAX_COUNT {
        return Err(ImageError::Invalid(format!("it has {} layers", saved.layers.len())));
    }
    let bytes = source.small(&saved.config, CONFIG_MAX_BYTES)?.ok_or_else(|| lacks(&saved.config))?;
    // The file is named after its digest, which is the image's id there.
    let id = saved.config.rsplit('/').next().map(|file| file.trim_end_matches(".json")).unwrap_or_default();
    let got = Digest::of(&bytes);
    if id.len() == 64 && id != got.hex() {
        let why = format!("the configuration is {got}");
        return Err(ImageError::DigestMismatch { expected: format!("sha256:{id}"), why });
    }
    let config = Config::parse(&bytes)?;
    config.check(&Platform::host(), saved.layers.len())?;
    let mut layers = Vec::new();
    for (file, diff_id) in saved.layers.iter().zip(&config.diff_ids) {
        let (_, size) = source.get(file)?.ok_or_else(|| lacks(file))?;
        layers.push((diff_id.clone(), size));
    }
    let manifest = made_up_manifest(&bytes, &layers);
    let descriptors = match Manifest::parse(&manifest)? {
        Manifest::Image { layers, .. } => layers,
        Manifest::Index(_) => return Err(ImageError::Invalid("its manifest is an index".into())),
    };
    Ok(Found {
        digest: Digest::of(&manifest),
        plan: plan(descriptors, &config),
        config,
        files: saved.layers,
        packed_digests: false,
        names: saved
            .repo_tags
            .unwrap_or_default()
            .iter()
            .filter_map(|tag| local_or_normal(tag).ok())
            .collect(),
    })
}

/// A manifest for an image that has none: the same image gives the same digest.
fn made_up_manifest(config: &[u8], layers: &[(Digest, u64)]) -> Vec<u8> {
    let layers: Vec<_> = layers
        .iter()
        .map(|(digest, size)| json!({ "mediaType": OCI_LAYER, "digest": digest.as_str(), "size": size }))
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": { "mediaType": OCI_CONFIG, "digest": Digest::of(config).as_str(), "size": config.len() },
        "layers": layers,
    })
    .to_string()
    .into_bytes()
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn blob(source: &Source, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>> {
    let path = blob_path(&descriptor.digest);
    let bytes = source.small(&path, limit)?.ok_or_else(|| lacks(&path))?;
    let got = Digest::of(&bytes);
    if got != descriptor.digest {
        let why = format!("what is there is {got}");
        return Err(ImageError::DigestMismatch { expected: descriptor.digest.to_string(), why });
    }
    Ok(bytes)
}

/// A bare tag such as `latest` names nothing without its repository.
fn names_of(entry: &Descriptor) -> Vec<String> {
    let texts =
        entry.annotations.iter().flat_map(|all| NAME_ANNOTATIONS.iter().filter_map(|key| all.get(*key)));
    let whole = texts.filter(|text| text.contains(['/', ':']));
    let mut names: Vec<String> = whole.filter_map(|text| local_or_normal(text).ok()).collect();
    names.dedup();
    names
}
