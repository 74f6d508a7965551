//! The one writer of a log. Blocking: call it off the async threads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use atoll_core::exec::OutputStream;

use super::budget::{LogShare, remove_file};
use super::segment::{Index, RECORD_BYTES, Record, data_path, index_path, list, size};
use super::{Extent, SEGMENT_MAX_BYTES, SEGMENTS_PER_LOG, TIMES_EVERY_MS};
use crate::clock::Clock;

/// Appends to the log of one exec. There is one writer for each log at any time.
#[derive(Debug)]
pub(crate) struct LogWriter {
    clock: Clock,
    dir: PathBuf,
    keep_bytes: u64,
    segment_max_bytes: u64,
    extent: Extent,
    segment: Option<Segment>,
    /// Its part of what output may take on the host. The log of a build has none.
    share: Option<LogShare>,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    data: File,
    index: File,
    /// The last of its index.
    record: Option<Record>,
}

impl LogWriter {
    /// The log of an exec that never had one. Touches nothing.
    pub(crate) fn fresh(dir: &Path, keep_bytes: u64, clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            dir: dir.to_owned(),
            keep_bytes,
            segment_max_bytes: (keep_bytes / SEGMENTS_PER_LOG).clamp(1, SEGMENT_MAX_BYTES),
            extent: Extent::default(),
            segment: None,
            share: None,
        }
    }

    /// Counts it to what its sandbox may keep.
    pub(crate) fn within(mut self, share: LogShare) -> Self {
        self.share = Some(share);
        self
    }

    /// Opens the log in `dir` and puts it right after a crash. Nothing is created before the first byte.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn open(dir: &Path, keep_bytes: u64, clock: &Clock) -> io::Result<Self> {
        let starts = list(dir)?;
        let mut writer = Self::fresh(dir, keep_bytes, clock);
        writer.extent.first = starts.first().copied().unwrap_or(0);
        if let Some(&start) = starts.last() {
            let segment = writer.repair(start)?;
            writer.segment = Some(segment);
        }
        Ok(writer)
    }

    /// Takes up the newest segment: the data file's length is the truth, index records beyond it go.
    fn repair(&mut self, start: u64) -> io::Result<Segment> {
        let data = OpenOptions::new().append(true).open(data_path(&self.dir, start))?;
        let index = OpenOptions::new().append(true).create(true).open(index_path(&self.dir, start))?;
        let records = Index::open(&self.dir, start)?;
        if records.count()? == 0 && data.metadata()?.len() > 0 {
            // Cannot happen by a crash of ours; without a record the bytes have no stream.
            data.set_len(0)?;
        }
        self.extent.end = start + data.metadata()?.len();
        let used = match self.extent.end.checked_sub(1) {
            Some(last) => records.count_until(last, 0)?,
            None => 0,
        };
        index.set_len(used * RECORD_BYTES as u64)?;
        let last = used.checked_sub(1).map(|last| records.window(last)).transpose()?;
        let record = last.and_then(|records| records.first().copied());
        Ok(Segment { start, data, index, record })
    }

    /// Where the log begins and ends.
    pub(crate) const fn extent(&self) -> Extent {
        self.extent
    }

    /// Appends bytes of one stream. On error a first part may have been written; [`Self::extent`] says
    /// how much, and calling again with the rest continues.
    ///
    /// # Errors
    /// What the file system says, above all that it is full.
    pub(crate) fn append(&mut self, stream: OutputStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.room_for_segment()?;
            let cut = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            let written = self.append_to_segment(stream, &bytes[..cut])?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Bytes that still fit into the current segment; begins the next one when there are none.
    fn room_for_segment(&mut self) -> io::Result<u64> {
        if let Some(segment) = &self.segment {
            let used = self.extent.end - segment.start;
            if used < self.segment_max_bytes {
                return Ok(self.segment_max_bytes - used);
            }
        }
        let start = self.extent.end;
        fs::create_dir_all(&self.dir)?;
        let open = |path| OpenOptions::new().append(true).create(true).open(path);
        let index = open(index_path(&self.dir, start))?;
        let data = open(data_path(&self.dir, start))?;
        self.segment = Some(Segment { start, data, index, record: None });
        self.drop_oldest()?;
        Ok(self.segment_max_bytes)
    }

    fn append_to_segment(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<usize> {
        let Some(segment) = &mut self.segment else { return Ok(0) };
        let at_ms = self.clock.now_ms();
        let covers =
            |last: Record| last.stream == stream && at_ms < last.at_ms.saturating_add(TIMES_EVERY_MS);
        if !segment.record.is_some_and(covers) {
            let record = Record { offset: self.extent.end, stream, at_ms };
            if let Err(error) = segment.index.write_all(&record.encode()) {
                // A torn record must not shift the ones after it.
                let whole = segment.index.metadata()?.len() / RECORD_BYTES as u64 * RECORD_BYTES as u64;
                segment.index.set_len(whole)?;
                return Err(error);
            }
            segment.record = Some(record);
            if let Some(share) = &self.share {
                share.wrote(RECORD_BYTES);
            }
        }
        let written = segment.data.write(bytes)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.extent.end += written as u64;
        if let Some(share) = &self.share {
            share.wrote(written);
        }
        Ok(written)
    }

    /// Keeps the limits: removes whole segments, oldest first, never the newest.
    fn drop_oldest(&mut self) -> io::Result<()> {
        if let Some(share) = &self.share {
            share.keep_within()?;
        }
        loop {
            // Others may have dropped some, too.
            let starts = list(&self.dir)?;
            let [oldest, next, ..] = starts[..] else { return Ok(()) };
            self.extent.first = oldest;
            if self.extent.end - oldest <= self.keep_bytes {
                return Ok(());
            }
            let bytes = size(&self.dir, oldest);
            remove_file(&data_path(&self.dir, oldest))?;
            remove_file(&index_path(&self.dir, oldest))?;
            self.extent.first = next;
            if let Some(share) = &self.share {
                share.dropped(bytes);
            }
        }
    }
}
