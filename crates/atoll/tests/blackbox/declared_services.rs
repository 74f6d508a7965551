//! Services that a sandbox begins with: a template's, and those that are asked for with it.

use crate::common::code;
use atoll_api::{CreateSandbox, CreateService, CreateTemplate, ForkSandbox, Service};
use atoll_blackbox::{Server, wait_until};
use atoll_core::Code;
use atoll_core::build::CommandText;
use atoll_core::service::{Restart, ServiceReady, ServiceState};
use serde_json::json;

fn service(name: &str, line: &str, after: &[&str]) -> CreateService {
    CreateService {
        name: name.to_owned(),
        shell: Some(line.to_owned()),
        after: after.iter().map(|&name| name.to_owned()).collect(),
        ..CreateService::default()
    }
}

fn ready_when(command: &str) -> Option<ServiceReady> {
    Some(ServiceReady {
        command: Some(CommandText::Shell(command.to_owned())),
        port: None,
        path: None,
        interval_ms: Some(20),
        timeout_ms: None,
    })
}

fn template(name: &str, more: serde_json::Value, services: Vec<CreateService>) -> CreateTemplate {
    let mut recipe = json!({"name": name, "image": "host"});
    recipe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    CreateTemplate { services, ..serde_json::from_value(recipe).unwrap() }
}

fn of(template: &str) -> CreateSandbox {
    CreateSandbox { template: Some(template.to_owned()), ..CreateSandbox::default() }
}

async fn get(server: &Server, sandbox: &str, name: &str) -> Service {
    server.client.get_service(sandbox, name, 0).await.unwrap()
}

async fn until(server: &Server, sandbox: &str, name: &str, state: ServiceState) -> Service {
    wait_until(&format!("{name} to be {state:?}"), async || {
        Some(get(server, sandbox, name).await).filter(|is| is.state == state)
    })
    .await
}

/// A data base that takes a moment, a service that fills it, and one that serves it: each notes when it began.
fn three() -> Vec<CreateService> {
    let db = "echo db >> /root/order; sleep 0.2; touch /root/up; exec sleep 1000";
    let db = CreateService { ready: ready_when("test -e /root/up"), ..service("db", db, &[]) };
    let fill = service("fill", "test -e /root/up && echo fill >> /root/order", &["db"]);
    let fill = CreateService { restart: Some(Restart::OnFailure), ..fill };
    vec![service("web", "echo web >> /root/order; exec sleep 1000", &["fill", "db"]), fill, db]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_brings_services_that_start_in_their_order() {
    let mut server = Server::start();
    let made = server.client.create_template(&template("app", json!({}), three())).await.unwrap();
    let names: Vec<_> = made.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["db", "fill", "web"]);
    assert_eq!(made.services[2].after, ["fill", "db"]);
    let sandbox = server.client.create_sandbox(&of("app")).await.unwrap().id;
    // It is there when they are.
    assert_eq!(get(&server, &sandbox, "db").await.state, ServiceState::Running);
    assert_eq!(get(&server, &sandbox, "fill").await.state, ServiceState::Exited);
    assert_eq!(get(&server, &sandbox, "web").await.state, ServiceState::Running);
    wait_until("web to have begun", async || {
        let order = server.sh(&sandbox, "cat /root/order").await.stdout;
        (order == "db\nfill\nweb\n").then_some(())
    })
    .await;
    // A fork has its own, and they are removed like any.
    let fork = ForkSandbox { count: 1, ..ForkSandbox::default() };
    let child = server.client.fork_sandbox(&sandbox, &fork).await.unwrap().results.remove(0);
    let child = child.sandbox.unwrap().id;
    until(&server, &child, "web", ServiceState::Running).await;
    server.client.delete_service(&child, "web").await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(get(&server, &sandbox, "web").await.run, 1, "the same runs go on");
    until(&server, &sandbox, "web", ServiceState::Running).await;
    assert_eq!(code(server.client.get_service(&child, "web", 0).await), Code::ServiceNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_stands_in_the_place_of_the_template_s() {
    let server = Server::start();
    let recipe =
        template("app", json!({"pool": {"min": 1, "max": 1}}), vec![service("web", "exec sleep 1000", &[])]);
    server.client.create_template(&recipe).await.unwrap();
    let own = service("web", "echo mine; exec sleep 1000", &["extra"]);
    let create = CreateSandbox { services: vec![own, service("extra", "exec sleep 1000", &[])], ..of("app") };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let shell = |is: Service| is.command;
    assert_eq!(
        shell(get(&server, &sandbox, "web").await),
        CommandText::Shell("echo mine; exec sleep 1000".into())
    );
    assert_eq!(get(&server, &sandbox, "extra").await.state, ServiceState::Running);
    // One that waited in a pool begins with them when it is taken.
    let other = server.client.create_sandbox(&of("app")).await.unwrap().id;
    assert_eq!(get(&server, &other, "web").await.state, ServiceState::Running);
    server.client.delete_template("app", None).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_services_fail_is_not_made() {
    let server = Server::start();
    let bad = service("bad", "echo no port left; exit 9", &[]);
    let bad = CreateService { restart: Some(Restart::Never), ready: ready_when("false"), ..bad };
    let after = CreateService { ready: ready_when("true"), ..service("after", "exec sleep 1000", &["bad"]) };
    let create = CreateSandbox { services: vec![after, bad], ..CreateSandbox::default() };
    let error = server.client.create_sandbox(&create).await.unwrap_err();
    let said = format!("{error:?}");
    assert!(
        said.contains("'bad' is failed: it ended with code 9") && said.contains("no port left"),
        "{said}"
    );
    assert_eq!(code::<()>(Err(error)), Code::StartFailed);
    for (services, why) in [
        (vec![service("a", "x", &["b"]), service("b", "x", &["a"])], "these wait for each other: a, b"),
        (vec![service("a", "x", &["a"])], "these wait for each other: a"),
        (vec![service("a", "x", &["gone"])], "there is no service 'gone'"),
        (vec![service("a", "x", &[]), service("a", "y", &[])], "there are two services 'a'"),
        (vec![service("A!", "x", &[])], "services"),
    ] {
        let create = CreateSandbox { services: services.clone(), ..CreateSandbox::default() };
        let error = server.client.create_sandbox(&create).await.unwrap_err();
        assert!(format!("{error:?}").contains(why), "{error:?}");
        assert_eq!(code::<()>(Err(error)), Code::InvalidArgument);
        let refused = server.client.create_template(&template("app", json!({}), services)).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    let left = server.client.list_sandboxes(&atoll_client::ListSandboxes::default()).await.unwrap();
    assert_eq!(left.items, []);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_waits_for_those_it_is_started_after() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let add = async |create| server.client.create_service(&sandbox, &create).await.unwrap();
    add(service("db", "exec sleep 1000", &[])).await;
    server.client.stop_service(&sandbox, "db").await.unwrap();
    add(service("web", "exec sleep 1000", &["db"])).await;
    let waits = until(&server, &sandbox, "web", ServiceState::Waiting).await;
    assert_eq!((waits.run, waits.after.as_slice()), (0, ["db".to_owned()].as_slice()));
    wait_until("the reason", async || {
        (get(&server, &sandbox, "web").await.reason.as_deref() == Some("'db' is stopped")).then_some(())
    })
    .await;
    server.client.restart_service(&sandbox, "db").await.unwrap();
    assert_eq!(until(&server, &sandbox, "web", ServiceState::Running).await.run, 1);
    // A running service goes on without it; its next run waits again, until there is nothing to wait for.
    server.client.stop_service(&sandbox, "db").await.unwrap();
    assert_eq!(get(&server, &sandbox, "web").await.state, ServiceState::Running);
    server.client.restart_service(&sandbox, "web").await.unwrap();
    until(&server, &sandbox, "web", ServiceState::Waiting).await;
    server.client.delete_service(&sandbox, "db").await.unwrap();
    assert_eq!(until(&server, &sandbox, "web", ServiceState::Running).await.run, 2);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_there_after_a_crash_in_the_middle_of_a_creation() {
    let mut server = Server::start();
    let slow =
        CreateService { ready: ready_when("test -e /root/go"), ..service("web", "exec sleep 1000", &[]) };
    let create = CreateSandbox { name: Some("box".into()), services: vec![slow], ..CreateSandbox::default() };
    let client = server.client.clone();
    let creating = tokio::spawn(async move { client.create_sandbox(&create).await });
    wait_until("it to begin", async || {
        let service = server.client.get_service("box", "web", 0).await.ok()?;
        (service.run == 1 && service.exec.is_some()).then_some(())
    })
    .await;
    server.kill();
    creating.await.unwrap().unwrap_err();
    server.restart();
    assert_eq!(until(&server, "box", "web", ServiceState::Starting).await.run, 1);
    server.sh("box", "touch /root/go").await;
    assert_eq!(until(&server, "box", "web", ServiceState::Running).await.run, 1);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_takes_services_from_a_file() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("services.json");
    std::fs::write(&file, serde_json::to_vec(&three()).unwrap()).unwrap();
    let file = file.to_str().unwrap();
    server.cli(&["template", "create", "app", "--image", "host", "--services", file]).ok();
    server.cli(&["create", "--name", "one", "--template", "app"]).ok();
    server.cli(&["create", "--name", "two", "--services", file]).ok();
    for name in ["one", "two"] {
        let listed = server.cli(&["service", "ls", name]).ok().stdout;
        assert_eq!(listed.matches("running").count(), 2, "{listed}");
        server.cli(&["service", "add", "--wait", "--after", "web", name, "late", "--", "sleep", "1000"]).ok();
    }
    // A template that is built brings them, too, and so does one that is built on it.
    std::fs::write(dir.path().join("Dockerfile"), "FROM host\nRUN touch /root/built\n").unwrap();
    let context = dir.path().to_str().unwrap();
    server.cli(&["template", "build", context, "-t", "made", "--services", file]).ok();
    std::fs::write(dir.path().join("Dockerfile"), "FROM template://made\n").unwrap();
    server.cli(&["template", "build", context, "-t", "further"]).ok();
    server.cli(&["create", "--name", "three", "--template", "further"]).ok();
    assert_eq!(get(&server, "three", "web").await.state, ServiceState::Running);
    std::fs::write(file, r#"[{"name": "x", "nonsense": 1}]"#).unwrap();
    let wrong = server.cli(&["create", "--services", file]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("nonsense"), "{wrong:?}");
    server.finish().await;
}
