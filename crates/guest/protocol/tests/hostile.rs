//! The host's client against a guest that does not keep to the protocol.

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::time::Duration;

    use atoll_guest_protocol::VERSION;
    use atoll_guest_protocol::client::{ExecEvent, GuestClient, GuestError, MESSAGE_MAX_CHARS};
    use atoll_guest_protocol::messages::{
        AttachExec, ExecInfo, ExecList, FileInfo, List, PortList, Read, Reason, Started, Stat, Watch,
        WatchEvent, Watching, Welcome,
    };
    use atoll_guest_protocol::server::{builder, failure, next_operation};
    use atoll_guest_protocol::wire::{Kind, encode_message, header};
    use bytes::Bytes;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A guest that introduces itself and answers everything else with these bytes.
    async fn guest(welcome: Welcome, body: Vec<Bytes>) -> Result<GuestClient, GuestError> {
        let (host, stream) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let mut connection = builder().handshake::<_, Bytes>(stream).await.unwrap();
            while let Some(mut operation) = next_operation(&mut connection).await {
                let body = if operation.name == "hello" {
                    vec![encode_message(Kind::Message, &welcome)]
                } else {
                    body.clone()
                };
                tokio::spawn(async move {
                    drop(operation.request.next().await);
                    for part in body {
                        if operation.response.encoded(part).await.is_err() {
                            return;
                        }
                    }
                    operation.response.finish().unwrap_or_default();
                });
            }
        });
        Ok(GuestClient::connect(host, "sb").await?.0)
    }

    fn welcome() -> Welcome {
        Welcome { version: VERSION, boot_id: "boot".into() }
    }

    /// The call is refused as a violation, and the connection is closed.
    async fn violates<T, F>(body: Vec<Bytes>, call: impl FnOnce(GuestClient) -> F)
    where
        T: std::fmt::Debug,
        F: Future<Output = Result<T, GuestError>>,
    {
        let client = guest(welcome(), body.clone()).await.unwrap();
        let result = tokio::time::timeout(PATIENCE, call(client.clone())).await.unwrap();
        assert!(matches!(result, Err(GuestError::Protocol(_))), "{body:?}: {result:?}");
        tokio::time::timeout(PATIENCE, client.closed()).await.unwrap();
        assert_eq!(client.metrics().await, Err(GuestError::Closed));
    }

    fn long() -> String {
        "x".repeat(5000)
    }

    fn info(path: String) -> Bytes {
        encode_message(Kind::Message, &FileInfo { path, ..FileInfo::default() })
    }

    #[tokio::test]
    async fn no_record_at_all() {
        for body in [
            &b"\xff\xff\xff\xff\xff\xff"[..],
            &[1, 0xff, 0xff, 0xff, 0xff],
            &[1, 0, 0, 0, 3, 0xff, 0xff, 0xff],
            &[1, 0, 0, 0, 100, 1],
            &[2, 0, 0, 0, 1, b'x'],
            &[],
        ] {
            violates(vec![Bytes::copy_from_slice(body)], async |c: GuestClient| c.list_execs().await).await;
        }
    }

    #[tokio::test]
    async fn texts_and_counts_out_of_bounds() {
        violates(vec![info(long())], async |c: GuestClient| c.stat(Stat::default()).await).await;
        violates(vec![info(long())], async |c: GuestClient| c.read(Read::default()).await.map(|_| ())).await;
        let list = List { path: "/".into(), depth: 1, max_entries: 2 };
        violates(vec![info("x".into()); 3], async |c: GuestClient| c.list(list).await).await;
        let exec = ExecInfo { exec_id: long(), ..ExecInfo::default() };
        let execs = encode_message(Kind::Message, &ExecList { execs: vec![exec] });
        violates(vec![execs], async |c: GuestClient| c.list_execs().await).await;
        let execs = encode_message(Kind::Message, &ExecList { execs: vec![ExecInfo::default(); 5000] });
        violates(vec![execs], async |c: GuestClient| c.list_execs().await).await;
        for ports in [vec![70_000], vec![2, 1], vec![1, 1]] {
            let ports = encode_message(Kind::Message, &PortList { ports });
            violates(vec![ports], async |c: GuestClient| c.ports().await).await;
        }
        let event = WatchEvent { path: long(), ..WatchEvent::default() };
        let body = vec![encode_message(Kind::Message, &Watching {}), encode_message(Kind::Message, &event)];
        violates(body, async |c: GuestClient| c.watch(Watch::default()).await?.next().await).await;
    }

    #[tokio::test]
    async fn exec_streams_that_do_not_continue() {
        let started = |offset| encode_message(Kind::Message, &Started { pid: 1, offset });
        let attach = |offset| AttachExec { exec_id: "ex".into(), offset };
        violates(vec![started(6)], async |c: GuestClient| c.attach_exec(attach(5)).await).await;
        let drain = async |c: GuestClient, offset| {
            let mut stream = c.attach_exec(attach(offset)).await?;
            while stream.next().await?.is_some() {}
            Ok(())
        };
        // It ends without an exit, in the middle of a record, with a record that does not belong here.
        violates(vec![started(5)], async |c: GuestClient| drain(c, 5).await).await;
        let half = Bytes::copy_from_slice(&header(Kind::Data, 10));
        violates(vec![started(5), half], async |c: GuestClient| drain(c, 5).await).await;
        violates(vec![started(5), started(5)], async |c: GuestClient| drain(c, 5).await).await;
        let two = Bytes::from_static(&[2, 0, 0, 0, 2, 1, 1]);
        violates(vec![started(u64::MAX - 1), two], async |c: GuestClient| drain(c, u64::MAX - 1).await).await;
    }

    #[tokio::test]
    async fn a_transfer_without_its_end_is_not_complete() {
        let body = vec![info("x".into()), Bytes::from_static(&[2, 0, 0, 0, 1, b'x'])];
        violates(body, async |c: GuestClient| {
            let mut reader = c.read(Read::default()).await?;
            while reader.next().await?.is_some() {}
            Ok(())
        })
        .await;
    }

    #[tokio::test]
    async fn no_more_of_a_file_than_was_asked_for() {
        let piece = |byte| Bytes::copy_from_slice(&[2, 0, 0, 0, 2, byte, byte]);
        let part = |length| Read { path: "/f".into(), length, ..Read::default() };
        violates(vec![info("f".into()), piece(b'a'), piece(b'b')], async |c: GuestClient| {
            let mut reader = c.read(part(3)).await?;
            while reader.next().await?.is_some() {}
            Ok(())
        })
        .await;
        let end = Bytes::copy_from_slice(&header(Kind::Last, 0));
        let client = guest(welcome(), vec![info("f".into()), piece(b'a'), piece(b'b'), end]).await.unwrap();
        let mut reader = client.read(part(4)).await.unwrap();
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all, b"aabb");
    }

    #[tokio::test]
    async fn another_version_is_refused() {
        let other = guest(Welcome { version: VERSION + 1, boot_id: String::new() }, Vec::new()).await;
        assert!(matches!(other, Err(GuestError::Protocol(_))), "{other:?}");
        let long = guest(Welcome { version: VERSION, boot_id: long() }, Vec::new()).await;
        assert!(matches!(long, Err(GuestError::Protocol(_))), "{long:?}");
    }

    #[tokio::test]
    async fn messages_are_cleaned_and_bounded() {
        let hostile = format!("a\u{1b}[2J\r\nb\u{202e}{}", "y".repeat(10_000));
        let body = encode_message(Kind::Failure, &failure(Reason::NotFound, hostile));
        let client = guest(welcome(), vec![body]).await.unwrap();
        let Err(GuestError::Failure { reason, message }) = client.stat(Stat::default()).await else {
            panic!()
        };
        assert_eq!(reason, Reason::NotFound);
        assert!(message.starts_with("a [2J  b y"), "{message}");
        assert_eq!(message.chars().count(), MESSAGE_MAX_CHARS);
        // A refusal is no violation: the connection stays.
        assert!(matches!(client.stat(Stat::default()).await, Err(GuestError::Failure { .. })));
    }

    #[tokio::test]
    async fn transfers_that_nobody_takes_are_in_no_others_way() {
        let mut body = vec![info("x".into())];
        for _ in 0..4 {
            body.push(Bytes::copy_from_slice(&header(Kind::Data, 1 << 20)));
            body.push(Bytes::from(vec![7; 1 << 20]));
        }
        let client = guest(welcome(), body).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..400 {
            waiting.push(client.read(Read::default()).await.unwrap());
        }
        // Each has the most that it can have before it is taken.
        for reader in &mut waiting {
            reader.next().await.unwrap().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let told = tokio::time::timeout(PATIENCE, client.stat(Stat::default())).await.unwrap();
        assert_eq!(told.unwrap().path, "x");
    }

    #[tokio::test]
    async fn bulk_output_arrives_whole() {
        let mut body = vec![encode_message(Kind::Message, &Started { pid: 1, offset: 0 })];
        for _ in 0..64 {
            body.push(Bytes::copy_from_slice(&header(Kind::Data, 1 << 20)));
            body.push(Bytes::from(vec![7; 1 << 20]));
        }
        body.push(Bytes::from_static(&[5, 0, 0, 0, 0]));
        let client = guest(welcome(), body).await.unwrap();
        let mut stream = client.attach_exec(AttachExec::default()).await.unwrap();
        let mut total = 0;
        while let Some(event) = stream.next().await.unwrap() {
            if let ExecEvent::Output { bytes, .. } = event {
                total += bytes.len();
            }
        }
        assert_eq!((total, stream.offset), (64 << 20, 64 << 20));
    }
}
