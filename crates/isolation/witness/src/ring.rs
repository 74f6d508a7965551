//! Memory that the kernel's programs and this process share: a sandbox's ring of records, and the counters.
#![expect(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bpf;

/// Bits of a record's length that are flags: still being written; given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Before each record: its length, and where the ring begins.
const HEADER_BYTES: usize = 8;

/// A mapping that ends with this.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that the kernel keeps mapped until `drop`; it is only accessed through atomics, or where the ring's
// protocol says that nobody writes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: &OwnedFd, bytes: usize, offset: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that is there.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, map.as_fd(), offset as u64)
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, bytes })
    }

    /// The number at `offset`, which must be aligned and inside.
    fn number(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "an offset inside of the mapping");
        // SAFETY: inside of the mapping, as checked.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: aligned, as checked; the mapping lives as long as the reference, and everybody uses it atomically.
        unsafe { place.cast::<AtomicU64>().as_ref() }
    }

    fn length(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "an offset inside of the mapping");
        // SAFETY: inside of the mapping, as checked.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: as above.
        unsafe { place.cast::<AtomicU32>().as_ref() }
    }

    /// Copies bytes that the kernel does not write meanwhile.
    fn copy(&self, offset: usize, to: &mut Vec<u8>, bytes: usize) {
        assert!(offset + bytes <= self.bytes, "a record inside of the mapping");
        to.clear();
        // SAFETY: inside of the mapping, as checked.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: a finished record is written by nobody until the consumer's position is past it, and that is ours to
        // move.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) });
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what was mapped in `new`, and no reference outlives `self`.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "cannot unmap a ring");
        }
    }
}

/// A ring buffer of the kernel, of which this is the only reader.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The kernel's object.
    pub(crate) map: OwnedFd,
    /// Our position, one page.
    consumer: Mapping,
    /// The producer's position, one page.
    producer: Mapping,
    /// The records, twice, one behind the other: so that one which goes over the end lies in one piece.
    records: OnceLock<Mapping>,
    bytes: usize,
}

impl Ring {
    /// Opens a ring, of the size that it was made with, and maps its positions. Its records are mapped by [`Self::map_records`] or
    /// [`Self::next`]: the kernel enters every one of their pages then, which is most of what a ring costs, and a server
    /// that starts finds the rings of most sandboxes empty.
    pub(crate) fn open(map: OwnedFd) -> io::Result<Self> {
        let bytes = bpf::entries(&map)? as usize;
        let page = rustix::param::page_size();
        let consumer = Mapping::new(&map, page, 0, true)?;
        let producer = Mapping::new(&map, page, page, false)?;
        Ok(Self { map, consumer, producer, records: OnceLock::new(), bytes })
    }

    /// Maps the records, unless they are mapped.
    pub(crate) fn map_records(&self) -> io::Result<()> {
        self.records()?;
        Ok(())
    }

    fn records(&self) -> io::Result<&Mapping> {
        if let Some(mapped) = self.records.get() {
            return Ok(mapped);
        }
        let mapped = Mapping::new(&self.map, 2 * self.bytes, 2 * rustix::param::page_size(), false)?;
        Ok(self.records.get_or_init(|| mapped))
    }

    /// Takes the next record without giving its room back; `None` when there is none that is finished. `position` is
    /// where the reader is, and is moved on. [`Self::release`] gives the room back.
    pub(crate) fn next(&self, position: &mut u64, record: &mut Vec<u8>) -> Option<()> {
        loop {
            let end = self.producer.number(0).load(Ordering::Acquire);
            if *position >= end {
                return None;
            }
            let records = match self.records() {
                Ok(records) => records,
                // They wait there for the next look.
                Err(error) => {
                    tracing::error!(%error, "the records of a sandbox cannot be mapped");
                    return None;
                }
            };
            let mask = self.bytes as u64 - 1;
            let at = usize::try_from(*position & mask).ok()?;
            let header = records.length(at).load(Ordering::Acquire);
            if header & BUSY != 0 {
                return None;
            }
            let length = (header & !DISCARDED) as usize;
            if length > self.bytes {
                tracing::error!(length, "a record is longer than its ring");
                *position = end;
                return None;
            }
            *position += ((length + HEADER_BYTES + 7) & !7) as u64;
            if header & DISCARDED == 0 {
                records.copy(at + HEADER_BYTES, record, length);
                return Some(());
            }
        }
    }

    /// Where reading goes on.
    pub(crate) fn position(&self) -> u64 {
        self.consumer.number(0).load(Ordering::Acquire)
    }

    /// Gives back everything before `position`: no server will read it again.
    pub(crate) fn release(&self, position: u64) {
        self.consumer.number(0).store(position, Ordering::Release);
    }

    /// Whether anything waits.
    pub(crate) fn waits(&self) -> bool {
        self.waiting_bytes() > 0
    }

    /// How much waits, with the heads of records.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let position = self.position();
        self.producer.number(0).load(Ordering::Acquire).saturating_sub(position)
    }

    /// How much there is room for.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives back all there is, unread.
    pub(crate) fn discard(&self) {
        self.release(self.producer.number(0).load(Ordering::Acquire));
    }
}

/// Two numbers for each slot: the next record's, and how many records did not fit.
#[derive(Debug)]
pub(crate) struct Counters(Mapping);

/// Bytes of a slot's counters.
pub(crate) const COUNTER_BYTES: usize = 16;

impl Counters {
    /// Maps the counters of `slots`.
    pub(crate) fn open(map: &OwnedFd, slots: u32) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = (slots as usize * COUNTER_BYTES).next_multiple_of(page);
        Mapping::new(map, bytes, 0, true).map(Self)
    }

    /// Subtracts losses that were recorded.
    pub(crate) fn told(&self, slot: u32, lost: u64) {
        self.0.number(slot as usize * COUNTER_BYTES + 8).fetch_sub(lost, Ordering::AcqRel);
    }

    /// How many records of a slot were lost, and not recorded as lost yet.
    pub(crate) fn lost(&self, slot: u32) -> u64 {
        self.0.number(slot as usize * COUNTER_BYTES + 8).load(Ordering::Relaxed)
    }

    /// Begins anew, for another sandbox.
    pub(crate) fn reset(&self, slot: u32) {
        self.0.number(slot as usize * COUNTER_BYTES).store(0, Ordering::Release);
        self.0.number(slot as usize * COUNTER_BYTES + 8).store(0, Ordering::Release);
    }
}
