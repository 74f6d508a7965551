//! The file of a machine that was written out, and its memory in it.
//!
//! QEMU's form `mapped-ram` keeps the pages of every block of memory at a fixed place of the file, and pages of
//! zeros as holes; so a stretch of the file *is* the machine's memory. A bitmap before it says which pages are to be
//! read. With no bit set, and that stretch mapped in place of the machine's memory, nothing is read: a machine begins with
//! what it touches, and machines that begin with the same file share it.
//!
//! ```text
//! "QEVM" 3                                        the form, and its version
//! 07 "microvm" { 05 subsection … }                what the machine is
//! 01 section "ram" 0 version-4 total|flags        how much memory there is altogether
//!   { name, bytes, 1, page size, bitmap's place, pages' place, bitmap, (padding), pages }
//! …                                               devices, which are of no concern here
//! ```
//!
//! All numbers are big-endian. A VMM writes the file, which its guest may have taken over: everything is bounded, and
//! what comes out of it is only a place in this file, of which only a machine of the same sandbox reads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What the file begins with.
const MAGIC: u32 = 0x5145_564d;
const VERSION: u32 = 3;
/// Kinds of pieces.
const CONFIGURATION: u8 = 7;
const SUBSECTION: u8 = 5;
const SECTION_START: u8 = 1;
/// The section of the memory.
const RAM_SECTION: &[u8] = b"ram";
const RAM_VERSION: u32 = 4;
/// The block that a sandbox's kernel has as its memory: the name of the backend.
const MEMORY_BLOCK: &[u8] = b"memory";
const MAPPED_VERSION: u32 = 1;
const PAGE_BYTES: u64 = 4096;
/// Bytes before a block's bitmap that describe it.
const MAPPED_HEADER_BYTES: u64 = 28;
/// The pages of a block begin at a multiple of this.
const PAGES_ALIGNMENT: u64 = 1 << 20;
/// A bitmap has a multiple of this many bits.
const WORD_BITS: u64 = 64;
/// Most subsections, names of capabilities, and blocks of memory: QEMU writes a handful of each.
const COUNT_MAX: u32 = 64;
/// Longest name of a machine, bytes.
const NAME_MAX_BYTES: u32 = 64;
/// Most memory of a machine, bytes.
const TOTAL_MAX_BYTES: u64 = 1 << 46;

/// Where a machine's memory is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the bitmap, bytes from the file's beginning.
    pub(crate) bitmap_at: u64,
    pub(crate) bitmap_bytes: u64,
    /// Of the memory.
    pub(crate) memory_at: u64,
}

/// Finds the memory, of `size` bytes, of the machine in a file, and makes it be mapped instead of read. Gives where it
/// begins.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a file that says anything else than it should.
pub(crate) fn make_mappable(file: &File, size: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let place = find(length, size, |bytes, at| file.read_exact_at(bytes, at))?;
    let zeros = vec![0; usize::try_from(place.bitmap_bytes).map_err(io::Error::other)?];
    file.write_all_at(&zeros, place.bitmap_at)?;
    Ok(place.memory_at)
}

/// Finds the memory of `size` bytes in a file of `length`, which `read` reads at a place.
pub(crate) fn find(
    length: u64,
    size: u64,
    read: impl FnMut(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Place> {
    let mut reader = Reader { read, at: 0 };
    if (reader.u32()?, reader.u32()?) != (MAGIC, VERSION) {
        return Err(wrong("it is no saved machine"));
    }
    let mut kind = reader.u8()?;
    if kind == CONFIGURATION {
        let name = reader.u32()?;
        reader.skip(u64::from(at_most(name, NAME_MAX_BYTES)?))?;
        kind = reader.subsections()?;
    }
    let (_id, name) = (if kind == SECTION_START { reader.u32()? } else { 0 }, reader.name()?);
    let (_instance, version) = (reader.u32()?, reader.u32()?);
    if kind != SECTION_START || name != RAM_SECTION || version != RAM_VERSION {
        return Err(wrong("it does not begin with the memory"));
    }
    // The lowest bits are flags.
    let mut left = reader.u64()? & !(PAGE_BYTES - 1);
    if left > TOTAL_MAX_BYTES {
        return Err(wrong("it has more memory than any machine"));
    }
    for _block in 0..COUNT_MAX {
        if left == 0 {
            break;
        }
        let (is_memory, bytes) = (reader.name()? == MEMORY_BLOCK, reader.u64()?);
        let place = reader.block(bytes, length)?;
        left = left.checked_sub(bytes).ok_or_else(|| wrong("its blocks have more memory than it"))?;
        if is_memory && bytes == size {
            return Ok(place);
        }
    }
    Err(wrong("the machine's memory is not in it"))
}

struct Reader<R> {
    read: R,
    at: u64,
}

impl<R: FnMut(&mut [u8], u64) -> io::Result<()>> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        (self.read)(&mut bytes, self.at)?;
        self.skip(N as u64)?;
        Ok(bytes)
    }

    fn u8(&mut self) -> io::Result<u8> {
        self.bytes().map(u8::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// Its length in a byte, then its text.
    fn name(&mut self) -> io::Result<Vec<u8>> {
        let mut name = vec![0; usize::from(self.u8()?)];
        (self.read)(&mut name, self.at)?;
        self.skip(name.len() as u64)?;
        Ok(name)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.at = self.at.checked_add(bytes).ok_or_else(|| wrong("it has no end"))?;
        Ok(())
    }

    /// Skips what the machine is said to be; gives the kind of what follows.
    fn subsections(&mut self) -> io::Result<u8> {
        for _subsection in 0..COUNT_MAX {
            let kind = self.u8()?;
            if kind != SUBSECTION {
                return Ok(kind);
            }
            let (name, _version) = (self.name()?, self.u32()?);
            match name.as_slice() {
                b"configuration/capabilities" => {
                    let count = self.u32()?;
                    for _name in 0..at_most(count, COUNT_MAX)? {
                        self.name()?;
                    }
                }
                b"configuration/target-page-bits" => self.skip(4)?,
                b"configuration/uuid" => self.skip(16)?,
                _ => return Err(wrong("it says something unknown about the machine")),
            }
        }
        Err(wrong("it says too much about the machine"))
    }

    /// One block of memory, from behind its name and size; ends behind its pages.
    fn block(&mut self, bytes: u64, length: u64) -> io::Result<Place> {
        let header = self.at;
        let (version, page_bytes) = (self.u32()?, self.u64()?);
        let (bitmap_at, memory_at) = (self.u64()?, self.u64()?);
        let bitmap_bytes = bytes.div_ceil(PAGE_BYTES).div_ceil(WORD_BITS).saturating_mul(WORD_BITS / 8);
        let in_order = bitmap_at == header.saturating_add(MAPPED_HEADER_BYTES)
            && memory_at >= bitmap_at.saturating_add(bitmap_bytes)
            && memory_at.is_multiple_of(PAGES_ALIGNMENT);
        let end = memory_at.checked_add(bytes).filter(|end| *end <= length);
        if version != MAPPED_VERSION || page_bytes != PAGE_BYTES || bytes == 0 || !in_order {
            return Err(wrong("a block of memory is described wrongly"));
        }
        self.at = end.ok_or_else(|| wrong("it ends before its memory does"))?;
        Ok(Place { bitmap_at, bitmap_bytes, memory_at })
    }
}

fn at_most(count: u32, most: u32) -> io::Result<u32> {
    if count <= most { Ok(count) } else { Err(wrong("it says too much about the machine")) }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the file of a saved machine cannot be used: {why}"))
}

#[cfg(test)]
mod tests;
