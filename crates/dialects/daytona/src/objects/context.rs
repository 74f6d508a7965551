//! The files of a build: the archives that it names, joined into one.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use atoll_core::id::KeyId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_engine::Engine;
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use super::shelf::{Hash, Shelf};
use crate::error::{Failure, Result};

/// Most archives of one build.
const ARCHIVES_MAX_COUNT: usize = 256;
/// Bytes of a context that are in the pipe.
const PIPE_BYTES: usize = 256 << 10;
/// Tar archives are made of blocks of this size.
const BLOCK_BYTES: usize = 512;
/// The place of a member's size in its header.
const SIZE: std::ops::Range<usize> = 124..136;

/// Open archives of one key: they stay readable, even if their files are removed meanwhile.
#[derive(Debug)]
pub(crate) struct Context {
    files: Vec<File>,
}

impl Context {
    /// Opens the archives.
    ///
    /// # Errors
    /// 400 for an archive that this key has not sent.
    pub(crate) async fn open(engine: &Engine, key: &KeyId, hashes: &[String]) -> Result<Self> {
        if hashes.len() > ARCHIVES_MAX_COUNT {
            return Err(Failure::bad(format!("contextHashes: at most {ARCHIVES_MAX_COUNT}")));
        }
        let shelf = Shelf::new(engine, key);
        let mut files = Vec::with_capacity(hashes.len());
        for text in hashes {
            let hash = Hash::parse(text)
                .ok_or_else(|| Failure::bad("contextHashes: must be 32 hexadecimal digits each"))?;
            let opened = shelf.open(&hash).await.map_err(|error| {
                tracing::info!(%error, "an archive of a build is not there");
                Failure::bad(format!("contextHashes: the files with the hash {text} were not uploaded"))
            })?;
            files.push(opened);
        }
        Ok(Self { files })
    }

    /// One archive with the members of all, made while it is read.
    pub(crate) fn into_tar(self) -> impl AsyncRead + Send + Unpin + 'static {
        let (reader, writer) = tokio::io::duplex(PIPE_BYTES);
        tokio::task::spawn_blocking(move || {
            let mut to = SyncIoBridge::new(writer);
            let joined = self.files.into_iter().try_for_each(|file| members(BufReader::new(file), &mut to));
            let ended = joined.and_then(|()| to.write_all(&[0; 2 * BLOCK_BYTES])).and_then(|()| to.flush());
            if let Err(error) = ended {
                // Without its end the engine refuses the archive.
                tracing::info!(%error, "an archive of a build is malformed");
            }
        });
        reader
    }
}

/// Copies the members of an archive, without its end. They are checked when they are unpacked.
fn members(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut header = [0_u8; BLOCK_BYTES];
    loop {
        // Some archives have no end mark.
        if from.by_ref().take(1).read(&mut header[..1])? == 0 {
            return Ok(());
        }
        from.read_exact(&mut header[1..])?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let padded = size_of(&header[SIZE])?.next_multiple_of(BLOCK_BYTES as u64);
        to.write_all(&header)?;
        if io::copy(&mut from.by_ref().take(padded), to)? != padded {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The size of a member: octal digits. A size with more digits would be larger than any context.
fn size_of(field: &[u8]) -> io::Result<u64> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the size of a member cannot be read");
    let text = std::str::from_utf8(field).map_err(|_no_text| malformed())?;
    let text = text.trim_matches(|c| c == '\0' || c == ' ');
    let size = u64::from_str_radix(text, 8).map_err(|_no_number| malformed())?;
    if size > BUILD_CONTEXT_MAX_BYTES { Err(malformed()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = [0_u8; BLOCK_BYTES];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[SIZE].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        let mut all = header.to_vec();
        all.extend_from_slice(content);
        all.resize(all.len().next_multiple_of(BLOCK_BYTES), 0);
        all.resize(all.len() + 20 * BLOCK_BYTES, 0);
        all
    }

    #[test]
    fn members_follow_each_other() {
        let mut all = Vec::new();
        for (name, content) in [("a", &b"first"[..]), ("b", &[7; 1024]), ("c", b"")] {
            members(archive(name, content).as_slice(), &mut all).unwrap();
        }
        assert_eq!(all.len(), (1 + 1 + 1 + 2 + 1) * BLOCK_BYTES);
        assert_eq!((all[0], all[2 * BLOCK_BYTES], all[5 * BLOCK_BYTES]), (b'a', b'b', b'c'));
        assert_eq!(&all[BLOCK_BYTES..BLOCK_BYTES + 5], b"first");
        members(&b""[..], &mut all).unwrap();
    }

    #[test]
    fn what_is_cut_or_no_archive_is_refused() {
        let good = archive("a", b"first");
        for bad in [&good[..BLOCK_BYTES + 100], &good[..100], &[b'x'; 2 * BLOCK_BYTES][..]] {
            assert!(members(bad, &mut io::sink()).is_err());
        }
        let mut huge = good.clone();
        huge[SIZE].copy_from_slice(b"77777777777\0");
        assert!(members(huge.as_slice(), &mut io::sink()).is_err());
        huge[SIZE].copy_from_slice(&[0xff; 12]);
        assert!(members(huge.as_slice(), &mut io::sink()).is_err());
    }
}
