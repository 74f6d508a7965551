//! Templates with memory, at the level that has it: sandboxes that go on from one in which the start command is ready.

use crate::common::code;
use crate::common::machines::{SMALL, World, world};
use atoll_api::{CreateSandbox, CreateTemplate, PauseSandbox, PutPool, Sandbox, TemplateMemoryState};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::ListExecs;
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::sandbox::PauseMode;
use atoll_core::service::ServiceState;

/// Draws a token once, writes it down, and then answers every request with the token, the time, the host's name, and
/// random bytes from the kernel.
const START: &str = r#"
token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n'); echo started >> /root/starts; echo "token $token"
exec perl -e '
use IO::Socket::INET;
my $s = IO::Socket::INET->new(Listen => 5, LocalPort => 8000, LocalAddr => "127.0.0.1", ReuseAddr => 1) or die;
sub first { open my $f, "<", "/proc/sys/kernel/" . shift or die; my $line = <$f>; chomp $line; $line }
while (my $c = $s->accept) {
    while (<$c>) { last if /^\r?\n$/ }
    my $text = join " ", $ARGV[0], time, first("hostname"), first("random/uuid");
    print $c "HTTP/1.1 200 OK\r\nContent-Length: " . length($text) . "\r\nConnection: close\r\n\r\n$text";
    close $c;
}' "$token"
"#;

fn template() -> CreateTemplate {
    serde_json::from_value(serde_json::json!({
        "name": "web",
        "image": "debian",
        "isolation": "microvm",
        "resources": SMALL,
        "start": START,
        "ready": {"port": 8000},
        "memory": true,
    }))
    .unwrap()
}

fn web() -> CreateSandbox {
    CreateSandbox { template: Some("web".into()), ..CreateSandbox::default() }
}

async fn made(server: &Server, create: &CreateSandbox) -> Sandbox {
    server.client.create_sandbox(create).await.unwrap()
}

async fn until_saved(server: &Server) {
    wait_until("the memory is saved", async || {
        let memory = server.client.get_template("web", None).await.unwrap().memory.unwrap();
        assert_eq!(memory.problem, None);
        (memory.state == TemplateMemoryState::Saved).then_some(())
    })
    .await;
}

/// The answer of the server inside: its token, its host name, its random bytes. Its time must be right.
async fn ask(server: &Server, sandbox: &str) -> [String; 3] {
    let request = server.request("GET", &format!("/v1/sandboxes/{sandbox}/ports/8000/"));
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{status}: {text}");
    let words: Vec<&str> = text.split(' ').collect();
    let [token, time, name, random] = words[..] else { panic!("{text}") };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(time.parse().unwrap()) < 60, "it is {time} inside and {now} outside");
    [token, name, random].map(str::to_owned)
}

/// The start command of a sandbox: begun once, running, the only run of its service. Gives the exec's id.
async fn started(server: &Server, sandbox: &str, token: &str) -> String {
    assert_eq!(server.sh(sandbox, "cat /root/starts").await.stdout, "started\n");
    let all = server.client.list_execs(sandbox, &ListExecs::default()).await.unwrap().items;
    let mut running = all.into_iter().filter(|exec| exec.state == ExecState::Running);
    let (Some(exec), None) = (running.next(), running.next()) else { panic!("one exec runs in {sandbox}") };
    let said = crate::common::follow(server, sandbox, &exec.id, format!("token {token}\n").len()).await.0;
    assert_eq!(String::from_utf8_lossy(&said), format!("token {token}\n"));
    let service = server.client.get_service(sandbox, "start", 30_000).await.unwrap();
    assert_eq!((service.state, service.run), (ServiceState::Running, 1));
    assert_eq!(service.exec.as_ref(), Some(&exec.id));
    exec.id
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_go_on_from_one_that_was_ready() {
    let World { _dir, mut server } = world().await;
    server.client.create_template(&template()).await.unwrap();
    until_saved(&server).await;
    let shown = server.cli(&["template", "show", "web"]).ok().stdout;
    assert!(shown.contains(r#""state": "saved""#), "{shown}");
    let first = made(&server, &CreateSandbox { name: Some("first".into()), ..web() }).await.id;
    let second = made(&server, &web()).await.id;
    let (one, two) = (ask(&server, &first).await, ask(&server, &second).await);
    assert_eq!(one[0], two[0], "they do not go on from the same start");
    assert_eq!([&one[1], &two[1]], ["first", second.as_str()]);
    assert_ne!(one[2], two[2], "two machines draw the same");
    let (exec, other) = (started(&server, &first, &one[0]).await, started(&server, &second, &one[0]).await);

    // The next server takes both up, and has the memory still.
    server.kill();
    server.restart();
    let third = made(&server, &web()).await.id;
    assert_eq!(ask(&server, &third).await[0], one[0]);
    assert_eq!(started(&server, &first, &one[0]).await, exec);
    // It ends in one alone, as any exec does, and sleeps and wakes with its sandbox.
    server.client.kill_exec(&first, &exec).await.unwrap();
    assert_eq!(server.client.get_exec(&first, &exec, 30_000).await.unwrap().state, ExecState::Exited);
    let pause = PauseSandbox { mode: Some(PauseMode::Memory) };
    server.client.pause_sandbox(&second, &pause).await.unwrap();
    assert_eq!(ask(&server, &second).await[0], one[0]);
    assert_eq!(started(&server, &second, &one[0]).await, other);

    // A sandbox whose settings the saved memory does not have is booted.
    let env = CreateSandbox { env: [("E".to_owned(), "1".to_owned())].into(), ..web() };
    let own = made(&server, &env).await.id;
    let token = ask(&server, &own).await[0].clone();
    assert_ne!(token, one[0]);
    started(&server, &own, &token).await;
    // Members of a pool go on from it, too.
    let pool = PutPool { template: Some("web".into()), min: 1, max: 1, ..PutPool::default() };
    server.client.put_pool(&pool).await.unwrap();
    wait_until("one waits", async || {
        server.client.list_pools().await.unwrap().items.into_iter().find(|pool| pool.ready == 1)
    })
    .await;
    let waiting = host::remains(&server.installation(), server.data());
    let claimed = made(&server, &CreateSandbox { name: Some("claimed".into()), ..web() }).await.id;
    assert!(waiting.contains(&format!("directory machines/sandboxes/{claimed}")), "{claimed}: {waiting:?}");
    let told = ask(&server, &claimed).await;
    assert_eq!([&told[0], &told[1]], [&one[0], "claimed"]);
    started(&server, &claimed, &one[0]).await;
    server.client.delete_pool(Some("web"), None).await.unwrap();

    // With the template its saved memory is deleted.
    server.client.delete_template("web", None).await.unwrap();
    let memories = server.data().join("memories");
    wait_until("it is gone", async || std::fs::read_dir(&memories).unwrap().next().is_none().then_some(()))
        .await;
    let container: CreateTemplate = CreateTemplate { isolation: None, image: "host".into(), ..template() };
    assert_eq!(code(server.client.create_template(&container).await), Code::IsolationUnavailable);
    server.finish().await;
}

/// Killed at every step: a memory that the server reports as saved is there, and nothing else is left.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_is_saved_or_gone_on_from() {
    let World { _dir, mut server } = world().await;
    for point in ["journalled", "taken", "kept", "saved"] {
        server.kill();
        server.restart_with(&format!("engine.memory.{point}=kill"));
        server.client.create_template(&template()).await.unwrap();
        assert!(!server.wait_end().success());
        server.restart();
        until_saved(&server).await;
        let leaks = server.client.list_leaks().await.unwrap();
        assert!(leaks.items.is_empty(), "{point}: {leaks:?}");
    }
    let first = made(&server, &web()).await.id;
    let token = ask(&server, &first).await[0].clone();
    server.client.delete_sandbox(&first).await.unwrap();
    server.kill();
    server.restart_with("engine.create.carried=kill");
    until_saved(&server).await;
    server.client.create_sandbox(&web()).await.unwrap_err();
    assert!(!server.wait_end().success());
    server.restart();
    wait_until("nothing is left", async || {
        let all = server.client.list_sandboxes(&atoll_client::ListSandboxes::default()).await.unwrap();
        all.items.is_empty().then_some(())
    })
    .await;
    let second = made(&server, &web()).await.id;
    assert_eq!(ask(&server, &second).await[0], token, "what was saved was lost");
    // One artifact, of the newest version.
    wait_until("older ones are gone", async || {
        (std::fs::read_dir(server.data().join("memories")).unwrap().count() == 1).then_some(())
    })
    .await;
    server.client.delete_template("web", None).await.unwrap();
    server.finish().await;
}
