//! The suite on SQLite, and what only a file can show: permissions, damage, death of the writer.

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    use atoll_core::id::{ExecId, KeyId, ProjectId};
    use atoll_core::project::{ProjectDefaults, Quota};
    use atoll_core::spec::IdempotencyKey;
    use atoll_store::{
        ExecRecord, KeyKind, KeyRecord, ProjectRecord, Store, StoreError, StoreUrl, conformance,
    };

    use crate::support::registry;

    async fn open(dir: &tempfile::TempDir, name: &str) -> Result<Store, StoreError> {
        Store::open(&StoreUrl::SqliteFile(dir.path().join(name))).await
    }

    #[tokio::test]
    async fn conforms_in_a_file() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let count = std::sync::atomic::AtomicU32::new(0);
        Box::pin(conformance::run(async || {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            open(&dir, &format!("{n}.db")).await.unwrap()
        }))
        .await;
    }

    #[tokio::test]
    async fn conforms_in_memory() {
        Box::pin(conformance::run(async || Store::open(&StoreUrl::SqliteMemory).await.unwrap())).await;
    }

    /// What servers of before ran themselves is found under the names that the server has now; a client's exec with such a
    /// key stays the client's.
    #[tokio::test]
    async fn what_the_server_ran_is_found_after_an_upgrade() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let store = open(&dir, "a.db").await.unwrap();
        let sandbox = conformance::sandbox(1, 1);
        store.insert_sandbox(&sandbox).await.unwrap();
        let client = Some(KeyId::from_parts(1, 1));
        let rows = [
            ("atoll-service-x-1", None, true),
            ("atoll-agent-x-1", None, true),
            ("modal/first-command", client.clone(), true),
            ("atoll-service-x-2", client.clone(), false),
            ("atoll-agent-x-2", client.clone(), false),
            ("k", client, false),
        ];
        for (number, (key, started_by, _)) in (1..).zip(&rows) {
            let idempotency_key = Some(IdempotencyKey::client(*key).unwrap());
            let exec = ExecRecord {
                idempotency_key,
                started_by: started_by.clone(),
                ..conformance::exec(&sandbox, number, number)
            };
            store.insert_exec(&exec).await.unwrap();
        }
        store.close().await;
        let path = dir.path().join("a.db");
        let conn = rusqlite::Connection::open(path).unwrap();
        conn.execute("DELETE FROM _sqlx_migrations WHERE version = 43", []).unwrap();
        drop(conn);
        let store = open(&dir, "a.db").await.unwrap();
        for (key, _, is_servers) in rows {
            let (of_client, of_server) = (IdempotencyKey::client(key).unwrap(), IdempotencyKey::server(key));
            let (is, is_not) = if is_servers { (of_server, of_client) } else { (of_client, of_server) };
            assert!(store.exec_by_key(&sandbox.id, &is).await.unwrap().is_some(), "{key}");
            assert_eq!(store.exec_by_key(&sandbox.id, &is_not).await.unwrap(), None, "{key}");
        }
    }

    /// During an upgrade a program that knows of no projects reads the same rows: it must find no scope that it could let in.
    #[tokio::test]
    async fn a_key_of_a_project_may_do_nothing_by_what_programs_of_before_read() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let store = open(&dir, "a.db").await.unwrap();
        let project = ProjectRecord {
            id: ProjectId::from_parts(1, 1),
            name: "team".to_owned(),
            quota: Quota::default(),
            defaults: ProjectDefaults::default(),
            created_ms: 1,
        };
        store.insert_project(&project, 9).await.unwrap();
        let key = KeyRecord {
            id: KeyId::from_parts(1, 1),
            name: "k".to_owned(),
            hash: vec![1; 32],
            scopes: vec!["manage".to_owned()],
            project: Some(project.id),
            created_ms: 1,
            expires_ms: None,
            last_used_ms: None,
            kind: KeyKind::Key,
        };
        store.insert_key(&key).await.unwrap();
        assert_eq!(store.list_keys().await.unwrap(), [key]);
        store.close().await;
        let path = dir.path().join("a.db");
        let conn = rusqlite::Connection::open(path).unwrap();
        let scopes: String = conn.query_one("SELECT scopes FROM api_keys", [], |row| row.get(0)).unwrap();
        assert_eq!(scopes, "[]");
    }

    #[tokio::test]
    async fn nobody_else_can_read_the_files() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let store = open(&dir, "a.db").await.unwrap();
        store.put_registry(&registry("b")).await.unwrap();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
            names.push(entry.file_name());
        }
        assert!(names.len() >= 2, "the log is beside the file: {names:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_unavailable() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        std::fs::write(dir.path().join("text.db"), "no database at all, ".repeat(100)).unwrap();
        std::fs::create_dir(dir.path().join("dir.db")).unwrap();
        for name in ["text.db", "dir.db", "missing/a.db"] {
            let error = open(&dir, name).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable { .. }), "{name}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_store_is_unavailable_and_reopens_with_everything() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let store = open(&dir, "a.db").await.unwrap();
        store.put_registry(&registry("b")).await.unwrap();
        store.close().await;
        store.close().await;
        assert!(matches!(store.registry("a").await, Err(StoreError::Unavailable { .. })));
        assert!(matches!(store.put_registry(&registry("c")).await, Err(StoreError::Unavailable { .. })));
        let store = open(&dir, "a.db").await.unwrap();
        assert_eq!(store.registry("a").await.unwrap(), Some(registry("b")));
    }

    /// The names of this variable and of the test that acts as the process to be killed.
    const VICTIM_FILE: &str = "ATOLL_STORE_VICTIM";
    const VICTIM_TEST: &str = "sqlite::tests::victim_writes_until_it_is_killed";

    /// Not a test by itself: the process that the next test kills. Prints the id of every exec whose
    /// insertion was acknowledged.
    #[tokio::test]
    #[ignore = "run by killed_mid_burst_keeps_every_acknowledged_write"]
    async fn victim_writes_until_it_is_killed() {
        use std::io::Write as _;
        #[expect(clippy::disallowed_methods, reason = "how the killer tells the file")]
        let Ok(path) = std::env::var(VICTIM_FILE) else { return };
        let store = Store::open(&StoreUrl::SqliteFile(path.into())).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        store.insert_sandbox(&parent).await.unwrap();
        for round in 0_u64.. {
            let records: Vec<_> = (0..16).map(|n| conformance::exec(&parent, round, n)).collect();
            let writes = records.iter().map(|record| async {
                store.insert_exec(record).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "acked {}", record.id).unwrap();
                out.flush().unwrap();
            });
            futures::future::join_all(writes).await;
        }
    }

    #[tokio::test]
    async fn killed_mid_burst_keeps_every_acknowledged_write() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([VICTIM_TEST, "--exact", "--ignored", "--nocapture"])
            .env(VICTIM_FILE, dir.path().join("a.db"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut acked = Vec::<ExecId>::new();
        let mut alive = true;
        // After the kill the pipe still holds what was acknowledged before: read to its end.
        for line in lines {
            let Some((_, id)) = line.as_ref().unwrap().split_once("acked ").filter(|(_, id)| id.len() == 22)
            else {
                continue;
            };
            acked.push(id.parse().unwrap());
            if alive && acked.len() >= 500 {
                victim.kill().unwrap();
                alive = false;
            }
        }
        victim.wait().unwrap();
        assert!(acked.len() >= 500, "the victim ended early: {}", acked.len());
        let store = open(&dir, "a.db").await.unwrap();
        for id in &acked {
            assert!(store.exec(id).await.unwrap().is_some(), "{id} was acknowledged and is gone");
        }
    }
}
