use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use atoll_core::exec::OutputStream::{self, Stderr, Stdout};
use atoll_core::id::{ExecId, SandboxId};
use proptest::prelude::*;

use super::segment::{data_path, index_path, list};
use super::{Extent, LogReader, LogWriter, Logs, Piece};
use crate::clock::Clock;

/// Runs of output by stream, and the gaps between them.
type Read = (Vec<(OutputStream, Vec<u8>)>, Vec<(u64, u64)>);

fn read_all(dir: &Path, from: u64, extent: Extent, max: usize) -> Read {
    let mut reader = LogReader::new(dir, from);
    let (mut output, mut gaps) = (Vec::<(OutputStream, Vec<u8>)>::new(), Vec::new());
    while let Some(piece) = reader.next_piece(extent, max).unwrap() {
        match piece {
            Piece::Gap { from, to } => gaps.push((from, to)),
            Piece::Output { stream, bytes, .. } => match output.last_mut() {
                Some((last, all)) if *last == stream => all.extend_from_slice(&bytes),
                _ => output.push((stream, bytes.to_vec())),
            },
        }
    }
    assert_eq!(reader.offset(), extent.end.max(from));
    (output, gaps)
}

#[test]
fn an_exec_without_output_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let writer = LogWriter::open(&path, 1 << 20, &Clock::default()).unwrap();
    assert_eq!(writer.extent(), Extent::default());
    assert!(!path.try_exists().unwrap());
    assert_eq!(LogReader::new(&path, 0).next_piece(writer.extent(), 10).unwrap(), None);
}

#[test]
fn what_is_dropped_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 64, &Clock::default()).unwrap();
    for _ in 0..100 {
        writer.append(Stdout, b"0123456789").unwrap();
    }
    let extent = writer.extent();
    assert_eq!(extent.end, 1000);
    assert!(extent.end - extent.first <= 64 + 16, "{extent:?}");
    let (output, gaps) = read_all(dir.path(), 0, extent, 7);
    assert_eq!(gaps, [(0, extent.first)]);
    assert_eq!(output[0].1.len() as u64, extent.end - extent.first);
    assert!(list(dir.path()).unwrap().len() <= 6);
}

#[test]
fn torn_index_and_unused_record_are_put_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 1 << 20, &Clock::default()).unwrap();
    writer.append(Stdout, b"out").unwrap();
    writer.append(Stderr, b"err").unwrap();
    drop(writer);
    // The process died after announcing stdout again, in the middle of the next record.
    let mut index = OpenOptions::new().append(true).open(index_path(dir.path(), 0)).unwrap();
    index.write_all(&[0, 0, 0, 0, 0, 0, 0, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut writer = LogWriter::open(dir.path(), 1 << 20, &Clock::default()).unwrap();
    assert_eq!(writer.extent(), Extent { first: 0, end: 6 });
    writer.append(Stderr, b"more").unwrap();
    let (output, _) = read_all(dir.path(), 0, writer.extent(), 100);
    assert_eq!(output, [(Stdout, b"out".to_vec()), (Stderr, b"errmore".to_vec())]);
}

#[test]
fn output_is_found_by_when_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 40, &Clock::default()).unwrap();
    for _ in 0..9 {
        writer.append(Stdout, b"0123456789").unwrap();
    }
    let Extent { first, end } = writer.extent();
    let since = |at_ms| super::offset_since(dir.path(), at_ms, end).unwrap();
    assert_eq!((since(0), since(Clock::default().now_ms()), since(u64::MAX)), (first, first, end));
    // Half of them came an hour ago, and one before there were times.
    let starts = list(dir.path()).unwrap();
    let hour = Clock::default().now_ms() - 3_600_000;
    let middle = starts[starts.len() / 2];
    for (number, start) in starts.iter().take_while(|start| **start < middle).enumerate() {
        let at_ms = if number == 0 { 0 } else { hour };
        let record = super::segment::Record { offset: *start, stream: Stdout, at_ms };
        std::fs::write(index_path(dir.path(), *start), record.encode()).unwrap();
    }
    assert_eq!(since(hour + 60_000), middle);
    assert_eq!(since(hour + 999), starts[1], "what came within a second of the record");
    let (output, _) = read_all(dir.path(), first, writer.extent(), 100);
    assert_eq!(output.len(), 1, "times do not cut what is read");
    assert_eq!(super::offset_since(&dir.path().join("none"), 0, 7).unwrap(), 7);
}

#[test]
fn a_reader_holds_little_of_an_index_that_has_a_record_for_each_byte() {
    const BYTES: usize = 5000;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 1 << 20, &Clock::default()).unwrap();
    let mut reader = LogReader::new(dir.path(), 0);
    let byte = |number: usize| (number / 3).to_le_bytes()[0];
    let stream = |number: usize| if number.is_multiple_of(3) { Stdout } else { Stderr };
    let mut got = Vec::new();
    for number in 0..BYTES {
        writer.append(stream(number), &[byte(number)]).unwrap();
        // One that follows the command sees all changes, too.
        if number < 100 {
            let piece = reader.next_piece(writer.extent(), 10).unwrap().unwrap();
            let want = Piece::Output {
                offset: number as u64,
                stream: stream(number),
                bytes: vec![byte(number)].into(),
            };
            assert_eq!(piece, want);
        }
    }
    let (output, gaps) = read_all(dir.path(), 0, writer.extent(), 4096);
    assert!(gaps.is_empty());
    for (stream, bytes) in output {
        got.extend(bytes.into_iter().map(|byte| (stream, byte)));
    }
    assert_eq!(got, Vec::from_iter((0..BYTES).map(|number| (stream(number), byte(number)))));
    while reader.next_piece(writer.extent(), 4096).unwrap().is_some() {
        assert!(reader.held_records() <= super::segment::WINDOW_RECORDS);
    }
    // From anywhere.
    for from in [1, 1023, 1024, 1025, 3333, 4999] {
        let (output, _) = read_all(dir.path(), from as u64, writer.extent(), 4096);
        assert_eq!(output[0].0, stream(from), "from {from}");
        assert_eq!(output.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), BYTES - from);
    }
    // A writer that takes it up goes on.
    drop(writer);
    let mut writer = LogWriter::open(dir.path(), 1 << 20, &Clock::default()).unwrap();
    writer.append(stream(BYTES), b"x").unwrap();
    assert_eq!(read_all(dir.path(), BYTES as u64, writer.extent(), 9).0, [(stream(BYTES), b"x".to_vec())]);
}

#[test]
fn a_command_that_changes_streams_with_each_byte_keeps_no_more_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::new(dir.path().to_owned(), u64::MAX);
    let mut writer = budgeted(&logs, dir.path(), 1, 1, 20_000);
    for number in 0..8000 {
        writer.append(if number % 2 == 0 { Stdout } else { Stderr }, b"x").unwrap();
    }
    // A segment is 1000 bytes and their records.
    assert!(on_disk(dir.path()) <= 20_000 + 1000 * 17, "{}", on_disk(dir.path()));
    assert_eq!(logs.bytes(), on_disk(dir.path()));
}

fn budgeted(logs: &Arc<Logs>, dir: &Path, sandbox: u64, exec: u64, max: u64) -> LogWriter {
    let (sandbox, exec) = (SandboxId::from_parts(sandbox, 0), ExecId::from_parts(exec, 0));
    let path = dir.join(sandbox.as_str()).join(exec.as_str());
    LogWriter::fresh(&path, 4000, &Clock::default()).within(logs.share(&sandbox, &exec, Some(max)))
}

fn on_disk(dir: &Path) -> u64 {
    let mut bytes = 0;
    for sandbox in std::fs::read_dir(dir).unwrap() {
        for exec in std::fs::read_dir(sandbox.unwrap().path()).unwrap() {
            for file in std::fs::read_dir(exec.unwrap().path()).unwrap().map(Result::unwrap) {
                bytes += file.metadata().unwrap().len();
            }
        }
    }
    bytes
}

#[test]
fn the_execs_of_a_sandbox_keep_no_more_than_its_budget_together() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::new(dir.path().to_owned(), u64::MAX);
    let mut alive = budgeted(&logs, dir.path(), 1, 1, 20_000);
    alive.append(Stdout, &[b'a'; 1500]).unwrap();
    for exec in 2..50 {
        let mut writer = budgeted(&logs, dir.path(), 1, exec, 20_000);
        writer.append(Stdout, &[b'x'; 3500]).unwrap();
    }
    let kept = on_disk(dir.path());
    assert!(kept <= 20_000 + 1000 && kept > 10_000, "{kept}");
    assert_eq!(logs.bytes(), kept);
    // One that runs loses nothing as long as others have ended.
    let first = alive.extent();
    alive.append(Stdout, b"more").unwrap();
    assert_eq!(alive.extent().end, first.end + 4);
    let path = dir.path().join(SandboxId::from_parts(1, 0).as_str()).join(ExecId::from_parts(1, 0).as_str());
    let (output, gaps) = read_all(&path, 0, alive.extent(), 4096);
    assert!(gaps.is_empty() && output[0].1.len() == 1504, "{gaps:?}");
    // The oldest that has ended is gone as a whole, and that is a gap.
    let gone = dir.path().join(SandboxId::from_parts(1, 0).as_str()).join(ExecId::from_parts(2, 0).as_str());
    assert_eq!(read_all(&gone, 0, Extent { first: 0, end: 3500 }, 4096).1, [(0, 3500)]);
    // What an earlier process left is counted.
    let again = Logs::new(dir.path().to_owned(), u64::MAX);
    again.measure();
    assert_eq!(again.bytes(), on_disk(dir.path()));
}

#[test]
fn execs_that_all_run_keep_their_newest_segments() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::new(dir.path().to_owned(), u64::MAX);
    let mut writers: Vec<_> = (0..4).map(|exec| budgeted(&logs, dir.path(), 1, exec, 8000)).collect();
    for _ in 0..40 {
        for writer in &mut writers {
            writer.append(Stdout, &[b'x'; 300]).unwrap();
        }
    }
    let kept = on_disk(dir.path());
    assert!(kept <= 8000 + 4 * 1000, "{kept}");
    for (exec, writer) in writers.iter().enumerate() {
        let exec = ExecId::from_parts(exec as u64, 0);
        let path = dir.path().join(SandboxId::from_parts(1, 0).as_str()).join(exec.as_str());
        assert_eq!(writer.extent().end, 12_000);
        // Everything is there or said to be gone.
        let (output, gaps) = read_all(&path, 0, writer.extent(), 4096);
        let there: usize = output.iter().map(|(_, bytes)| bytes.len()).sum();
        let gone: u64 = gaps.iter().map(|(from, to)| to - from).sum();
        assert_eq!(there as u64 + gone, 12_000);
    }
}

#[test]
fn of_all_sandboxes_the_one_with_most_output_loses() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::new(dir.path().to_owned(), 20_000);
    budgeted(&logs, dir.path(), 1, 1, u64::MAX).append(Stdout, &[b'q'; 3000]).unwrap();
    for exec in 0..50 {
        budgeted(&logs, dir.path(), 2, exec, u64::MAX).append(Stdout, &[b'x'; 3000]).unwrap();
    }
    assert!(on_disk(dir.path()) <= 21_000, "{}", on_disk(dir.path()));
    let quiet = dir.path().join(SandboxId::from_parts(1, 0).as_str()).join(ExecId::from_parts(1, 0).as_str());
    assert!(read_all(&quiet, 0, Extent { first: 0, end: 3000 }, 4096).1.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is written, wherever the process dies and however it is read: what comes out is what
    /// went in, in order, with its stream.
    #[test]
    fn nothing_is_lost_or_repeated(
        writes in prop::collection::vec((any::<bool>(), 1_usize..200, any::<bool>()), 1..60),
        max in 1_usize..300,
        torn in 0_u64..50,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let keep = 1_000; // segments of 250 bytes, nothing dropped before 1000
        let mut writer = LogWriter::open(dir.path(), keep, &Clock::default()).unwrap();
        let mut sent: Vec<(OutputStream, u8)> = Vec::new();
        for (index, (is_err, len, reopen)) in writes.iter().enumerate() {
            let stream = if *is_err { Stderr } else { Stdout };
            let byte = u8::try_from(index).unwrap();
            writer.append(stream, &vec![byte; *len]).unwrap();
            sent.extend(std::iter::repeat_n((stream, byte), *len));
            if *reopen {
                writer = LogWriter::open(dir.path(), keep, &Clock::default()).unwrap();
            }
        }
        // The machine loses the tail of the newest data file; the guest would send it again.
        drop(writer);
        let start = *list(dir.path()).unwrap().last().unwrap();
        let data = OpenOptions::new().write(true).open(data_path(dir.path(), start)).unwrap();
        let len = data.metadata().unwrap().len();
        data.set_len(len.saturating_sub(torn)).unwrap();
        let mut writer = LogWriter::open(dir.path(), keep, &Clock::default()).unwrap();
        let resume = usize::try_from(writer.extent().end).unwrap();
        for (stream, byte) in &sent[resume..] {
            writer.append(*stream, &[*byte]).unwrap();
        }
        let extent = writer.extent();
        prop_assert_eq!(extent.end, sent.len() as u64);
        let (output, gaps) = read_all(dir.path(), extent.first, extent, max);
        prop_assert!(gaps.is_empty());
        let got: Vec<(OutputStream, u8)> =
            output.into_iter().flat_map(|(stream, bytes)| bytes.into_iter().map(move |b| (stream, b))).collect();
        let first = usize::try_from(extent.first).unwrap();
        prop_assert_eq!(&got[..], &sent[first..]);
    }
}

#[test]
fn a_segment_that_is_dropped_under_its_reader_becomes_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 64, &Clock::default()).unwrap();
    writer.append(Stdout, b"0123").unwrap();
    let mut reader = LogReader::new(dir.path(), 0);
    let piece = reader.next_piece(writer.extent(), 2).unwrap();
    assert!(matches!(piece, Some(Piece::Output { offset: 0, .. })), "{piece:?}");
    for _ in 0..20 {
        writer.append(Stdout, b"0123456789").unwrap();
    }
    let extent = writer.extent();
    let piece = reader.next_piece(extent, 100).unwrap();
    assert_eq!(piece, Some(Piece::Gap { from: 2, to: extent.first }));
}
