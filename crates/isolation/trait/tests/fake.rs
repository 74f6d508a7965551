//! The fake keeps the trait's contract and speaks the real protocol.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use atoll_core::id::SandboxId;
    use atoll_core::spec::Resources;
    use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient, GuestError};
    use atoll_guest_protocol::messages::{AttachExec, Exited, Read, Reason, SignalExec, StartExec, Write};
    use atoll_isolation::fake::{Connect, FakeHost, FakeIsolation};
    use atoll_isolation::{
        Death, DiskSource, Gates as _, Isolation, IsolationError, Lifecycle as _, Plan, RootFs,
    };
    use bytes::Bytes;

    fn plan(number: u64) -> Plan {
        let id = SandboxId::from_parts(number, number);
        let resources = Resources::default();
        Plan {
            id,
            root: RootFs::Host,
            resources,
            hostname: "fake".into(),
            disk: DiskSource::Empty,
            volumes: Vec::new(),
            layers: Vec::new(),
            execution: atoll_isolation::Execution::default(),
        }
    }

    fn exec(id: &str, words: &str) -> StartExec {
        StartExec {
            exec_id: id.into(),
            argv: words.split(' ').map(str::to_owned).collect(),
            stdin: words == "cat",
            ..StartExec::default()
        }
    }

    async fn client(driver: &FakeIsolation, id: &SandboxId) -> GuestClient {
        GuestClient::connect(driver.connect(id).await.unwrap(), id.as_str()).await.unwrap().0
    }

    async fn finish(mut stream: ExecStream) -> (String, String, Exited) {
        let (mut out, mut err, mut end) = (Vec::new(), Vec::new(), Exited::default());
        while let Some(event) = stream.next().await.unwrap() {
            match event {
                ExecEvent::Output { stderr, bytes } => {
                    if stderr { &mut err } else { &mut out }.extend_from_slice(&bytes);
                    drop(stream.ack(stream.offset).await);
                }
                ExecEvent::Exited(exited) => end = exited,
            }
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), end)
    }

    async fn run(client: &GuestClient, id: &str, words: &str) -> (String, String, Exited) {
        finish(client.start_exec(exec(id, words)).await.unwrap()).await
    }

    fn reason<T: std::fmt::Debug>(result: Result<T, GuestError>) -> Reason {
        match result {
            Err(GuestError::Failure { reason, .. }) => reason,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[tokio::test]
    async fn commands_and_files() {
        let host = FakeHost::new();
        let (driver, plan) = (host.driver(), plan(1));
        driver.create(&plan).await.unwrap();
        let client = client(&driver, &plan.id).await;
        assert_eq!(run(&client, "1", "true").await.2.code, Some(0));
        assert_eq!(run(&client, "2", "exit 42").await.2.code, Some(42));
        assert_eq!(run(&client, "3", "echo a b").await.0, "a b\n");
        assert_eq!(run(&client, "4", "err a b").await.1, "a b\n");
        let (numbers, ..) = run(&client, "5", "seq 1000000").await;
        assert_eq!((numbers.lines().count(), numbers.len()), (1_000_000, 6_888_896));
        let stream = client.start_exec(exec("6", "cat")).await.unwrap();
        client.write_stdin("6", Bytes::from_static(b"in"), true).await.unwrap();
        assert_eq!(finish(stream).await.0, "in");
        let stream = client.start_exec(exec("7", "sleep 1000")).await.unwrap();
        client.signal_exec(SignalExec { exec_id: "7".into(), signal: 15, tree: true }).await.unwrap();
        assert_eq!(finish(stream).await.2.signal, Some(15));
        assert_eq!(reason(client.start_exec(exec("8", "fail-start")).await), Reason::CommandNotExecutable);
        assert_eq!(reason(client.start_exec(exec("8", "nothing")).await), Reason::CommandNotFound);
        assert_eq!(reason(client.start_exec(exec("7", "true")).await), Reason::Conflict);
        let mut file = client.write(Write { path: "/f".into(), ..Write::default() }).await.unwrap();
        file.send(Bytes::from_static(b"content")).await.unwrap();
        assert_eq!(file.finish().await.unwrap(), 7);
        let mut file = client.read(Read { path: "/f".into(), offset: 3, length: 2 }).await.unwrap();
        assert_eq!(file.next().await.unwrap().unwrap(), "te");
        assert_eq!(host.file(&plan.id, "/f").unwrap(), b"content");
    }

    #[tokio::test]
    async fn instances_outlive_drivers_and_connections() {
        let (host, plan) = (FakeHost::new(), plan(2));
        let driver = host.driver();
        driver.create(&plan).await.unwrap();
        let first = client(&driver, &plan.id).await;
        let mut stream = first.start_exec(exec("1", "seq 1000000")).await.unwrap();
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Output { .. })));
        drop((first, stream, driver));
        let driver = host.driver();
        driver.adopt(&plan.id).await.unwrap();
        let second = client(&driver, &plan.id).await;
        let stream = second.attach_exec(AttachExec { exec_id: "1".into(), offset: 0 }).await.unwrap();
        assert_eq!(finish(stream).await.0.len(), 6_888_896);
        host.cut_connections(&plan.id);
        second.closed().await;
        let third = client(&driver, &plan.id).await;
        assert_eq!(third.list_execs().await.unwrap().len(), 1);
        let fourth = client(&driver, &plan.id).await;
        third.closed().await;
        host.break_protocol(&plan.id);
        fourth.closed().await;
        assert_eq!(client(&driver, &plan.id).await.list_execs().await.unwrap().len(), 1);
        assert_eq!(host.calls("create"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn knobs() {
        let (host, plan) = (FakeHost::new(), plan(3));
        let driver = host.driver();
        host.fail_create(2, false);
        assert!(matches!(driver.create(&plan).await, Err(IsolationError::Kernel { .. })));
        assert_eq!(driver.scan().await.unwrap(), []);
        host.fail_create(1, true);
        assert!(driver.create(&plan).await.is_err());
        assert_eq!(driver.scan().await.unwrap().len(), 1);
        assert!(matches!(driver.adopt(&plan.id).await, Err(IsolationError::Gone)));
        host.fail_destroy(1);
        assert!(driver.destroy(&plan.id).await.is_err());
        driver.destroy(&plan.id).await.unwrap();
        driver.destroy(&plan.id).await.unwrap();
        assert_eq!(driver.scan().await.unwrap(), []);
        host.delay_create(Duration::from_secs(5));
        driver.create(&plan).await.unwrap();

        host.set_connect(Connect::Hangs);
        let hanging = tokio::time::timeout(Duration::from_secs(60), driver.connect(&plan.id)).await;
        assert!(hanging.is_err());
        host.set_connect(Connect::Silent);
        let silent = GuestClient::connect(driver.connect(&plan.id).await.unwrap(), plan.id.as_str()).await;
        assert_eq!(silent.map(|_| ()), Err(GuestError::Timeout));
        host.set_connect(Connect::Garbage);
        let garbage = GuestClient::connect(driver.connect(&plan.id).await.unwrap(), plan.id.as_str()).await;
        assert_eq!(garbage.map(|_| ()), Err(GuestError::Closed));
        host.set_connect(Connect::Works);
        let wrong = GuestClient::connect(driver.connect(&plan.id).await.unwrap(), "another").await;
        assert_eq!(reason(wrong), Reason::Invalid);

        let client = client(&driver, &plan.id).await;
        let mut stream = client.start_exec(exec("1", "sleep 1000")).await.unwrap();
        host.die(&plan.id, Death::OutOfMemory);
        assert_eq!(driver.died(&plan.id).await, Death::OutOfMemory);
        client.closed().await;
        assert!(stream.next().await.is_err());
        assert!(matches!(driver.connect(&plan.id).await, Err(IsolationError::Gone)));
        assert!(matches!(driver.usage(&plan.id).await, Err(IsolationError::Gone)));
        assert_eq!(driver.died(&SandboxId::from_parts(9, 9)).await, Death::Exited);
    }
}
