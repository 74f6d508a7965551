//! Output: every byte once, in order, to every reader; what is gone is announced.

use std::fs::OpenOptions;

use atoll_core::Code;
use atoll_core::id::KeyId;
use atoll_core::spec::ExecDraft;
use atoll_engine::{OutputEvent, Piece, READ_MAX_BYTES};
use bytes::Bytes;

use crate::support::{World, argv, assert_bytes, numbers, read, until};

#[test]
fn many_readers_each_get_everything() {
    const LAST: u64 = 200_000;
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["seq", &LAST.to_string()])).unwrap();
    let readers: Vec<_> = (0..8_u64)
        .map(|n| {
            let (engine, id, exec) = (server.engine.clone(), id.clone(), exec.record.id.clone());
            server.spawn(async move { (n, read(&engine, &id, &exec, 0).await.unwrap()) })
        })
        .collect();
    let expected = numbers(LAST);
    for reader in readers {
        let (n, output) = server.run(reader).unwrap();
        assert_bytes(&output.stdout, &expected);
        assert_eq!(output.gaps, [], "reader {n}");
        assert_eq!(output.end.unwrap().2, expected.len() as u64);
    }
    // From any offset, also after the end.
    for from in [1, 1000, expected.len() - 1, expected.len()] {
        let output = server.run(read(&server.engine, &id, &exec.record.id, from as u64)).unwrap();
        assert_bytes(&output.stdout, &expected[from..]);
    }
}

#[test]
fn streams_are_told_apart() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let out = server.exec(&id, argv(&["echo", "out"])).unwrap();
    let err = server.exec(&id, argv(&["err", "err"])).unwrap();
    let (out, err) = (server.output(&out), server.output(&err));
    assert_eq!((out.stdout.as_slice(), out.stderr.as_slice()), (&b"out\n"[..], &b""[..]));
    assert_eq!((err.stdout.as_slice(), err.stderr.as_slice()), (&b""[..], &b"err\n"[..]));
}

#[test]
fn offsets_beyond_the_end_are_refused() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let at = |exec: &str, offset| server.run(server.engine.output(&id, exec, offset, false));
    let live = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    let done = server.exec(&id, argv(&["echo", "abc"])).unwrap();
    server.wait(&done);
    for (exec, end) in [(&live, 0), (&done, 4)] {
        let name = exec.record.id.as_str();
        at(name, end).unwrap();
        assert_eq!(at(name, end + 1).unwrap_err().code, Code::OffsetOutOfRange);
        assert_eq!(at(name, u64::MAX).unwrap_err().code, Code::OffsetOutOfRange);
    }
    assert_eq!(at("nonsense", 0).unwrap_err().code, Code::ExecNotFound);
}

#[test]
fn a_reader_asks_for_little_and_loses_nothing() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["echo", "hello"])).unwrap();
    server.wait(&exec);
    let mut reader = server.run(server.engine.output(&id, exec.record.id.as_str(), 0, false)).unwrap();
    let mut got = Vec::new();
    // A limit of 0 bytes counts as 1: with 0 a reader would never come to an end.
    while let OutputEvent::Piece(Piece::Output { bytes, .. }) =
        server.run(reader.next(got.len() % 2)).unwrap()
    {
        assert_eq!(bytes.len(), 1);
        got.extend_from_slice(&bytes);
    }
    assert_eq!(got, b"hello\n");
    assert_eq!(reader.offset(), 6);
}

#[test]
fn a_wait_that_is_cut_short_loses_nothing() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["seq", "50000"])).unwrap();
    let output = server.run(async {
        let mut reader = server.engine.output(&id, exec.record.id.as_str(), 0, false).await.unwrap();
        let mut got = Vec::new();
        loop {
            // Polled once, then dropped, again and again.
            let next = futures::FutureExt::now_or_never(reader.next(1000));
            match next {
                Some(Ok(OutputEvent::Piece(Piece::Output { offset, bytes, .. }))) => {
                    assert_eq!(offset, got.len() as u64);
                    got.extend_from_slice(&bytes);
                }
                Some(Ok(OutputEvent::End { .. })) => return got,
                Some(other) => panic!("{other:?}"),
                // Wait for one piece, so that some output is read at all.
                None => match reader.next(1000).await.unwrap() {
                    OutputEvent::Piece(Piece::Output { offset, bytes, .. }) => {
                        assert_eq!(offset, got.len() as u64);
                        got.extend_from_slice(&bytes);
                    }
                    OutputEvent::End { .. } => return got,
                    gap @ OutputEvent::Piece(_) => panic!("{gap:?}"),
                },
            }
        }
    });
    assert_bytes(&output, &numbers(50_000));
}

#[test]
fn what_is_not_kept_is_announced() {
    const LAST: u64 = 100_000;
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = ExecDraft { keep_output_bytes: Some(64 << 10), ..argv(&["seq", &LAST.to_string()]) };
    let exec = server.exec(&id, draft).unwrap();
    let view = server.wait(&exec);
    let expected = numbers(LAST);
    let first = usize::try_from(view.extent.first).unwrap();
    assert_eq!(view.extent.end, expected.len() as u64);
    assert!(first > 0 && expected.len() - first >= 48 << 10, "{view:?}");
    let output = server.output(&exec);
    assert_eq!(output.gaps, [(0, view.extent.first)]);
    assert_bytes(&output.stdout, &expected[first..]);
}

#[test]
fn a_log_that_lost_its_tail_is_a_gap_not_a_hang() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    for (keep, gaps) in [(3_u64, [(3, 6)]), (0, [(0, 6)])] {
        let exec = server.exec(&id, argv(&["echo", "hello"])).unwrap();
        server.wait(&exec);
        // The machine lost power before the file's last bytes were on disk.
        let log = world.logs().join(id.as_str()).join(exec.record.id.as_str());
        let data = OpenOptions::new().write(true).open(log.join("0000000000000000.data")).unwrap();
        data.set_len(keep).unwrap();
        let output = server.output(&exec);
        assert_eq!(output.stdout, b"hello\n"[..usize::try_from(keep).unwrap()]);
        assert_eq!(output.gaps, gaps);
    }
}

#[test]
fn output_goes_on_across_servers() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let cat = server.exec(&id, ExecDraft { stdin: true, ..argv(&["cat"]) }).unwrap();
    let seq = server.exec(&id, argv(&["seq", "400000"])).unwrap();
    let (cat_id, seq_id) = (cat.record.id.as_str(), seq.record.id.as_str());
    let mut server = server;
    let mut said = Vec::new();
    for n in 0..5_u64 {
        let line = format!("server {n}\n");
        server.run(server.engine.write_stdin(&id, cat_id, line.clone().into(), false)).unwrap();
        said.extend_from_slice(line.as_bytes());
        if n % 2 == 0 {
            // Sometimes it dies with output on its way.
            let end = said.len() as u64;
            until("the line is in the log", || {
                server.run(server.engine.exec(&id, cat_id)).unwrap().extent.end == end
            });
        }
        server.kill();
        server = world.start();
        if n % 2 == 0 {
            // A reader that comes back at once finds its place.
            let at = said.len() as u64;
            server.run(server.engine.output(&id, cat_id, at, false)).unwrap();
        }
    }
    server.run(server.engine.write_stdin(&id, cat_id, Bytes::new(), true)).unwrap();
    assert_eq!(server.output(&cat).stdout, said);
    let output = server.output(&seq);
    assert_bytes(&output.stdout, &numbers(400_000));
    let view = server.run(server.engine.exec(&id, seq_id)).unwrap();
    assert_eq!(view.record.exit.unwrap().code, Some(0));
}

#[test]
fn readers_that_take_nothing_hold_little_together_and_others_still_read() {
    const LAST: u64 = 200_000;
    const READERS: usize = 500;
    // What all readers hold together, what those of one key hold of that when there are no others, and what each reader
    // may hold besides.
    const TOGETHER: usize = 64 << 20;
    const SHARE: usize = TOGETHER / 2;
    const LEAST: usize = 4 << 10;
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["seq", &LAST.to_string()])).unwrap();
    server.wait(&exec);
    let size = |event| match event {
        OutputEvent::Piece(Piece::Output { bytes, .. }) => bytes.len(),
        other => panic!("{other:?}"),
    };
    let (first_key, second_key) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
    let open = |key: &KeyId| {
        let reader = server.run(server.engine.output(&id, exec.record.id.as_str(), 0, false)).unwrap();
        reader.read_by(Some(key))
    };
    let mut slow = Vec::new();
    let mut held = 0;
    for _ in 0..READERS {
        let mut reader = open(&first_key);
        held += size(server.run(reader.next(READ_MAX_BYTES)).unwrap());
        slow.push(reader);
    }
    const { assert!(READERS * READ_MAX_BYTES > TOGETHER + READERS * LEAST, "they would hold more") };
    assert!(held <= SHARE + READERS * LEAST, "{held} bytes");
    assert!(held > SHARE / 2, "{held} bytes: nobody is slow without need");
    let mut another = open(&second_key);
    let piece = server.run(another.next(READ_MAX_BYTES)).unwrap();
    assert_eq!(size(piece), READ_MAX_BYTES, "another key is as fast as ever");
    drop(another);
    let output = server.output(&exec);
    assert_bytes(&output.stdout, &numbers(LAST));
    // A reader that comes for more lets go of what it had; those that end do, too.
    let mut first = slow.remove(0);
    drop(slow);
    assert_eq!(size(server.run(first.next(READ_MAX_BYTES)).unwrap()), READ_MAX_BYTES);
}
