//! Archives, watches, ports, connections and hostile input, in the real agent.

mod common;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use atoll_guest_protocol::client::{GuestClient, GuestError, WatchStream};
    use atoll_guest_protocol::messages::{ChangeKind, Configure, Reason, Unpack, Watch, WatchEvent};
    use bytes::Bytes;
    use tar::{Builder, EntryType, Header};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::common::{Guest, SANDBOX, eventually, reason, run, shell, within};

    async fn unpack(client: &GuestClient, path: &str, tar: Vec<u8>, user: &str) -> Result<u64, GuestError> {
        let mut writer = client.unpack(Unpack { path: path.into(), user: user.into() }).await?;
        let tar = Bytes::from(tar);
        for chunk in tar.chunks(70_000) {
            writer.send(tar.slice_ref(chunk)).await?;
        }
        within(writer.finish()).await
    }

    async fn pack(client: &GuestClient, path: &str) -> Result<Vec<u8>, GuestError> {
        let mut stream = client.pack(path).await?;
        let mut all = Vec::new();
        while let Some(bytes) = within(stream.next()).await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o640);
        header.set_uid(4321);
        header.set_gid(77);
        header.set_mtime(1_000_000);
        header
    }

    /// A member whose name the tar crate itself would refuse to write.
    fn raw(tar: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, link: &str, content: &[u8]) {
        let mut header = header(kind, content.len() as u64);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, content).unwrap();
    }

    #[tokio::test]
    async fn archives_go_round() {
        let guest = Guest::start();
        let client = guest.client().await;
        let source = guest.path("source");
        std::fs::create_dir_all(format!("{source}/deep/{}", "long-name-".repeat(15))).unwrap();
        let big: Vec<u8> = (0..900_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(format!("{source}/deep/big"), &big).unwrap();
        symlink("/anywhere", format!("{source}/link")).unwrap();
        std::os::unix::fs::chown(format!("{source}/deep/big"), Some(4321), Some(77)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(format!("{source}/socket")).unwrap();
        let tar = pack(&client, &source).await.unwrap();
        let target = guest.path("target");
        assert_eq!(unpack(&client, &target, tar.clone(), "").await.unwrap(), 3_600_000);
        let unpacked = format!("{target}/source/deep/big");
        assert!(std::fs::read(&unpacked).unwrap() == big);
        let metadata = std::fs::metadata(&unpacked).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (4321, 77));
        assert_eq!(std::fs::read_link(format!("{target}/source/link")).unwrap().to_str(), Some("/anywhere"));
        assert!(
            std::fs::metadata(format!("{target}/source/deep/{}", "long-name-".repeat(15))).unwrap().is_dir()
        );
        assert!(std::fs::symlink_metadata(format!("{target}/source/socket")).is_err());
        // Over the existing files, for another owner.
        unpack(&client, &target, tar, "1234").await.unwrap();
        assert_eq!(std::fs::metadata(&unpacked).unwrap().uid(), 1234);
        assert_eq!(reason(pack(&client, &guest.path("none")).await), Reason::NotFound);
        assert_eq!(reason(unpack(&client, &target, vec![7; 5000], "").await), Reason::Invalid);
    }

    #[tokio::test]
    async fn hostile_archives_stay_inside() {
        let guest = Guest::start();
        let client = guest.client().await;
        let outside = guest.path("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(format!("{outside}/victim"), "safe").unwrap();
        type Members<'a> = Vec<(&'a str, EntryType, &'a str)>;
        let absolute = format!("{outside}/victim");
        let cases: Vec<Members<'_>> = vec![
            vec![("../outside/victim", EntryType::Regular, "")],
            vec![("a/../../outside/victim", EntryType::Regular, "")],
            vec![(&absolute, EntryType::Regular, "")],
            vec![("l", EntryType::Symlink, &outside), ("l/victim", EntryType::Regular, "")],
            vec![("l", EntryType::Symlink, "../outside"), ("l/victim", EntryType::Regular, "")],
            vec![("l", EntryType::Symlink, "../outside"), ("l/new/deep", EntryType::Regular, "")],
            vec![
                ("l", EntryType::Symlink, ".."),
                ("m", EntryType::Symlink, "l/outside"),
                ("m/victim", EntryType::Regular, ""),
            ],
            vec![("h", EntryType::Link, "../outside/victim")],
            vec![("h", EntryType::Link, &absolute)],
            vec![("l", EntryType::Symlink, "../outside"), ("h", EntryType::Link, "l/victim")],
            vec![("l", EntryType::Symlink, "/proc/self/root"), ("l/tmp/x", EntryType::Regular, "")],
            vec![("device", EntryType::Char, "")],
            vec![("device", EntryType::Block, "")],
            vec![("fifo", EntryType::Fifo, "")],
        ];
        for (number, members) in cases.iter().enumerate() {
            let mut tar = Builder::new(Vec::new());
            for (name, kind, link) in members {
                let content: &[u8] = if *kind == EntryType::Regular { b"evil" } else { b"" };
                raw(&mut tar, name, *kind, link, content);
            }
            let target = guest.path(&format!("target{number}"));
            let refused = unpack(&client, &target, tar.into_inner().unwrap(), "").await;
            assert_eq!(reason(refused), Reason::Invalid, "{members:?}");
        }
        // A link in the way of a file is replaced, not followed.
        let mut tar = Builder::new(Vec::new());
        raw(&mut tar, "l", EntryType::Symlink, &absolute, b"");
        raw(&mut tar, "l", EntryType::Regular, "", b"evil");
        unpack(&client, &guest.path("target"), tar.into_inner().unwrap(), "").await.unwrap();
        assert_eq!(std::fs::read_to_string(guest.path("target/l")).unwrap(), "evil");
        assert_eq!(std::fs::read_to_string(&absolute).unwrap(), "safe");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(std::fs::metadata(&absolute).unwrap().nlink(), 1);
    }

    async fn until(stream: &mut WatchStream, wanted: &[(ChangeKind, &str)]) -> Vec<WatchEvent> {
        let mut missing: Vec<_> = wanted.to_vec();
        let mut seen = Vec::new();
        while !missing.is_empty() {
            let event = within(stream.next()).await.unwrap().unwrap();
            missing.retain(|(kind, path)| event.kind() != *kind || event.path != *path);
            seen.push(event);
        }
        seen
    }

    #[tokio::test]
    async fn watches_what_is_there_and_what_comes() {
        let guest = Guest::start();
        let client = guest.client().await;
        let root = guest.path("root");
        std::fs::create_dir_all(format!("{root}/old")).unwrap();
        let at = |name: &str| format!("{root}/{name}");
        let mut watch =
            client.watch(Watch { path: root.clone(), recursive: true, marks: false }).await.unwrap();
        std::fs::write(at("old/file"), "x").unwrap();
        until(&mut watch, &[(ChangeKind::Created, &at("old/file")), (ChangeKind::Written, &at("old/file"))])
            .await;
        // Made in one go: the inner ones may be there before the outer one is watched.
        std::fs::create_dir_all(at("new/a/b")).unwrap();
        std::fs::write(at("new/a/b/c"), "x").unwrap();
        until(
            &mut watch,
            &[(ChangeKind::Created, &at("new/a/b/c")), (ChangeKind::Written, &at("new/a/b/c"))],
        )
        .await;
        std::fs::rename(at("new"), at("moved")).unwrap();
        let seen = until(&mut watch, &[(ChangeKind::Moved, &at("moved"))]).await;
        assert_eq!(seen.last().unwrap().from, at("new"));
        std::fs::write(at("moved/a/b/d"), "x").unwrap();
        until(&mut watch, &[(ChangeKind::Written, &at("moved/a/b/d"))]).await;
        std::fs::rename(at("moved"), guest.path("out")).unwrap();
        until(&mut watch, &[(ChangeKind::Removed, &at("moved"))]).await;
        std::fs::write(guest.path("out/a/b/unseen"), "x").unwrap();
        std::fs::set_permissions(at("old/file"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let seen = until(&mut watch, &[(ChangeKind::Attributes, &at("old/file"))]).await;
        assert!(seen.iter().all(|event| !event.path.contains("unseen")), "{seen:?}");
        std::fs::remove_file(at("old/file")).unwrap();
        until(&mut watch, &[(ChangeKind::Removed, &at("old/file"))]).await;
        std::fs::remove_dir_all(&root).unwrap();
        until(&mut watch, &[(ChangeKind::Removed, &root)]).await;
        let end = within(async {
            loop {
                match watch.next().await {
                    Ok(Some(_)) => {}
                    other => return other,
                }
            }
        });
        assert_eq!(reason(end.await), Reason::NotFound);
        let none = client.watch(Watch { path: root, recursive: true, marks: false }).await;
        assert_eq!(reason(none), Reason::NotFound);
    }

    /// A client that waits for the mark has seen everything that happened before it.
    #[tokio::test]
    async fn marks_come_behind_what_happened() {
        let guest = Guest::start();
        let client = guest.client().await;
        let root = guest.path("root");
        std::fs::create_dir_all(&root).unwrap();
        let mut watch =
            client.watch(Watch { path: root.clone(), recursive: false, marks: true }).await.unwrap();
        let mut without =
            client.watch(Watch { path: root.clone(), recursive: false, marks: false }).await.unwrap();
        for mark in 1..=20 {
            let (from, to) = (format!("{root}/f{mark}"), format!("{root}/g{mark}"));
            std::fs::write(&from, "x").unwrap();
            std::fs::rename(&from, &to).unwrap();
            within(client.mark_watches(mark)).await.unwrap();
            let mut seen = Vec::new();
            loop {
                let event = within(watch.next()).await.unwrap().unwrap();
                if event.kind() == ChangeKind::Mark {
                    assert_eq!(event.mark, mark);
                    break;
                }
                seen.push((event.kind(), event.path));
            }
            assert!(seen.contains(&(ChangeKind::Created, from)), "{seen:?}");
            assert!(seen.contains(&(ChangeKind::Moved, to)), "{seen:?}");
        }
        let last = format!("{root}/g20");
        let seen = until(&mut without, &[(ChangeKind::Moved, &last)]).await;
        assert!(seen.iter().all(|event| event.kind() != ChangeKind::Mark), "{seen:?}");
    }

    #[tokio::test]
    async fn watches_are_limited_and_given_back() {
        let guest = Guest::start();
        let client = guest.client().await;
        let watch = || client.watch(Watch { path: "/tmp".into(), recursive: false, marks: false });
        let mut all = Vec::new();
        let refused = loop {
            match watch().await {
                Ok(stream) => all.push(stream),
                refused => break refused,
            }
        };
        assert_eq!((all.len(), reason(refused)), (64, Reason::Other));
        all.pop();
        eventually(async || watch().await.ok()).await;
    }

    #[tokio::test]
    async fn ports() {
        let guest = Guest::start();
        let client = guest.client().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(client.ports().await.unwrap().contains(&port));
        let echo = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
        });
        let data: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut stream = client.dial(port).await.unwrap();
        let mut back = Vec::new();
        within(async {
            stream.write_all(&data).await.unwrap();
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut back).await.unwrap();
        })
        .await;
        assert!(back == data);
        echo.await.unwrap();
        assert_eq!(reason(client.dial(port).await), Reason::PortClosed);
        let six = tokio::net::TcpListener::bind("[::1]:0").await.unwrap();
        drop(client.dial(six.local_addr().unwrap().port()).await.unwrap());
        assert_eq!(reason(client.dial(0).await), Reason::Invalid);
    }

    #[tokio::test]
    async fn connections_that_nobody_reads_stop_no_others() {
        let guest = Guest::start();
        let client = guest.client().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let flood = tokio::spawn(async move {
            let mut floods = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                floods.spawn(async move { while stream.write_all(&[7; 65536]).await.is_ok() {} });
            }
        });
        let mut unread = Vec::new();
        for _ in 0..200 {
            unread.push(within(client.dial(port)).await.unwrap());
        }
        // Each of them has sent as much as it may; together less than the window that all operations share.
        let mut last = within(client.dial(port)).await.unwrap();
        let mut bytes = vec![0; 4 << 20];
        within(last.read_exact(&mut bytes)).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        within(client.list_execs()).await.unwrap();
        flood.abort();
    }

    #[tokio::test]
    async fn a_port_that_the_host_listens_on() {
        let guest = Guest::start();
        let client = guest.client().await;
        let mut listener = client.listen(0).await.unwrap();
        let port = listener.port();
        assert_eq!(reason(client.listen(port).await), Reason::PortTaken);
        for address in ["127.0.0.1", "::1"] {
            let mut inside = tokio::net::TcpStream::connect((address, port)).await.unwrap();
            let incoming = within(listener.next()).await.unwrap().unwrap();
            let mut stream = client.accept(incoming).await.unwrap();
            inside.write_all(b"ping").await.unwrap();
            let mut four = [0; 4];
            within(stream.read_exact(&mut four)).await.unwrap();
            stream.write_all(b"pong").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut back = Vec::new();
            within(inside.read_to_end(&mut back)).await.unwrap();
            assert_eq!((&four, &back[..]), (b"ping", &b"pong"[..]));
        }
        drop(listener);
        eventually(async || client.listen(port).await.ok()).await;
    }

    #[tokio::test]
    async fn configures_and_measures() {
        let guest = Guest::start();
        let client = guest.client().await;
        let workdir = guest.path("work/dir");
        let request =
            Configure { workdir: workdir.clone(), workdir_user: "4321:77".into(), ..Configure::default() };
        client.configure(request.clone()).await.unwrap();
        client.configure(request).await.unwrap();
        let metadata = std::fs::metadata(&workdir).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (4321, 77));
        let bad = Configure { hostname: "a b".into(), ..Configure::default() };
        assert_eq!(reason(client.configure(bad).await), Reason::Invalid);
        let metrics = client.metrics().await.unwrap();
        assert!(metrics.processes > 0 && metrics.disk_total_bytes >= metrics.disk_used_bytes);
        assert!(metrics.disk_used_bytes > 0 && metrics.processes_rss_bytes >= metrics.agent_rss_bytes);
        assert!(metrics.agent_rss_bytes > 0);
    }

    #[tokio::test]
    async fn only_the_right_and_newest_host_is_served() {
        let guest = Guest::start();
        let wrong = GuestClient::connect(guest.stream().await, "sb-another").await;
        assert_eq!(reason(wrong), Reason::Invalid);
        let first = guest.client().await;
        // A connection that has not introduced itself replaces no other.
        let _stranger = guest.stream().await;
        assert_eq!(reason(GuestClient::connect(guest.stream().await, "sb-another").await), Reason::Invalid);
        first.list_execs().await.unwrap();
        let second = guest.client().await;
        within(first.closed()).await;
        assert_eq!(first.list_execs().await, Err(GuestError::Closed));
        second.list_execs().await.unwrap();
        second.close();
        within(second.closed()).await;
        assert_eq!(second.list_execs().await, Err(GuestError::Closed));
        let clone = {
            let third = guest.client().await;
            third.closed()
        };
        within(clone).await;
    }

    #[tokio::test]
    async fn garbage_does_not_end_the_agent() {
        let mut guest = Guest::start();
        let served = guest.client().await;
        for garbage in [
            &[0xff_u8; 100_000][..],
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let mut stream = guest.stream().await;
            drop(stream.write_all(garbage).await);
            let mut rest = Vec::new();
            drop(within(stream.read_to_end(&mut rest)).await);
        }
        // Many that say nothing: the rest are closed at once, and the served one does not notice.
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(guest.stream().await);
        }
        served.list_execs().await.unwrap();
        drop(silent);
        assert!(guest.alive());
        eventually(async || GuestClient::connect(guest.stream().await, SANDBOX).await.ok()).await;
        assert!(guest.alive());
    }

    /// Requests that no client of ours would send, on a connection that is set up properly.
    #[tokio::test]
    async fn malformed_requests_are_refused_one_by_one() {
        use atoll_guest_protocol::body::{RecordReader, RecordWriter};
        use atoll_guest_protocol::messages::{Failure, Hello, Welcome};
        use atoll_guest_protocol::wire::{Kind, Record, decode_message, encode_message, header};

        let mut guest = Guest::start();
        let (requests, connection) = h2::client::handshake::<_>(guest.stream().await).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let send = async |operation: &str, body: Bytes| {
            let request =
                http::Request::post(format!("http://guest/atoll.guest.v1/{operation}")).body(()).unwrap();
            let mut requests = requests.clone().ready().await.unwrap();
            let (response, stream) = requests.send_request(request, false).unwrap();
            RecordWriter::new(stream).finish_encoded(body).await.unwrap();
            let mut reader = RecordReader::new(within(response).await.unwrap().into_body());
            within(reader.next()).await.unwrap()
        };
        let refused = async |operation: &str, body: Bytes| match send(operation, body).await {
            Some(Record { kind: Kind::Failure, payload }) => {
                decode_message::<Failure>(payload).unwrap().reason()
            }
            other => panic!("{operation}: {other:?}"),
        };
        let empty = || Bytes::copy_from_slice(&header(Kind::Message, 0));
        assert_eq!(refused("exec-list", empty()).await, Reason::Denied);
        let hello = encode_message(Kind::Message, &Hello { version: 99, sandbox_id: SANDBOX.into() });
        assert_eq!(refused("hello", hello).await, Reason::Invalid);
        let hello = encode_message(Kind::Message, &Hello { version: 1, sandbox_id: SANDBOX.into() });
        let welcome = send("hello", hello).await.unwrap();
        assert_eq!(decode_message::<Welcome>(welcome.payload).unwrap().version, 1);
        let oversize = Bytes::from_static(&[1, 0xff, 0xff, 0xff, 0xff]);
        let unknown_kind = Bytes::from_static(&[77, 0, 0, 0, 0]);
        let no_protobuf = Bytes::from_static(&[1, 0, 0, 0, 3, 0xff, 0xff, 0xff]);
        let truncated = Bytes::from_static(&[1, 0, 0, 0, 9, 1]);
        for operation in ["exec-start", "exec-stdin", "stat", "write", "unpack", "watch", "dial", "configure"]
        {
            for body in [&oversize, &unknown_kind, &no_protobuf, &truncated] {
                assert_eq!(refused(operation, body.clone()).await, Reason::Invalid, "{operation} {body:?}");
            }
        }
        assert_eq!(refused("no-such-operation", empty()).await, Reason::Invalid);
        assert!(guest.alive());
    }

    /// Many at once: none is lost, and the agent's descriptors go back to what they were.
    #[tokio::test]
    async fn many_execs_at_once() {
        let guest = Guest::start();
        let client = guest.client().await;
        let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().count();
        let before = descriptors();
        let mut all = tokio::task::JoinSet::new();
        for number in 0..100 {
            let client = client.clone();
            all.spawn(async move {
                let id = format!("many{number}");
                let output = run(&client, shell(&id, &format!("echo {number}; exit {}", number % 7))).await;
                client.forget_exec(&id).await.unwrap();
                (number, output.text(), output.exited.code)
            });
        }
        for (number, text, code) in all.join_all().await {
            assert_eq!((text, code), (format!("{number}\n"), Some(number % 7)));
        }
        eventually(async || (descriptors() == before).then_some(())).await;
    }
}
