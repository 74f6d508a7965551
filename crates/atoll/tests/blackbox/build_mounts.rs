//! `RUN --mount` with the real program: files and secrets that a step sees and its result does not keep.

use std::fmt::Write as _;
use std::fs;

use crate::common::{code, files_with};
use atoll_api::{CreateBuild, CreateSandbox};
use atoll_blackbox::Server;
use atoll_core::Code;
use atoll_core::build::{BuildEvent, BuildState};
use atoll_core::secret::Secret;

const SECRET: &str = "mounted-secret-7f31";

/// A Dockerfile, and the build's end with its log.
async fn build(
    server: &Server,
    name: &str,
    text: &str,
    secrets: &[(&str, &str)],
) -> (atoll_api::Build, String) {
    let create = CreateBuild {
        name: name.into(),
        dockerfile: Some(text.into()),
        secrets: secrets.iter().map(|(id, value)| ((*id).to_owned(), Secret::new(*value))).collect(),
        ..CreateBuild::default()
    };
    let begun = server.client.create_build(&create).await.unwrap();
    let mut log = server.client.follow_build(&begun.id, true, atoll_client::ResumePolicy::default());
    let mut lines = String::new();
    while let Some(entry) = log.next().await.unwrap() {
        match entry {
            BuildEvent::Output { text, .. } => lines.push_str(&text),
            other => writeln!(lines, "{other:?}").unwrap(),
        }
    }
    (server.client.get_build(&begun.id).await.unwrap(), lines)
}

async fn inside(server: &Server, template: &str, line: &str) -> String {
    let create = CreateSandbox { template: Some(template.into()), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    let done = server.sh(&id, line).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    done.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_seen_by_its_command_and_kept_nowhere() {
    let server = Server::start();
    let text = "FROM host\nRUN mkdir /out && chown 4711 /out\nUSER 4711\n\
        RUN --mount=type=secret,id=key,uid=4711 --mount=type=secret,id=token,env=TOKEN,required=true \\\n\
        --mount=type=secret,id=key,target=/etc/deep/er/key,mode=0444 --mount=type=secret,id=other \\\n\
        stat -Lc '%a %u' /run/secrets/key /etc/deep/er/key; cat /run/secrets/key; echo; echo $TOKEN; \\\n\
        sha256sum < /run/secrets/key > /out/sum; test ! -e /run/secrets/other; id -u > /out/who\n";
    let secrets = [("key", SECRET), ("token", "another-secret-55")];
    let (ended, log) = build(&server, "with", text, &secrets).await;
    assert_eq!(ended.state, BuildState::Succeeded, "{ended:?}\n{log}");
    assert!(log.contains("400 4711\n444 0\n"), "{log}");
    assert!(log.contains(&"*".repeat(SECRET.len())) && log.contains("not given the secret 'other'"), "{log}");
    assert!(!log.contains(SECRET) && !log.contains("another-secret-55"), "{log}");
    let seen = inside(&server, "with", "cat /out/who; ls -d /run/secrets /etc/deep /dev/shm/* 2>/dev/null; sha256sum --version >/dev/null; cat /out/sum").await;
    let sum = sha256(SECRET);
    assert_eq!(seen, format!("4711\n{sum}  -\n"), "nothing of it is left");
    // The value is no part of the cache's key; the name is.
    let (_, again) = build(&server, "with", text, &[("key", "changed-secret-1"), ("token", "t-e-s-t")]).await;
    assert!(!again.contains("400 4711"), "the step was kept: {again}");
    let (failed, _) = build(&server, "without", text, &[]).await;
    assert_eq!(failed.state, BuildState::Succeeded, "cached: nothing runs");
    let (failed, _) = build(&server, "without", &text.replace("er/key", "er/key2"), &[]).await;
    let failure = failed.failure.unwrap();
    assert!(failure.message.contains("the build was not given the secret 'token'"), "{failure:?}");
    // The secret is in nothing that the server keeps: store, logs, images of disks. The mark shows that this search
    // finds text that was on a disk.
    let mark = "FROM host\nRUN echo mark-$((40+2))-of-a-step > /mark && sync\n";
    assert_eq!(build(&server, "mark", mark, &[]).await.0.state, BuildState::Succeeded);
    assert!(!files_with("mark-42-of-a-step", server.data()).is_empty(), "the disk is in the data directory");
    assert_eq!(files_with(SECRET, server.data()), Vec::<String>::new());
    server.finish().await;
}

fn sha256(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn mounted_files_are_seen_by_their_command_and_not_kept() {
    let server = Server::start();
    let dir = tempfile::Builder::new().prefix("atoll-context-").tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("src/a", "from the context\n");
    put("list.txt", "listed\n");
    put("key", "a-secret-of-a-file");
    let file = "FROM host AS tools\nRUN mkdir -p /t/d && echo from a stage > /t/d/x && echo tool > /t/one\n\
        FROM host\nWORKDIR /work\nRUN mkdir empty full && touch full/x\n\
        RUN --mount=source=src,target=src --mount=type=bind,src=list.txt,dst=list.txt,ro \\\n\
        --mount=from=tools,source=/t,target=/opt/t/t --mount=from=tools,src=/t/one,target=/usr-local/one \\\n\
        --mount=type=bind,target=empty,rw --mount=type=secret,id=k \\\n\
        cat src/a list.txt /opt/t/t/d/x /usr-local/one empty/list.txt > all && echo gone > empty/new && \\\n\
        echo kept > /opt/t/beside && wc -c < /run/secrets/k >> all\n";
    fs::write(dir.path().join("Dockerfile"), file).unwrap();
    let key = format!("id=k,src={}", dir.path().join("key").display());
    let path = dir.path().to_str().unwrap();
    let built = server.cli(&["template", "build", path, "-t", "m", "--build-secret", &key]).ok();
    assert_eq!(built.stdout, "m:1\n", "{built:?}");
    let seen =
        inside(&server, "m", "cat all; ls; ls empty; find /opt/t /usr-local /run/secrets 2>/dev/null | sort")
            .await;
    let want =
        "from the context\nlisted\nfrom a stage\ntool\nlisted\n18\nall\nempty\nfull\n/opt/t\n/opt/t/beside\n";
    assert_eq!(seen, want);
    let state =
        |said: &atoll_blackbox::Output| said.stderr.lines().filter(|line| line.contains("CACHED")).count();
    let again = server.cli(&["template", "build", path, "-t", "m", "--build-secret", &key]).ok();
    assert!(state(&again) >= 4, "{again:?}");
    put("src/a", "changed\n");
    let changed = server.cli(&["template", "build", path, "-t", "m", "--build-secret", &key]).ok();
    assert!(state(&changed) < state(&again), "{changed:?}");
    // A file that is there already would be hidden from the command and be lost.
    let (failed, _) = build(&server, "bad", "FROM host AS t\nFROM host\nRUN mkdir /f && touch /f/x\nRUN --mount=from=t,source=/etc,target=/f true\n", &[]).await;
    let failure = failed.failure.unwrap();
    assert!(failure.message.starts_with("line 4, column 1: '/f' is there already"), "{failure:?}");
    let create = CreateBuild {
        name: "bad".into(),
        dockerfile: Some("FROM host\n".into()),
        secrets: [("a/b".to_owned(), Secret::new("value"))].into(),
        ..CreateBuild::default()
    };
    assert_eq!(code(server.client.create_build(&create).await), Code::InvalidArgument);
    server.finish().await;
}

/// Processes that a command leaves running end with it: none of them writes where something was mounted, or is there in
/// another step.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_leaves_running_ends_with_it() {
    let server = Server::start();
    let file = "FROM host AS t\nRUN mkdir /t && echo a > /t/a\nFROM host\nRUN mkdir /m\n\
        RUN --mount=from=t,source=/t,target=/m cat /m/a; setsid sh -c 'while :; do : > /m/x; done' </dev/null >/dev/null 2>&1 &\n";
    let (ended, log) = build(&server, "stays", file, &[]).await;
    assert_eq!(ended.state, BuildState::Succeeded, "{ended:?}\n{log}");
    assert_eq!(inside(&server, "stays", "ls /m").await, "", "it was ended with its command: {log}");
    // Nor is it in a later step, whether or not it was kept.
    let file = "FROM host\nRUN sleep 1000 & setsid sleep 1000 & sleep 0.1\nRUN ps -eo args= | grep -c '^sleep 1000' > /count || true\n";
    let (ended, log) = build(&server, "alone", file, &[]).await;
    assert_eq!(ended.state, BuildState::Succeeded, "{ended:?}\n{log}");
    assert_eq!(inside(&server, "alone", "cat /count").await, "0\n", "{log}");
    server.finish().await;
}
