//! The vault: values go in and never come out, versions, scopes, and changing the key.

use crate::common::code;
use atoll_api::{CreateKey, CreateSandbox, KeyFormat, PutSecret, Scope};
use atoll_blackbox::Server;
use atoll_client::Client;
use atoll_core::Code;
use atoll_core::policy::{EgressPolicy, Internet, SecretScope};
use atoll_core::secret::Secret;
use serde_json::json;

const VALUE: &str = "hunter2-is-the-value";

fn scope(value: serde_json::Value) -> SecretScope {
    serde_json::from_value(value).unwrap()
}

fn new(value: &str) -> PutSecret {
    let scope = scope(json!({"hosts": ["api.example.com"]}));
    PutSecret { value: Some(Secret::new(value)), scope: Some(scope), note: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_go_in_and_never_come_out() {
    let server = Server::start();
    let client = &server.client;
    // From standard input; never from an argument.
    let set = server
        .cli_with(&["secret", "set", "A", "--host", "api.example.com", "--note", "x"], VALUE.as_bytes())
        .ok();
    assert_eq!(set.stdout, "A has version 1, for api.example.com\n");
    server.cli_with(&["secret", "set", "A"], b"hunter3-is-the-next\n").ok();
    let first = server.cli_with(&["secret", "set", "B"], VALUE.as_bytes());
    assert!(first.code == Some(125) && first.stderr.contains("scope"), "{first:?}");
    let list = server.cli(&["secret", "ls"]).ok().stdout;
    assert!(list.contains("api.example.com") && list.contains("every sandbox"), "{list}");
    let one = client.get_secret(None, "A").await.unwrap();
    assert_eq!(one.versions.iter().map(|version| version.version).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(one.note, "x");

    // Only where it may go changes.
    server.cli(&["secret", "set", "A", "--keep-value", "--any-host", "--template", "t"]).ok();
    let one = client.get_secret(None, "A").await.unwrap();
    assert_eq!((one.versions.len(), one.scope.templates.len()), (2, 1));

    // Settings that the command does not name stay.
    let fewer = server.cli(&["secret", "set", "A", "--keep-value", "--host", "api.example.com"]).ok().stdout;
    assert_eq!(fewer, "A has version 2, for api.example.com; only template t\n");
    server.cli(&["secret", "set", "A", "--keep-value", "--any-sandbox"]).ok();
    let one = client.get_secret(None, "A").await.unwrap();
    assert_eq!((one.scope.hosts.len(), one.scope.templates.len()), (1, 0));

    // Nothing that was ever answered or written holds a value.
    for path in ["/v1/secrets", "/v1/secrets/A", "/v1/secret-uses"] {
        let answer = server.send(server.request("GET", path)).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("hunter"), "{}", answer.text());
    }
    for name in ["atoll.db", "atoll.db-wal"] {
        let bytes = std::fs::read(server.data().join(name)).unwrap_or_default();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{name}");
    }
    assert!(!server.log().contains("hunter"));

    // Wrong input is named, not repeated.
    for (name, put) in [
        ("1A", new(VALUE)),
        ("B", new("abc")),
        ("B", new(&"x".repeat(40_000))),
        ("B", PutSecret { scope: Some(scope(json!({"hosts": []}))), ..new(VALUE) }),
    ] {
        let error = client.put_secret(None, name, &put).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::InvalidArgument), "{error}");
        assert!(!error.to_string().contains(VALUE));
    }
    let list = server.send(server.request("PUT", "/v1/secrets/A").json(&json!({"value": 7}))).await;
    assert_eq!(list.status, 400);

    server.cli(&["secret", "rm", "A"]).ok();
    assert_eq!(code(client.get_secret(None, "A").await), Code::SecretNotFound);
    assert_eq!(code(client.delete_secret(None, "A").await), Code::SecretNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_are_kept_when_rules_are_set() {
    let server = Server::start();
    let client = &server.client;
    let other = client
        .create_key(&CreateKey {
            name: "other".into(),
            scope: Scope::Manage,
            ttl_ms: None,
            format: KeyFormat::Atoll,
            project: None,
        })
        .await
        .unwrap();
    let keyed = scope(json!({"hosts": ["api.example.com"], "keys": [other.key.id]}));
    client.put_secret(None, "KEYED", &PutSecret { scope: Some(keyed), ..new(VALUE) }).await.unwrap();
    let rule = serde_json::from_value(
        json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:KEYED}"}),
    )
    .unwrap();
    let egress = EgressPolicy { internet: Internet::On, inject: vec![rule], ..EgressPolicy::default() };
    let create = CreateSandbox { egress: Some(egress.clone()), ..CreateSandbox::default() };
    assert_eq!(code(client.create_sandbox(&create).await), Code::Forbidden, "not this key");
    let theirs = Client::new(&server.url, &other.secret).unwrap();
    let made = theirs.create_sandbox(&create).await.unwrap();
    // A key that may not use the secret may not send it elsewhere from another key's sandbox either.
    let update = atoll_api::UpdateSandbox { egress: Some(egress), ..atoll_api::UpdateSandbox::default() };
    assert_eq!(code(client.update_sandbox(&made.id, &update).await), Code::Forbidden);
    theirs.update_sandbox(&made.id, &update).await.unwrap();
    // Writing secrets is for admins.
    assert_eq!(code(theirs.put_secret(None, "X", &new(VALUE)).await), Code::Forbidden);
    assert_eq!(code(theirs.rotate_vault_key().await), Code::Forbidden);
    theirs.list_secrets(None).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_changes_and_a_crash_at_any_step_is_made_good() {
    let mut server = Server::with(&[]);
    for name in ["A", "B", "C"] {
        server.client.put_secret(None, name, &new(VALUE)).await.unwrap();
    }
    let key = || std::fs::read(server.data().join("vault.key")).unwrap();
    let mut last = key();
    let changed = server.cli(&["secret", "rotate-key"]).ok();
    assert!(
        changed.stdout.starts_with("6 values"),
        "three secrets, the authority, the keys of tokens and of the journal: {}",
        changed.stdout
    );
    assert_ne!(key(), last);
    last = key();
    for step in ["begun=kill", "resealed=kill", "resealed=kill@3", "finished=kill"] {
        server.kill();
        server.restart_with(&format!("engine.rotate.{step}"));
        drop(server.client.rotate_vault_key().await.expect_err("it was killed"));
        server.wait_end();
        server.restart();
        let now = std::fs::read(server.data().join("vault.key")).unwrap();
        assert_ne!(now, last, "{step}: the next start finished it");
        assert!(!server.data().join("vault.key.next").try_exists().is_ok_and(|there| there));
        last = now;
        // Everything opens with the new key: a rotation opens all of it.
        let changed = server.client.rotate_vault_key().await.unwrap();
        assert_eq!(changed.resealed, 6, "{step}");
        last = std::fs::read(server.data().join("vault.key")).unwrap_or(last);
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_can_come_from_outside() {
    let dir = tempfile::Builder::new().prefix("atoll-blackbox-").tempdir_in("/var/tmp").unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, format!("{}\n", "ab".repeat(32))).unwrap();
    let command = format!("cat {}", key.display());
    let mut server = Server::with(&["--vault-key-command", &command]);
    assert!(!server.data().join("vault.key").try_exists().is_ok_and(|there| there));
    server.client.put_secret(None, "A", &new(VALUE)).await.unwrap();
    assert_eq!(code(server.client.rotate_vault_key().await), Code::InvalidState);
    server.kill();
    std::fs::write(&key, format!("{}\n{}\n", "cd".repeat(32), "ab".repeat(32))).unwrap();
    // The start itself finishes the change from one key to the other.
    server.restart();
    server.kill();
    std::fs::write(&key, format!("{}\n", "cd".repeat(32))).unwrap();
    server.restart();
    server
        .client
        .put_secret(None, "A", &PutSecret { value: Some(Secret::new("next-value")), ..PutSecret::default() })
        .await
        .unwrap();
    server.finish().await;
}
