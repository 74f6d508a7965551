//! Contexts and cells with the real program, in sandboxes whose interpreter is a small one that speaks the protocol.

use crate::common::code;
use atoll_api::{CellEvent, CellWithEvents, CreateContext, CreateService, PauseSandbox, RunCell};
use atoll_blackbox::{Server, wait_until};
use atoll_core::Code;
use atoll_core::code::{CellEventKind as Kind, CellState};
use atoll_core::sandbox::PauseMode;
use atoll_core::service::ServiceReady;
use serde_json::{Value, json};

const INTERPRETER: &str = include_str!("../common/interpreter.py");

/// A sandbox in which the interpreter runs.
async fn sandbox(server: &Server, words: &[&str]) -> String {
    let sandbox = server.sandbox().await.id;
    let argv = ["python3", "-u", "-c", INTERPRETER].iter().chain(words).map(|&word| word.to_owned());
    let ready =
        ServiceReady { command: None, port: Some(49_999), path: None, interval_ms: None, timeout_ms: None };
    let service = CreateService {
        name: "interpreter".to_owned(),
        argv: Some(argv.collect()),
        backoff_ms: Some(10),
        ready: Some(ready),
        ..CreateService::default()
    };
    server.client.create_service(&sandbox, &service).await.unwrap();
    listens(server, &sandbox).await;
    sandbox
}

async fn listens(server: &Server, sandbox: &str) {
    wait_until("the interpreter", async || {
        let service = server.client.get_service(sandbox, "interpreter", 30_000).await.unwrap();
        (service.state.as_str() == "running").then_some(())
    })
    .await;
}

fn named(name: &str) -> CreateContext {
    CreateContext { name: Some(name.to_owned()), ..CreateContext::default() }
}

async fn context(server: &Server, sandbox: &str) -> String {
    server.client.create_context(sandbox, &CreateContext::default()).await.unwrap().id
}

fn cell(code: &str) -> RunCell {
    RunCell { code: code.to_owned(), wait_ms: Some(60_000), ..RunCell::default() }
}

/// Runs a cell to its end.
async fn run(server: &Server, sandbox: &str, context: &str, code: &str) -> CellWithEvents {
    server.client.run_cell(sandbox, context, &cell(code)).await.unwrap()
}

/// Runs a cell and does not wait for it; gives its id.
async fn start(server: &Server, sandbox: &str, context: &str, code: &str) -> String {
    let run = RunCell { code: code.to_owned(), ..RunCell::default() };
    server.client.run_cell(sandbox, context, &run).await.unwrap().cell.id
}

/// All events after one, up to the end.
async fn events(server: &Server, sandbox: &str, context: &str, cell: &str, mut after: u64) -> Vec<CellEvent> {
    let mut events: Vec<CellEvent> = Vec::new();
    loop {
        let page = server.client.cell_events(sandbox, context, cell, after, 30_000).await.unwrap();
        assert!(page.items.iter().all(|event| event.number > after));
        assert_eq!(page.next_after, page.items.last().map_or(after, |event| event.number));
        after = page.next_after;
        events.extend(page.items);
        if page.ended {
            assert!(events.is_sorted_by(|one, other| one.number < other.number));
            return events;
        }
    }
}

/// Waits until a cell has written `what`.
async fn says(server: &Server, sandbox: &str, context: &str, cell: &str, what: &str) {
    wait_until("the cell to say it", async || {
        let page = server.client.cell_events(sandbox, context, cell, 0, 0).await.unwrap();
        said(&page.items).contains(what).then_some(())
    })
    .await;
}

fn said(events: &[CellEvent]) -> String {
    let texts = events.iter().filter(|event| event.kind == Kind::Stdout);
    texts.map(|event| event.data["text"].as_str().unwrap()).collect()
}

fn kinds(events: &[CellEvent]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    kinds.dedup();
    kinds
}

fn end(events: &[CellEvent]) -> &Value {
    let last = events.last().unwrap();
    assert_eq!(last.kind, Kind::End);
    &last.data
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_remember_and_any_reader_hears_all_of_them() {
    let server = Server::start();
    let sandbox = sandbox(&server, &[]).await;
    let env = [("A".to_owned(), "context".to_owned()), ("B".to_owned(), "context".to_owned())];
    let create = CreateContext {
        language: Some("python".into()),
        cwd: Some("/var".into()),
        env: env.into(),
        ..CreateContext::default()
    };
    let context = server.client.create_context(&sandbox, &create).await.unwrap();
    assert_eq!(
        (context.language.as_str(), context.cwd.as_deref(), &context.name),
        ("python", Some("/var"), &None)
    );
    let id = context.id.as_str();

    let first = run(&server, &sandbox, id, "secret_of_mine = 20").await;
    assert_eq!((first.cell.state, first.cell.execution_count), (CellState::Done, Some(1)));
    assert_eq!(kinds(&first.events.unwrap()), [Kind::Started, Kind::End]);
    let second = RunCell {
        env: [("B".to_owned(), "cell".to_owned())].into(),
        ..cell(
            "import os, sys\nprint(os.getcwd(), os.environ['A'], os.environ['B'])\nprint('é', file=sys.stderr)\nsecret_of_mine + 1",
        )
    };
    let second = server.client.run_cell(&sandbox, id, &second).await.unwrap();
    let told = second.events.unwrap();
    assert_eq!(kinds(&told), [Kind::Started, Kind::Stdout, Kind::Stderr, Kind::Result, Kind::End]);
    assert_eq!(said(&told), "/var context cell\n");
    let result = told.iter().find(|event| event.kind == Kind::Result).unwrap();
    assert_eq!(result.data, json!({"main": true, "data": {"text/plain": "21"}}));
    assert_eq!(end(&told), &json!({"state": "done", "execution_count": 2}));

    // From every event on, for every reader.
    let cell = second.cell.id.as_str();
    for (index, event) in told.iter().enumerate() {
        assert_eq!(events(&server, &sandbox, id, cell, event.number).await, told[index + 1..]);
    }
    let beyond = told.last().unwrap().number + 1;
    for bad in [1, told[0].number + 1, beyond] {
        let refused = server.client.cell_events(&sandbox, id, cell, bad, 0).await;
        assert!(matches!(code(refused), Code::InvalidArgument | Code::OffsetOutOfRange), "{bad}");
    }
    let stream = format!("/v1/sandboxes/{sandbox}/contexts/{id}/cells/{cell}/stream?after=0");
    let request = server.request("GET", &stream).header("Last-Event-ID", told[0].number);
    let stream = server.send(request).await.text();
    let ids: Vec<u64> = stream.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    let numbers: Vec<u64> = told.iter().map(|event| event.number).collect();
    assert_eq!(ids, numbers[1..], "{stream}");
    assert!(stream.contains("event: result\n"), "{stream}");

    let show = "show(png='aGk=', html='<b>', chart={'type': 'line'}, extra={'application/x-mine': 5}); 1/0";
    let third = run(&server, &sandbox, id, show).await;
    assert_eq!((third.cell.state, third.cell.execution_count), (CellState::Error, Some(3)));
    let told = third.events.unwrap();
    let data = json!({
        "image/png": "aGk=", "text/html": "<b>", "application/vnd.atoll.chart+json": {"type": "line"},
        "application/x-mine": 5,
    });
    assert_eq!(told[1].data, json!({"main": false, "data": data}));
    assert_eq!(told[2].data["name"], "ZeroDivisionError");
    assert!(told[2].data["traceback"].as_str().unwrap().contains("ZeroDivisionError: division by zero"));

    // Only a digest of the code is kept: in the listing, and in the journal with the key that ran it.
    let list = server.client.list_cells(&sandbox, id, None).await.unwrap().items;
    assert_eq!(list.iter().map(|cell| cell.execution_count).collect::<Vec<_>>(), [Some(3), Some(2), Some(1)]);
    assert_eq!(list[2], server.client.get_cell(&sandbox, id, &list[2].id, 0).await.unwrap());
    assert_eq!((list[2].code_bytes, list[2].code_digest.len()), (19, 64));
    let journal = server.request("GET", &format!("/v1/sandboxes/{sandbox}/events?kind=exec_started"));
    let journal = server.send(journal).await.json();
    let started = journal["items"].as_array().unwrap().iter().filter(|event| event["witness"] != "host");
    let cells: Vec<_> = started.filter(|event| event["argv"][1] == "run").collect();
    assert_eq!(cells.len(), 3, "{journal}");
    let digest = format!("blake3:{}", list[2].code_digest);
    assert_eq!(cells[0]["argv"], json!(["code-interpreter", "run", id, "python", digest, "19 bytes"]));
    assert!(cells[0]["by"].is_string(), "{}", cells[0]);
    assert!(!cells[0].to_string().contains("secret_of_mine"), "{}", cells[0]);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_goes_on_without_its_caller_and_without_the_server() {
    let mut server = Server::start();
    let sandbox = sandbox(&server, &[]).await;
    let id = context(&server, &sandbox).await;
    let count = "import time\nfor n in range(100):\n    print(n, end=' ')\n    time.sleep(0.03)\n'done'";
    let run = RunCell { idempotency_key: Some("once".into()), code: count.to_owned(), ..RunCell::default() };
    let cell = server.client.run_cell(&sandbox, &id, &run).await.unwrap().cell.id;
    says(&server, &sandbox, &id, &cell, "3 ").await;
    for _ in 0..2 {
        server.kill();
        server.restart();
        assert_eq!(server.client.run_cell(&sandbox, &id, &run).await.unwrap().cell.id, cell, "once");
    }
    let (one, other) =
        tokio::join!(events(&server, &sandbox, &id, &cell, 0), events(&server, &sandbox, &id, &cell, 0),);
    let expected: String = (0..100).map(|n| format!("{n} ")).collect();
    assert_eq!(said(&one), expected, "none is missing, and none is there twice");
    assert_eq!(one, other);
    assert_eq!(end(&one), &json!({"state": "done", "execution_count": 1}));
    let changed = RunCell { code: "other".into(), ..run };
    assert_eq!(code(server.client.run_cell(&sandbox, &id, &changed).await), Code::IdempotencyMismatch);

    // The cell ends while the server is away; the context still has its variables afterwards.
    let cell = start(&server, &sandbox, &id, "import time; time.sleep(0.5); kept = 7; print('late')").await;
    server.kill();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    server.restart();
    assert_eq!(said(&events(&server, &sandbox, &id, &cell, 0).await), "late\n");
    assert_eq!(said(&run_events(&server, &sandbox, &id, "print(kept, n)").await), "7 99\n");
    server.finish().await;
}

async fn run_events(server: &Server, sandbox: &str, context: &str, code: &str) -> Vec<CellEvent> {
    run(server, sandbox, context, code).await.events.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_are_interrupted_and_their_context_goes_on() {
    let server = Server::start();
    for words in [&[][..], &["foreign"]] {
        let sandbox = sandbox(&server, words).await;
        let id = context(&server, &sandbox).await;
        run(&server, &sandbox, &id, "x = 5").await;
        let sleep = "print('here'); import time; time.sleep(1000)";
        let running = start(&server, &sandbox, &id, sleep).await;
        says(&server, &sandbox, &id, &running, "here").await;
        // One that waits does not begin, and does not disturb the one that runs.
        let waiting = start(&server, &sandbox, &id, "x = 6").await;
        server.client.interrupt_cell(&sandbox, &id, &waiting).await.unwrap();
        let told = events(&server, &sandbox, &id, &waiting, 0).await;
        assert_eq!(end(&told), &json!({"state": "interrupted"}));
        let now = server.client.get_cell(&sandbox, &id, &running, 0).await.unwrap();
        assert_eq!(now.state, CellState::Running);

        server.client.interrupt_cell(&sandbox, &id, &running).await.unwrap();
        let told = events(&server, &sandbox, &id, &running, 0).await;
        assert_eq!(kinds(&told), [Kind::Started, Kind::Stdout, Kind::Error, Kind::End]);
        assert_eq!(told[told.len() - 2].data["name"], "KeyboardInterrupt");
        assert_eq!(end(&told)["state"], "interrupted");
        // Once more does nothing.
        server.client.interrupt_cell(&sandbox, &id, &running).await.unwrap();

        let late = RunCell { timeout_ms: Some(500), ..cell(sleep) };
        let late = server.client.run_cell(&sandbox, &id, &late).await.unwrap();
        assert_eq!(late.cell.state, CellState::TimedOut);
        assert_eq!(said(&late.events.unwrap()), "here\n");

        let cells = [start(&server, &sandbox, &id, sleep).await, start(&server, &sandbox, &id, sleep).await];
        says(&server, &sandbox, &id, &cells[0], "here").await;
        server.client.interrupt_context(&sandbox, &id).await.unwrap();
        for cell in &cells {
            assert_eq!(end(&events(&server, &sandbox, &id, cell, 0).await)["state"], "interrupted");
        }
        // A cell whose exec is killed is interrupted, too.
        let killed = start(&server, &sandbox, &id, sleep).await;
        says(&server, &sandbox, &id, &killed, "here").await;
        server.client.kill_exec(&sandbox, &killed).await.unwrap();
        let told = events(&server, &sandbox, &id, &killed, 0).await;
        assert_eq!(end(&told), &json!({"state": "failed", "reason": "killed"}));
        assert_eq!(said(&run_events(&server, &sandbox, &id, "print(x)").await), "5\n");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_run_in_the_order_in_which_they_were_sent() {
    let server = Server::start();
    let sandbox = sandbox(&server, &[]).await;
    let id = context(&server, &sandbox).await;
    run(&server, &sandbox, &id, "order = []").await;
    for number in 0..12 {
        start(&server, &sandbox, &id, &format!("order.append({number})")).await;
    }
    let wanted = format!("{:?}\n", (0..12).collect::<Vec<_>>());
    assert_eq!(said(&run_events(&server, &sandbox, &id, "print(order)").await), wanted);
    assert_eq!(server.sh(&sandbox, "ls /tmp/.atoll-contexts-*").await.stdout, format!("{id}\n"));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_are_made_once_and_are_of_their_sandbox() {
    let server = Server::start();
    let one = sandbox(&server, &[]).await;
    let main = server.client.create_context(&one, &named("main")).await.unwrap();
    assert_eq!(server.client.create_context(&one, &named("main")).await.unwrap(), main, "once");
    let other = CreateContext { cwd: Some("/".into()), ..named("main") };
    assert_eq!(code(server.client.create_context(&one, &other).await), Code::NameTaken);
    assert_eq!(server.client.get_context(&one, "main").await.unwrap(), main);
    assert_eq!(server.client.get_context(&one, &main.id).await.unwrap(), main);
    run(&server, &one, "main", "x = 1").await;
    // Another one knows nothing of it, and runs beside it.
    let second = context(&server, &one).await;
    assert_eq!(run(&server, &one, &second, "x").await.cell.state, CellState::Error);
    let sleeping = start(&server, &one, "main", "import time; time.sleep(1000)").await;
    assert_eq!(run(&server, &one, &second, "5").await.cell.state, CellState::Done);
    assert_eq!(code(server.client.get_cell(&one, &second, &sleeping, 0).await), Code::ExecNotFound);
    assert_eq!(server.client.list_cells(&one, &second, None).await.unwrap().items.len(), 2);

    server.client.restart_context(&one, "main").await.unwrap();
    let told = events(&server, &one, "main", &sleeping, 0).await;
    assert_eq!(end(&told)["state"], "failed", "{told:?}");
    assert_eq!(run(&server, &one, "main", "x").await.cell.state, CellState::Error);

    // The interpreter itself is started anew: its contexts are, too, and say so.
    server.client.restart_service(&one, "interpreter").await.unwrap();
    listens(&server, &one).await;
    let told = run_events(&server, &one, &second, "print('new')").await;
    assert_eq!(kinds(&told), [Kind::Reset, Kind::Started, Kind::Stdout, Kind::End]);

    // Nothing of it is another sandbox's, and where there is no interpreter there is no context.
    let none = server.sandbox().await.id;
    for context in [main.id.as_str(), "main"] {
        assert_eq!(code(server.client.get_context(&none, context).await), Code::ContextNotFound);
        assert_eq!(code(server.client.run_cell(&none, context, &cell("1")).await), Code::ContextNotFound);
        assert_eq!(code(server.client.delete_context(&none, context).await), Code::ContextNotFound);
    }
    let missing = server.client.create_context(&none, &named("main")).await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::InterpreterMissing));
    assert!(format!("{missing:?}").contains("code-interpreter-v1"), "{missing:?}");
    assert_eq!(server.client.list_contexts(&none).await.unwrap().items, []);
    for bad in [
        CreateContext { language: Some("cobol".into()), ..named("a") },
        CreateContext { language: Some("a b".into()), ..named("a") },
        CreateContext { cwd: Some("b".into()), ..named("a") },
        named("Not A Name"),
    ] {
        let refused = code(server.client.create_context(&one, &bad).await);
        assert!(matches!(refused, Code::InvalidArgument | Code::PathInvalid), "{bad:?}");
    }
    assert_eq!(code(server.client.run_cell(&one, "main", &cell("a\0b")).await), Code::InvalidArgument);
    assert_eq!(
        code(server.client.run_cell(&one, "main", &cell(&"#".repeat(600 << 10))).await),
        Code::TooLarge
    );

    server.client.delete_context(&one, "main").await.unwrap();
    let left = server.client.list_contexts(&one).await.unwrap().items;
    assert_eq!(left.iter().map(|context| context.id.as_str()).collect::<Vec<_>>(), [second.as_str()]);
    assert_eq!(code(server.client.cell_events(&one, "main", &sleeping, 0, 0).await), Code::ContextNotFound);
    // A pause that keeps only the disk ends the kernel; the context goes on with a new one.
    let mode = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&one, &mode).await.unwrap();
    server.client.resume_sandbox(&one).await.unwrap();
    listens(&server, &one).await;
    let told = run_events(&server, &one, &second, "print('woken')").await;
    assert_eq!(said(&told), "woken\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interpreter_says_is_bounded_and_checked() {
    let server = Server::start();
    let sandbox = sandbox(&server, &[]).await;
    let id = context(&server, &sandbox).await;
    let deep = "raw('{\"type\":\"result\",\"json\":' + '['*5000 + ']'*5000 + '}')".to_owned();
    let lines = [
        "raw('no json')",
        "raw('[]')",
        "raw('{\"type\":\"exec\"}')",
        "raw(b'\\xff\\xfe\\n')",
        deep.as_str(),
        "raw('{\"type\":\"result\",\"extra\":5}')",
        "raw('{\"type\":\"end\",\"execution_count\":99}')",
        "raw('{\"type\":\"stdout\",\"text\":\"' + 'x'*(9<<20) + '\"}')",
        "print('still here')",
    ];
    let cell = start(&server, &sandbox, &id, &lines.join("\n")).await;
    let told = events(&server, &sandbox, &id, &cell, 0).await;
    let problems: Vec<_> = told.iter().filter(|event| event.kind == Kind::Problem).collect();
    let codes: Vec<_> = problems.iter().map(|event| event.data["code"].as_str().unwrap()).collect();
    assert_eq!(
        codes,
        ["malformed", "malformed", "malformed", "malformed", "malformed", "malformed", "too_large"]
    );
    assert_eq!(said(&told), "still here\n");
    assert_eq!(end(&told), &json!({"state": "done", "execution_count": 1}));
    for event in &told {
        events(&server, &sandbox, &id, &cell, event.number).await;
    }
    // An interpreter that breaks off in the middle.
    let cell =
        start(&server, &sandbox, &id, "print('x'); import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
            .await;
    let told = events(&server, &sandbox, &id, &cell, 0).await;
    assert_eq!(end(&told)["reason"], "interpreter_failed", "{told:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_on_the_command_line() {
    let server = Server::start();
    let sandbox = sandbox(&server, &[]).await;
    let run = |args: &[&str]| server.cli(&[&["code", &sandbox][..], args].concat());
    assert_eq!(run(&["x = 20; print('hello')"]).ok().stdout, "hello\n");
    assert_eq!(run(&["x + 1"]).ok().stdout, "21\n", "it remembers");
    let other = run(&["--context", "other", "x"]);
    assert_eq!(other.code, Some(1));
    assert!(other.stderr.contains("NameError: name 'x' is not defined"), "{other:?}");
    assert_eq!(server.cli_with(&["code", &sandbox], b"print(x)").ok().stdout, "20\n");
    assert_eq!(server.cli_with(&["code", &sandbox, "-"], b"print(x)").ok().stdout, "20\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cell.py");
    std::fs::write(&file, "show(png='aGk=', text='<a picture>')").unwrap();
    let saved = dir.path().join("out");
    let args = ["--file", file.to_str().unwrap(), "--save", saved.to_str().unwrap()];
    assert_eq!(run(&args).ok().stdout, "<a picture>\n");
    assert_eq!(std::fs::read(saved.join("1.png")).unwrap(), b"hi");
    let late = run(&["--timeout", "300ms", "import time; time.sleep(1000)"]);
    assert_eq!(late.code, Some(124), "{late:?}");
    let json = run(&["--json", "-e", "A=b", "import os; os.environ['A']"]).ok().stdout;
    let kinds: Vec<Value> =
        json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
    assert_eq!(kinds, ["started", "result", "end"]);

    let cell = run(&["--detach", "print('shown'); 1/0"]).ok().stdout;
    let shown = server.cli(&["code", "show", &sandbox, "python", cell.trim()]);
    assert_eq!((shown.code, shown.stdout.as_str()), (Some(1), "shown\n"));
    let table = server.cli(&["code", "contexts", &sandbox]).ok().stdout;
    assert!(table.contains("python") && table.contains("other"), "{table}");
    let cells = server.cli(&["code", "cells", &sandbox, "python"]).ok().stdout;
    assert!(cells.contains("timed out") && cells.contains(cell.trim()), "{cells}");
    assert!(server.cli(&["ps", &sandbox]).ok().stdout.contains("code-interpreter"));
    server.cli(&["code", "restart", &sandbox, "python"]).ok();
    assert_eq!(run(&["x"]).code, Some(1));
    server.cli(&["code", "interrupt", &sandbox, "python"]).ok();
    server.cli(&["code", "rm", &sandbox, "python", "other"]).ok();
    assert_eq!(server.cli(&["code", "contexts", &sandbox, "--json"]).ok().json()["items"], json!([]));
    let none = server.sandbox().await.id;
    let none = server.cli(&["code", &none, "1"]);
    assert_eq!(none.code, Some(125));
    assert!(none.stderr.contains("code-interpreter-v1"), "{none:?}");
    server.finish().await;
}
