//! Verifies a journal, offline: with nothing but its files and the installation's public key.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use atoll_core::id::SandboxId;
use serde::Serialize;

use crate::chain::{Frame, Kind, Link, MAGIC, Next, decode};
use crate::event::{RecorderEvent, What};
use crate::journal::{Checkpoint, Header, Numbered, Segment, VERSION, list, read};
use crate::key::PublicKey;

/// A journal's last signed statement, as a user kept it elsewhere: `number:link`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Number of the last event that it covers.
    pub number: u64,
    /// The chain's end there, in hexadecimal.
    pub link: String,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.number, self.link)
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(number, link)| {
            Link::parse(link)?;
            Some(Self { number: number.parse().ok()?, link: link.to_owned() })
        });
        parts.ok_or_else(|| "write a head as NUMBER:LINK, as 'atoll trace verify' prints it".to_owned())
    }
}

/// Something that is not as the recorder wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the file.
    pub segment: String,
    /// Offset in the unpacked segment, bytes.
    pub offset: u64,
    /// The last event before it that is as it was written.
    pub after: u64,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, after, what } = self;
        write!(f, "after event {after} (byte {offset} of {segment}): {what}")
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Events that were read.
    pub events: u64,
    /// Number of the first event that is kept.
    pub first: u64,
    /// Number of the last event.
    pub last: u64,
    /// Number of the last event that a good signature covers. Those after it are chained and not signed yet.
    pub signed: u64,
    /// The journal was ended and signed as such: nothing can be missing at its end.
    pub ended: bool,
    /// Gaps that the recorder itself announced: event number and reason.
    pub gaps: Vec<(u64, String)>,
    /// The last signed statement.
    pub head: Option<Head>,
    /// What is not as it was written; none when all is well.
    pub findings: Vec<Finding>,
}

/// Verifies the journal of a sandbox below `base`. `known` is a head that was kept elsewhere.
///
/// # Errors
/// When the directory cannot be read. What cannot be read in it is a finding.
pub fn verify(base: &Path, sandbox: &SandboxId, key: &PublicKey, known: Option<&Head>) -> io::Result<Report> {
    let segments = list(&base.join(sandbox.as_str()))?;
    let mut check = Check::new(&segments, sandbox, key, known);
    for (index, segment) in segments.iter().enumerate() {
        check.segment(segment, index + 1 == segments.len());
    }
    Ok(check.finish(segments.is_empty()))
}

/// How many segments, from the first on, are as the recorder wrote them and signed to their end. It does not matter here
/// whether events before the first segment are gone. One that is still written is believed as far as it is signed,
/// whatever has a higher number: nothing but what the recorder wrote fits behind it.
pub(crate) fn genuine(segments: &[Segment], sandbox: &SandboxId, key: &PublicKey) -> usize {
    let mut check = Check::new(segments, sandbox, key, None);
    let good = segments.iter().enumerate().take_while(|(index, segment)| {
        check.segment(segment, !segment.closed || index + 1 == segments.len());
        check.report.findings.is_empty() && check.report.signed == check.report.last
    });
    good.count()
}

struct Check<'a> {
    key: &'a PublicKey,
    sandbox: &'a str,
    report: Report,
    /// The chain's end; `None` when it is lost.
    link: Option<Link>,
    /// A head from elsewhere, and whether it was met.
    known: Option<(&'a Head, bool)>,
    /// Up to where the recorder says that it dropped events itself.
    dropped: u64,
    /// File and offset that are looked at.
    at: (String, u64),
    /// The segment ended as it should.
    closed: bool,
}

impl<'a> Check<'a> {
    fn new(
        segments: &[Segment],
        sandbox: &'a SandboxId,
        key: &'a PublicKey,
        known: Option<&'a Head>,
    ) -> Self {
        let first = segments.first().map_or(0, |segment| segment.first);
        Self {
            key,
            sandbox: sandbox.as_str(),
            report: Report { first, last: first.saturating_sub(1), ..Report::default() },
            // Where events before are gone, the header is believed, and must be covered by a later signature.
            link: (first <= 1).then(|| Link::start(sandbox.as_str())),
            known: known.map(|head| (head, false)),
            dropped: 1,
            at: (String::new(), 0),
            closed: false,
        }
    }
}

impl Check<'_> {
    fn find(&mut self, what: impl Into<String>) {
        let (segment, offset) = self.at.clone();
        self.report.findings.push(Finding { segment, offset, after: self.report.last, what: what.into() });
    }

    fn segment(&mut self, segment: &Segment, newest: bool) {
        let name = segment.path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.at = (name.unwrap_or_default(), 0);
        self.closed = false;
        if segment.first != self.report.last.saturating_add(1) {
            let (from, to) = (self.report.last.saturating_add(1), segment.first.saturating_sub(1));
            self.find(format!("events {from} to {to} are missing, or numbered twice"));
            self.link = None;
            self.report.last = segment.first.saturating_sub(1);
        }
        let bytes = match read(segment) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.link = None;
                return self.find(format!("the segment cannot be read: {error}"));
            }
        };
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            self.link = None;
            return self.find("this is no segment of a journal");
        };
        self.at.1 = MAGIC.len() as u64;
        if !self.records(body, segment) {
            // The rest of this segment is not to be trusted; the next one has its own signatures.
            self.link = None;
        } else if !newest && !self.closed {
            self.find("the end of the segment is missing");
        } else if newest && segment.closed && !self.closed {
            self.find("the segment was closed, and its signed end is missing");
        }
    }

    /// Follows the chain through a segment; whether to its end.
    fn records(&mut self, mut rest: &[u8], segment: &Segment) -> bool {
        let mut first = true;
        loop {
            match decode(rest) {
                Next::Nothing => return true,
                Next::Part => {
                    self.find("the segment was cut in the middle of a record");
                    return false;
                }
                Next::Garbage => {
                    self.find("bytes were changed: no record begins so");
                    return false;
                }
                Next::Frame(frame) => {
                    if self.closed {
                        self.find("something was added after the segment's signed end");
                        return false;
                    }
                    if !self.record(&frame, first, segment) {
                        return false;
                    }
                    first = false;
                    rest = &rest[frame.size..];
                    self.at.1 += frame.size as u64;
                }
            }
        }
    }

    fn record(&mut self, frame: &Frame<'_>, first: bool, segment: &Segment) -> bool {
        if first != (frame.kind == Kind::Header) {
            self.find("a segment must begin with its header, and have one");
            return false;
        }
        if frame.kind == Kind::Header && !self.header(frame, segment) {
            return false;
        }
        let Some(link) = self.link else { return false };
        let after = link.after(frame.kind, frame.payload);
        if !frame.fits(after) {
            self.find("the record was changed, or one before it was removed or put in");
            return false;
        }
        let good = match frame.kind {
            Kind::Header => true,
            Kind::Event => self.event(frame),
            Kind::Checkpoint => self.checkpoint(frame, link),
        };
        self.link = Some(after);
        good
    }

    fn header(&mut self, frame: &Frame<'_>, segment: &Segment) -> bool {
        let Ok(header) = serde_json::from_slice::<Header>(frame.payload) else {
            self.find("the header cannot be understood");
            return false;
        };
        let before = Link::parse(&header.before);
        let what = if header.version != VERSION {
            format!("the segment has the unknown version {}", header.version)
        } else if header.sandbox != self.sandbox {
            format!("the segment belongs to another sandbox, {}", atoll_core::error::shorten(&header.sandbox))
        } else if header.first != segment.first {
            format!("the segment begins with event {} and has another name", header.first)
        } else if self.link.is_some() && before != self.link {
            "the segment does not go on where the one before it ends: one was changed or exchanged".to_owned()
        } else {
            self.link = before;
            return before.is_some();
        };
        self.find(what);
        false
    }

    fn event(&mut self, frame: &Frame<'_>) -> bool {
        let Ok(numbered) = serde_json::from_slice::<Numbered>(frame.payload) else {
            self.find("the event cannot be understood: written by a newer program, or changed");
            return false;
        };
        let next = self.report.last.saturating_add(1);
        if numbered.number != next {
            self.find(format!("event {} stands where {next} should", numbered.number));
            return false;
        }
        self.report.last = numbered.number;
        self.report.events += 1;
        match numbered.event.what {
            What::Lost(lost) => {
                let count = lost.count.map_or("an unknown number of".to_owned(), |count| count.to_string());
                self.report.gaps.push((numbered.number, format!("{count} events: {}", lost.reason)));
            }
            What::Recorder(RecorderEvent::Repaired { bytes }) => {
                self.report.gaps.push((numbered.number, format!("{bytes} bytes were torn by a crash")));
            }
            What::Recorder(RecorderEvent::Dropped { before }) => self.dropped = self.dropped.max(before),
            _ => {}
        }
        true
    }

    fn checkpoint(&mut self, frame: &Frame<'_>, link: Link) -> bool {
        let Ok(checkpoint) = serde_json::from_slice::<Checkpoint>(frame.payload) else {
            self.find("the checkpoint cannot be understood");
            return false;
        };
        let signed = self.report.signed;
        if checkpoint.key != self.key.id() {
            let (theirs, ours) = (atoll_core::error::shorten(&checkpoint.key), self.key.id());
            self.find(format!("the checkpoint was signed with another key, {theirs}, not with {ours}"));
            return false;
        }
        let fits = Link::parse(&checkpoint.link) == Some(link) && checkpoint.last == self.report.last;
        if !fits || !checkpoint.is_genuine(self.key, self.sandbox) {
            self.find(format!("the signature is not for this: something after event {signed} was changed"));
            return false;
        }
        self.report.signed = checkpoint.last;
        self.report.ended = checkpoint.ends;
        self.closed = checkpoint.closes;
        let head = Head { number: checkpoint.last, link: checkpoint.link };
        if let Some((known, met)) = &mut self.known {
            *met |= **known == head;
        }
        self.report.head = Some(head);
        true
    }

    fn finish(mut self, empty: bool) -> Report {
        if empty {
            self.find("there is no journal");
        } else if self.report.first > self.dropped {
            let upto = self.report.first - 1;
            self.at.1 = 0;
            self.find(format!("events 1 to {upto} were removed, and not by the recorder"));
        }
        if let Some((known, false)) = self.known {
            self.find(format!("the head {known} is not in it: it was cut, exchanged, or signed anew"));
        }
        self.report
    }
}
