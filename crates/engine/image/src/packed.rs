//! Packed layers that are kept until other nodes can have them: `packed/<diff id>`, each as it came.
//!
//! They are kept only if [`crate::Settings::keep_packed`] is set. No image needs them to be used, so a failure to keep
//! one is only logged: the image is here all the same, and other nodes do not get the layer.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::digest::{Digest, HashingReader};
use crate::error::{ImageError, Result};
use crate::files::file_names;
use crate::layer::{archive_budget, decoder, unreadable};
use crate::store::{Images, Inner};

/// Speed before size: layers are packed beside other work.
const ZSTD_LEVEL: i32 = 3;
const BUFFER_BYTES: usize = 256 << 10;

/// A reader that copies what is read through it, if a copy is wanted and can be made.
pub(crate) struct Tee<R> {
    inner: R,
    copy: Option<NamedTempFile>,
}

impl<R: Read> Tee<R> {
    pub(crate) fn new(inner: R, keeper: &Inner) -> Self {
        let make = || {
            NamedTempFile::new_in(keeper.tmp())
                .inspect_err(|error| tracing::warn!(%error, "a packed layer is not kept"))
        };
        Self { inner, copy: keeper.settings.keep_packed.then(make).and_then(io::Result::ok) }
    }

    /// Reads all of it, and keeps it.
    pub(crate) fn keep_all(mut self, keeper: &Inner, diff_id: &Digest) {
        match io::copy(&mut self, &mut io::sink()) {
            Ok(_bytes) => self.keep(keeper, diff_id),
            Err(error) => tracing::warn!(%error, "a packed layer is not kept"),
        }
    }

    /// Keeps what was read, which is the layer with this diff id.
    pub(crate) fn keep(self, keeper: &Inner, diff_id: &Digest) {
        let Some(copy) = self.copy else { return };
        if let Err(error) = copy.persist(keeper.packed(diff_id)) {
            tracing::warn!(%error, "a packed layer is not kept");
        }
    }
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        if let Some(copy) = &mut self.copy
            && let Err(error) = copy.write_all(&buf[..n])
        {
            tracing::warn!(%error, "a packed layer is not kept");
            self.copy = None;
        }
        Ok(n)
    }
}

impl Inner {
    pub(crate) fn packed(&self, diff_id: &Digest) -> PathBuf {
        self.packed_dir().join(diff_id.hex())
    }

    /// Whether a packed layer is kept; `false` also when that cannot be found out.
    fn has_packed(&self, diff_id: &Digest) -> bool {
        self.packed(diff_id).try_exists().unwrap_or(false)
    }

    /// Whether packed layers are to be kept and this one is not.
    pub(crate) fn lacks_packed(&self, diff_id: &Digest) -> bool {
        self.settings.keep_packed && !self.has_packed(diff_id)
    }

    /// Keeps a whole packed layer that is a file here.
    pub(crate) fn keep_packed(&self, diff_id: &Digest, file: &Path) {
        if !self.settings.keep_packed {
            return;
        }
        match fs::hard_link(file, self.packed(diff_id)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                tracing::warn!(%error, "a packed layer is not kept");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Removes the packed layers that are not wanted; gives their size.
    pub(crate) fn drop_packed(&self, is_wanted: impl Fn(&str) -> bool) -> Result<u64> {
        let mut freed = 0;
        for name in file_names(&self.packed_dir())? {
            if !is_wanted(&name) {
                let path = self.packed_dir().join(name);
                freed += fs::metadata(&path).map_or(0, |meta| meta.len());
                fs::remove_file(path).map_err(|error| ImageError::io("remove a packed layer", error))?;
            }
        }
        Ok(freed)
    }
}

impl Images {
    /// Writes a layer, compressed, into `sink`, if its packed form is kept here; says whether it is. Blocking.
    ///
    /// # Errors
    /// [`ImageError::DigestMismatch`], [`ImageError::Invalid`] when it is not what it should be: then what was written is not the layer.
    pub fn pack(&self, diff_id: &Digest, sink: impl Write) -> Result<bool> {
        let fail = |error| ImageError::io("pack a layer", error);
        let file = match File::open(self.inner.packed(diff_id)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(fail(error)),
        };
        let mut archive = HashingReader::new(decoder(BufReader::with_capacity(BUFFER_BYTES, file))?);
        let mut out = zstd::Encoder::new(sink, ZSTD_LEVEL).map_err(fail)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        // The kept file may come from a pull or a load that did not unpack it, so its content is checked here.
        let mut left = archive_budget(self.inner.settings.unpacked_max_bytes);
        loop {
            let n = archive.read(&mut buffer).map_err(unreadable)?;
            if n == 0 {
                break;
            }
            let more = || ImageError::Invalid("what was kept of a layer unpacks to too much".to_owned());
            left = left.checked_sub(n as u64).ok_or_else(more)?;
            out.write_all(&buffer[..n]).map_err(fail)?;
        }
        let got = archive.digest();
        if got != *diff_id {
            let why = format!("what was kept of the layer is {got}");
            return Err(ImageError::DigestMismatch { expected: diff_id.to_string(), why });
        }
        out.finish().and_then(|mut sink| sink.flush()).map_err(fail)?;
        Ok(true)
    }

    /// Whether the packed form of a layer is kept here. Blocking, for a moment.
    #[must_use]
    pub fn is_packed(&self, diff_id: &Digest) -> bool {
        self.inner.has_packed(diff_id)
    }

    /// Removes the packed form of a layer. Blocking.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn forget_packed(&self, diff_id: &Digest) -> Result<()> {
        match fs::remove_file(self.inner.packed(diff_id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ImageError::io("remove a packed layer", error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
