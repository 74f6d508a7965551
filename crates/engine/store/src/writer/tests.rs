use futures::future::join_all;

use super::*;
use crate::conformance;
use crate::{SandboxFilter, Store, StoreUrl, Unwritable};

/// Runs SQL of the test's own on the writing connection.
async fn sql(store: &Store, sql: &'static str) {
    store.read(move |mut conn| Box::pin(async move { conn.execute(sql, Vec::new()).await })).await.unwrap();
}

/// The same as one statement alone, which begins no transaction: one that is read-only refuses that as well.
async fn alone(store: &Store, sql: &'static str) {
    let run = store
        .write_one(move |mut conn| Box::pin(async move { conn.execute(sql, Vec::new()).await.map(drop) }));
    run.await.unwrap();
}

/// An operation that keeps the writer until it is told to end: those that come meanwhile wait, and will be in one
/// transaction.
async fn occupied(store: &Store) -> (BoxFuture<'_, Result<(), StoreError>>, std::sync::mpsc::Sender<()>) {
    let (begun, has_begun) = oneshot::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mut busy = store.write::<(), _>(move |_conn| {
        Box::pin(async move {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            Ok(())
        })
    });
    assert!(futures::poll!(&mut busy).is_pending());
    has_begun.await.unwrap();
    (busy, go)
}

async fn level(mut conn: Conn<'_>) -> Result<i64, StoreError> {
    let row = conn.row("PRAGMA synchronous", Vec::new()).await?.unwrap();
    Ok(row.int("synchronous").unwrap())
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_loses_nothing() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    let parent = conformance::sandbox(1, 1);
    store.insert_sandbox(&parent).await.unwrap();
    // SQLite says SQLITE_FULL exactly as for a full file system.
    sql(&store, "PRAGMA max_page_count = 256").await;
    let mut stored = Vec::new();
    for round in 0.. {
        let records: Vec<_> = (0..16).map(|n| conformance::exec(&parent, round, n)).collect();
        let results = join_all(records.iter().map(|record| store.insert_exec(record))).await;
        let full = results.iter().any(Result::is_err);
        for (record, result) in records.into_iter().zip(results) {
            match result {
                Ok(_) => stored.push(record),
                Err(error @ StoreError::Unavailable { .. }) => {
                    assert_eq!(error.unwritable(), Some(Unwritable::DiskFull), "{error:?}");
                    assert_eq!(store.exec(&record.id).await.unwrap(), None, "refused, yet there");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        if full {
            break;
        }
    }
    assert!(!stored.is_empty());
    for record in &stored {
        assert_eq!(store.exec(&record.id).await.unwrap().as_ref(), Some(record));
    }
    sql(&store, "PRAGMA max_page_count = 100000").await;
    store.insert_exec(&conformance::exec(&parent, 1 << 40, 1)).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_written_says_so_until_something_reached_the_disk() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    let run = async |sql| alone(&store, sql).await;
    assert_eq!(store.unwritable().await, None);
    // SQLite says SQLITE_READONLY exactly as for a file that is.
    run("PRAGMA query_only = 1").await;
    assert_eq!(store.unwritable().await, None, "nobody has met it yet");
    let error = store.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap_err();
    assert_eq!(error.unwritable(), Some(Unwritable::ReadOnly), "{error:?}");
    assert_eq!(store.unwritable().await, Some(Unwritable::ReadOnly));
    // A success that changed nothing on the disk proves nothing.
    run("SELECT 1").await;
    assert_eq!(store.unwritable().await, Some(Unwritable::ReadOnly));
    run("PRAGMA query_only = 0").await;
    let mut left = 600;
    while let Some(why) = store.unwritable().await {
        assert_eq!(why, Unwritable::ReadOnly);
        left -= 1;
        assert!(left > 0, "it is never written again");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(store.changes().await.unwrap().len(), 0, "the attempts left nothing");
    store.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap();
}

/// Who asks whether a server is ready needs no key, and may go away at once, each time.
#[tokio::test]
async fn what_is_tried_for_one_who_goes_away_is_found_out_all_the_same() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    alone(&store, "PRAGMA query_only = 1").await;
    store.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap_err();
    alone(&store, "PRAGMA query_only = 0").await;
    // It is polled until it waits for the attempt, and then dropped.
    assert!(futures::poll!(std::pin::pin!(store.unwritable())).is_pending());
    let mut left = 600;
    while store.writes.failing().is_some() {
        left -= 1;
        assert!(left > 0, "nobody noted what was found");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// A client whose own changes always fail, and who sends them all the time.
#[tokio::test]
async fn a_client_whose_changes_fail_makes_no_server_unready() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    let full = || {
        StoreError::from(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
            None,
        ))
    };
    for _ in 0..3 {
        let failed = store.write::<(), _>(move |_conn| Box::pin(async move { Err(full()) })).await;
        assert_eq!(failed.unwrap_err().unwritable(), Some(Unwritable::DiskFull));
        assert_eq!(store.unwritable().await, None, "a small change reaches the disk");
    }
}

#[tokio::test]
async fn what_must_outlive_a_power_cut_is_on_disk_when_it_is_answered() {
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("db"))).await.unwrap();
    let parent = conformance::sandbox(1, 1);
    store.insert_sandbox(&parent).await.unwrap();
    for _ in 0..2 {
        assert_eq!(store.write_soon(|conn| Box::pin(level(conn))).await.unwrap(), NORMAL);
        assert_eq!(store.write(|conn| Box::pin(level(conn))).await.unwrap(), FULL);
        // In company the strictest counts.
        let (busy, go) = occupied(&store).await;
        let mut soon = store.write_soon(|conn| Box::pin(level(conn)));
        let mut kept = store.write(|conn| Box::pin(level(conn)));
        assert!(futures::poll!(&mut soon).is_pending() && futures::poll!(&mut kept).is_pending());
        go.send(()).unwrap();
        let (busy, soon, kept) = futures::join!(busy, soon, kept);
        assert_eq!((busy.unwrap(), soon.unwrap(), kept.unwrap()), ((), FULL, FULL));
    }
}

#[tokio::test]
async fn an_operation_runs_to_its_end_when_its_caller_goes_away() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    let parent = conformance::sandbox(1, 1);
    let (busy, go) = occupied(&store).await;
    {
        let mut insert = std::pin::pin!(store.insert_sandbox(&parent));
        // One poll puts it into the queue; then the caller is gone.
        assert!(futures::poll!(&mut insert).is_pending());
    }
    go.send(()).unwrap();
    busy.await.unwrap();
    assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
}

#[tokio::test]
async fn an_operation_that_panics_is_undone_with_its_transaction_and_the_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let url = StoreUrl::SqliteFile(dir.path().join("db"));
    let store = Store::open(&url).await.unwrap();
    let parent = conformance::sandbox(1, 1);
    store.insert_sandbox(&parent).await.unwrap();
    let panics = || {
        store.write::<(), _>(|mut conn| {
            Box::pin(async move {
                assert!(conn.execute("DELETE FROM sandboxes", Vec::new()).await? > 0);
                panic!("as asked")
            })
        })
    };
    let (busy, go) = occupied(&store).await;
    let second = conformance::sandbox(2, 2);
    {
        let mut inserts = std::pin::pin!(store.insert_sandbox(&second));
        let mut panicking = panics();
        assert!(futures::poll!(&mut inserts).is_pending());
        assert!(futures::poll!(&mut panicking).is_pending());
        go.send(()).unwrap();
        let (busy, inserts, panicking) = futures::join!(busy, inserts, panicking);
        busy.unwrap();
        assert!(matches!(inserts, Err(StoreError::Unavailable { .. })));
        assert!(matches!(panicking, Err(StoreError::Unavailable { .. })));
    }
    assert_eq!(store.sandbox(&second.id).await.unwrap(), None, "refused, yet there");
    for _ in 0..3 {
        assert!(matches!(panics().await, Err(StoreError::Unavailable { .. })));
        assert_eq!(store.sandbox(&parent.id).await.unwrap().as_ref(), Some(&parent), "it is undone");
    }
    // One without a transaction.
    let alone = store.write_one::<(), _>(|_| panic!("as asked")).await;
    assert!(matches!(alone, Err(StoreError::Unavailable { .. })));
    store.insert_sandbox(&second).await.unwrap();
    store.close().await;
    let store = Store::open(&url).await.unwrap();
    assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
    assert_eq!(store.sandbox(&second.id).await.unwrap(), Some(second));
}

#[test]
fn a_connection_that_was_given_up_is_followed_by_another() {
    let (mut held, mut kept) = (None, Some(Kept::Disk));
    let mut refuse = || Err(gone());
    let refused = outlive(&mut held, &mut refuse, &mut [], &mut kept);
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })) && held.is_none());
    kept = Some(Kept::Process);
    let mut open = || sqlite::open_in_memory().map_err(StoreError::from);
    outlive(&mut held, &mut open, &mut [], &mut kept).unwrap();
    assert!(held.is_some());
    assert_eq!(kept, Some(Kept::Disk), "the new one is told how to keep what it writes");
    // It is kept.
    outlive(&mut held, &mut refuse, &mut [], &mut kept).unwrap();
}

#[tokio::test]
async fn a_writer_without_a_connection_says_so_until_it_can_open_one() {
    let may_open = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&may_open);
    let open = move || {
        let may = asked.load(Ordering::Relaxed);
        if may { sqlite::open_in_memory().map_err(StoreError::from) } else { Err(gone()) }
    };
    let (queue, messages) = mpsc::channel(QUEUE_MAX_COUNT);
    let writer = Writer { queue, connected: Arc::new(AtomicBool::new(false)) };
    let connected = Arc::clone(&writer.connected);
    let writes = Writes::new("here".to_owned());
    let thread = thread::spawn(move || serve(None, open, messages, &connected, &writes));
    let nothing = async || {
        let nothing =
            writer.run::<(), _>(Changes::One, Kept::Process, |_conn| Box::pin(async { Ok(()) })).await;
        assert_eq!(nothing.is_ok(), writer.is_connected());
    };
    for _ in 0..2 {
        nothing().await;
        assert!(!writer.is_connected());
    }
    may_open.store(true, Ordering::Relaxed);
    assert!(!writer.is_connected(), "nobody has asked for anything");
    nothing().await;
    assert!(writer.is_connected());
    // It keeps its connection.
    may_open.store(false, Ordering::Relaxed);
    nothing().await;
    assert!(writer.is_connected());
    writer.close().await;
    assert!(!writer.is_connected(), "closed");
    thread.join().unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_the_log_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("db"))).await.unwrap();
    let parent = conformance::sandbox(1, 1);
    store.insert_sandbox(&parent).await.unwrap();
    assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
    store.close().await;
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, ["db"]);
}

#[tokio::test]
async fn unreadable_rows_are_corrupt_and_name_the_column() {
    let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
    for (damage, wrong) in [
        ("UPDATE sandboxes SET state = 'dreaming'", "state"),
        ("UPDATE sandboxes SET spec_version = 99", "spec_version"),
        ("UPDATE sandboxes SET spec = '{}'", "spec"),
        ("UPDATE sandboxes SET labels = 'x'", "labels"),
        ("UPDATE sandboxes SET owner = 'nobody'", "owner"),
        ("UPDATE sandboxes SET created_ms = -1", "created_ms"),
        ("UPDATE sandboxes SET expires_ms = 'soon'", "expires_ms"),
    ] {
        let record = conformance::sandbox(1, 1);
        store.insert_sandbox(&record).await.unwrap();
        sql(&store, damage).await;
        match store.sandbox(&record.id).await {
            Err(StoreError::Corrupt { table, id, column }) => {
                assert_eq!((table, id.as_str(), column), ("sandboxes", record.id.as_str(), wrong));
            }
            other => panic!("{damage}: {other:?}"),
        }
        let good = conformance::sandbox(2, 2);
        store.insert_sandbox(&good).await.unwrap();
        let page = store.list_sandboxes(&SandboxFilter::default(), None, 1).await.unwrap();
        assert_eq!(page.items, std::slice::from_ref(&good));
        // A row without a time is in no page, so that the first one is the last.
        if let Some(after) = &page.next {
            let rest = store.list_sandboxes(&SandboxFilter::default(), Some(after), 1).await.unwrap();
            assert_eq!((rest.items, rest.next), (Vec::new(), None), "it hides nothing but itself");
        }
        assert_eq!(store.sandbox_ids().await.unwrap().len(), 2, "and is not nobody's");
        store.delete_sandbox(&good.id).await.unwrap();
        assert!(store.delete_sandbox(&record.id).await.unwrap(), "what is damaged can be removed");
    }
}
