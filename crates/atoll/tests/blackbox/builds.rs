//! Builds of templates with the real program: Dockerfiles, stages, cache, failures, hostile contexts, cancelling, `kill -9`.
//! `build_bases` has what builds begin from, `build_starts` what their templates start; both use the helpers at the top
//! here. `build_mounts` has what only one step sees.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::code;
use StepState::{Cached, Done};
use atoll_api::{Build, CreateBuild, CreateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::ListSandboxes;
use atoll_core::Code;
use atoll_core::build::{BuildEvent, BuildState, StepState};
use atoll_core::limits::BUILD_INSTRUCTIONS_MAX_COUNT;
use atoll_testing::{Entry, Flavour, Layout, PASSWORD, Registry, USERNAME};
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with files.
pub(crate) fn context(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::Builder::new().prefix("atoll-context-").tempdir().unwrap();
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn dockerfile(name: &str, text: &str) -> CreateBuild {
    CreateBuild { name: name.into(), dockerfile: Some(text.into()), ..CreateBuild::default() }
}

/// All entries of a build's log, once it has ended.
async fn log(server: &Server, build: &str) -> Vec<BuildEvent> {
    let mut log = server.client.follow_build(build, true, atoll_client::ResumePolicy::default());
    let mut entries = Vec::new();
    while let Some(entry) = log.next().await.unwrap() {
        entries.push(entry);
    }
    entries
}

pub(crate) async fn built(server: &Server, create: &CreateBuild) -> (Build, Vec<BuildEvent>) {
    let build = server.client.create_build(create).await.unwrap();
    let entries = log(server, &build.id).await;
    (server.client.get_build(&build.id).await.unwrap(), entries)
}

/// The outcome of each step, by its text.
pub(crate) fn steps(entries: &[BuildEvent]) -> Vec<(String, StepState)> {
    let step = |entry: &BuildEvent| match entry {
        BuildEvent::Step { text, state, .. } if *state != StepState::Started => Some((text.clone(), *state)),
        _ => None,
    };
    entries.iter().filter_map(step).collect()
}

pub(crate) fn states(entries: &[BuildEvent]) -> Vec<StepState> {
    steps(entries).into_iter().map(|(_, state)| state).collect()
}

pub(crate) async fn from_template(server: &Server, template: &str) -> String {
    let create = CreateSandbox { template: Some(template.into()), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.unwrap().id
}

const APP: &str = "FROM host\nARG GREETING=hello\nENV WHO=world\nWORKDIR /app\nRUN echo one > first; echo out\n\
                   COPY src/ ./src/\nCOPY --chmod=755 run.sh /usr-local/bin/\nRUN cat src/a > copied && echo $GREETING > greeting\n\
                   CMD [\"sh\", \"-c\", \"sleep 1000\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_dockerfile_becomes_a_template_and_the_second_build_is_cached() {
    let server = Server::start();
    let dir = context(&[
        ("Dockerfile", APP),
        ("src/a", "first a\n"),
        ("src/sub/b", "b\n"),
        ("src/secret", "no\n"),
        ("run.sh", "#!/bin/sh\necho ran\n"),
        (".dockerignore", "**/secret\n"),
    ]);
    let first = server.cli(&["template", "build", text(dir.path()), "-t", "app"]).ok();
    assert_eq!(first.stdout, "app:1\n", "{first:?}");
    assert!(first.stderr.contains("[3/6] RUN echo one > first; echo out"), "{first:?}");
    assert!(first.stderr.contains(" out\n") && first.stderr.contains(" DONE "), "{first:?}");
    let id = from_template(&server, "app").await;
    let seen = server
        .sh(&id, "pwd; echo $WHO; cat first copied greeting; ls src; /usr-local/bin/run.sh; stat -c '%u:%g %a' src/a")
        .await;
    assert_eq!(seen.stdout, "/app\nworld\none\nfirst a\nhello\na\nsub\nran\n0:0 644\n", "{seen:?}");

    // Again: nothing runs, and the version is a new one on the same snapshot.
    let again = server.cli(&["template", "build", text(dir.path()), "-t", "app", "--json"]).ok();
    let entries: Vec<BuildEvent> =
        again.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(states(&entries), [Cached; 6]);
    assert!(
        matches!(entries.last().unwrap(), BuildEvent::End { template: Some(made), .. } if made == "app:2")
    );

    // A changed file is built again from where it is copied; the steps before that are kept.
    fs::write(dir.path().join("src/a"), "second a\n").unwrap();
    let changed = server.cli(&["template", "build", text(dir.path()), "-t", "app", "--json"]).ok();
    let entries: Vec<BuildEvent> =
        changed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(states(&entries), [Cached, Cached, Cached, Done, Done, Done]);
    let id = from_template(&server, "app:3").await;
    assert_eq!(server.sh(&id, "cat copied").await.stdout, "second a\n");
    // So does an argument, from the first command after its declaration.
    let argument =
        ["template", "build", text(dir.path()), "-t", "app", "--json", "--build-arg", "GREETING=hi"];
    let entries: Vec<BuildEvent> =
        server.cli(&argument).ok().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(states(&entries), [Cached, Done, Done, Done, Done, Done]);

    // A file that is left out does not count, and the old version does not change.
    fs::write(dir.path().join("src/secret"), "changed\n").unwrap();
    let entries: Vec<BuildEvent> =
        server.cli(&argument).ok().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(states(&entries), [Cached; 6]);
    let id = from_template(&server, "app:1").await;
    assert_eq!(server.sh(&id, "cat copied").await.stdout, "first a\n");

    // Nothing is cached when asked not to.
    let entries: Vec<BuildEvent> = server
        .cli(&["template", "build", text(dir.path()), "-t", "app", "--json", "--no-cache"])
        .ok()
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(states(&entries), [Cached, Done, Done, Done, Done, Done]);

    // Pruning takes nothing from under a template; a template that goes takes its snapshot along.
    let listed = server.cli(&["build", "cache", "ls", "--json"]).ok().json();
    assert!(listed["items"].as_array().unwrap().len() > 4, "{listed}");
    server.cli(&["build", "cache", "prune"]).ok();
    assert_eq!(server.client.build_cache().await.unwrap().items.len(), 0);
    let id = from_template(&server, "app:3").await;
    assert_eq!(server.sh(&id, "cat copied").await.stdout, "second a\n");
    let snapshot = server.client.get_template("app", Some(3)).await.unwrap().snapshot.unwrap();
    assert!(server.client.get_snapshot(&snapshot).await.is_ok());
    server.cli(&["template", "rm", "app"]).ok();
    wait_until("the template's snapshot to go", async || {
        let found = server.client.get_snapshot(&snapshot).await;
        found.is_err_and(|error| error.code() == Some(Code::SnapshotNotFound)).then_some(())
    })
    .await;
    assert_eq!(server.cli(&["build", "ls", "--json"]).ok().json()["items"].as_array().unwrap().len(), 6);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_give_files_to_each_other_and_unneeded_ones_do_not_run() {
    let server = Server::start();
    let text = "FROM host AS base\nRUN mkdir -p /out/d && echo made > /out/d/f && chown -R 7:8 /out && ln -s d /out/l\n\
                FROM host AS unused\nRUN exit 9\n\
                FROM base AS more\nRUN echo more > /out/more\n\
                FROM host\nCOPY --from=more /out /from-more\nCOPY --from=0 /out/d/* /star/\n\
                COPY --from=base --chown=3:4 /out/l/f /renamed\nCOPY <<EOF /inline\nhello\nEOF\n";
    let (build, entries) = built(&server, &dockerfile("stages", text)).await;
    assert_eq!(build.state, BuildState::Succeeded, "{build:?} {entries:?}");
    assert!(!steps(&entries).iter().any(|(text, _)| text.contains("exit 9")), "{entries:?}");
    let id = from_template(&server, "stages").await;
    let seen = server
        .sh(&id, "cat /from-more/more /star/f /renamed /inline /from-more/l/f; stat -c %u:%g /from-more/d/f /renamed; ls /out")
        .await;
    assert!(seen.stdout.starts_with("more\nmade\nmade\nhello\nmade\n7:8\n3:4\n"), "{seen:?}");
    assert_ne!(seen.code, Some(0), "the final stage has nothing of the others but what it copied");
    // The last step changed: the stages are not even looked into.
    let changed = text.replace("hello", "other");
    let (_, entries) = built(&server, &dockerfile("stages", &changed)).await;
    let done: Vec<_> = steps(&entries).into_iter().filter(|(_, state)| *state == Done).collect();
    assert_eq!(done.len(), 1, "{entries:?}");
    // A target.
    let (build, _) =
        built(&server, &CreateBuild { target: Some("more".into()), ..dockerfile("target", text) }).await;
    assert_eq!(build.template.as_deref(), Some("target:1"));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_named_and_leaves_nothing() {
    let server = Server::with(&["--registry-allow", "127.0.0.0/8"]);
    let text = "FROM host\nRUN echo fine\nRUN echo last words; exit 7\nRUN never\n";
    let (build, entries) = built(&server, &dockerfile("fails", text)).await;
    let failure = build.failure.clone().unwrap();
    assert_eq!((build.state, failure.code), (BuildState::Failed, Code::BuildStepFailed), "{build:?}");
    assert_eq!((failure.exit_code, failure.output.as_deref()), (Some(7), Some("last words")));
    let packages = dockerfile("packages", "FROM host\nRUN apt-get install -y jq\n");
    let hint = built(&server, &packages).await.0.failure.unwrap().hint.unwrap();
    assert!(hint.contains("the image 'host' has this machine's programs"), "{hint}");
    assert_eq!(failure.message, "line 3, column 1: 'RUN echo last words; exit 7' exited with code 7");
    assert_eq!(states(&entries), [Cached, Done, StepState::Failed]);
    assert_eq!(code(server.client.get_template("fails", None).await), Code::TemplateNotFound);
    let (build, _) =
        built(&server, &dockerfile("offline", "FROM host\nRUN getent hosts packages.test\n")).await;
    let hint = build.failure.unwrap().hint.unwrap_or_default();
    assert!(hint.contains("packages.test") && hint.contains("--allow packages.test"), "{hint}");
    // The steps before it are kept.
    let (_, entries) =
        built(&server, &dockerfile("fails", &text.replace("exit 7", "true").replace("never", "true"))).await;
    assert_eq!(states(&entries)[..2], [Cached; 2]);

    let refusals = [
        ("FROM host\nFETCH x", Code::BuildFileInvalid, "line 2, column 1: there is no instruction 'FETCH'"),
        ("FROM host\nONBUILD RUN x", Code::InstructionUnsupported, "line 2, column 1: ONBUILD"),
        ("FROM host AS a\nCOPY --from=a /x /", Code::BuildFileInvalid, "line 2, column 1: "),
    ];
    for (text, want, message) in refusals {
        let (refused_code, refused_message) = match server.client.create_build(&dockerfile("bad", text)).await
        {
            Ok(build) => {
                log(&server, &build.id).await;
                let failure = server.client.get_build(&build.id).await.unwrap().failure.unwrap();
                (failure.code, failure.message)
            }
            Err(error) => (error.code().unwrap(), error.to_string()),
        };
        assert_eq!(refused_code, want, "{text}");
        assert!(refused_message.contains(message), "{refused_message}");
    }
    let many = format!("FROM host\n{}", "RUN true\n".repeat(BUILD_INSTRUCTIONS_MAX_COUNT));
    assert_eq!(code(server.client.create_build(&dockerfile("bad", &many)).await), Code::TooLarge);
    let (build, _) = built(&server, &dockerfile("bad", "FROM 127.0.0.1:1/no/such:1\nRUN true")).await;
    let failure = build.failure.unwrap();
    assert_eq!(failure.code, Code::RegistryUnavailable, "{failure:?}");
    assert!(
        failure.message.starts_with("line 1, column 1: the image '127.0.0.1:1/no/such:1'"),
        "{failure:?}"
    );

    // From the command line: place, output and hint, and a file that is not there.
    let dir = context(&[("Dockerfile", "FROM host\nCOPY nope /\n")]);
    let missing = server.cli(&["template", "build", self::text(dir.path()), "-t", "bad"]);
    assert_eq!(missing.code, Some(125));
    assert!(missing.stderr.contains("line 2, column 1: 'nope' is not in the context"), "{missing:?}");
    assert!(missing.stderr.contains("hint:"), "{missing:?}");
    let failed = server.send(server.request("GET", "/v1/builds?state=failed")).await.json();
    assert!(failed["items"].as_array().unwrap().len() >= 3, "{failed}");
    assert!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_contexts_are_refused_and_the_build_still_waits() {
    let server = Server::start();
    let build = server.client.create_build(&dockerfile("ctx", "FROM host\nCOPY a /a\n")).await.unwrap();
    assert_eq!((build.state, build.needs_context), (BuildState::Waiting, true));
    let tar = |entries: &[Entry]| Bytes::from(atoll_testing::tar_of(entries));
    let send = async |tar: Bytes| {
        let body = futures::stream::iter([Ok::<_, std::io::Error>(tar)]);
        server.client.put_build_context(&build.id, body).await
    };
    for hostile in [
        tar(&[Entry::file("../a", b"x")]),
        tar(&[Entry::file("/a", b"x")]),
        tar(&[Entry::symlink("l", "/etc"), Entry::file("l/a", b"x")]),
        tar(&[Entry::fifo("a")]),
        Bytes::from_static(b"this is not a tar archive at all, however long it may be"),
    ] {
        assert_eq!(code(send(hostile).await), Code::BuildContextInvalid);
    }
    assert_eq!(server.client.get_build(&build.id).await.unwrap().state, BuildState::Waiting);
    // A link out of the context is fine as long as no instruction follows it.
    let with_link = tar(&[Entry::symlink("out", "/etc/passwd"), Entry::file("a", b"x")]);
    send(with_link).await.unwrap();
    log(&server, &build.id).await;
    assert_eq!(server.client.get_build(&build.id).await.unwrap().state, BuildState::Succeeded);
    assert_eq!(code(send(Bytes::new()).await), Code::InvalidState);
    let build = server.client.create_build(&dockerfile("ctx", "FROM host\nCOPY out /a\n")).await.unwrap();
    let body = futures::stream::iter([Ok::<_, std::io::Error>(tar(&[Entry::symlink("out", "/etc/passwd")]))]);
    server.client.put_build_context(&build.id, body).await.unwrap();
    log(&server, &build.id).await;
    let failure = server.client.get_build(&build.id).await.unwrap().failure.unwrap();
    assert_eq!(failure.code, Code::BuildContextInvalid, "{failure:?}");
    server.finish().await;
}

/// Waits until a step has written output.
async fn until_output(server: &Server, build: &str) {
    wait_until("output of the build", async || {
        let page = server.client.build_log(build, 0, 1000).await.unwrap();
        page.entries.iter().any(|entry| matches!(entry, BuildEvent::Output { .. })).then_some(())
    })
    .await;
}

const SLOW: &str = "FROM host\nRUN echo kept > /kept\nRUN echo slow; sleep 1000\n";

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_killed_builds_leave_nothing_but_the_cache() {
    let mut server = Server::start();
    let build = server.client.create_build(&dockerfile("slow", SLOW)).await.unwrap();
    until_output(&server, &build.id).await;
    let cancelled = server.client.cancel_build(&build.id).await.unwrap();
    assert_eq!(
        (cancelled.state, cancelled.failure.unwrap().code),
        (BuildState::Cancelled, Code::BuildCancelled)
    );
    assert!(server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.is_empty());
    let again = server.client.cancel_build(&build.id).await.unwrap();
    assert_eq!(again.state, BuildState::Cancelled);

    let build = server.client.create_build(&dockerfile("slow", SLOW)).await.unwrap();
    until_output(&server, &build.id).await;
    server.kill();
    server.restart();
    let found = server.client.get_build(&build.id).await.unwrap();
    assert_eq!((found.state, found.failure.unwrap().code), (BuildState::Failed, Code::BuildInterrupted));
    let entries = log(&server, &build.id).await;
    assert!(
        matches!(entries.last().unwrap(), BuildEvent::End { state: BuildState::Failed, .. }),
        "{entries:?}"
    );
    wait_until("the build's sandbox to go", async || {
        let page = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
        page.items.is_empty().then_some(())
    })
    .await;
    // The first step is in the cache, intact.
    let (build, entries) =
        built(&server, &dockerfile("slow", &SLOW.replace("sleep 1000", "cat /kept"))).await;
    assert_eq!(build.state, BuildState::Succeeded);
    assert_eq!(states(&entries), [Cached, Cached, Done]);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_build() {
    let mut server = Server::with(&[]);
    let text = "FROM host\nRUN echo one > /one\nRUN cat /one > /two\n";
    for point in [
        "engine.build.journalled",
        "engine.build.running",
        "engine.build.worked",
        "engine.build.worked=kill@2",
        "engine.snapshot.taken",
        "engine.build.snapshot",
        "engine.build.cached",
        "engine.build.committed",
    ] {
        let armed = if point.contains('=') { point.to_owned() } else { format!("{point}=kill") };
        server.kill();
        server.restart_with(&armed);
        let asked =
            server.client.create_build(&CreateBuild { no_cache: true, ..dockerfile("app", text) }).await;
        assert!(!server.wait_end().success(), "{point} is not passed: {asked:?}");
        server.restart();
        for build in server.client.list_builds(&atoll_client::ListBuilds::default()).await.unwrap().items {
            assert!(build.state.is_final(), "{point}: {build:?}");
            // A template is there if and only if its build says so.
            if let Some(template) = &build.template {
                let (name, version) = template.split_once(':').unwrap();
                server.client.get_template(name, Some(version.parse().unwrap())).await.unwrap();
            }
        }
        wait_until("the build's sandbox to go", async || {
            let page = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
            page.items.is_empty().then_some(())
        })
        .await;
        let leaks: Value = server.cli(&["doctor", "--leaks", "--json"]).ok().json();
        assert!(leaks["items"].as_array().is_some_and(Vec::is_empty), "{point}: {leaks}");
        let (build, _) = built(&server, &dockerfile("app", text)).await;
        assert_eq!(build.state, BuildState::Succeeded, "{point}: {build:?}");
        let id = from_template(&server, build.template.as_deref().unwrap()).await;
        assert_eq!(server.sh(&id, "cat /two").await.stdout, "one\n", "{point}");
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}

/// Builds a template from an image as E2B's clients do, with their login to its registry; gives how that ended.
async fn e2b_build(server: &Server, key: &str, image: &str, registry: Value) -> (String, String) {
    let call = async |method: &str, path: &str, body: Value| {
        let request = server.bare(method, &format!("/e2b{path}")).header("X-API-Key", key);
        let answer = server.send(if body.is_null() { request } else { request.json(&body) }).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    };
    let order = call("POST", "/v3/templates", json!({"name": "of-an-image"})).await;
    let (template, build) = (order["templateID"].as_str().unwrap(), order["buildID"].as_str().unwrap());
    let begin = json!({"fromImage": image, "fromImageRegistry": registry, "steps": []});
    call("POST", &format!("/v2/templates/{template}/builds/{build}"), begin).await;
    wait_until("the build to end", async || {
        let status = call("GET", &format!("/templates/{template}/builds/{build}/status"), Value::Null).await;
        let state = status["status"].as_str().unwrap().to_owned();
        ["ready", "error"].contains(&state.as_str()).then(|| (state, status.to_string()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_of_e2b_is_known_to_the_registry_of_its_image_and_nobody_else_is_told() {
    let registry = Registry::start(Flavour::Password);
    let image = registry.push(&Layout::new(&[crate::common::base_layer()]).source(), "app:1", &[]);
    let login = |password: &str| json!({"type": "registry", "username": USERNAME, "password": password});
    let key = |server: &Server| {
        let made = server.cli(&["key", "create", "e2b", "--scope", "manage", "--for", "e2b", "--json"]).ok();
        made.json()["secret"].as_str().unwrap().to_owned()
    };
    let server = Server::with(&["--registry-allow", "127.0.0.0/8"]);
    let e2b = key(&server);
    for wrong in [Value::Null, login("wrong secret")] {
        let (state, told) = e2b_build(&server, &e2b, &image, wrong).await;
        assert!(state == "error" && told.contains("denies access"), "{told}");
    }
    assert!(!server.cli(&["image", "ls"]).ok().stdout.contains("app"));
    let (_, told) = e2b_build(&server, &e2b, &image, login(PASSWORD)).await;
    assert!(told.contains(&format!("pulled {image}")), "{told}");
    assert!(server.cli(&["image", "ls"]).ok().stdout.contains("app"));
    // The password is not on disk, not in the log, and not stored for other builds.
    let grep = Command::new("grep").args(["-rlF", PASSWORD]).arg(server.data()).output().unwrap();
    assert!(grep.stdout.is_empty() && !server.log().contains(PASSWORD), "{grep:?}");
    assert_eq!(server.cli(&["registry", "ls", "--json"]).ok().json()["items"], json!([]));
    server.finish().await;
    // A client that gives a password does not decide which addresses may be reached.
    let server = Server::start();
    let (state, told) = e2b_build(&server, &key(&server), &image, login(PASSWORD)).await;
    assert!(state == "error" && !told.contains("pulled"), "{told}");
    server.finish().await;
}
