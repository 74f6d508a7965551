//! Names that the operator's list of hosts has (`--hosts-file`, else `/etc/hosts`).

use crate::common::outside::{OTHER, Outside, WEB, allow, sandbox};

const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";
/// Where nothing but a rule about addresses leads.
const PRIVATE: &str = "10.7.7.7";

#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_hosts_file_are_found_and_open_nothing_by_themselves() {
    let outside = Outside::new();
    for address in [WEB, OTHER, PRIVATE] {
        outside.web(&format!("{address}:80"));
    }
    let dir = tempfile::Builder::new().prefix("atoll-names-").tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("hosts");
    // `web.test` is in the resolver's zone, too, and blocked here; this computer's own name means nothing inside.
    let list =
        format!("127.0.0.1 here.corp\n{WEB} wiki.corp wiki # public\n{PRIVATE} db.corp\n0.0.0.0 web.test\n");
    std::fs::write(&file, list).unwrap();
    let server = outside.server_with(&["--hosts-file", file.to_str().unwrap()]);
    let id = sandbox(&server, allow(&["*.corp", "web.test", "other.test"])).await.id;

    let found = server.sh(&id, &format!("{CURL} http://wiki.corp/")).await;
    assert_eq!(found.stdout, format!("hello from {WEB}:80\n200\n"), "{found:?}");
    let other = server.sh(&id, &format!("{CURL} http://other.test/")).await;
    assert_eq!(other.stdout, format!("hello from {OTHER}:80\n200\n"), "the resolver has the rest: {other:?}");
    for name in ["here.corp", "web.test"] {
        assert_ne!(server.sh(&id, &format!("getent ahostsv4 {name}")).await.code, Some(0), "{name}");
    }
    // No rule allows the short name: what is in the list may be looked up no more than other names.
    assert_ne!(server.sh(&id, "getent ahostsv4 wiki").await.code, Some(0));
    assert!(outside.questions().iter().all(|asked| !asked.starts_with("wiki") && !asked.starts_with("db.")));

    let refused = server.sh(&id, &format!("{CURL} http://db.corp/")).await;
    assert!(refused.stdout.ends_with("403\n") && refused.stdout.contains("private"), "{refused:?}");
    server.cli(&["net", "allow", &id, PRIVATE]).ok();
    let found = server.sh(&id, &format!("{CURL} http://db.corp/")).await;
    assert_eq!(found.stdout, format!("hello from {PRIVATE}:80\n200\n"), "{found:?}");
    server.finish().await;
}
