//! Finding files by their path, and lines in them.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_guest_protocol::FOUND_LINE_MAX_BYTES;
use atoll_guest_protocol::body::RecordWriter;
use atoll_guest_protocol::messages::{Failure, FileInfo, Find, Found, Truncated};
use atoll_guest_protocol::wire::{Kind, encode_message};
use bytes::BytesMut;
use memchr::memmem;

use super::pattern::{Pattern, Places};
use super::{Directory, Names, checked};
use crate::blocking::{Framing, Outlet, Threads, produce};
use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;

/// Most records of one answer, also when the host asks for more.
const COUNT_MAX: u32 = 100_000;
/// Files and directories that are looked at; beyond it the answer is cut.
const LOOKED_AT_MAX: u64 = 2_000_000;
/// Levels below the directory.
const DEPTH_MAX: usize = 128;
/// Entries of one directory.
const ENTRIES_MAX: usize = 1_000_000;
/// Longest line that is searched as one; a longer line is searched in pieces.
const LINE_MAX_BYTES: u64 = 1 << 20;
/// A file with a NUL in its first so many bytes is no text.
const PROBE_BYTES: usize = 8 << 10;
/// Longest text to look for, bytes.
const TEXT_MAX_BYTES: usize = 64 << 10;
/// Records are sent in blocks of about this size.
const SEND_BYTES: usize = 64 << 10;
/// Bytes of one answer.
const ANSWER_MAX_BYTES: usize = 32 << 20;

/// `find`.
pub(crate) async fn find(
    threads: &Threads,
    request: Find,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    checked(&request.path)?;
    if request.text.len() > TEXT_MAX_BYTES {
        return Err(invalid("the text is too long").into());
    }
    let pattern = Pattern::new(&request.pattern).ok_or_else(|| invalid("the pattern has too many names"))?;
    let work = move |outlet| Search::new(&request, pattern, outlet).run();
    let cut = produce(threads, response, Framing::Encoded, work).await?;
    Ok(if cut { Answer::last(&Truncated {}) } else { Answer::End })
}

/// Nothing more is wanted or may be sent.
enum Enough {
    /// The answer is cut here.
    Cut,
    /// The host does not read the answer any more.
    Gone,
}

struct Search {
    root: PathBuf,
    shown: String,
    pattern: Pattern,
    /// Finds the text; none when files are looked for.
    text: Option<Arc<memmem::Finder<'static>>>,
    names: Names,
    outlet: Outlet,
    block: BytesMut,
    left: u32,
    bytes_left: usize,
    looked_at: u64,
}

/// A directory that was looked through.
struct Searched {
    relative: PathBuf,
    /// Directories in it that have to be looked through, the next one last: name, where the pattern is, device.
    below: Vec<(OsString, Places, u64)>,
}

impl Search {
    fn new(request: &Find, pattern: Pattern, outlet: Outlet) -> Self {
        Self {
            root: PathBuf::from(&request.path),
            shown: request.path.clone(),
            pattern,
            text: (!request.text.is_empty())
                .then(|| Arc::new(memmem::Finder::new(request.text.as_bytes()).into_owned())),
            names: Names::read(),
            outlet,
            block: BytesMut::new(),
            left: request.max_count.min(COUNT_MAX),
            bytes_left: ANSWER_MAX_BYTES,
            looked_at: 0,
        }
    }

    /// Searches everything; says whether the answer was cut.
    fn run(mut self) -> Result<bool, Failure> {
        let root = Directory::open(&self.root).and_then(|root| root.device());
        let device = root.map_err(|error| io_error(&self.shown, &error))?;
        let mut stack = Vec::new();
        let mut next = Some((PathBuf::new(), self.pattern.start(), device));
        loop {
            if let Some((relative, places, device)) = next.take() {
                match self.directory(relative, &places, device, stack.len() + 1) {
                    Ok(searched) => stack.push(searched),
                    Err(Enough::Cut) => {
                        self.send();
                        return Ok(true);
                    }
                    Err(Enough::Gone) => return Ok(false),
                }
            }
            let Some(searched) = stack.last_mut() else { break };
            match searched.below.pop() {
                Some((name, places, device)) => next = Some((searched.relative.join(name), places, device)),
                None => drop(stack.pop()),
            }
        }
        self.send();
        Ok(false)
    }

    /// Looks through one directory, the `depth`th from the top.
    fn directory(
        &mut self,
        directory: PathBuf,
        places: &Places,
        device: u64,
        depth: usize,
    ) -> Result<Searched, Enough> {
        let mut below = Vec::new();
        // A directory that cannot be read counts as empty.
        let Ok(here) = Directory::open(&self.root.join(&directory)) else {
            return Ok(Searched { relative: directory, below });
        };
        for name in sorted(&here).unwrap_or_default() {
            self.look()?;
            let places = self.pattern.step(places, name.as_bytes());
            let (is_match, leads_on) = (places.is_match(&self.pattern), places.leads_on(&self.pattern));
            if !is_match && !leads_on {
                continue;
            }
            // It may have gone meanwhile.
            let Ok(metadata) = here.metadata(&name) else { continue };
            if is_match {
                self.found(&directory.join(&name), (&here, &name), &metadata)?;
            }
            let enters = metadata.is_dir() && leads_on && depth < DEPTH_MAX;
            if enters && (metadata.dev() == device || !is_of_the_kernel(&here, &name)) {
                below.push((name, places, metadata.dev()));
            }
        }
        below.reverse();
        Ok(Searched { relative: directory, below })
    }

    fn look(&mut self) -> Result<(), Enough> {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(1024) && self.outlet.is_closed() {
            return Err(Enough::Gone);
        }
        if self.looked_at > LOOKED_AT_MAX { Err(Enough::Cut) } else { Ok(()) }
    }

    fn found(
        &mut self,
        relative: &Path,
        (directory, name): (&Directory, &OsStr),
        metadata: &Metadata,
    ) -> Result<(), Enough> {
        let Some(text) = self.text.clone() else {
            let info = self.names.info(relative, (directory, name), metadata);
            return self.tell(&Found { info: Some(info), ..Found::default() });
        };
        if !metadata.is_file() {
            return Ok(());
        }
        let info = self.names.info(relative, (directory, name), metadata);
        // A file that cannot be read has nothing in it.
        match directory.open_regular(name).and_then(|file| self.lines(&text, file, &info)) {
            Ok(Some(enough)) => Err(enough),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Tells of every line with the text. `Some` when that was enough.
    fn lines(
        &mut self,
        text: &memmem::Finder<'_>,
        file: std::fs::File,
        info: &FileInfo,
    ) -> io::Result<Option<Enough>> {
        let mut reader = BufReader::with_capacity(PROBE_BYTES.max(64 << 10), file);
        let probe = reader.fill_buf()?;
        if memchr::memchr(0, &probe[..probe.len().min(PROBE_BYTES)]).is_some() {
            return Ok(None);
        }
        let mut line = Vec::new();
        let mut number = 1;
        let mut enough = None;
        while enough.is_none() {
            line.clear();
            let len = reader.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut line)?;
            if len == 0 {
                break;
            }
            if text.find(&line).is_some() {
                let text = shown(&line);
                enough = self.tell(&Found { info: Some(info.clone()), line: number, text }).err();
            }
            if number % 4096 == 0 && self.outlet.is_closed() {
                enough = Some(Enough::Gone);
            }
            number += u64::from(line.ends_with(b"\n"));
        }
        Ok(enough)
    }

    fn tell(&mut self, found: &Found) -> Result<(), Enough> {
        let record = encode_message(Kind::Message, found);
        if self.left == 0 || record.len() > self.bytes_left {
            return Err(Enough::Cut);
        }
        self.left -= 1;
        self.bytes_left -= record.len();
        self.block.extend_from_slice(&record);
        if self.block.len() >= SEND_BYTES && !self.send() {
            return Err(Enough::Gone);
        }
        Ok(())
    }

    /// Sends the block; says whether the receiver took it.
    fn send(&mut self) -> bool {
        self.block.is_empty() || self.outlet.send(self.block.split().freeze()).is_ok()
    }
}

/// Names in a directory, in order.
fn sorted(directory: &Directory) -> io::Result<Vec<OsString>> {
    let entries = directory.entries()?.take(ENTRIES_MAX);
    let mut names: Vec<OsString> = entries.filter_map(|entry| Some(entry.ok()?.0)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether a directory shows the kernel's state rather than files. One that cannot be opened is not entered either.
fn is_of_the_kernel(above: &Directory, name: &OsStr) -> bool {
    match above.below(name) {
        Ok(directory) => directory.is_of_the_kernel(),
        Err(_) => true,
    }
}

/// A line as it is told: without its end, bounded.
fn shown(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut text = String::from_utf8_lossy(&line[..line.len().min(FOUND_LINE_MAX_BYTES)]).into_owned();
    while text.len() > FOUND_LINE_MAX_BYTES {
        text.pop();
    }
    text
}
