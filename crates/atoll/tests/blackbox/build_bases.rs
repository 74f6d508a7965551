//! What a build begins from: another template, images of a registry, a snapshot. Each goes on in the result, and may go
//! away afterwards.

use crate::builds::{built, context, dockerfile, from_template, states, steps, text};
use StepState::{Cached, Done};
use atoll_api::{CreateBuild, CreateSandbox};
use atoll_blackbox::Server;
use atoll_core::Code;
use atoll_core::build::{BuildState, CommandText, Ready, StartFrom, StepState};
use atoll_testing::{Entry, Flavour, Layout, Registry};

#[tokio::test(flavor = "multi_thread")]
async fn a_build_goes_on_from_a_template() {
    let server = Server::start();
    let base = "FROM host\nENV BELOW=yes\nWORKDIR /app\nRUN echo one > said\n";
    let ready = Ready {
        command: Some(CommandText::Shell("test -e /tmp/up".into())),
        port: None,
        timeout_ms: None,
        interval_ms: None,
    };
    let start = StartFrom::Command(CommandText::Shell("touch /tmp/up; exec sleep 1000".into()));
    let create = CreateBuild {
        start: Some(start),
        ready: Some(ready),
        tags: vec!["stable".into()],
        ..dockerfile("base", base)
    };
    assert_eq!(built(&server, &create).await.0.state, BuildState::Succeeded);
    assert_eq!(server.client.list_template_tags("base").await.unwrap().items[0].version, 1);
    let meant = server.client.list_tag_assignments("base", "stable").await.unwrap().items;
    assert_eq!(meant.iter().map(|one| one.version).collect::<Vec<_>>(), [1]);
    let unknown = server.client.list_tag_assignments("base", "none").await.unwrap_err();
    assert_eq!(unknown.code(), Some(Code::TemplateNotFound));
    let newer = dockerfile("base", "FROM host\nRUN echo newer > /said\n");
    assert_eq!(built(&server, &newer).await.0.state, BuildState::Succeeded);
    let text = "FROM template://base:stable AS below\nRUN echo two >> said\n\
                FROM below\nCOPY --from=template://base:1 /app/said before\nRUN cat before said > both\n";
    for state in [Done, Cached] {
        let (build, entries) = built(&server, &dockerfile("child", text)).await;
        assert_eq!(build.state, BuildState::Succeeded, "{entries:#?}");
        assert_eq!(steps(&entries).last().unwrap().1, state);
    }
    // The template that it was made from may go.
    server.client.delete_template("base", None).await.unwrap();
    let id = from_template(&server, "child").await;
    let said = server.sh(&id, "cat both; echo $BELOW; pwd; ls /tmp/up").await;
    assert_eq!(said.stdout, "one\none\ntwo\nyes\n/app\n/tmp/up\n", "the start command is the base's");
    let (build, _) = built(&server, &dockerfile("none", "FROM template://nothing\n")).await;
    assert_eq!(build.failure.unwrap().code, Code::TemplateNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_pulls_its_images_from_a_registry() {
    let server = Server::with(&["--registry-allow", "127.0.0.0/8"]);
    let registry = Registry::start(Flavour::Open);
    let tool = vec![Entry::file("opt/app/tool", b"from the second image\n").owner(1234, 1234)];
    let base = Layout::new(&[crate::common::base_layer()]).config(&[
        "--config.user=app",
        "--config.env=GREETING=from the image",
        "--config.workingdir=/opt/app",
        "--config.cmd=cat",
    ]);
    let base = registry.push(&base.source(), "base:1", &[]);
    let tools = registry.push(&Layout::new(&[crate::common::base_layer(), tool]).source(), "tools:1", &[]);
    let text = format!(
        "ARG BASE={base}\nFROM {tools} AS tools\n\
         FROM $BASE\nUSER root\nRUN echo $GREETING > /made && id -u >> /made && pwd >> /made\n\
         COPY --from=tools /opt/app/tool /opt/tool\nUSER app\n"
    );
    let (build, entries) = built(&server, &dockerfile("pulled", &text)).await;
    assert_eq!(build.template.as_deref(), Some("pulled:1"), "{build:?} {entries:?}");
    let id = from_template(&server, "pulled").await;
    let seen = server.sh(&id, "cat /made /opt/tool; id -u; echo $GREETING; pwd").await;
    let wanted = "from the image\n0\n/opt/app\nfrom the second image\n1234\nfrom the image\n/opt/app\n";
    assert_eq!(seen.stdout, wanted, "{seen:?}");
    // Its image is known by its digest and stays as long as the template does.
    let image = server.client.get_template("pulled", None).await.unwrap().image;
    assert_eq!(image, base);
    // A snapshot of it goes only where exactly that image is.
    let digest = server.client.get_sandbox(&id).await.unwrap().image_digest.unwrap();
    server.cli(&["snapshot", "create", "-t", "travels", &id]).ok();
    let dir = context(&[]);
    let file = dir.path().join("travels.atoll");
    server.cli(&["snapshot", "export", "travels", self::text(&file)]).ok();
    server.cli(&["snapshot", "rm", "travels"]).ok();
    let there = Server::start();
    let refused = there.cli(&["snapshot", "import", self::text(&file)]);
    assert!(refused.code != Some(0) && refused.stderr.contains(&digest), "{refused:?}");
    assert!(
        there.client.list_snapshots(&atoll_client::ListSnapshots::default()).await.unwrap().items.is_empty()
    );
    there.finish().await;
    // The second time nothing is pulled and nothing runs: the registry need not be there.
    drop(registry);
    let (build, entries) = built(&server, &dockerfile("pulled", &text)).await;
    assert_eq!(build.state, BuildState::Succeeded, "{build:?}");
    assert!(states(&entries).iter().all(|state| *state == Cached), "{entries:?}");
    let unknown = format!("FROM {}\nRUN true\n", base.replace("base:1", "other:1"));
    let (build, _) = built(&server, &dockerfile("bad", &unknown)).await;
    let failure = build.failure.unwrap();
    assert!(failure.message.starts_with("line 1, column 1: "), "{failure:?}");
    let metrics = server.send(server.request("GET", "/metrics")).await.text();
    for line in [
        "atoll_builds_ended_total{state=\"succeeded\"} 2",
        "atoll_builds_ended_total{state=\"failed\"} 1",
        "atoll_builds{state=\"running\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_can_be_built_on() {
    let server = Server::start();
    let create = CreateSandbox {
        user: Some("nobody".into()),
        workdir: Some("/srv/app".into()),
        env: [("FROM_SANDBOX".to_owned(), "yes".to_owned())].into(),
        ..CreateSandbox::default()
    };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.cli(&["exec", "--user", "root", &id, "--", "sh", "-c", "echo kept > /kept"]).ok();
    server.cli(&["snapshot", "create", "--tag", "base:one", &id]).ok();
    server.client.delete_sandbox(&id).await.unwrap();
    let text = "FROM snapshot://base:one\nRUN echo $FROM_SANDBOX $PWD $(id -un) > /tmp/seen\n";
    let (build, entries) = built(&server, &dockerfile("on-it", text)).await;
    assert_eq!(build.template.as_deref(), Some("on-it:1"), "{entries:?}");
    // It stands on its own.
    server.cli(&["snapshot", "rm", "base:one"]).ok();
    let id = from_template(&server, "on-it").await;
    assert_eq!(
        server.sh(&id, "cat /kept /tmp/seen; echo $FROM_SANDBOX").await.stdout,
        "kept\nyes /srv/app nobody\nyes\n"
    );
    server.client.delete_sandbox(&id).await.unwrap();
    let (build, _) = built(&server, &dockerfile("none", "FROM snapshot://base:one\nRUN true\n")).await;
    let failure = build.failure.unwrap();
    assert_eq!(failure.code, Code::SnapshotNotFound);
    assert!(failure.message.starts_with("line 1, column 1: FROM snapshot://"), "{}", failure.message);
    server.finish().await;
}
