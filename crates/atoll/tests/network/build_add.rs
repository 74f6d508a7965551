//! `ADD` of an address in a build: only addresses that the build's policy allows.

use crate::common::outside::{OTHER, Outside, WEB, allow};
use crate::common::real::Real;
use atoll_api::{Build, CreateBuild, CreateSandbox};
use atoll_blackbox::Server;
use atoll_core::Code;
use atoll_core::build::BuildState;
use atoll_core::policy::EgressPolicy;

/// The lines of the file that nginx has at `/text`.
const TEXT: &str = "line of text\n";
const LINES: usize = 10_000;

async fn build(server: &Server, name: &str, text: &str, egress: EgressPolicy) -> Build {
    let create = CreateBuild {
        name: name.into(),
        dockerfile: Some(text.into()),
        egress: Some(egress),
        ..CreateBuild::default()
    };
    let begun = server.client.create_build(&create).await.unwrap();
    let mut log = server.client.follow_build(&begun.id, true, atoll_client::ResumePolicy::default());
    while log.next().await.unwrap().is_some() {}
    server.client.get_build(&begun.id).await.unwrap()
}

fn digest() -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(TEXT.repeat(LINES)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_fetched_through_the_policy_of_the_build() {
    let real = Real::start();
    let outside = Outside::new();
    outside.name("api.example.com", WEB);
    outside.name("other.example.com", OTHER);
    outside.put(&format!("{WEB}:80"), real.plain);
    outside.put(&format!("{WEB}:443"), real.tls);
    let server = outside.server();
    let file = format!(
        "FROM host\nARG NAME=text\nADD http://api.example.com/$NAME /opt/a/\n\
         ADD --checksum=sha256:{} --chown=4711 --chmod=640 http://api.example.com/text?again /opt/b\n",
        digest()
    );
    let made = build(&server, "files", &file, allow(&["api.example.com"])).await;
    assert_eq!(made.state, BuildState::Succeeded, "{made:?}\n{}", server.log());
    let create = CreateSandbox { template: Some("files".into()), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    let seen = server
        .sh(&id, "stat -c '%a %u %n' /opt/a/text /opt/b; sha256sum < /opt/a/text; cmp /opt/a/text /opt/b")
        .await;
    assert_eq!(seen.stdout, format!("600 0 /opt/a/text\n640 4711 /opt/b\n{}  -\n", digest()), "{seen:?}");

    // The same build again has the file already: the web server is not asked.
    let before = real.log().lines().count();
    assert_eq!(
        build(&server, "files", &file, allow(&["api.example.com"])).await.state,
        BuildState::Succeeded
    );
    assert_eq!(real.log().lines().count(), before);

    let digest = digest();
    let wrong =
        format!("FROM host\nADD --checksum=sha256:{} http://api.example.com/text /x\n", "0".repeat(64));
    for (text, code, said) in [
        ("FROM host\nADD http://other.example.com/text /x\n", Code::BuildStepFailed, "other.example.com"),
        ("FROM host\nADD http://api.example.com/none /x\n", Code::BuildStepFailed, "answered with 404"),
        // A redirect leads where the policy does not.
        ("FROM host\nADD http://api.example.com/moved /x\n", Code::BuildStepFailed, "other.example.com"),
        // No authority that the server trusts has signed its certificate.
        ("FROM host\nADD https://api.example.com/text /x\n", Code::BuildStepFailed, "TLS handshake failed"),
        (wrong.as_str(), Code::DigestMismatch, digest.as_str()),
        ("FROM host\nADD http://api.example.com/ /x/\n", Code::BuildFileInvalid, "what the file is called"),
    ] {
        let failure = build(&server, "bad", text, allow(&["api.example.com"])).await.failure.unwrap();
        assert_eq!(failure.code, code, "{text}: {failure:?}");
        assert!(
            failure.message.starts_with("line 2, column 1: ") && failure.message.contains(said),
            "{failure:?}"
        );
    }
    let dialled = outside.dials();
    assert!(dialled.iter().all(|to| to.starts_with(WEB)), "{dialled:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_over_tls_also_where_the_gateway_opens_it() {
    let real = Real::start();
    let outside = Outside::new();
    outside.name("api.example.com", WEB);
    outside.put(&format!("{WEB}:443"), real.tls);
    let ca = real.ca();
    let server = outside.server_with(&["--upstream-ca", ca.to_str().unwrap()]);
    // Where a rule goes by the path, TLS has to be opened: the gateway's own certificate is known.
    let policy = serde_json::json!({"internet": "rules",
        "rules": [{"action": "allow", "domain": "api.example.com", "path": "/text"}]});
    let policy: EgressPolicy = serde_json::from_value(policy).unwrap();
    let file = format!("FROM host\nADD --checksum=sha256:{} https://api.example.com/text /x\n", digest());
    let made = build(&server, "tls", &file, policy.clone()).await;
    assert_eq!(made.state, BuildState::Succeeded, "{made:?}\n{}", server.log());
    // Nor must it be opened: the operator added the server's authority.
    let again = file.replace(" /x", " /y");
    let plain = build(&server, "plain", &again, allow(&["api.example.com"])).await;
    assert_eq!(plain.state, BuildState::Succeeded, "{plain:?}");
    let other = "FROM host\nADD https://api.example.com/none /x\n";
    let failure = build(&server, "tls", other, policy).await.failure.unwrap();
    assert!(failure.message.contains("api.example.com:443/none"), "{failure:?}");
    server.finish().await;
}
