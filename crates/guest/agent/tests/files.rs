//! Files in the real agent.

mod common;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use atoll_guest_protocol::client::{GuestClient, GuestError};
    use atoll_guest_protocol::messages::{
        Chmod, Describe, FileKind, Find, List, Mkdir, Read, Reason, Remove, Rename, SetAttributes, Stat,
        Write,
    };
    use bytes::Bytes;

    use crate::common::{Guest, eventually, reason, shell, within};

    fn new_file(path: &str) -> Write {
        Write { path: path.into(), mode: 0, user: String::new(), parents: false, in_place: false }
    }

    async fn put(client: &GuestClient, request: Write, data: &'static [u8]) -> Result<u64, GuestError> {
        let mut writer = client.write(request).await?;
        writer.send(Bytes::from_static(data)).await?;
        within(writer.finish()).await
    }

    async fn get(client: &GuestClient, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, GuestError> {
        let mut reader = client.read(Read { path: path.into(), offset, length }).await?;
        let mut all = Vec::new();
        while let Some(bytes) = within(reader.next()).await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    /// Directories one in the other, deeper than any path and any stack.
    fn nest(at: &str, depth: usize) {
        use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut here = openat(CWD, at, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
            here = openat(&here, "d", flags, Mode::empty()).unwrap();
        }
    }

    #[tokio::test]
    async fn no_tree_is_too_deep_for_the_agent() {
        let guest = Guest::start();
        let client = guest.client().await;
        // In memory: so many directories take a busy disk a minute.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path().join("deep").to_str().unwrap().to_owned();
        std::fs::create_dir(&path).unwrap();
        nest(&path, 12_000);
        let list = List { path: path.clone(), depth: u32::MAX, max_entries: 1000 };
        let (listed, _) = within(client.list(list)).await.unwrap();
        assert_eq!(listed.len(), 128, "listings have an end");
        let find = Find { path: path.clone(), pattern: "**".into(), text: String::new(), max_count: 1000 };
        assert!(within(client.find(find)).await.unwrap().0.len() <= 128);
        let mut packed = client.pack(&path).await.unwrap();
        let ended = loop {
            match within(packed.next()).await {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert_eq!(reason(ended), Reason::Invalid, "no name of an archive is that long");
        within(client.remove(Remove { path: path.clone(), recursive: true })).await.unwrap();
        assert!(!std::path::Path::new(&path).try_exists().unwrap());
        put(&client, new_file(&guest.path("after")), b"alive").await.unwrap();
    }

    #[tokio::test]
    async fn finds_files_and_lines() {
        let guest = Guest::start();
        let client = guest.client().await;
        let root = guest.path("tree");
        std::fs::create_dir_all(guest.path("tree/a/b")).unwrap();
        for (name, content) in [
            ("one.py", "x = 1\nneedle(.*) here\r\n"),
            ("a/two.py", "needle(.*)\nneedle\nneedle(.*) last"),
            ("a/b/three.txt", "needle(.*)\n"),
            (".hidden", "nothing"),
        ] {
            std::fs::write(guest.path(&format!("tree/{name}")), content).unwrap();
        }
        std::fs::write(guest.path("tree/binary.py"), b"\0needle(.*)").unwrap();
        symlink("/", guest.path("tree/root")).unwrap();
        let find = async |pattern: &str, text: &str, max_count| {
            let (path, pattern, text) = (root.clone(), pattern.into(), text.into());
            let (found, cut) = within(client.find(Find { path, pattern, text, max_count })).await.unwrap();
            let found = found.into_iter().map(|one| (one.info.unwrap().path, one.line, one.text));
            (found.collect::<Vec<_>>(), cut)
        };
        let names = |found: &[(String, u64, String)]| -> Vec<String> {
            found.iter().map(|(path, _, _)| path.clone()).collect()
        };
        let (all, cut) = find("*", "", 100).await;
        assert_eq!(
            (names(&all), cut),
            (
                [".hidden", "a", "binary.py", "one.py", "root"].iter().map(|s| (*s).to_owned()).collect(),
                false
            )
        );
        let (found, _) = find("**/*.py", "", 100).await;
        assert_eq!(names(&found), ["binary.py", "one.py", "a/two.py"]);
        let (found, cut) = find("**/*.py", "", 2).await;
        assert_eq!((found.len(), cut), (2, true));
        let (found, _) = find("**/*.py", "needle(.*)", 100).await;
        let line = |path: &str, line, text: &str| (path.to_owned(), line, text.to_owned());
        assert_eq!(
            found,
            [
                line("one.py", 2, "needle(.*) here"),
                line("a/two.py", 1, "needle(.*)"),
                line("a/two.py", 3, "needle(.*) last"),
            ]
        );
        let (found, cut) = find("", "needle", 2).await;
        assert_eq!((found.len(), cut), (2, true));
        let nowhere = Find { path: guest.path("nowhere"), max_count: 1, ..Find::default() };
        assert_eq!(reason(client.find(nowhere).await), Reason::NotFound);
        let file = Find { path: guest.path("tree/one.py"), max_count: 1, ..Find::default() };
        assert_eq!(reason(client.find(file).await), Reason::NotADirectory);
    }

    #[tokio::test]
    async fn writes_in_place() {
        let guest = Guest::start();
        let client = guest.client().await;
        let path = guest.path("d/file");
        let request = || Write { in_place: true, parents: true, user: "4321:77".into(), ..new_file(&path) };
        assert_eq!(put(&client, request(), b"hello world").await.unwrap(), 11);
        let before = std::fs::metadata(&path).unwrap();
        assert_eq!((before.uid(), before.gid(), before.mode() & 0o7777), (4321, 77, 0o644));
        std::fs::hard_link(&path, guest.path("other")).unwrap();
        assert_eq!(put(&client, request(), b"new").await.unwrap(), 3);
        assert_eq!(std::fs::read(guest.path("other")).unwrap(), b"new", "it is the same file");
        let directory = Write { in_place: true, ..new_file(&guest.path("d")) };
        assert_eq!(reason(put(&client, directory, b"x").await), Reason::IsADirectory);
    }

    #[tokio::test]
    async fn describes_paths() {
        let guest = Guest::start();
        let client = guest.client().await;
        std::fs::write(guest.path("file"), "x").unwrap();
        symlink("file", guest.path("link")).unwrap();
        let paths = ["link", "none", "file"].map(|name| guest.path(name)).to_vec();
        let ask = Describe { paths: paths.clone(), attributes: "user.test.".into() };
        let found = within(client.describe(ask)).await.unwrap();
        let resolved = found[0].resolved.as_ref().unwrap();
        assert_eq!(
            (resolved.kind(), found[0].info.as_ref().unwrap().kind()),
            (FileKind::File, FileKind::Symlink)
        );
        assert_eq!((found[1].info.as_ref(), found[2].resolved.as_ref()), (None, None));
        let many = Describe { paths: vec![paths[0].clone(); 1025], attributes: String::new() };
        assert_eq!(reason(client.describe(many).await), Reason::Invalid);
        let outside =
            SetAttributes { path: paths[2].clone(), prefix: "trusted.".into(), ..Default::default() };
        assert_eq!(reason(client.set_attributes(outside).await), Reason::Invalid);
    }

    #[tokio::test]
    async fn writes_and_reads_back() {
        let guest = Guest::start();
        let client = guest.client().await;
        let path = guest.path("a/b/file");
        assert_eq!(reason(put(&client, new_file(&path), b"x").await), Reason::NotFound);
        let request = Write { mode: 0o4640, user: "4321:77".into(), parents: true, ..new_file(&path) };
        assert_eq!(put(&client, request, b"hello world").await.unwrap(), 11);
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (4321, 77, 0o4640));
        assert_eq!(std::fs::metadata(guest.path("a/b")).unwrap().uid(), 4321);
        assert_eq!(get(&client, &path, 0, 0).await.unwrap(), b"hello world");
        assert_eq!(get(&client, &path, 6, 3).await.unwrap(), b"wor");
        assert_eq!(get(&client, &path, 100, 0).await.unwrap(), b"");
        // An existing file keeps its owner and mode, also behind a link.
        let link = guest.path("link");
        symlink("a/b/file", &link).unwrap();
        put(&client, new_file(&link), b"new").await.unwrap();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777, metadata.len()), (4321, 0o4640, 3));
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        let info = client.stat(Stat { path: link.clone(), no_follow: true }).await.unwrap();
        assert_eq!((info.kind(), info.target.as_str()), (FileKind::Symlink, "a/b/file"));
        let info = client.stat(Stat { path: link, no_follow: false }).await.unwrap();
        assert_eq!((info.kind(), info.size, info.mode, info.uid), (FileKind::File, 3, 0o4640, 4321));
        assert_eq!(get(&client, "/proc/self/status", 0, 5).await.unwrap(), b"Name:");
    }

    #[tokio::test]
    async fn large_files_survive_both_ways() {
        let guest = Guest::start();
        let client = guest.client().await;
        let data = Bytes::from((0..5_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        let path = guest.path("large");
        let mut writer = client.write(new_file(&path)).await.unwrap();
        for chunk in data.chunks(1_234_567) {
            writer.send(data.slice_ref(chunk)).await.unwrap();
        }
        assert_eq!(writer.finish().await.unwrap(), 20_000_000);
        assert!(std::fs::read(&path).unwrap() == data);
        assert!(get(&client, &path, 0, 0).await.unwrap() == data);
    }

    #[tokio::test]
    async fn a_cut_upload_leaves_nothing() {
        let guest = Guest::start();
        let client = guest.client().await;
        let entries = || std::fs::read_dir(guest.directory.path()).unwrap().count();
        for close in [false, true] {
            let before = entries();
            let mut writer = client.write(new_file(&guest.path("never"))).await.unwrap();
            writer.send(Bytes::from(vec![1; 3_000_000])).await.unwrap();
            eventually(async || (entries() == before + 1).then_some(())).await;
            if close {
                client.close();
            }
            drop(writer);
            eventually(async || (entries() == before).then_some(())).await;
        }
        assert!(!std::path::Path::new(&guest.path("never")).is_file());
    }

    #[tokio::test]
    async fn refusals_name_their_reason() {
        let guest = Guest::start();
        let client = guest.client().await;
        let (file, directory, fifo) = (guest.path("file"), guest.path("dir"), guest.path("fifo"));
        std::fs::write(&file, "x").unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(guest.path("dir/inner"), "x").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        symlink("loop", guest.path("loop")).unwrap();
        let none = guest.path("none");
        let below_file = guest.path("file/below");
        assert_eq!(reason(get(&client, &none, 0, 0).await), Reason::NotFound);
        assert_eq!(reason(get(&client, &directory, 0, 0).await), Reason::IsADirectory);
        assert_eq!(reason(get(&client, &fifo, 0, 0).await), Reason::Invalid);
        assert_eq!(reason(get(&client, "/dev/zero", 0, 0).await), Reason::Invalid);
        assert_eq!(reason(get(&client, "relative", 0, 0).await), Reason::Invalid);
        assert_eq!(reason(get(&client, "/nul\0byte", 0, 0).await), Reason::Invalid);
        assert_eq!(reason(get(&client, &format!("/{}", "x".repeat(5000)), 0, 0).await), Reason::Invalid);
        assert_eq!(reason(get(&client, &below_file, 0, 0).await), Reason::NotADirectory);
        assert_eq!(reason(put(&client, new_file(&directory), b"x").await), Reason::IsADirectory);
        assert_eq!(reason(put(&client, new_file("/"), b"x").await), Reason::IsADirectory);
        assert_eq!(reason(put(&client, new_file(&fifo), b"x").await), Reason::Invalid);
        assert_eq!(reason(put(&client, new_file(&guest.path("loop")), b"x").await), Reason::Invalid);
        assert_eq!(reason(put(&client, new_file(&below_file), b"x").await), Reason::NotADirectory);
        let unknown = Write { user: "no-such-user".into(), ..new_file(&none) };
        assert_eq!(reason(put(&client, unknown, b"x").await), Reason::UserNotFound);
        let mkdir = |path: &str, parents| Mkdir { path: path.into(), mode: 0, user: String::new(), parents };
        assert_eq!(reason(client.mkdir(mkdir(&directory, false)).await), Reason::Exists);
        client.mkdir(mkdir(&directory, true)).await.unwrap();
        assert_eq!(reason(client.mkdir(mkdir(&guest.path("x/y"), false)).await), Reason::NotFound);
        assert_eq!(reason(client.mkdir(mkdir(&below_file, true)).await), Reason::NotADirectory);
        client.mkdir(mkdir(&guest.path("x/y"), true)).await.unwrap();
        let remove = |path: &str, recursive| Remove { path: path.into(), recursive };
        assert_eq!(reason(client.remove(remove(&directory, false)).await), Reason::NotEmpty);
        assert_eq!(reason(client.remove(remove(&none, true)).await), Reason::NotFound);
        let rename =
            |from: &str, to: &str, no_replace| Rename { from: from.into(), to: to.into(), no_replace };
        assert_eq!(reason(client.rename(rename(&none, &file, false)).await), Reason::NotFound);
        assert_eq!(reason(client.rename(rename(&file, &fifo, true)).await), Reason::Exists);
        client.rename(rename(&file, &none, true)).await.unwrap();
        client.remove(remove(&directory, true)).await.unwrap();
        client.remove(remove(&guest.path("loop"), true)).await.unwrap();
        client.chmod(Chmod { path: none.clone(), mode: Some(0o600), user: "4321".into() }).await.unwrap();
        let metadata = std::fs::metadata(&none).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o600, 4321, 0));
        std::fs::set_permissions(&none, PermissionsExt::from_mode(0o644)).unwrap();
    }

    #[tokio::test]
    async fn lists_in_order_and_says_when_cut() {
        let guest = Guest::start();
        let client = guest.client().await;
        for name in ["tree/b/two", "tree/b/one", "tree/a"] {
            let path = guest.path(name);
            std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        symlink("/", guest.path("tree/root")).unwrap();
        let list = async |depth, max_entries| {
            let (entries, cut) =
                client.list(List { path: guest.path("tree"), depth, max_entries }).await.unwrap();
            (entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>().join(" "), cut)
        };
        assert_eq!(list(1, 100).await, ("a b root".into(), false));
        assert_eq!(list(9, 100).await, ("a b b/one b/two root".into(), false));
        assert_eq!(list(9, 5).await, ("a b b/one b/two root".into(), false));
        assert_eq!(list(9, 4).await, ("a b b/one b/two".into(), true));
        assert!(list(9, 2).await.1);
        let not = client.list(List { path: guest.path("tree/a"), depth: 1, max_entries: 1 }).await;
        assert_eq!(reason(not), Reason::NotADirectory);
        for number in 0..3000 {
            std::fs::write(guest.path(&format!("tree/b/{number:05}")), "").unwrap();
        }
        let (entries, cut) =
            client.list(List { path: guest.path("tree/b"), depth: 1, max_entries: 5000 }).await.unwrap();
        assert_eq!((entries.len(), cut), (3002, false));
    }

    /// As `mv` does; the kernel alone does not, nor for a directory of an image.
    #[tokio::test]
    async fn renames_go_to_other_file_systems_too() {
        let guest = Guest::start();
        let client = guest.client().await;
        let elsewhere = tempfile::Builder::new().prefix("atoll-guest-").tempdir_in("/dev/shm").unwrap();
        std::fs::create_dir_all(guest.path("tree/deep")).unwrap();
        std::fs::write(guest.path("tree/deep/file"), "content").unwrap();
        std::fs::set_permissions(guest.path("tree/deep"), PermissionsExt::from_mode(0o750)).unwrap();
        std::fs::hard_link(guest.path("tree/deep/file"), guest.path("tree/same")).unwrap();
        std::os::unix::fs::lchown(guest.path("tree/same"), Some(1234), Some(4321)).unwrap();
        symlink("deep/file", guest.path("tree/link")).unwrap();
        let fifo = guest.path("tree/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o640.into(), 0).unwrap();
        let before = std::fs::metadata(guest.path("tree/deep")).unwrap();
        let link = std::fs::symlink_metadata(guest.path("tree/link")).unwrap();
        let there = |name: &str| elsewhere.path().join(name);
        let to = there("moved").to_str().unwrap().to_owned();
        let rename =
            |from: &str, to: &str, no_replace| Rename { from: from.into(), to: to.into(), no_replace };

        client.rename(rename(&guest.path("tree"), &to, true)).await.unwrap();
        assert!(!std::fs::exists(guest.path("tree")).unwrap());
        let after = std::fs::metadata(there("moved/deep")).unwrap();
        assert_eq!((after.mode(), after.mtime_nsec()), (before.mode(), before.mtime_nsec()));
        let (file, same) = (there("moved/deep/file"), there("moved/same"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
        let same = std::fs::metadata(same).unwrap();
        assert_eq!(
            (same.ino(), same.uid(), same.gid()),
            (std::fs::metadata(file).unwrap().ino(), 1234, 4321)
        );
        let moved = std::fs::symlink_metadata(there("moved/link")).unwrap();
        assert_eq!((moved.mtime(), moved.mtime_nsec()), (link.mtime(), link.mtime_nsec()));
        assert_eq!(std::fs::read_link(there("moved/link")).unwrap().to_str(), Some("deep/file"));
        assert_eq!(std::fs::metadata(there("moved/fifo")).unwrap().mode(), 0o010640);

        // Nothing is replaced that should not be, and no trace of the attempt stays.
        std::fs::create_dir(guest.path("tree")).unwrap();
        assert_eq!(reason(client.rename(rename(&guest.path("tree"), &to, true)).await), Reason::Exists);
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1);
        assert!(std::path::Path::new(&guest.path("tree")).is_dir());
        // A mount point does not move.
        assert!(client.rename(rename("/dev/shm", &guest.path("shm"), true)).await.is_err());
        assert!(there("moved").is_dir());
    }

    /// The agent opens paths in its own process: `/proc/self` is the agent there, and it holds its cgroup.
    #[tokio::test]
    async fn no_path_leads_to_what_the_agent_has_open() {
        let guest = Guest::start_with_cgroup();
        let client = guest.client().await;
        let running = client.start_exec(shell("ex1", "exec sleep 60")).await.unwrap();
        let before = guest.cgroups();
        assert_eq!(guest.processes("ex1"), 1);
        symlink("/proc/self", guest.path("agent")).unwrap();
        symlink("/proc/self/fd/4", guest.path("group")).unwrap();
        symlink("/proc/self/fd/4/cgroup.procs", guest.path("procs")).unwrap();
        let group = std::fs::read_link(format!("/proc/{}/fd/4", guest.pid())).unwrap();
        let ways = [
            "/proc/self/fd/4".to_owned(),
            "/proc/thread-self/fd/4".to_owned(),
            format!("/proc/{}/fd/4", guest.pid()),
            guest.path("agent/fd/4"),
            guest.path("group"),
            // Through the file system itself, where it is in sight.
            group.to_str().unwrap().to_owned(),
        ];
        let process =
            within(client.list(List { path: "/proc".into(), depth: 1, max_entries: 100_000 })).await;
        assert!(process.is_ok());
        let mut files: Vec<String> = ways.iter().map(|way| format!("{way}/cgroup.procs")).collect();
        files.push(guest.path("procs"));
        for path in &files {
            for in_place in [true, false] {
                let request = Write { in_place, ..new_file(path) };
                let refused = reason(put(&client, request, b"0").await);
                assert!(matches!(refused, Reason::Denied | Reason::Invalid), "{path}: {refused:?}");
            }
            let chmod = Chmod { path: path.clone(), mode: Some(0o600), user: String::new() };
            assert!(client.chmod(chmod).await.is_err(), "{path}");
        }
        for way in &ways {
            let evil = format!("{way}/evil");
            for parents in [false, true] {
                let mkdir = Mkdir { path: evil.clone(), mode: 0, user: String::new(), parents };
                assert!(client.mkdir(mkdir).await.is_err(), "{way}");
            }
            let remove = Remove { path: format!("{way}/exec-ex1"), recursive: true };
            assert!(client.remove(remove).await.is_err(), "{way}");
            let rename =
                Rename { from: format!("{way}/exec-ex1"), to: format!("{way}/moved"), no_replace: true };
            assert!(client.rename(rename).await.is_err(), "{way}");
        }
        for name in
            ["maps", "mem", "environ", "auxv", "smaps", "stat", "exe", "root/etc/passwd", "cwd/etc/passwd"]
        {
            for path in [
                format!("/proc/self/{name}"),
                format!("/proc/{}/{name}", guest.pid()),
                guest.path(&format!("agent/{name}")),
            ] {
                let refused = reason(get(&client, &path, 0, 0).await);
                assert!(matches!(refused, Reason::Denied | Reason::Invalid), "{path}: {refused:?}");
            }
        }
        let mut packed = client.pack("/proc/self/fd/4").await.unwrap();
        let mut content = Vec::new();
        while let Ok(Some(bytes)) = within(packed.next()).await {
            content.extend_from_slice(&bytes);
        }
        let shown = String::from_utf8_lossy(&content);
        assert!(!shown.contains("cgroup.procs"), "{shown}");
        assert_eq!(guest.cgroups(), before);
        assert_eq!(guest.processes("ex1"), 1, "it stays in the cgroup of its exec");
        // What is of the sandbox can be read there as before.
        for path in
            ["/proc/self/status", "/proc/mounts", "/proc/net/dev", "/proc/version", "/proc/sys/kernel/ostype"]
        {
            assert!(!get(&client, path, 0, 0).await.unwrap().is_empty(), "{path}");
        }
        drop(running);
    }
}
