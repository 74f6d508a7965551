//! The recorder under load, with a disk that fails, and over restarts.

use std::os::unix::fs::PermissionsExt as _;

use zeroize::Zeroizing;

use super::*;
use crate::event::{Lost, ProcessStarted, RecorderEvent};
use crate::journal::{JournalWriter, Moment, list, read};
use crate::limits::{ARGV_MAX_CHARS, SEGMENT_MAX_BYTES, WAITING_MAX_COUNT};
use crate::{Report, verify};

fn open(dir: &std::path::Path) -> Recorder {
    let key = SigningKey::from_seed(&Zeroizing::new([7; 32])).unwrap();
    Recorder::open(Config { dir: dir.to_owned(), key, keep: Retention::default() }).unwrap()
}

fn sandbox() -> SandboxId {
    SandboxId::from_parts(1, 1)
}

fn text(number: usize) -> What {
    What::BudgetExhausted { reason: format!("event {number}") }
}

fn whats(recorder: &Recorder) -> Vec<What> {
    let mut reader = recorder.reader(&sandbox(), 1);
    let mut all = Vec::new();
    loop {
        let events = reader.read().unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events.into_iter().map(|event| event.event.what));
    }
}

fn report(recorder: &Recorder) -> Report {
    verify(recorder.dir(), &sandbox(), &recorder.public_key(), None).unwrap()
}

#[tokio::test]
async fn what_is_recorded_is_there_after_a_stop_and_the_next_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    recorder.note(&sandbox(), text(0));
    assert!(whats(&recorder).is_empty(), "nobody began");
    recorder.begin(&sandbox(), None, Mode::On);
    for number in 0..1000 {
        recorder.note(&sandbox(), text(number));
    }
    recorder.written(&sandbox()).await.unwrap();
    assert_eq!(whats(&recorder).len(), 1001);
    recorder.close().await;
    let recorder = open(dir.path());
    recorder.begin(&sandbox(), None, Mode::On);
    recorder.note(&sandbox(), text(1000));
    recorder.written(&sandbox()).await.unwrap();
    recorder.end(&sandbox());
    recorder.close().await;
    let whats = whats(&recorder);
    assert_eq!(whats[1001], What::Recorder(RecorderEvent::Paused));
    assert_eq!(whats[1002], What::Recorder(RecorderEvent::WentOn { clean: true }));
    assert_eq!(whats[1003], text(1000));
    assert_eq!(whats[1004..], [What::Recorder(RecorderEvent::Ended)]);
    let report = report(&recorder);
    assert_eq!((report.findings.len(), report.ended, report.gaps.len()), (0, true, 0));
}

#[tokio::test]
async fn a_journal_that_has_ended_is_compressed_and_may_go_on_at_any_moment() {
    const TIMES: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    for time in 1..=TIMES {
        recorder.begin(&sandbox(), None, Mode::On);
        recorder.note(&sandbox(), text(time));
        recorder.end(&sandbox());
        let ends =
            || whats(&recorder).iter().filter(|what| **what == What::Recorder(RecorderEvent::Ended)).count();
        // The next one begins while this one is being compressed, before that, or after it.
        while ends() < time {
            tokio::task::yield_now().await;
        }
    }
    recorder.close().await;
    let report = report(&recorder);
    assert_eq!((report.findings.len(), report.ended, report.gaps.len()), (0, true, 0));
    let files = crate::pieces(recorder.dir(), &sandbox()).unwrap();
    assert_eq!(files.len(), TIMES);
    assert!(files.iter().all(crate::Piece::is_closed), "{files:?}");
}

#[tokio::test]
async fn what_is_ended_and_begun_again_at_once_loses_nothing() {
    const TIMES: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    for time in 1..=TIMES {
        recorder.begin(&sandbox(), None, Mode::On);
        recorder.note(&sandbox(), text(time));
        recorder.end(&sandbox());
    }
    recorder.close().await;
    let ends = whats(&recorder).into_iter().filter(|what| *what == What::Recorder(RecorderEvent::Ended));
    assert_eq!(ends.count(), TIMES);
    for time in 1..=TIMES {
        assert!(whats(&recorder).contains(&text(time)), "{time}");
    }
    assert_eq!((report(&recorder).findings.len(), report(&recorder).ended), (0, true));
}

#[tokio::test]
async fn what_a_killed_server_left_uncompressed_is_compressed_if_it_had_ended() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let (ended, lives) = (sandbox(), SandboxId::from_parts(2, 2));
    let now = Moment { wall_us: crate::now_us(), steady: Duration::ZERO };
    for id in [&ended, &lives] {
        let key = Arc::clone(&recorder.shared.key);
        let (mut writer, _) = JournalWriter::open(dir.path(), id, None, key, Retention::default()).unwrap();
        writer.append(&[by_server(now.wall_us, text(1))], now).unwrap();
        writer.checkpoint(now).unwrap();
        if *id == ended {
            assert!(writer.end(now).unwrap().is_some(), "nothing compresses it now");
        }
    }
    let is_closed = |id| crate::pieces(dir.path(), id).unwrap()[0].is_closed();
    assert!(!is_closed(&ended));
    packer::pack_left_over(&recorder.shared);
    assert!(is_closed(&ended) && !is_closed(&lives));
    assert_eq!((report(&recorder).findings.len(), report(&recorder).ended), (0, true));
    // It may go on all the same.
    recorder.begin(&ended, None, Mode::On);
    recorder.end(&ended);
    recorder.close().await;
    assert!(crate::pieces(dir.path(), &ended).unwrap().iter().all(crate::Piece::is_closed));
}

#[tokio::test]
async fn a_server_that_was_killed_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let killed = open(dir.path());
    killed.begin(&sandbox(), None, Mode::On);
    killed.note(&sandbox(), text(0));
    killed.written(&sandbox()).await.unwrap();
    // The recorder `killed` is never closed.
    let recorder = open(dir.path());
    recorder.begin(&sandbox(), None, Mode::On);
    recorder.note(&sandbox(), text(1));
    recorder.written(&sandbox()).await.unwrap();
    let whats = whats(&recorder);
    assert_eq!(whats[2], What::Recorder(RecorderEvent::WentOn { clean: false }));
    assert!(matches!(&whats[3], What::Lost(Lost { count: None, .. })), "{whats:?}");
    assert_eq!(report(&recorder).gaps.len(), 1);
    recorder.close().await;
}

#[tokio::test]
async fn an_overflow_is_counted_and_nothing_else_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    recorder.begin(&sandbox(), None, Mode::On);
    recorder.written(&sandbox()).await.unwrap();
    let count = WAITING_MAX_COUNT * 8;
    for number in 0..count {
        recorder.note(&sandbox(), text(number));
    }
    recorder.close().await;
    let (mut there, mut lost) = (0, 0);
    for what in whats(&recorder) {
        match what {
            What::BudgetExhausted { .. } => there += 1,
            What::Lost(Lost { count, .. }) => lost += count.unwrap(),
            _ => {}
        }
    }
    assert_eq!(there + lost, count as u64);
    assert_eq!(report(&recorder).findings, []);
}

/// A directory in which nothing can be made, also not by root: a file stands in its place.
fn block(dir: &std::path::Path) {
    std::fs::write(dir.join(sandbox().as_str()), "").unwrap();
    std::fs::set_permissions(dir.join(sandbox().as_str()), std::fs::Permissions::from_mode(0o400)).unwrap();
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_fails_and_goes_on_later() {
    let dir = tempfile::tempdir().unwrap();
    block(dir.path());
    let recorder = open(dir.path());
    let mut failing = recorder.failing().unwrap();
    recorder.begin(&sandbox(), None, Mode::Strict);
    recorder.note(&sandbox(), text(0));
    assert!(recorder.written(&sandbox()).await.is_err());
    assert_eq!(failing.recv().await, Some(sandbox()));
    std::fs::remove_file(dir.path().join(sandbox().as_str())).unwrap();
    while recorder.written(&sandbox()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(whats(&recorder).contains(&text(0)), "what waited is written");
    recorder.close().await;
}

#[tokio::test]
async fn large_events_that_waited_go_into_segments_that_can_be_read() {
    const COUNT: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    block(dir.path());
    let recorder = open(dir.path());
    recorder.begin(&sandbox(), None, Mode::On);
    for _ in 0..COUNT {
        // As large as a guest can make one: each character takes six bytes in the journal.
        let started =
            ProcessStarted { argv: vec!["\u{1}".repeat(ARGV_MAX_CHARS)], ..ProcessStarted::default() };
        recorder.note(&sandbox(), What::ProcessStarted(started));
    }
    assert!(recorder.written(&sandbox()).await.is_err(), "they wait, most of them together");
    std::fs::remove_file(dir.path().join(sandbox().as_str())).unwrap();
    recorder.close().await;
    let started = whats(&recorder).into_iter().filter(|what| matches!(what, What::ProcessStarted(_)));
    assert_eq!(started.count(), COUNT);
    assert_eq!(report(&recorder).findings, []);
    let segments = list(&dir.path().join(sandbox().as_str())).unwrap();
    let sizes: Vec<_> = segments.iter().map(|segment| read(segment).unwrap().len() as u64).collect();
    assert!(sizes.iter().all(|size| *size < 3 * SEGMENT_MAX_BYTES), "{sizes:?}");
}

#[tokio::test]
async fn journals_that_cannot_be_written_leave_room_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let stuck: Vec<_> = (10..18).map(|number| SandboxId::from_parts(number, 1)).collect();
    for id in &stuck {
        std::fs::write(dir.path().join(id.as_str()), "").unwrap();
    }
    let recorder = open(dir.path());
    for id in &stuck {
        recorder.begin(id, None, Mode::On);
        // What its thread takes before the first write fails, and more than may wait then.
        for number in 0..WAITING_MAX_COUNT * 3 {
            recorder.note(id, text(number));
        }
    }
    recorder.begin(&sandbox(), None, Mode::On);
    recorder.note(&sandbox(), text(0));
    recorder.written(&sandbox()).await.unwrap();
    // The recorder is never closed: it would wait for those that are stuck.
    assert_eq!(whats(&recorder)[1..], [text(0)]);
}

/// Makes a file or directory look as if it was changed so long ago.
fn make_old(path: &std::path::Path, age: Duration) {
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - age).unwrap();
}

#[tokio::test]
async fn journals_of_what_lives_stay_and_those_of_what_is_gone_go_when_nothing_was_written_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let path = |id: &SandboxId| dir.path().join(id.as_str());
    let is_there = |id: &SandboxId| path(id).try_exists().unwrap();
    let [grows, gone, other] = [2, 3, 4].map(|number| SandboxId::from_parts(number, 1));
    let (lives, long) = (sandbox(), Retention::default().age + Duration::from_hours(1));
    let before = open(dir.path());
    for id in [&lives, &grows, &gone] {
        before.begin(id, None, Mode::On);
        before.note(id, text(7));
    }
    before.close().await;
    for id in [&lives, &gone] {
        for file in std::fs::read_dir(path(id)).unwrap() {
            make_old(&file.unwrap().path(), long);
        }
    }
    for id in [&lives, &grows, &gone] {
        make_old(&path(id), long);
    }
    let recorder = open(dir.path());
    let look = async || {
        recorder.note(&other, text(0));
        recorder.written(&other).await.unwrap();
    };
    recorder.begin(&other, None, Mode::On);
    // The thread has looked after what it wrote first, when it has written what comes then.
    look().await;
    look().await;
    assert!(is_there(&lives) && is_there(&gone), "not all that lives is begun");
    recorder.begin(&lives, None, Mode::On);
    recorder.has_begun_all();
    while is_there(&gone) {
        look().await;
    }
    assert!(is_there(&grows), "its file was written to");
    assert!(whats(&recorder).contains(&text(7)));
    recorder.close().await;
}
