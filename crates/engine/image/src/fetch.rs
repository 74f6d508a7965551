//! Fetching a blob into `partial/`, from where the last attempt, or the last process, stopped.
//!
//! A file there is a prefix of its blob, or damaged; no other file says which. So a file is hashed again before
//! the fetch continues it, and only a file whose whole digest is right leaves this module. A blob that two pulls
//! need of one registry is fetched once; its file is removed when the last of them drops its [`Blob`] and the layer is
//! prepared. Another registry's is fetched beside it, into a file of its own: whoever pulls chooses the registry, and one
//! that is slow must hold up nobody who wants the same blob of another.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::files::file_names;
use crate::flow::Flow;
use crate::limits::FLOW_MIN_BYTES;
use crate::manifest::Descriptor;
use crate::progress::{LayerEvent, Phase, Progress};
use crate::registry::{Failure, Registry, starts_at, transient};
use crate::retry::Patience;
use crate::store::{blocking, locked};

/// Bytes that are gathered before they are hashed and written.
const WRITE_BYTES: usize = 1 << 20;

/// The files under `partial/`.
#[derive(Debug)]
pub(crate) struct Blobs {
    dir: PathBuf,
    used: Mutex<HashMap<Wanted, Used>>,
}

/// A blob that was needed, and the name of its file.
#[derive(Debug)]
struct Used {
    blob: Weak<Blob>,
    name: String,
}

impl Used {
    fn is_needed(&self) -> bool {
        self.blob.strong_count() > 0
    }
}

/// Which blob, and the host of the registry that is to give it.
type Wanted = (Digest, String);

/// A blob that one or more pulls need.
#[derive(Debug)]
pub(crate) struct Blob {
    blobs: Arc<Blobs>,
    wanted: Wanted,
    /// Name of its file.
    name: String,
    /// Its file is named by the digest alone: a later pull, of any registry, goes on with it.
    is_kept: bool,
    /// Whether the file is whole. The pull that fetches it holds the lock.
    whole: tokio::sync::Mutex<bool>,
    consumed: AtomicBool,
}

impl Blobs {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, used: Mutex::default() }
    }

    pub(crate) fn get(self: &Arc<Self>, host: &str, digest: &Digest) -> Arc<Blob> {
        let wanted = (digest.clone(), host.to_owned());
        let mut used = locked(&self.used);
        if let Some(blob) = used.get(&wanted).and_then(|used| used.blob.upgrade()) {
            return blob;
        }
        let is_kept = !used.iter().any(|((other, _), used)| other == digest && used.is_needed());
        let name = if is_kept {
            digest.hex().to_owned()
        } else {
            format!("{}-{}", digest.hex(), Digest::of(host.as_bytes()).hex())
        };
        let blob = Arc::new(Blob {
            blobs: Arc::clone(self),
            wanted: wanted.clone(),
            name: name.clone(),
            is_kept,
            whole: tokio::sync::Mutex::new(false),
            consumed: AtomicBool::new(false),
        });
        used.insert(wanted, Used { blob: Arc::downgrade(&blob), name });
        blob
    }

    /// Removes the files of blobs that no pull needs and gives their size.
    pub(crate) fn prune(&self) -> Result<u64> {
        let used = locked(&self.used);
        let mut freed = 0;
        for name in file_names(&self.dir)? {
            let in_use = used.values().any(|used| used.name == name && used.is_needed());
            if !in_use {
                let path = self.dir.join(name);
                freed += fs::metadata(&path).map_or(0, |meta| meta.len());
                fs::remove_file(path).map_err(|error| ImageError::io("remove a partial blob", error))?;
            }
        }
        Ok(freed)
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        let mut used = locked(&self.blobs.used);
        // A new pull may have put its own `Blob` into the map since the last user dropped this one.
        if used.get(&self.wanted).is_none_or(Used::is_needed) {
            return;
        }
        used.remove(&self.wanted);
        // One of another registry may have got the name since then.
        let is_anothers = used.values().any(|other| other.name == self.name && other.is_needed());
        if !is_anothers && (self.consumed.load(Ordering::Relaxed) || !self.is_kept) {
            // If this fails, the next pull or prune finds the file.
            drop(fs::remove_file(self.path()));
        }
    }
}

impl Blob {
    pub(crate) fn path(&self) -> PathBuf {
        self.blobs.dir.join(&self.name)
    }

    /// The layer is prepared: the file is of no more use.
    pub(crate) fn consumed(&self) {
        self.consumed.store(true, Ordering::Relaxed);
    }

    /// Opens the whole file. Blocking.
    pub(crate) fn open(&self) -> Result<File> {
        File::open(self.path()).map_err(|error| ImageError::io("open a fetched layer", error))
    }

    /// Fetches what is missing. When this returns, the file has the right size and digest.
    ///
    /// # Errors
    /// [`ImageError::DigestMismatch`] after the file is removed; [`ImageError::HostFull`] after it is
    /// removed; any failure of the registry, with the file kept.
    pub(crate) async fn fetch(
        &self,
        registry: &Registry,
        layer: &Descriptor,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut whole = self.whole.lock().await;
        if *whole {
            return Ok(());
        }
        let report = |done_bytes| {
            let (layer, total_bytes) = (&layer.digest, layer.size);
            progress.layer(LayerEvent { layer, phase: Phase::Download, done_bytes, total_bytes });
        };
        let mut patience = Patience::default();
        let result = loop {
            let mut sink = match Sink::open(self.path(), layer.size).await {
                Ok(sink) => sink,
                Err(error) => break Err(error),
            };
            let had = sink.bytes;
            report(had);
            let outcome = match receive(registry, layer, &mut sink, &report).await {
                Ok(()) => sink.check(layer),
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(()) => break Ok(()),
                // What an earlier attempt left may be damaged: once more from the start.
                Err(Failure::Fatal(ImageError::DigestMismatch { .. })) if had > 0 => self.discard(),
                Err(failure) => {
                    // A registry that sends a little and breaks off, again and again, brings nothing.
                    let moves = sink.bytes.saturating_sub(had) >= FLOW_MIN_BYTES;
                    if let Err(error) = patience.wait(registry.host(), failure, moves).await {
                        break Err(error);
                    }
                }
            }
        };
        if matches!(result, Err(ImageError::DigestMismatch { .. } | ImageError::HostFull(_))) {
            self.discard();
        }
        *whole = result.is_ok();
        result
    }

    fn discard(&self) {
        // If this fails the file is found damaged next time.
        drop(fs::remove_file(self.path()));
    }
}

/// One request for the rest of a blob.
async fn receive(
    registry: &Registry,
    layer: &Descriptor,
    sink: &mut Sink,
    report: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    if sink.bytes == layer.size {
        return Ok(());
    }
    let mut response = registry.blob(&layer.digest, sink.bytes).await?;
    if sink.bytes > 0 && !starts_at(&response, sink.bytes) {
        sink.restart().await?;
        if response.status() != reqwest::StatusCode::OK {
            // The registry does not take the range: ask again for the whole blob.
            response = registry.blob(&layer.digest, 0).await?;
        }
    }
    let left = layer.size - sink.bytes;
    if let Some(announced) = response.content_length()
        && announced != left
    {
        let why = format!("{announced} bytes are sent where {left} were announced");
        return Err(ImageError::DigestMismatch { expected: layer.digest.to_string(), why }.into());
    }
    let mut flow = Flow::default();
    let outcome = loop {
        match registry.chunk(&mut response, &mut flow).await {
            Ok(Some(chunk)) => {
                if sink.bytes + sink.waiting() + chunk.len() as u64 > layer.size {
                    let why = format!("more than the announced {} bytes are sent", layer.size);
                    return Err(ImageError::DigestMismatch { expected: layer.digest.to_string(), why }.into());
                }
                sink.push(chunk).await?;
                report(sink.bytes + sink.waiting());
            }
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    // What came before a failure is kept for the next attempt.
    sink.flush().await?;
    outcome?;
    if sink.bytes < layer.size {
        return Err(transient("the connection broke off"));
    }
    Ok(())
}

/// The file of a blob, and the hash of what is in it.
struct Sink {
    state: Option<(File, Sha256)>,
    bytes: u64,
    chunks: Vec<Bytes>,
}

impl Sink {
    /// Opens what is there and hashes it; a file that is longer than the blob is emptied.
    async fn open(path: PathBuf, size: u64) -> Result<Self> {
        blocking(move || {
            let open = || -> io::Result<Self> {
                let mut options = OpenOptions::new();
                let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
                let mut hasher = Sha256::new();
                let mut bytes = 0;
                if file.metadata()?.len() > size {
                    file.set_len(0)?;
                }
                let mut buffer = vec![0; WRITE_BYTES];
                loop {
                    match file.read(&mut buffer)? {
                        0 => break,
                        n => {
                            hasher.update(&buffer[..n]);
                            bytes += n as u64;
                        }
                    }
                }
                Ok(Self { state: Some((file, hasher)), bytes, chunks: Vec::new() })
            };
            open().map_err(|error| ImageError::io("open a partial blob", error))
        })
        .await
    }

    fn waiting(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    async fn push(&mut self, chunk: Bytes) -> Result<()> {
        self.chunks.push(chunk);
        if self.waiting() >= WRITE_BYTES as u64 {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let (Some((mut file, mut hasher)), chunks) = (self.state.take(), std::mem::take(&mut self.chunks))
        else {
            return Err(lost());
        };
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        let state = blocking(move || {
            for chunk in chunks {
                hasher.update(&chunk);
                file.write_all(&chunk).map_err(|error| ImageError::io("write a partial blob", error))?;
            }
            Ok((file, hasher))
        });
        self.state = Some(state.await?);
        self.bytes += bytes;
        Ok(())
    }

    async fn restart(&mut self) -> Result<()> {
        let (mut file, _) = self.state.take().ok_or_else(lost)?;
        let file = blocking(move || {
            file.set_len(0)
                .and_then(|()| file.rewind())
                .map_err(|error| ImageError::io("empty a partial blob", error))?;
            Ok(file)
        });
        (self.state, self.bytes) = (Some((file.await?, Sha256::new())), 0);
        Ok(())
    }

    fn check(&mut self, layer: &Descriptor) -> Result<(), Failure> {
        let (_, hasher) = self.state.take().ok_or_else(lost)?;
        let got = Digest::from_hasher(hasher);
        if got != layer.digest {
            let why = format!("what came is {got}");
            return Err(ImageError::DigestMismatch { expected: layer.digest.to_string(), why }.into());
        }
        Ok(())
    }
}

/// An earlier write failed and took the file with it.
fn lost() -> ImageError {
    ImageError::Io { what: "write a partial blob".into(), source: io::ErrorKind::BrokenPipe.into() }
}
