//! Volumes with the real program and the real kernel.

use atoll_api::{CreateExec, CreateSandbox, CreateVolume, Sandbox, VolumeMountDraft};
use atoll_blackbox::{Output, Server};
use atoll_core::Code;

use crate::common::{code, gvisor, shell};

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMountDraft {
    VolumeMountDraft { volume: volume.into(), path: path.into(), read_only, subpath: None }
}

async fn with(server: &Server, mounts: &[VolumeMountDraft]) -> Sandbox {
    like(server, &CreateSandbox::default(), mounts).await
}

/// The same, of another kind.
async fn like(server: &Server, kind: &CreateSandbox, mounts: &[VolumeMountDraft]) -> Sandbox {
    let create = CreateSandbox { volumes: mounts.to_vec(), ..kind.clone() };
    server.client.create_sandbox(&create).await.unwrap()
}

async fn volume(server: &Server, name: &str, mib: u64) {
    let create = CreateVolume { name: name.into(), size_bytes: Some(mib << 20), ..CreateVolume::default() };
    server.client.create_volume(&create).await.unwrap();
}

async fn copy(server: &Server, from: &str, name: &str, read_only: bool) {
    let create =
        CreateVolume { name: name.into(), from: Some(from.into()), read_only, ..CreateVolume::default() };
    server.client.create_volume(&create).await.unwrap();
}

/// Runs a shell line as user 1000.
async fn as_user(server: &Server, sandbox: &str, line: &str) -> Output {
    let create = CreateExec { user: Some("1000".into()), ..shell(&format!("cd /; {line}")) };
    let done = server.run(sandbox, CreateExec { wait_ms: Some(60_000), ..create }).await;
    let text = |stream| {
        let chunks = done.output.iter().flatten().filter(|chunk| chunk.stream == stream);
        chunks.map(|chunk| String::from_utf8_lossy(&chunk.bytes().unwrap()).into_owned()).collect::<String>()
    };
    Output {
        code: done.exec.exit.as_ref().and_then(|exit| exit.code),
        stdout: text(atoll_core::exec::OutputStream::Stdout),
        stderr: text(atoll_core::exec::OutputStream::Stderr),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_writes_the_others_see_at_once_under_the_same_user() {
    let server = Server::with(&[]);
    is_one_file_system(&server, &CreateSandbox::default()).await;
    let sandbox = with(&server, &[mount("powers", "/srv/data", false)]).await;
    // Neither devices nor other users' powers come out of a volume.
    let mounts = server.sh(&sandbox.id, "grep ' /srv/data ' /proc/self/mounts").await.stdout;
    assert!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn also_in_gvisor_and_together_with_containers() {
    let mut server = gvisor::server(Server::start);
    is_one_file_system(&server, &gvisor::sandboxed()).await;
    survives_the_server(&mut server, &gvisor::sandboxed()).await;
    let [one, two] = [
        like(&server, &gvisor::sandboxed(), &[mount("powers", "/tmp", false)]).await,
        with(&server, &[mount("powers", "/data", false)]).await,
    ];
    as_user(&server, &one.id, "echo first > /tmp/file").await.ok();
    let seen = as_user(&server, &two.id, "stat -c %u /data/file; mv /data/file /data/moved").await.ok();
    assert_eq!(seen.stdout, "1000\n");
    assert_eq!(server.sh(&one.id, "ls /tmp; cat /tmp/moved").await.stdout, "moved\nfirst\n");
    // Where the level has its own files there is no place for a volume.
    let create =
        CreateSandbox { volumes: vec![mount("powers", "/.atoll/agent", false)], ..gvisor::sandboxed() };
    assert_eq!(code(server.client.create_sandbox(&create).await), Code::ImageInvalid);
    server.finish().await;
}

async fn is_one_file_system(server: &Server, kind: &CreateSandbox) {
    volume(server, "powers", 64).await;
    volume(server, "data", 64).await;
    let [one, two] = [
        like(server, kind, &[mount("data", "/srv/data", false)]).await,
        like(server, kind, &[mount("data", "/work", false)]).await,
    ];
    let reader = like(server, kind, &[mount("data", "/data", true)]).await;
    as_user(server, &one.id, "mkdir /srv/data/d && echo first > /srv/data/d/file").await.ok();
    assert_eq!(
        as_user(server, &two.id, "stat -c %u:%g /work/d/file; cat /work/d/file").await.ok().stdout,
        "1000:1000\nfirst\n"
    );
    as_user(server, &two.id, "echo second >> /work/d/file").await.ok();
    assert_eq!(server.sh(&reader.id, "cat /data/d/file").await.stdout, "first\nsecond\n");
    let refused = server.sh(&reader.id, "echo x > /data/new").await;
    assert!(refused.code != Some(0) && refused.stderr.contains("Read-only"), "{refused:?}");

    // The size is a limit, and tells the truth.
    let full = server.sh(&one.id, "head -c 100M /dev/zero > /srv/data/big").await;
    assert!(full.code != Some(0) && full.stderr.contains("No space left"), "{full:?}");
    server.sh(&one.id, "rm /srv/data/big").await.ok();
    let size: u64 =
        server.sh(&two.id, "df -B1 --output=size /work | tail -n 1").await.stdout.trim().parse().unwrap();
    assert!(size <= 64 << 20 && size > 32 << 20, "{size}");
    let view = server.client.get_volume("data").await.unwrap();
    assert_eq!((view.total_bytes, view.used_by.len()), (Some(size), 3));

    let busy = server.client.delete_volume("data").await.unwrap_err();
    assert_eq!(busy.code(), Some(Code::VolumeBusy));
    assert!(busy.to_string().contains(&one.id), "{busy}");
    for sandbox in [&one, &two, &reader] {
        server.client.delete_sandbox(&sandbox.id).await.unwrap();
    }
    // It survives all of them.
    let again = like(server, kind, &[mount("data", "/again", false)]).await;
    assert_eq!(server.sh(&again.id, "cat /again/d/file").await.stdout, "first\nsecond\n");
    server.client.delete_sandbox(&again.id).await.unwrap();
    server.client.delete_volume("data").await.unwrap();
    assert_eq!(code(server.client.get_volume("data").await), Code::VolumeNotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_survives_the_server_and_stays_one_file_system() {
    let mut server = Server::with(&[]);
    survives_the_server(&mut server, &CreateSandbox::default()).await;
    server.finish().await;
}

async fn survives_the_server(server: &mut Server, kind: &CreateSandbox) {
    volume(server, "data", 64).await;
    let one = like(server, kind, &[mount("data", "/data", false)]).await.id;
    server.sh(&one, "echo before > /data/file").await.ok();
    server.kill();
    server.restart();
    // The sandbox kept its mount; a new one, and the server itself, see the same.
    server.sh(&one, "echo after >> /data/file").await.ok();
    let two = like(server, kind, &[mount("data", "/data", false)]).await.id;
    assert_eq!(server.sh(&two, "cat /data/file").await.stdout, "before\nafter\n");
    server.sh(&two, "echo third >> /data/file").await.ok();
    assert_eq!(server.sh(&one, "tail -n 1 /data/file").await.stdout, "third\n");
    assert_eq!(server.cli(&["volume", "cp", "data:/file", "-"]).ok().stdout, "before\nafter\nthird\n");
    for sandbox in [&one, &two] {
        server.client.delete_sandbox(sandbox).await.unwrap();
    }
    assert!(server.stop().success());
    server.restart();
    assert_eq!(server.cli(&["volume", "cp", "data:/file", "-"]).ok().stdout, "before\nafter\nthird\n");
    server.client.delete_volume("data").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_of_one_moment_and_snapshots_stay() {
    let server = Server::with(&[]);
    volume(&server, "data", 64).await;
    let sandbox = with(&server, &[mount("data", "/data", false)]).await.id;
    server.sh(&sandbox, "echo 1 > /data/file").await.ok();
    copy(&server, "data", "kept", true).await;
    copy(&server, "data", "other", false).await;
    server.sh(&sandbox, "echo 2 > /data/file").await.ok();
    let all = with(
        &server,
        &[mount("data", "/data", true), mount("kept", "/kept", false), mount("other", "/other", false)],
    )
    .await;
    let seen = server.sh(&all.id, "echo 3 > /other/file; cat /data/file /kept/file /other/file").await;
    assert_eq!(seen.stdout, "2\n1\n3\n");
    assert!(all.volumes.iter().any(|mount| mount.name == "kept" && mount.read_only), "{:?}", all.volumes);
    assert_ne!(server.sh(&all.id, "echo x > /kept/file").await.code, Some(0));
    let listed = server.cli(&["volume", "ls"]).ok().stdout;
    assert!(listed.contains("snapshot of data") && listed.contains("clone of data"), "{listed}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_without_a_sandbox_stay_inside_the_volume() {
    let server = Server::with(&[]);
    volume(&server, "data", 64).await;
    server.cli_with(&["volume", "cp", "-", "data:/a/b/file"], b"content").ok();
    assert_eq!(server.cli(&["volume", "cp", "data:/a/b/file", "-"]).ok().stdout, "content");
    let names: Vec<String> = server
        .client
        .list_volume_files("data", "/a/b")
        .await
        .unwrap()
        .items
        .into_iter()
        .map(|file| file.path)
        .collect();
    assert_eq!(names, ["file"], "nothing temporary stays");
    assert_eq!(server.client.stat_volume_file("data", "/a/b/file").await.unwrap().size_bytes, 7);

    // A hostile sandbox: links that lead out, a pipe that never answers.
    let sandbox = with(&server, &[mount("data", "/data", false)]).await.id;
    assert_eq!(server.sh(&sandbox, "cat /data/a/b/file").await.stdout, "content");
    let trap = "cd /data; ln -s /etc/shadow abs; ln -s ../../../../etc/shadow up; ln -s / root; \
         ln -s /proc/self/fd/3 magic; ln -s a/b inside; mkfifo pipe";
    server.sh(&sandbox, trap).await.ok();
    for path in ["/abs", "/up", "/root/etc/shadow", "/magic", "/pipe"] {
        let read = server.client.read_volume_file("data", path).await;
        assert!(matches!(code(read), Code::PathInvalid | Code::FileNotFound), "{path}");
    }
    let escape = server.cli_with(&["volume", "cp", "-", "data:/root/tmp/atoll-escaped"], b"x");
    assert_ne!(escape.code, Some(0));
    assert!(!crate::common::is_there(std::path::Path::new("/tmp/atoll-escaped")));
    assert_eq!(code(server.client.read_volume_file("data", "/../x").await), Code::PathInvalid);
    assert_eq!(code(server.client.read_volume_file("data", "/a").await), Code::IsADirectory);
    assert_eq!(
        server.cli(&["volume", "cp", "data:/inside/file", "-"]).ok().stdout,
        "content",
        "links inside work"
    );

    assert_eq!(code(server.client.remove_volume_file("data", "/a", false).await), Code::DirectoryNotEmpty);
    server.cli(&["volume", "rm", "data:/a"]).ok();
    assert_eq!(code(server.client.stat_volume_file("data", "/a").await), Code::FileNotFound);
    assert_eq!(code(server.client.remove_volume_file("data", "/", true).await), Code::PathInvalid);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_wishes_are_refused_and_leave_nothing() {
    let server = Server::with(&[]);
    volume(&server, "data", 64).await;
    let client = &server.client;
    let create = async |mounts: Vec<VolumeMountDraft>| {
        let create = CreateSandbox { volumes: mounts, ..CreateSandbox::default() };
        code(client.create_sandbox(&create).await)
    };
    assert_eq!(create(vec![mount("none", "/a", false)]).await, Code::VolumeNotFound);
    assert_eq!(create(vec![mount("data", "/", false)]).await, Code::PathInvalid);
    assert_eq!(create(vec![mount("data", "/proc/x", false)]).await, Code::PathInvalid);
    assert_eq!(
        create(vec![mount("data", "/a", false), mount("data", "/a/b", false)]).await,
        Code::PathInvalid
    );
    // `/usr` of the image `host` is the host's and read-only: no place can be made there.
    assert_eq!(create(vec![mount("data", "/usr/atoll-nowhere", false)]).await, Code::ImageInvalid);
    let twice = CreateVolume { name: "data".into(), ..CreateVolume::default() };
    assert_eq!(code(server.client.create_volume(&twice).await), Code::NameTaken);
    let small = CreateVolume { name: "small".into(), size_bytes: Some(1), ..CreateVolume::default() };
    assert_eq!(code(server.client.create_volume(&small).await), Code::InvalidArgument);
    assert!(server.client.get_volume("data").await.unwrap().used_by.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_volumes_life() {
    let mut server = Server::with(&[]);
    volume(&server, "stays", 64).await;
    for point in ["engine.volume.journalled", "engine.volume.made"] {
        for from in [None, Some("stays".to_owned())] {
            server.kill();
            server.restart_with(&format!("{point}=kill"));
            let create = CreateVolume { name: "half".into(), from, ..CreateVolume::default() };
            assert!(server.client.create_volume(&create).await.is_err(), "{point} is not passed");
            assert!(!server.wait_end().success());
            server.restart();
            assert_eq!(code(server.client.get_volume("half").await), Code::VolumeNotFound, "{point}");
            server.client.create_volume(&create).await.unwrap();
            server.client.delete_volume("half").await.unwrap();
        }
    }
    for point in ["engine.volume.marked", "engine.volume.removed"] {
        volume(&server, "goes", 64).await;
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        assert!(server.client.delete_volume("goes").await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        assert_eq!(code(server.client.get_volume("goes").await), Code::VolumeNotFound, "{point}");
    }
    assert_eq!(server.client.list_volumes().await.unwrap().items.len(), 1);
    server.finish().await;
}
