//! The database can be read, but not written: its disk is full, or fails. The server says so, to its clients and to whoever
//! asks whether it is ready. The database lies on a small file system of its own, which the guard of the host's disk does
//! not watch.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use atoll_blackbox::{Answer, Server, host, wait_until};
use atoll_testing::run;
use serde_json::json;
use tempfile::TempDir;

use crate::common::SmallDisk;

/// More than the time after which the server tries to write again.
const TRIED_AGAIN: Duration = Duration::from_millis(1200);
/// Each takes [`SECRET_BYTES`]: together more than there is.
const SECRETS_MAX_COUNT: u32 = 1000;
const SECRET_BYTES: usize = 32 << 10;

const READY: &str = "200 ok";
const NOT_READY: &str = "503 store_unavailable";

/// A server, and the directory in which its data directory lies.
fn server_with_database_on(small: &SmallDisk) -> (Server, TempDir) {
    let dir = tempfile::Builder::new().prefix("atoll-unwritable-").tempdir_in("/var/tmp").unwrap();
    let database = format!("sqlite://{}", small.path().join("atoll.db").display());
    let server = Server::on(&dir.path().join("data"), &["--database", &database]);
    (server, dir)
}

async fn readiness(server: &Server) -> String {
    let answer = server.send(server.bare("GET", "/readyz")).await;
    format!("{} {}", answer.status, answer.json()["status"].as_str().unwrap())
}

/// Stores something that takes room.
async fn store(server: &Server, number: u32) -> Answer {
    let body = json!({ "value": "v".repeat(SECRET_BYTES), "scope": { "hosts": ["api.example.com"] } });
    server.send(server.request("PUT", &format!("/v1/secrets/S{number}")).json(&body)).await
}

/// Stores until nothing more fits, not even the little that the server tries by itself: the files of the database may
/// have some room in them.
async fn store_until_full(server: &Server) -> Answer {
    for number in 0..SECRETS_MAX_COUNT {
        let answer = store(server, number).await;
        if answer.status / 100 == 2 {
            continue;
        }
        tokio::time::sleep(TRIED_AGAIN).await;
        if readiness(server).await == NOT_READY {
            return answer;
        }
    }
    panic!("it is never full");
}

async fn database_check(server: &Server) -> String {
    let doctor = server.client.doctor().await.unwrap();
    doctor.checks.iter().find(|check| check.name == "database").unwrap().detail.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_databases_disk_is_full_is_not_ready_until_there_is_room() {
    let small = SmallDisk::new(16 << 20);
    let (server, dir) = server_with_database_on(&small);
    assert_eq!(readiness(&server).await, READY);
    let filler = small.fill(0);
    let refused = store_until_full(&server).await;
    let told = refused.json();
    assert_eq!((refused.status, told["code"].as_str()), (507, Some("host_disk_full")), "{told}");
    assert_eq!(told["message"], "the disk of the database is full");
    assert!(told["hint"].as_str().unwrap().contains("file system of the database"), "{told}");
    assert!(server.log().contains(small.path().to_str().unwrap()), "the log names it:\n{}", server.log());
    assert!(database_check(&server).await.contains("the disk of the database is full"));
    // What is only read goes on.
    assert!(server.client.list_secrets(None).await.is_ok());
    assert_eq!(server.send(server.bare("GET", "/healthz")).await.status, 200);
    fs::remove_file(filler).unwrap();
    // Nobody changes anything meanwhile: the server tries by itself.
    wait_until("it to be ready", async || (readiness(&server).await == READY).then_some(())).await;
    assert_eq!(store(&server, SECRETS_MAX_COUNT).await.status / 100, 2);
    assert!(!database_check(&server).await.contains("full"));
    end(server, &dir.path().join("data"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_databases_disk_fails_is_not_ready() {
    let small = SmallDisk::new(32 << 20);
    let (server, dir) = server_with_database_on(&small);
    assert_eq!(store(&server, 0).await.status / 100, 2);
    assert_eq!(readiness(&server).await, READY);
    // What the kernel does with a file system in which it finds an error: nothing more is written to it.
    run(Command::new("mount").args(["-o", "remount,abort"]).arg(small.path()));
    let refused = store(&server, 1).await;
    let told = refused.json();
    assert_eq!((refused.status, told["code"].as_str()), (503, Some("store_unavailable")), "{told}");
    assert_eq!(told["message"], "the disk of the database fails");
    assert_eq!(told["retryable"], true);
    assert!(told["hint"].as_str().unwrap().contains("repair it"), "{told}");
    // At once, and after the server has tried by itself.
    for _ in 0..2 {
        assert_eq!(readiness(&server).await, NOT_READY);
        tokio::time::sleep(TRIED_AGAIN).await;
    }
    assert!(database_check(&server).await.contains("the disk of the database fails"));
    assert_eq!(server.client.list_secrets(None).await.unwrap().items.len(), 1, "what is there is read");
    end(server, &dir.path().join("data"));
}

/// Everything is removed while the small file system is still there.
fn end(mut server: Server, data: &Path) {
    let installation = server.installation();
    server.stop();
    server.cli(&["purge", "--yes", "--data-dir", data.to_str().unwrap()]).ok();
    assert_eq!(host::remains(&installation, data), Vec::<String>::new());
}
