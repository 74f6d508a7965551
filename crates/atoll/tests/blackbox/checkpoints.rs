//! Checkpoints, forks, and snapshots that travel as files, through the real program.

use std::collections::BTreeSet;

use crate::common::{code, follow, outputs};
use atoll_api::{CreateCheckpoint, CreateSandbox, CreateSnapshot, ForkSandbox};
use atoll_blackbox::Server;
use atoll_client::{ListExecs, ListSandboxes, ListSnapshots};
use atoll_core::Code;
use atoll_core::exec::ExitReason;
use atoll_core::snapshot::ChangeKind;
use atoll_core::spec::ResourcesDraft;

fn fork(count: u32) -> ForkSandbox {
    ForkSandbox { count, ..ForkSandbox::default() }
}

async fn checkpoint(server: &Server, sandbox: &str) -> u32 {
    let made = server.client.create_checkpoint(sandbox, &CreateCheckpoint::default()).await.unwrap();
    made.checkpoint.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn children_go_on_from_where_the_parent_is() {
    let server = Server::start();
    let create = CreateSandbox {
        name: Some("parent".into()),
        env: [("A".into(), "parent".into()), ("B".into(), "parent".into())].into(),
        labels: [("team".into(), "blue".into())].into(),
        user: Some("user".into()),
        workdir: Some("/home/user/work".into()),
        ttl_ms: Some(3_600_000),
        ..CreateSandbox::default()
    };
    let parent = server.client.create_sandbox(&create).await.unwrap();
    server.sh("parent", "echo state > state").await;
    let runs = server.shell("parent", "while :; do echo x >> log; sleep 0.01; done").await;
    let order = ForkSandbox {
        name: Some("child".into()),
        env: [("B".into(), "child".into())].into(),
        labels: [("n".into(), "1".into())].into(),
        ..fork(3)
    };
    let children = server.client.fork_sandbox("parent", &order).await.unwrap().results;
    let children: Vec<_> = children.into_iter().map(|child| child.sandbox.unwrap()).collect();
    let mut ids: BTreeSet<_> = children.iter().map(|child| child.id.clone()).collect();
    assert!(ids.insert(parent.id.clone()) && ids.len() == 4);
    for (number, child) in (1..).zip(&children) {
        assert_eq!(child.name.as_deref(), Some(format!("child-{number}").as_str()));
        assert_eq!((child.labels["team"].as_str(), child.labels["n"].as_str()), ("blue", "1"));
        assert!(child.expires_at_ms.is_some() && child.snapshot.is_some());
        let seen = server.sh(&child.id, "cat state; echo $A $B; hostname; pwd; echo own > own").await;
        assert_eq!(
            seen.stdout,
            format!("state\nparent child\nchild-{number}\n/home/user/work\n"),
            "{seen:?}"
        );
        // Processes do not go along.
        let execs = server.client.list_execs(&child.id, &ListExecs::default()).await.unwrap().items;
        assert_eq!(execs.len(), 1, "{execs:?}");
    }
    // The parent and its processes go on, and it does not see the children's files.
    assert_eq!(server.sh("parent", "ls own").await.stdout, "");
    let running = server.client.get_exec("parent", &runs, 0).await.unwrap();
    assert!(!running.state.is_final(), "{running:?}");
    // Nothing is kept for a fork that is done.
    assert!(server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.is_empty());
    let lines = server.cli(&["fork", "parent", "-n", "2"]).ok().stdout;
    assert_eq!(lines.lines().count(), 2);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_child_has_its_own_outcome() {
    let server = Server::with(&["--sandboxes-max", "3"]);
    let parent = server.sandbox().await.id;
    let results = server.client.fork_sandbox(&parent, &fork(4)).await.unwrap().results;
    let made = results.iter().filter(|result| result.sandbox.is_some()).count();
    let refused: Vec<Code> = results.iter().filter_map(|result| Some(result.error.as_ref()?.code)).collect();
    assert_eq!((made, refused), (2, vec![Code::LimitExceeded; 2]));
    let output = server.cli(&["fork", &parent, "--json"]);
    assert_eq!(
        (output.code == Some(0), output.json()["results"][0]["error"]["code"].as_str()),
        (false, Some("limit_exceeded"))
    );
    // A child whose guest agent does not confirm its identity is not handed out, and nothing is left of it.
    server.finish().await;
    let server = Server::start();
    let create = CreateSandbox { workdir: Some("/srv/work".into()), ..CreateSandbox::default() };
    let parent = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&parent, "cd /; rmdir /srv/work; echo in the way > /srv/work").await;
    let results = server.client.fork_sandbox(&parent, &fork(2)).await.unwrap().results;
    for child in &results {
        assert!(child.sandbox.is_none(), "{child:?}");
        assert!(child.error.as_ref().unwrap().message.contains("/srv/work"), "{child:?}");
    }
    assert_eq!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.len(), 1);
    for bad in [0, 257] {
        assert_eq!(code(server.client.fork_sandbox(&parent, &fork(bad)).await), Code::InvalidArgument);
    }
    assert_eq!(code(server.client.fork_sandbox("nobody", &fork(1)).await), Code::SandboxNotFound);
    let nowhere = ForkSandbox { at: Some("7".into()), ..fork(1) };
    assert_eq!(code(server.client.fork_sandbox(&parent, &nowhere).await), Code::SnapshotNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_belong_to_their_sandbox() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo one > /home/user/f").await;
    assert_eq!(checkpoint(&server, &sandbox).await, 1);
    server.sh(&sandbox, "echo two > /home/user/f").await;
    assert_eq!(server.cli(&["checkpoint", &sandbox, "-c", "the second"]).ok().stdout, "2\n");
    let table = server.cli(&["checkpoints", &sandbox]).ok().stdout;
    assert!(table.contains("the second"), "{table}");
    assert!(server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.is_empty());
    for (at, expected) in [("1", "one\n"), ("2", "two\n")] {
        let order = ForkSandbox { at: Some(at.into()), ..fork(1) };
        let child = server.client.fork_sandbox(&sandbox, &order).await.unwrap().results.remove(0);
        assert_eq!(server.sh(&child.sandbox.unwrap().id, "cat /home/user/f").await.stdout, expected);
    }
    server.client.delete_checkpoint(&sandbox, 2).await.unwrap();
    assert_eq!(code(server.client.delete_checkpoint(&sandbox, 2).await), Code::SnapshotNotFound);
    // A number never means two things.
    assert_eq!(checkpoint(&server, &sandbox).await, 3);
    let numbers: Vec<_> = server.client.list_checkpoints(&sandbox).await.unwrap().items;
    let ids: Vec<String> = numbers.iter().map(|one| one.id.clone()).collect();
    assert_eq!(numbers.iter().map(|one| one.checkpoint.unwrap()).collect::<Vec<_>>(), [3, 1]);
    server.client.delete_sandbox(&sandbox).await.unwrap();
    for id in ids {
        assert_eq!(code(server.client.get_snapshot(&id).await), Code::SnapshotNotFound);
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_travel_as_files() {
    let (here, there) = (Server::start(), Server::start());
    let sandbox = here.sandbox().await.id;
    here.sh(
        &sandbox,
        "mkdir /home/user/d; head -c 3M /dev/urandom > /home/user/d/data; chown -R user /home/user/d",
    )
    .await;
    // A file is open and unlinked while the snapshot is taken, as in real life.
    here.shell(&sandbox, "exec 3> /home/user/gone; rm /home/user/gone; head -c 1M /dev/zero >&3; sleep 1000")
        .await;
    let sum = here.sh(&sandbox, "sha256sum /home/user/d/data").await.stdout;
    let order = CreateSnapshot {
        tags: vec!["app".into()],
        comment: Some("travels".into()),
        ..CreateSnapshot::default()
    };
    let snapshot = here.client.create_snapshot(&sandbox, &order).await.unwrap();
    let dir = tempfile::Builder::new().prefix("atoll-export-").tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("app.atoll");
    let path = file.to_str().unwrap();
    here.cli(&["snapshot", "export", "app", path]).ok();
    let digest = here.client.get_snapshot(&snapshot.id).await.unwrap().digest.unwrap();
    let id = there.cli(&["snapshot", "import", "-t", "app:imported", path]).ok().stdout.trim().to_owned();
    let imported = there.client.get_snapshot("app:imported").await.unwrap();
    assert_eq!(
        (&imported.id, imported.digest.as_ref(), imported.sandbox.as_ref()),
        (&id, Some(&digest), None)
    );
    assert_eq!(imported.comment.as_deref(), Some("travels"));
    let create = CreateSandbox { snapshot: Some("app:imported".into()), ..CreateSandbox::default() };
    let child = there.client.create_sandbox(&create).await.unwrap().id;
    assert_eq!(
        there.sh(&child, "sha256sum /home/user/d/data; stat -c %U /home/user/d; ls /home/user").await.stdout,
        format!("{sum}user\nd\n")
    );
    // And back, from the imported snapshot, through a pipe.
    let again = there.cli(&["snapshot", "export", &id, "-"]);
    assert_eq!(again.code, Some(0));
    // Damage is noticed wherever it is.
    let good = std::fs::read(&file).unwrap();
    let half = good.len() / 2;
    let mut flipped = good.clone();
    flipped[half] ^= 0x40;
    for (bad, codes) in [
        (&good[..half], &["snapshot_invalid"][..]),
        (&flipped[..], &["snapshot_invalid", "digest_mismatch"]),
        (b"something else", &["snapshot_invalid"]),
        (b"", &["snapshot_invalid"]),
    ] {
        let answer = there.send(there.request("POST", "/v1/snapshots/import").body(bad.to_vec())).await;
        let text = answer.text();
        assert!(codes.contains(&answer.json()["code"].as_str().unwrap()), "{text}");
    }
    let listed = there.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items;
    assert_eq!(listed.len(), 1, "something half-made is left");
    here.client.delete_snapshot(&snapshot.id).await.unwrap();
    there.client.delete_snapshot(&id).await.unwrap();
    here.finish().await;
    there.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_is_told() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "cd /home/user; printf 'one\\ntwo\\n' > text; mkdir d e; echo x > d/gone; echo y > e/inner; echo same > same; ln -s text link").await;
    let first = checkpoint(&server, &sandbox).await.to_string();
    let script = "cd /home/user; printf 'one\\n2\\n' > text; rm d/gone; rm -r e; mkdir e; echo z > e/other; echo new > new; \
        touch same; ln -sf new link; chmod 600 d; rm /etc/profile; mv /home/user/d /home/user/moved";
    server.sh(&sandbox, script).await;
    let second = checkpoint(&server, &sandbox).await.to_string();
    server.sh(&sandbox, "rm /home/user/new").await;
    let marks =
        |diff: &atoll_core::snapshot::Comparison| -> Vec<String> { diff.changes.iter().map(mark).collect() };
    let diff = server.client.diff_sandbox(&sandbox, Some(&first), Some(&second), true).await.unwrap();
    let expected = [
        "R /etc/profile",
        "R /home/user/d",
        "R /home/user/d/gone",
        "R /home/user/e/inner",
        "A /home/user/e/other",
        "C /home/user/link",
        "A /home/user/moved",
        "A /home/user/new",
        "C /home/user/text",
    ];
    assert_eq!(marks(&diff), expected);
    let text = diff.changes.iter().find(|change| change.path == "/home/user/text").unwrap();
    assert_eq!((text.from_bytes, text.to_bytes), (Some(8), Some(6)));
    assert!(text.text.as_ref().unwrap().ends_with("@@ -1,2 +1,2 @@\n one\n-two\n+2\n"), "{text:?}");
    let back = server.client.diff_sandbox(&sandbox, Some(&second), Some(&first), false).await.unwrap();
    assert_eq!(back.changes.len(), expected.len());
    assert!(back.changes.iter().all(|change| change.text.is_none()));
    // Until now, and from the image.
    let now = server.client.diff_sandbox(&sandbox, Some(&second), None, false).await.unwrap();
    assert_eq!(marks(&now), ["R /home/user/new"]);
    let all = server.client.diff_sandbox(&sandbox, None, Some("1"), false).await.unwrap();
    let seen = marks(&all);
    assert!(
        seen.contains(&"A /home/user/same".to_owned()) && !seen.iter().any(|line| line.contains("/usr")),
        "{seen:?}"
    );
    let same = server.client.diff_sandbox(&sandbox, Some("2"), Some("2"), false).await.unwrap();
    assert!(same.changes.is_empty() && !same.truncated);
    let lines = server.cli(&["diff", &sandbox, "1", "2", "-t"]).ok().stdout;
    assert!(lines.contains("C /home/user/text (8 B → 6 B)\n--- a/home/user/text"), "{lines}");
    assert_eq!(
        code(server.client.diff_sandbox(&sandbox, Some("9"), None, false).await),
        Code::SnapshotNotFound
    );
    server.finish().await;
}

/// Whole directories that two points have in common are skipped: no change may be overlooked, however deep it lies.
#[tokio::test(flavor = "multi_thread")]
async fn among_many_files_each_change_is_told() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let made = server
        .sh(
            &sandbox,
            "cd /home/user; for i in $(seq 60); do mkdir -p t/d$i/deep/er; for j in $(seq 20); do echo $i $j > t/d$i/f$j; echo $j > t/d$i/deep/er/g$j; done; done; \
             mkdir /etc/own; echo 1 > /etc/own/file; mkdir -p /etc/apt; echo 1 > /etc/apt/file",
        )
        .await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let first = checkpoint(&server, &sandbox).await.to_string();
    let change = |line: &'static str, expected: &'static [&'static str]| (line, expected);
    let t = "/home/user/t";
    for (line, expected) in [
        change(":", &[]),
        change("echo changed > d7/f3", &["C d7/f3"]),
        change("echo changed > d59/deep/er/g20", &["C d59/deep/er/g20"]),
        // The same length, and the time of before.
        change("at=$(stat -c %y d9/f1); echo 9 X > d9/f1; touch -d \"$at\" d9/f1", &["C d9/f1"]),
        change("rm d9/deep/er/g1; echo other > d9/deep/er/h1", &["R d9/deep/er/g1", "A d9/deep/er/h1"]),
        change("mv d9/f2 d10/moved", &["A d10/moved", "R d9/f2"]),
        change("mv d11/deep/er d11/deep/est && mv d11/deep/est d11/deep/er", &[]),
        change("chmod 600 d12/f5; chown 7 d13/deep", &["C d12/f5", "C d13/deep"]),
        change("rm -r d14 && mkdir -p d14/deep/er && echo 14 1 > d14/f1", &["*"]),
        change("rm d15/f1 && mkdir d15/f1 && echo in > d15/f1/in", &["C d15/f1", "A d15/f1/in"]),
        change("ln d16/f1 d17/link; ln -s x d18/s", &["A d17/link", "A d18/s"]),
        change(
            "rm -r /etc/own; mkdir /etc/own; echo 1 > /etc/own/other",
            &["R /etc/own/file", "A /etc/own/other"],
        ),
        change("echo 2 > /etc/apt/file; rm -r /etc/ssl", &["C /etc/apt/file", "R /etc/ssl"]),
    ] {
        let done = server.sh(&sandbox, &format!("cd {t} && {line}")).await;
        assert_eq!(done.code, Some(0), "{line}: {done:?}");
        let diff = server.client.diff_sandbox(&sandbox, Some(&first), None, false).await.unwrap();
        let mut seen: Vec<String> = diff.changes.iter().map(mark).collect();
        let back = server.client.rollback_sandbox(&sandbox, Some(&first)).await;
        assert!(back.is_ok(), "{line}: {back:?}");
        if expected == ["*"] {
            // All but the files that are there again, with the same content.
            assert_eq!(seen.len(), 19 + 20, "{line}: {seen:?}");
            assert!(seen.iter().all(|line| line.starts_with(&format!("R {t}/d14/"))), "{seen:?}");
            continue;
        }
        // Of a directory of the image that is gone only itself is looked for.
        seen.retain(|line| !line.starts_with("R /etc/ssl/"));
        let full = |line: &&str| {
            let (kind, path) = line.split_once(' ').unwrap();
            if path.starts_with('/') { (*line).to_owned() } else { format!("{kind} {t}/{path}") }
        };
        let mut wanted: Vec<String> = expected.iter().map(full).collect();
        seen.sort();
        wanted.sort();
        assert_eq!(seen, wanted, "{line}");
    }
    server.finish().await;
}

fn mark(change: &atoll_core::snapshot::Change) -> String {
    let mark = match change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Changed => 'C',
        ChangeKind::Removed => 'R',
    };
    format!("{mark} {}", change.path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_goes_back_under_its_own_id() {
    let mut server = Server::start();
    let create = CreateSandbox { name: Some("box".into()), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh("box", "echo one > /home/user/f").await;
    let first = checkpoint(&server, "box").await.to_string();
    server.sh("box", "echo two > /home/user/f; echo more > /home/user/more").await;
    checkpoint(&server, "box").await;
    // A client waits for a command that runs.
    let exec = server.shell("box", "echo begun; sleep 1000").await;
    follow(&server, "box", &exec, 6).await;
    let waits = server.client.get_exec("box", &exec, 60_000);
    let (waited, back) = tokio::join!(waits, server.client.rollback_sandbox("box", Some(&first)));
    let back = back.unwrap();
    assert_eq!((back.sandbox.id.as_str(), back.to.checkpoint), (id.as_str(), Some(1)));
    let ended = waited.unwrap();
    let exit = ended.exit.unwrap();
    assert_eq!((exit.reason, exit.code), (ExitReason::RolledBack, None));
    let (out, _) = outputs(&server, "box", &exec).await;
    assert_eq!(out, b"begun\n");
    let look = "cat /home/user/f; ls /home/user; pgrep -x sleep; hostname";
    assert_eq!(server.sh("box", look).await.stdout, "one\nf\nbox\n");
    // Its checkpoints stay, and it can go forward again.
    let words = server.cli(&["rollback", "box", "2"]).ok().stdout;
    assert!(words.contains("checkpoint 2"), "{words}");
    assert_eq!(server.sh("box", "cat /home/user/f; ls /home/user").await.stdout, "two\nf\nmore\n");
    // An impossible rollback is refused, and changes nothing.
    let small = ResourcesDraft { disk_bytes: Some(64 << 20), ..ResourcesDraft::default() };
    let other = CreateSandbox { resources: small, ..CreateSandbox::default() };
    let other = server.client.create_sandbox(&other).await.unwrap().id;
    let order = CreateSnapshot { tags: vec!["large".into()], ..CreateSnapshot::default() };
    let large = server.client.create_snapshot("box", &order).await.unwrap();
    assert_eq!(code(server.client.rollback_sandbox(&other, Some("large")).await), Code::SnapshotIncompatible);
    assert_eq!(code(server.client.rollback_sandbox("box", Some("9")).await), Code::SnapshotNotFound);
    assert_eq!(code(server.client.rollback_sandbox(&other, None).await), Code::SnapshotNotFound);
    assert_eq!(server.sh("box", "cat /home/user/f").await.stdout, "two\n");
    server.client.delete_snapshot(&large.id).await.unwrap();
    // It is taken up after a restart like any other.
    server.kill();
    server.restart();
    assert_eq!(server.sh("box", "cat /home/user/f").await.stdout, "two\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_can_be_undone() {
    let server = Server::start();
    let id =
        server.cli(&["create", "--auto-checkpoints", "3", "--name", "box"]).ok().stdout.trim().to_owned();
    for number in 1..=3 {
        server.sh("box", &format!("echo {number} >> /home/user/f")).await;
    }
    // When it was made, and after each; three are kept.
    let kept = server.client.list_checkpoints(&id).await.unwrap().items;
    let numbers: Vec<_> = kept.iter().map(|one| (one.checkpoint.unwrap(), one.automatic)).collect();
    assert_eq!(numbers, [(4, true), (3, true), (2, true)]);
    server.cli(&["undo", "box"]).ok();
    // Looking is a command, too: seen through the file API.
    let seen = async || {
        let path = format!("/v1/sandboxes/{id}/files?path=/home/user/f");
        server.send(server.request("GET", &path)).await.text()
    };
    assert_eq!(seen().await, "1\n2\n");
    // A checkpoint that the user took does not count among the automatic ones.
    server.client.create_checkpoint(&id, &CreateCheckpoint::default()).await.unwrap();
    server.sh("box", "rm /home/user/f").await;
    assert_eq!(server.client.list_checkpoints(&id).await.unwrap().items.len(), 4);
    server.cli(&["undo", "box"]).ok();
    assert_eq!(seen().await, "1\n2\n");
    for keep in ["0", "1001"] {
        assert_ne!(server.cli(&["create", "--auto-checkpoints", keep]).code, Some(0));
    }
    server.finish().await;
}
