//! Rows of the database that cannot be read, with the real program: the server starts, says which they are, goes on with the
//! rest, opens nothing and removes nothing.

use atoll_api::{CreateKey, CreateSandbox, CreateVolume, KeyFormat, PutPool, VolumeMountDraft};
use atoll_blackbox::{Server, wait_until};
use atoll_client::Client;
use atoll_core::Code;
use atoll_core::key::Scope;
use bytes::Bytes;
use futures::stream;
use serde_json::json;

use crate::common::code;

/// Runs statements on a database whose server does not run.
fn sql(server: &Server, statements: &str) {
    const RUN: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.executescript(sys.argv[2])
database.commit()
";
    let mut python = std::process::Command::new("python3");
    let done = python.args(["-c", RUN]).arg(server.data().join("atoll.db")).arg(statements).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

async fn key(server: &Server, name: &str) -> (String, Client) {
    let (scope, format) = (Scope::Manage, KeyFormat::Atoll);
    let create = CreateKey { name: name.to_owned(), scope, ttl_ms: None, format, project: None };
    let made = server.client.create_key(&create).await.unwrap();
    (made.key.id, Client::new(&server.url, &made.secret).unwrap())
}

async fn volume(server: &Server, name: &str, content: &'static str) -> String {
    let create = CreateVolume { name: name.into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    let id = server.client.create_volume(&create).await.unwrap().id;
    let content = stream::iter([Ok(Bytes::from_static(content.as_bytes()))]);
    server.client.write_volume_file(name, "file", content).await.unwrap();
    id
}

async fn read(server: &Server, volume: &str) -> String {
    let answer = server.send(server.request("GET", &format!("/v1/volumes/{volume}/files?path=file"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_starts_without_them_and_keeps_what_is_theirs() {
    let mut server = Server::start();
    let (_, good) = key(&server, "good").await;
    let (bad, damaged) = key(&server, "bad").await;
    let lost = volume(&server, "lost", "precious").await;
    volume(&server, "other", "also here").await;
    let mount =
        VolumeMountDraft { volume: "other".into(), path: "/data".into(), read_only: false, subpath: None };
    let create = CreateSandbox { volumes: vec![mount], ..CreateSandbox::default() };
    let sandbox = good.create_sandbox(&create).await.unwrap();
    let (image, max_age_ms) = (Some("host".to_owned()), Some(7_654_321));
    let put = PutPool { template: None, image, min: 0, max: 1, max_age_ms };
    server.client.put_pool(&put).await.unwrap();
    server.kill();
    sql(
        &server,
        &format!(
            "UPDATE api_keys SET scopes = '[' WHERE id = '{bad}'; UPDATE volumes SET state = 'dreaming' WHERE id = '{lost}'; \
             UPDATE pools SET spec = '{{' WHERE name = 'image:host';"
        ),
    );
    server.restart();

    // The rest works, also after another start, which is what sweeps.
    server.kill();
    server.restart();
    let seen = good.get_sandbox(&sandbox.id).await.unwrap();
    assert_eq!(seen.state, sandbox.state);
    assert_eq!(server.sh(&sandbox.id, "cat /data/file").await.ok().stdout, "also here");
    let volumes: Vec<_> =
        server.client.list_volumes().await.unwrap().items.into_iter().map(|one| one.name).collect();
    assert_eq!(volumes, ["other"]);
    assert!(server.client.list_keys().await.unwrap().items.iter().all(|one| one.id != bad));
    assert!(!server.send(server.request("GET", "/v1/pools")).await.text().contains("7654321"));
    volume(&server, "new", "new").await;

    // Nothing is opened, and nothing that is there is taken for absent.
    assert_eq!(code(damaged.list_volumes().await), Code::Unauthorized);
    for named in ["lost", &lost] {
        assert_eq!(code(server.client.get_volume(named).await), Code::RecordUnreadable, "{named}");
        assert_eq!(code(server.client.delete_volume(named).await), Code::RecordUnreadable, "{named}");
    }
    let again = CreateVolume { name: "lost".into(), size_bytes: Some(32 << 20), ..CreateVolume::default() };
    assert_eq!(code(server.client.create_volume(&again).await), Code::NameTaken);

    // It says which rows they are.
    let rows = [
        format!("api_keys {bad} (scopes)"),
        format!("volumes {lost} (state)"),
        "pools image:host (spec)".to_owned(),
    ];
    let log = server.log();
    let doctor = server.client.doctor().await.unwrap();
    let check = doctor.checks.into_iter().find(|check| check.name == "database").unwrap();
    assert_eq!(check.status, atoll_isolation::Status::Limited);
    let metrics = server.send(server.request("GET", "/metrics")).await.text();
    for row in rows {
        assert!(check.detail.contains(&row), "{row}: {}", check.detail);
        let (table, rest) = row.split_once(' ').unwrap();
        let id = rest.split_once(' ').unwrap().0;
        let told = |line: &str| {
            line.contains("cannot be read and is left out") && line.contains(table) && line.contains(id)
        };
        assert_eq!(log.lines().filter(|line| told(line)).count(), 2, "once for each start: {row}\n{log}");
        assert!(metrics.contains(&format!("atoll_unreadable_rows{{table=\"{table}\"}} 1")), "{metrics}");
    }

    // A program that can read them, or an operator who mends them, finds everything.
    server.kill();
    let mended = "UPDATE api_keys SET scopes = '[\"manage\"]' WHERE scopes = '['; \
         UPDATE volumes SET state = 'ready' WHERE state = 'dreaming'; DELETE FROM pools WHERE spec = '{';";
    sql(&server, mended);
    server.restart();
    assert_eq!(read(&server, "lost").await, "precious");
    assert_eq!(damaged.list_volumes().await.unwrap().items.len(), 3);
    let doctor = server.client.doctor().await.unwrap();
    let check = doctor.checks.into_iter().find(|check| check.name == "database").unwrap();
    assert_eq!(check.status, atoll_isolation::Status::Ok, "{}", check.detail);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_unreadable_sandbox_or_snapshot_is_a_leak() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo precious > /root/file").await.ok();
    let taken = server.request("POST", &format!("/v1/sandboxes/{sandbox}/snapshots"));
    let snapshot = server.send(taken.json(&json!({}))).await;
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    let snapshot = snapshot.json()["id"].as_str().unwrap().to_owned();
    assert!(server.stop().success());
    sql(
        &server,
        "UPDATE sandboxes SET created_ms = -created_ms; UPDATE snapshots SET manifest = '{' || manifest;",
    );
    server.assert_doctor_is_content();
    let removed =
        server.cli(&["doctor", "--leaks", "--remove", "--data-dir", server.data().to_str().unwrap()]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    server.restart();
    assert_eq!(code(server.client.get_sandbox(&sandbox).await), Code::RecordUnreadable);
    let answer = server.send(server.request("GET", &format!("/v1/snapshots/{snapshot}"))).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (500, Some("record_unreadable")));
    let leaks = server.send(server.request("GET", "/v1/leaks")).await;
    assert_eq!(leaks.json()["items"], json!([]));
    assert!(server.stop().success());
    sql(
        &server,
        "UPDATE sandboxes SET created_ms = -created_ms; UPDATE snapshots SET manifest = substr(manifest, 2);",
    );
    server.restart();
    let answer = server.send(server.request("GET", &format!("/v1/snapshots/{snapshot}"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let create = CreateSandbox { snapshot: Some(snapshot), ..CreateSandbox::default() };
    let from = server.client.create_sandbox(&create).await.unwrap();
    for id in [&sandbox, &from.id] {
        assert_eq!(server.sh(id, "cat /root/file").await.ok().stdout, "precious\n");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_journal_goes_while_a_sandbox_that_cannot_be_read_may_have_it() {
    let mut server = Server::start();
    let [kept, gone] = [server.sandbox().await.id, server.sandbox().await.id];
    for id in [&kept, &gone] {
        server.sh(id, "true").await.ok();
    }
    server.send(server.request("DELETE", &format!("/v1/sandboxes/{gone}"))).await;
    server.kill();
    let journals = [&kept, &gone].map(|id| server.data().join("trace").join(id));
    for journal in &journals {
        let mut find = std::process::Command::new("find");
        find.arg(journal).args(["-exec", "touch", "-d", "2001-01-01", "{}", "+"]);
        assert!(find.status().unwrap().success());
    }
    sql(&server, &format!("UPDATE sandboxes SET state = 'dreaming' WHERE id = '{kept}'"));
    server.restart();
    // Before the recorder writes anything it has looked for old journals.
    let new = server.sandbox().await.id;
    wait_until("the journal of a new sandbox", async || {
        server.data().join("trace").join(&new).exists().then_some(())
    })
    .await;
    assert!(journals.iter().all(|journal| journal.exists()));

    server.kill();
    sql(&server, &format!("UPDATE sandboxes SET state = 'running' WHERE id = '{kept}'"));
    server.restart();
    wait_until("the old journal is removed", async || (!journals[1].exists()).then_some(())).await;
    assert!(journals[0].exists());
    server.finish().await;
}
