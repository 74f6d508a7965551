//! What a template starts in each of its sandboxes: the start command, when it counts as ready, and what is said when it
//! fails or never is; also in a build that tries it out.

use crate::builds::{built, dockerfile, from_template};
use crate::common::code;
use atoll_api::{CreateBuild, CreateSandbox};
use atoll_blackbox::Server;
use atoll_client::ListSandboxes;
use atoll_core::Code;
use atoll_core::build::{
    BuildEvent, BuildState, CommandText, Ready, StartFrom, Step, StepState, VERIFY_STEP,
};

#[tokio::test(flavor = "multi_thread")]
async fn step_lists_and_what_templates_start() {
    let server = Server::start();
    let run = |line: &str| Step::Run(CommandText::Shell(line.into()));
    let serve = "while :; do date >> /tmp/alive; sleep 0.1; done";
    let create = CreateBuild {
        name: "served".into(),
        steps: Some(vec![
            Step::From("host".into()),
            Step::Env([("LITERAL".to_owned(), "$HOME".to_owned())].into()),
            run("echo \"$LITERAL\" > /literal"),
            Step::Cmd(CommandText::Shell(serve.into())),
        ]),
        start: Some(StartFrom::Image),
        ready: Some(Ready {
            command: Some(CommandText::Shell("test -s /tmp/alive".into())),
            port: None,
            timeout_ms: None,
            interval_ms: None,
        }),
        ..CreateBuild::default()
    };
    let (build, entries) = built(&server, &create).await;
    assert_eq!(build.template.as_deref(), Some("served:1"), "{entries:?}");
    let id = from_template(&server, "served").await;
    // Ready means: it is there now.
    assert_eq!(server.sh(&id, "test -s /tmp/alive && cat /literal").await.stdout, "$HOME\n");
    let execs = server.client.list_execs(&id, &atoll_client::ListExecs::default()).await.unwrap();
    assert_eq!(execs.items.iter().filter(|exec| exec.argv.join(" ").contains("alive; sleep")).count(), 1);
    server.client.delete_sandbox(&id).await.unwrap();

    // A start command that fails, and one that is never ready, leave nothing.
    for (start, ready) in [("exit 3", "true"), ("sleep 1000", "false")] {
        let args = [
            "template",
            "create",
            "bad",
            "--image",
            "host",
            "--start-cmd",
            start,
            "--ready-cmd",
            ready,
            "--ready-timeout",
            "2s",
        ];
        server.cli(&args).ok();
        let create = CreateSandbox { template: Some("bad".into()), ..CreateSandbox::default() };
        let refused = server.client.create_sandbox(&create).await;
        if start == "exit 3"
            && let Ok(made) = &refused
        {
            // It may have been ready before its end was seen.
            server.client.delete_sandbox(&made.id).await.unwrap();
            continue;
        }
        assert_eq!(code(refused), Code::StartFailed, "{start}");
    }
    // The sandbox is gone; the output of its start command is told.
    // The command writes to one stream only, as it is not defined which of two is read first.
    let start = "seq 1 99 >&2; echo cannot open the port >&2; sleep 1000";
    server
        .cli(&[
            "template",
            "create",
            "mute",
            "--image",
            "host",
            "--start-cmd",
            start,
            "--ready-port",
            "1",
            "--ready-timeout",
            "2s",
        ])
        .ok();
    let refused = server.cli(&["create", "--template", "mute"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    for said in
        ["not ready within 2 seconds", "the start command wrote last:\n81\n82\n", "99\ncannot open the port"]
    {
        assert!(refused.stderr.contains(said), "{said}: {refused:?}");
    }
    assert!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_template_starts_is_tried_out_when_asked_for() {
    let server = Server::start();
    let ready = |command: &str| Ready {
        command: Some(CommandText::Shell(command.into())),
        port: None,
        timeout_ms: Some(2000),
        interval_ms: None,
    };
    let create = |start: &str, ready: Option<Ready>| CreateBuild {
        start: Some(StartFrom::Command(CommandText::Shell(start.into()))),
        ready,
        verify: true,
        ..dockerfile("tried", "FROM host\nRUN echo built > /built\n")
    };
    for (start, ready, says, wrote) in [
        (
            "echo no such port >&2; exit 3",
            Some(ready("false")),
            "the start command ended with code 3",
            "no such port",
        ),
        ("echo slow; sleep 1000", Some(ready("false")), "not ready within 2 seconds", "slow"),
        // Ready all the same, and where nothing says when it is ready.
        ("exit 4", Some(ready("sleep 0.5")), "the start command ended with code 4", "wrote nothing"),
        ("echo early; exit 5", None, "the start command ended with code 5", "early"),
    ] {
        let (build, entries) = built(&server, &create(start, ready)).await;
        let failure = build.failure.unwrap();
        assert_eq!((build.state, failure.code), (BuildState::Failed, Code::StartFailed), "{start}");
        assert!(failure.message.contains(says), "{failure:?}");
        assert!(failure.hint.unwrap_or_default().contains(wrote), "{start}");
        assert_eq!(failure.step.as_deref(), Some(VERIFY_STEP));
        let failed = entries.iter().any(|entry| {
            matches!(entry, BuildEvent::Step { text, state: StepState::Failed, step, total, .. }
                if text == VERIFY_STEP && step == total)
        });
        assert!(failed, "{entries:?}");
    }
    let (build, entries) =
        built(&server, &create("cat /built; touch /said; sleep 1000", Some(ready("test -e /said")))).await;
    assert_eq!(build.template.as_deref(), Some("tried:1"), "nothing before it was a version: {entries:?}");
    let wrote =
        entries.iter().any(|entry| matches!(entry, BuildEvent::Output { text, .. } if text == "built\n"));
    assert!(wrote, "{entries:?}");
    assert!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.is_empty());
    // Nothing to start, nothing to try out; and what a template below starts is.
    let below = CreateBuild { verify: true, ..dockerfile("plain", "FROM host\nRUN true\n") };
    let (build, entries) = built(&server, &below).await;
    assert_eq!(build.template.as_deref(), Some("plain:1"));
    let verified = |entries: &[BuildEvent]| {
        entries.iter().any(|entry| matches!(entry, BuildEvent::Step { text, .. } if text == VERIFY_STEP))
    };
    assert!(!verified(&entries));
    let text = "FROM template://tried\nRUN rm /built\n";
    let on_it = CreateBuild { verify: true, ..dockerfile("child", text) };
    let (build, entries) = built(&server, &on_it).await;
    assert!(build.template.is_some() && verified(&entries), "{entries:?}");
    server.finish().await;
}
