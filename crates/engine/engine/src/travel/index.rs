//! What a copy of a sandbox consists of. Pure.

use std::collections::{BTreeSet, HashMap};

use atoll_core::id::SandboxId;
use atoll_core::machine::MemoryNeeds;
use atoll_core::{Code, Error, Result};
use serde::{Deserialize, Serialize};

/// Bytes of one piece, but for the last: what is compared, sent and fetched at once.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// Largest index, bytes: that of a disk of 2 TiB.
pub(super) const INDEX_MAX_BYTES: usize = 128 << 20;
/// What a compressed piece has at most: what cannot be compressed becomes a little larger.
pub(super) const PACKED_MAX_BYTES: usize = PIECE_BYTES + (PIECE_BYTES >> 6);
/// The name of the index among a copy's objects.
pub(super) const INDEX: &str = "index";
/// Version of the form.
const FORMAT: u32 = 1;
/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 64;
/// Longest name of an upload, bytes.
const UPLOAD_MAX_BYTES: usize = 64;

/// A stretch of bytes that is not all zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Piece {
    /// Where it begins: a multiple of [`PIECE_BYTES`].
    pub(super) at: u64,
    pub(super) len: u32,
    /// BLAKE3 of its bytes, hexadecimal.
    pub(super) digest: String,
    /// The upload that sent it.
    pub(super) upload: String,
}

/// A sparse sequence of bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extent {
    /// All of it, with what is not in pieces because it is zero.
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Piece>,
}

/// The memory of a machine that is put to disk with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    /// What a node must have to use it.
    pub(super) needs: MemoryNeeds,
    /// The file that the machine was written to.
    pub(super) content: Extent,
}

/// What a copy consists of. Disk and memory are of one moment: one digest is of both, and no copy has parts of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    format: u32,
    pub(super) sandbox: SandboxId,
    /// The writable disk.
    pub(super) disk: Extent,
    /// Its memory, if it is put to disk with it and can be used elsewhere. Versions that do not know this refuse the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    /// The output of its execs, see [`super::logs`].
    pub(super) logs: Extent,
}

/// The digest of some bytes.
pub(super) fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Whether a text can be the name of an upload or a digest: part of a name, and nothing else.
fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Piece {
    fn check(&self) -> bool {
        let upload = is_hex(&self.upload) && self.upload.len() <= UPLOAD_MAX_BYTES;
        upload
            && is_hex(&self.digest)
            && self.digest.len() == DIGEST_DIGITS
            && (1..=PIECE_BYTES as u64).contains(&u64::from(self.len))
    }
}

impl Extent {
    fn check(&self) -> bool {
        let mut next = 0;
        self.pieces.iter().all(|piece| {
            let end = piece.at.saturating_add(u64::from(piece.len));
            let fits = piece.at >= next
                && piece.at.is_multiple_of(PIECE_BYTES as u64)
                && end <= self.bytes
                && piece.check();
            next = end;
            fits
        })
    }
}

impl Index {
    pub(super) const fn new(sandbox: SandboxId, disk: Extent, memory: Option<Memory>, logs: Extent) -> Self {
        Self { format: FORMAT, sandbox, disk, memory, logs }
    }

    /// As text, and its digest.
    pub(super) fn to_text(&self) -> Result<(Vec<u8>, String)> {
        let text = serde_json::to_vec(self).map_err(|error| {
            tracing::error!(%error, "an index cannot be written");
            Error::new(Code::Internal, "what a copy consists of cannot be written down")
        })?;
        if text.len() > INDEX_MAX_BYTES {
            return Err(Error::new(Code::LimitExceeded, "its disk is too large to be copied"));
        }
        let digest = digest(&text);
        Ok((text, digest))
    }

    /// Reads what lies there as the index of a sandbox with this digest.
    ///
    /// # Errors
    /// [`Code::DigestMismatch`]; [`Code::SnapshotInvalid`].
    pub(super) fn parse(text: &[u8], of: &SandboxId, wanted: &str) -> Result<Self> {
        if digest(text) != wanted {
            return Err(Error::new(
                Code::DigestMismatch,
                "the object store has something else in the place of the copy",
            ));
        }
        let invalid =
            |why: &str| Error::new(Code::SnapshotInvalid, format!("the copy cannot be used: {why}"));
        let index: Self = serde_json::from_slice(text).map_err(|error| invalid(&error.to_string()))?;
        if index.format != FORMAT {
            return Err(invalid("its form is that of another version"));
        }
        if index.sandbox != *of || !index.extents().all(Extent::check) {
            return Err(invalid("its pieces are out of place"));
        }
        Ok(index)
    }

    fn extents(&self) -> impl Iterator<Item = &Extent> {
        let memory = self.memory.as_ref().map(|memory| &memory.content);
        [&self.disk, &self.logs].into_iter().chain(memory)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.extents().flat_map(|extent| &extent.pieces)
    }

    /// Which upload sent each piece.
    pub(super) fn uploads(&self) -> HashMap<String, String> {
        self.pieces().map(|piece| (piece.digest.clone(), piece.upload.clone())).collect()
    }

    /// All of its objects but itself: upload and name.
    pub(super) fn objects(&self) -> BTreeSet<(String, String)> {
        self.pieces().map(|piece| (piece.upload.clone(), piece.digest.clone())).collect()
    }

    /// What it has altogether, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.extents().fold(0, |sum, extent| sum.saturating_add(extent.bytes))
    }
}

#[cfg(test)]
mod tests {
    use atoll_core::machine::Platform;
    use atoll_core::spec::Accelerator;

    use super::*;

    fn piece(at: u64, len: u32) -> Piece {
        Piece { at, len, digest: "0".repeat(64), upload: "a1".to_owned() }
    }

    fn sandbox() -> SandboxId {
        SandboxId::from_parts(1, 1)
    }

    fn read(disk: Extent) -> Result<Index> {
        read_with(disk, None)
    }

    fn read_with(disk: Extent, memory: Option<Memory>) -> Result<Index> {
        let (text, digest) = Index::new(sandbox(), disk, memory, Extent::default()).to_text()?;
        Index::parse(&text, &sandbox(), &digest)
    }

    fn memory(content: Extent) -> Memory {
        let platform = Platform {
            vmm: "vmm".to_owned(),
            machine: "machine".to_owned(),
            kernel: "kernel".to_owned(),
            agent: "agent".to_owned(),
            accelerator: Accelerator::Emulated,
            clock_khz: 1,
            processor: None,
        };
        Memory {
            needs: MemoryNeeds { platform, memory_mib: 192, cpus: 1, image: "image".to_owned() },
            content,
        }
    }

    #[test]
    fn memory_is_a_part_of_its_copy_like_any_other() {
        let block = PIECE_BYTES as u64;
        let of_memory = Piece { digest: "1".repeat(64), ..piece(block, 4096) };
        let content = Extent { bytes: 2 * block, pieces: vec![of_memory] };
        let disk = Extent { bytes: block, pieces: vec![piece(0, 4096)] };
        let index = read_with(disk.clone(), Some(memory(content.clone()))).unwrap();
        assert_eq!(index.memory.as_ref(), Some(&memory(content.clone())));
        assert_eq!((index.objects().len(), index.uploads().len(), index.bytes()), (2, 2, 3 * block));
        // Another memory is another copy.
        let [one, other] = [Some(memory(content.clone())), None].map(|memory| {
            Index::new(sandbox(), disk.clone(), memory, Extent::default()).to_text().unwrap().1
        });
        assert_ne!(one, other);
        let beyond = Extent { bytes: block, ..content };
        assert_eq!(read_with(disk, Some(memory(beyond))).unwrap_err().code, Code::SnapshotInvalid);
    }

    #[test]
    fn an_index_says_the_same_when_it_comes_back() {
        let block = PIECE_BYTES as u64;
        let disk = Extent { bytes: 3 * block, pieces: vec![piece(0, 4096), piece(2 * block, 4 << 20)] };
        let index = read(disk.clone()).unwrap();
        assert_eq!((&index.disk, index.objects().len(), index.bytes()), (&disk, 1, 3 * block));
    }

    #[test]
    fn what_is_out_of_place_is_refused() {
        let block = PIECE_BYTES as u64;
        let with = |pieces| Extent { bytes: 2 * block, pieces };
        for pieces in [
            vec![piece(1, 1)],
            vec![piece(2 * block, 1)],
            vec![piece(block, 1), piece(0, 1)],
            vec![piece(0, 1), piece(0, 1)],
            vec![piece(0, 0)],
            vec![piece(0, (PIECE_BYTES + 1).try_into().unwrap())],
            vec![Piece { upload: "../other".to_owned(), ..piece(0, 1) }],
            vec![Piece { upload: "a".repeat(65), ..piece(0, 1) }],
            vec![Piece { digest: "0".to_owned(), ..piece(0, 1) }],
        ] {
            assert_eq!(read(with(pieces.clone())).unwrap_err().code, Code::SnapshotInvalid, "{pieces:?}");
        }
        let (text, digest) =
            Index::new(sandbox(), Extent::default(), None, Extent::default()).to_text().unwrap();
        let other = SandboxId::from_parts(2, 2);
        assert_eq!(Index::parse(&text, &other, &digest).unwrap_err().code, Code::SnapshotInvalid);
        assert_eq!(Index::parse(b"{}", &sandbox(), &digest).unwrap_err().code, Code::DigestMismatch);
        let later = String::from_utf8(text).unwrap().replace("\"format\":1", "\"format\":2");
        let refused = Index::parse(later.as_bytes(), &sandbox(), &super::digest(later.as_bytes()));
        assert_eq!(refused.unwrap_err().code, Code::SnapshotInvalid);
    }
}
