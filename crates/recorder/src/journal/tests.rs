//! Journals that are cut, changed, exchanged, and written under clocks that jump.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::event::{
    Call, Connection, Created, Destination, Dns, ExecEnded, ExecStarted, Http, Lost, PolicyDecision, Process,
    ProcessExited, ProcessStarted, RecorderEvent, Socket, Transport, What,
};
use crate::recorder::Retention;
use crate::{Event, Report, SigningKey, verify};

const START_US: u64 = 1_700_000_000_000_000;

struct World {
    dir: tempfile::TempDir,
    sandbox: SandboxId,
    key: Arc<SigningKey>,
    keep: Retention,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, sandbox: SandboxId::from_parts(1, 1), key: key(7), keep: Retention::default() }
    }

    fn base(&self) -> &Path {
        self.dir.path()
    }

    fn open(&self) -> (JournalWriter, Opened) {
        let owner = Some("k1".to_owned());
        JournalWriter::open(self.base(), &self.sandbox, owner, Arc::clone(&self.key), self.keep).unwrap()
    }

    fn verify(&self) -> Report {
        verify(self.base(), &self.sandbox, &self.key.public(), None).unwrap()
    }

    fn texts(&self) -> Vec<String> {
        let mut reader = Reader::new(self.base(), &self.sandbox, 1);
        let mut texts = Vec::new();
        loop {
            let events = reader.read().unwrap();
            if events.is_empty() {
                return texts;
            }
            for event in events {
                if let What::BudgetExhausted { reason } = event.event.what {
                    texts.push(reason);
                }
            }
        }
    }

    /// The only file of the journal.
    fn file(&self) -> PathBuf {
        list(&self.base().join(self.sandbox.as_str())).unwrap().remove(0).path
    }
}

fn key(seed: u8) -> Arc<SigningKey> {
    Arc::new(SigningKey::from_seed(&Zeroizing::new([seed; 32])).unwrap())
}

fn at(second: u64) -> Moment {
    Moment { wall_us: START_US + second * 1_000_000, steady: Duration::from_secs(second) }
}

fn event(text: impl Into<String>) -> Event {
    by_server(START_US, What::BudgetExhausted { reason: text.into() })
}

fn events(range: std::ops::Range<u32>) -> Vec<Event> {
    range.map(|number| event(format!("event {number}"))).collect()
}

/// Ends a journal, and compresses what is left to others of it.
fn end(writer: &mut JournalWriter, now: Moment) {
    writer.end(now).unwrap().iter().for_each(|segment| segment.pack().unwrap());
}

/// One segment of 40 events in four writes, the first 30 of them signed.
fn small() -> World {
    in_four_writes(10)
}

/// One segment of four writes with so many events each, the first three of them signed.
fn in_four_writes(each: u32) -> World {
    let world = World::new();
    let (mut writer, _) = world.open();
    for part in 0..4 {
        writer.append(&events(part * each..part * each + each), at(u64::from(part))).unwrap();
        if part < 3 {
            writer.checkpoint(at(u64::from(part))).unwrap();
        }
    }
    world
}

#[test]
fn events_of_all_shapes_are_read_as_they_were_written() {
    let process = Process { pid: 7, start_ns: 8 };
    let socket =
        Socket { protocol: Transport::Tcp, local: None, peer: Some("192.0.2.1:80".parse().unwrap()) };
    let to = Some(Box::new(Destination { address: socket.peer, ..Destination::default() }));
    let text = || "text".to_owned();
    let all = [
        What::ProcessStarted(ProcessStarted { parent: Some(process), ..ProcessStarted::default() }),
        What::ProcessForked { parent: process },
        What::ProcessExited(ProcessExited { code: Some(3), ..ProcessExited::default() }),
        What::Connect(socket.clone()),
        What::Dns(Dns { name: text(), ..Dns::default() }),
        What::Http(Http { connection: 3, duration_us: 9, to, ..Http::default() }),
        What::Connection(Connection { connection: 3, address: socket.peer, ..Connection::default() }),
        What::Policy(PolicyDecision { times: 2, ..PolicyDecision::default() }),
        What::Call(Call { status: 200, ..Call::default() }),
        What::TerminalInput { by: Some(text()), bytes: 5 },
        What::Created(Created::default()),
        What::State { state: text(), mode: Some(text()), reason: Some(text()) },
        What::Snapshot { snapshot: text(), purpose: text() },
        What::Forked { child: text() },
        What::RolledBack { snapshot: text() },
        What::Limits { changed: vec![text()], policy_revision: 1 },
        What::OutOfMemory,
        What::BudgetExhausted { reason: text() },
        What::ExecStarted(ExecStarted { traceparent: Some(text()), ..ExecStarted::default() }),
        What::ExecEnded(ExecEnded { code: Some(0), ..ExecEnded::default() }),
        What::Lost(Lost { count: Some(1), reason: text() }),
        What::Recorder(RecorderEvent::WentOn { clean: true }),
    ];
    let world = World::new();
    let (mut writer, _) = world.open();
    let written: Vec<_> = all.into_iter().map(|what| by_server(START_US, what)).collect();
    writer.append(&written, at(0)).unwrap();
    writer.checkpoint(at(1)).unwrap();
    let read = Reader::new(world.base(), &world.sandbox, 1).read().unwrap();
    assert_eq!(read.into_iter().map(|numbered| numbered.event).collect::<Vec<_>>(), written);
    assert_eq!(world.verify().findings, []);
}

#[test]
fn what_is_written_is_read_and_verified_over_many_segments() {
    let world = World::new();
    let (mut writer, opened) = world.open();
    assert_eq!(opened, Opened::default());
    let padding = "x".repeat(400);
    for part in 0..60 {
        let batch: Vec<_> = (0..100).map(|number| event(format!("{part} {number} {padding}"))).collect();
        writer.append(&batch, at(part)).unwrap();
    }
    end(&mut writer, at(61));
    let report = world.verify();
    assert_eq!(report.findings, []);
    assert_eq!((report.events, report.first, report.last, report.signed), (6001, 1, 6001, 6001));
    assert!(report.ended && report.gaps.is_empty());
    let texts = world.texts();
    assert_eq!(texts.len(), 6000);
    assert!(texts[5999].starts_with("59 99 "));
    let segments = list(&world.base().join(world.sandbox.as_str())).unwrap();
    assert!(segments.len() > 2 && segments.iter().all(|segment| segment.closed), "{segments:?}");
    // From anywhere.
    let mut reader = Reader::new(world.base(), &world.sandbox, 4321);
    assert_eq!(reader.read().unwrap()[0].number, 4321);
    assert_eq!(reader.owner().unwrap(), Some(Some("k1".to_owned())));
}

#[test]
fn a_journal_cut_at_any_byte_is_repaired_and_goes_on_and_says_so() {
    // Every byte is tried: two events a write have all places where one can be.
    let whole = in_four_writes(2);
    let bytes = fs::read(whole.file()).unwrap();
    let name = whole.file().file_name().unwrap().to_owned();
    for cut in 0..bytes.len() {
        let world = World::new();
        let dir = world.base().join(world.sandbox.as_str());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(&name), &bytes[..cut]).unwrap();
        let before = world.texts().len();
        let (mut writer, opened) = world.open();
        assert!(opened.cut < 500, "{cut}");
        writer.append(&[event("after")], at(100)).unwrap();
        writer.checkpoint(at(100)).unwrap();
        let report = world.verify();
        assert_eq!(report.findings, [], "cut at {cut}");
        assert_eq!(report.signed, report.last);
        let texts = world.texts();
        assert_eq!(texts.len(), before + 1, "cut at {cut}: nothing whole is lost");
        assert_eq!(texts.last().map(String::as_str), Some("after"));
    }
}

#[test]
fn any_changed_byte_of_what_is_signed_is_found() {
    let whole = in_four_writes(2);
    let path = whole.file();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(whole.verify().findings, []);
    for at in 0..bytes.len() {
        for change in [1_u8, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            fs::write(&path, &changed).unwrap();
            let report = whole.verify();
            assert_eq!(report.findings.len(), 1, "byte {at}: {:?}", report.findings);
            assert!(report.findings[0].offset <= at as u64, "byte {at}: {:?}", report.findings);
        }
    }
}

/// Writes the records anew, as an attacker can who has the files but not the key: with a chain that fits.
fn forge(path: &Path, sandbox: &str, mut keep: impl FnMut(crate::chain::Kind, &[u8]) -> Option<Vec<u8>>) {
    use crate::chain::{Link, MAGIC, Next, decode, encode};
    let bytes = fs::read(path).unwrap();
    let mut rest = &bytes[MAGIC.len()..];
    let (mut out, mut link) = (MAGIC.to_vec(), Link::start(sandbox));
    while let Next::Frame(frame) = decode(rest) {
        if let Some(payload) = keep(frame.kind, frame.payload) {
            link = encode(&mut out, link, frame.kind, &payload);
        }
        rest = &rest[frame.size..];
    }
    fs::write(path, out).unwrap();
}

#[test]
fn a_thief_without_the_key_cannot_write_another_history() {
    use crate::chain::Kind;
    let change = |payload: &[u8]| {
        let text = String::from_utf8(payload.to_vec()).unwrap();
        text.replace("event 5", "harmless").into_bytes()
    };
    // Changes an event, and all tags after it.
    let world = small();
    forge(&world.file(), world.sandbox.as_str(), |_, payload| Some(change(payload)));
    assert!(world.verify().findings[0].what.contains("signature"), "{:?}", world.verify().findings);
    // Takes the checkpoints out, too: nothing is signed then.
    let world = small();
    forge(&world.file(), world.sandbox.as_str(), |kind, payload| {
        (kind != Kind::Checkpoint).then(|| change(payload))
    });
    let report = world.verify();
    assert_eq!((report.signed, report.last), (0, 40));
    // Takes an event out of the middle, and gives the others its number.
    let world = small();
    let mut number = 0;
    forge(&world.file(), world.sandbox.as_str(), |kind, payload| {
        if kind != Kind::Event {
            return Some(payload.to_vec());
        }
        let mut event: Numbered = serde_json::from_slice(payload).unwrap();
        if event.number == 5 {
            return None;
        }
        number += 1;
        event.number = number;
        Some(serde_json::to_vec(&event).unwrap())
    });
    assert!(world.verify().findings[0].what.contains("signature"));
    // The attacker signs anew with another key.
    let thief = World { key: key(9), ..small() };
    let (mut writer, _) = thief.open();
    writer.append(&events(0..1), at(5)).unwrap();
    writer.checkpoint(at(5)).unwrap();
    let report = verify(thief.base(), &thief.sandbox, &key(7).public(), None).unwrap();
    assert!(report.findings[0].what.contains("another key"), "{report:?}");
}

#[test]
fn a_journal_that_was_cut_after_a_signature_is_known_by_a_head_that_was_kept() {
    let world = small();
    let head = world.verify().head.unwrap();
    assert_eq!(head.number, 30);
    let known =
        |head| verify(world.base(), &world.sandbox, &world.key.public(), Some(head)).unwrap().findings;
    assert_eq!(known(&head), []);
    // Back to an older signature: in itself it is whole.
    let bytes = fs::read(world.file()).unwrap();
    let marker = b"\"last\":20";
    let at = bytes.windows(marker.len()).position(|window| window == marker).unwrap();
    let cut = (at..bytes.len()).find(|end| {
        fs::write(world.file(), &bytes[..*end]).unwrap();
        let report = world.verify();
        report.findings.is_empty() && report.signed == 20
    });
    assert!(cut.is_some());
    assert!(known(&head)[0].what.contains("is not in it"));
}

#[test]
fn segments_cannot_be_exchanged_or_removed() {
    let two = || {
        let world = World::new();
        for part in 0..3_u32 {
            let (mut writer, _) = world.open();
            writer.append(&events(part * 10..part * 10 + 10), at(u64::from(part))).unwrap();
            end(&mut writer, at(u64::from(part)));
        }
        world
    };
    let world = two();
    assert_eq!(world.verify().findings, []);
    let files = list(&world.base().join(world.sandbox.as_str())).unwrap();
    assert_eq!(files.len(), 3);
    // The middle one.
    fs::remove_file(&files[1].path).unwrap();
    assert!(world.verify().findings[0].what.contains("missing"));
    // The first one.
    let world = two();
    fs::remove_file(world.file()).unwrap();
    assert!(world.verify().findings[0].what.contains("were removed"));
    // Another sandbox's.
    let (world, mut other) = (two(), World::new());
    other.sandbox = SandboxId::from_parts(2, 2);
    let (mut writer, _) = other.open();
    writer.append(&events(0..11), at(0)).unwrap();
    end(&mut writer, at(0));
    fs::copy(other.file(), world.file()).unwrap();
    assert!(world.verify().findings[0].what.contains("another sandbox"));
    // Nothing at all.
    let empty = World::new();
    assert!(empty.verify().findings[0].what.contains("no journal"));
}

#[test]
fn old_segments_go_and_the_journal_says_so() {
    let world = World { keep: Retention { bytes: 1, ..Retention::default() }, ..World::new() };
    for part in 0..5_u32 {
        let (mut writer, _) = world.open();
        writer.append(&events(part * 10..part * 10 + 10), at(u64::from(part))).unwrap();
        end(&mut writer, at(u64::from(part)));
    }
    let report = world.verify();
    assert_eq!(report.findings, []);
    assert!(report.first > 11, "{report:?}");
    assert!(world.texts().len() < 50);
}

#[test]
fn a_journal_that_drops_something_at_its_end_has_ended_all_the_same() {
    let world = World { keep: Retention { bytes: 1, ..Retention::default() }, ..World::new() };
    for part in 0..3_u32 {
        let (mut writer, _) = world.open();
        writer.append(&events(part..part + 1), at(u64::from(part))).unwrap();
        end(&mut writer, at(u64::from(part)));
        let report = world.verify();
        assert!(report.ended && report.signed == report.last, "{report:?}");
        assert_eq!(report.findings, []);
    }
    assert!(world.verify().first > 1, "something was dropped");
    assert!(Reader::new(world.base(), &world.sandbox, 1).has_ended().unwrap());
}

#[test]
fn a_clock_that_jumps_is_an_event_and_changes_no_order() {
    let world = World::new();
    let (mut writer, _) = world.open();
    writer.append(&events(0..1), at(0)).unwrap();
    let back = Moment { wall_us: START_US - 3_600_000_000, steady: Duration::from_secs(1) };
    writer.append(&events(1..2), back).unwrap();
    writer.append(&events(2..3), Moment { wall_us: START_US, steady: Duration::from_secs(2) }).unwrap();
    // The next server's clock stands before the last event.
    let (mut writer, _) = world.open();
    let earlier = Moment { wall_us: START_US - 10_000_000, steady: Duration::ZERO };
    writer.append(&events(3..4), earlier).unwrap();
    writer.checkpoint(earlier).unwrap();
    let mut reader = Reader::new(world.base(), &world.sandbox, 1);
    let steps: Vec<_> = reader
        .read()
        .unwrap()
        .into_iter()
        .filter_map(|event| match event.event.what {
            What::Recorder(RecorderEvent::ClockSet { by_ms }) => Some(by_ms),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [-3_601_000, 3_599_000, -10_000]);
    assert_eq!(world.texts(), ["event 0", "event 1", "event 2", "event 3"]);
    assert_eq!(world.verify().findings, []);
}

#[test]
fn an_event_takes_at_most_150_bytes_on_disk() {
    use crate::event::{Http, Process, ProcessStarted, Witness};
    let world = World::new();
    let (mut writer, _) = world.open();
    let mut all = Vec::new();
    // Programs and requests of a build: what repeats there repeats here, pids and times do not.
    for number in 0..20_000_u64 {
        let random = u32::from(blake3::hash(&number.to_le_bytes()).as_bytes()[0]);
        let process = Some(Process {
            pid: 1000 + u32::try_from(number).unwrap(),
            start_ns: number * 1_234_567 + u64::from(random),
        });
        let what = if number % 3 == 0 {
            What::Http(Http {
                connection: number,
                method: "GET".into(),
                scheme: "https".into(),
                host: "pypi.example".into(),
                port: 443,
                path: format!("/simple/package-{random}/file-{number}.whl"),
                status: Some(200),
                received_bytes: number * 977,
                latency_us: 1000 + u64::from(random) * 7,
                rule: "allow pypi.example".into(),
                ..Http::default()
            })
        } else {
            What::ProcessStarted(ProcessStarted {
                argv: vec!["cc".into(), "-O2".into(), "-c".into(), format!("src/file_{number}.c")],
                cwd: "/work/project".into(),
                path: "/usr/bin/cc".into(),
                parent: process,
                ..ProcessStarted::default()
            })
        };
        all.push(Event {
            at_us: START_US + number * 913 + u64::from(random),
            witness: Witness::Host,
            exec: None,
            process,
            what,
        });
    }
    for batch in all.chunks(50) {
        writer.append(batch, at(1)).unwrap();
    }
    end(&mut writer, at(2));
    let files = list(&world.base().join(world.sandbox.as_str())).unwrap();
    let bytes: u64 = files.iter().map(|file| fs::metadata(&file.path).unwrap().len()).sum();
    println!(
        "{} bytes an event, {} unpacked",
        bytes / 20_000,
        files.iter().map(|f| read(f).unwrap().len()).sum::<usize>() / 20_000
    );
    assert!(bytes / 20_000 <= 150, "{}", bytes / 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No matter what is appended, and in which pieces, with restarts between: it is all there, in order, and verifies.
    #[test]
    fn nothing_is_lost_or_reordered(texts in prop::collection::vec(".{0,80}", 1..60), pieces in prop::collection::vec(1_usize..9, 1..40)) {
        let world = World::new();
        let (mut writer, _) = world.open();
        let mut rest = &texts[..];
        for (index, piece) in pieces.iter().cycle().enumerate() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            writer.append(&now.iter().map(event).collect::<Vec<_>>(), at(index as u64)).unwrap();
            rest = later;
            match piece {
                3 => writer = world.open().0,
                5 => writer.checkpoint(at(index as u64)).unwrap(),
                7 => end(&mut writer, at(index as u64)),
                _ => {}
            }
        }
        prop_assert_eq!(world.texts(), texts);
        prop_assert_eq!(world.verify().findings, vec![]);
    }

    /// Any bytes are read without a panic, and never as a journal that is well.
    #[test]
    fn garbage_is_no_journal(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let world = World::new();
        let dir = world.base().join(world.sandbox.as_str());
        fs::create_dir(&dir).unwrap();
        for name in ["00000000000000000001.log", "00000000000000000001.log.zst"] {
            fs::write(dir.join(name), &bytes).unwrap();
            drop(Reader::new(world.base(), &world.sandbox, 1).read());
            prop_assert_eq!(world.verify().signed, 0);
            prop_assert!(!world.verify().findings.is_empty());
        }
    }
}
