use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use atoll_core::exec::OutputStream::{self, Stderr, Stdout};
use proptest::prelude::*;

use super::segment::{data_path, index_path, list};
use super::{Extent, LogReader, LogWriter, Piece};

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
    let writer = LogWriter::open(&path, 1 << 20).unwrap();
    assert_eq!(writer.extent(), Extent::default());
    assert!(!path.try_exists().unwrap());
    assert_eq!(LogReader::new(&path, 0).next_piece(writer.extent(), 10).unwrap(), None);
}

#[test]
fn what_is_dropped_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), 64).unwrap();
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
    let mut writer = LogWriter::open(dir.path(), 1 << 20).unwrap();
    writer.append(Stdout, b"out").unwrap();
    writer.append(Stderr, b"err").unwrap();
    drop(writer);
    // The process died after announcing stdout again, in the middle of the next record.
    let mut index = OpenOptions::new().append(true).open(index_path(dir.path(), 0)).unwrap();
    index.write_all(&[0, 0, 0, 0, 0, 0, 0, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut writer = LogWriter::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(writer.extent(), Extent { first: 0, end: 6 });
    writer.append(Stderr, b"more").unwrap();
    let (output, _) = read_all(dir.path(), 0, writer.extent(), 100);
    assert_eq!(output, [(Stdout, b"out".to_vec()), (Stderr, b"errmore".to_vec())]);
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
        let mut writer = LogWriter::open(dir.path(), keep).unwrap();
        let mut sent: Vec<(OutputStream, u8)> = Vec::new();
        for (index, (is_err, len, reopen)) in writes.iter().enumerate() {
            let stream = if *is_err { Stderr } else { Stdout };
            let byte = u8::try_from(index).unwrap();
            writer.append(stream, &vec![byte; *len]).unwrap();
            sent.extend(std::iter::repeat_n((stream, byte), *len));
            if *reopen {
                writer = LogWriter::open(dir.path(), keep).unwrap();
            }
        }
        // The machine loses the tail of the newest data file; the guest would send it again.
        drop(writer);
        let start = *list(dir.path()).unwrap().last().unwrap();
        let data = OpenOptions::new().write(true).open(data_path(dir.path(), start)).unwrap();
        let len = data.metadata().unwrap().len();
        data.set_len(len.saturating_sub(torn)).unwrap();
        let mut writer = LogWriter::open(dir.path(), keep).unwrap();
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
    let mut writer = LogWriter::open(dir.path(), 64).unwrap();
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
