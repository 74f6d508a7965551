//! Directories of volumes that are mounted by themselves, with the real program and the real kernel.

use atoll_api::{CreateSandbox, CreateVolume, PauseSandbox, Sandbox, VolumeMountDraft};
use atoll_blackbox::Server;
use atoll_core::Code;
use atoll_core::sandbox::PauseMode;

use crate::common::{code, gvisor, shell};

/// Sandboxes that are made while another one changes their part of the volume.
const RACES: usize = 24;

fn part(path: &str, subpath: &str) -> VolumeMountDraft {
    VolumeMountDraft {
        volume: "data".into(),
        path: path.into(),
        read_only: false,
        subpath: Some(subpath.into()),
    }
}

fn whole(path: &str) -> VolumeMountDraft {
    VolumeMountDraft { subpath: None, ..part(path, "") }
}

fn with(kind: &CreateSandbox, mount: VolumeMountDraft) -> CreateSandbox {
    CreateSandbox { volumes: vec![mount], ..kind.clone() }
}

async fn make(server: &Server, kind: &CreateSandbox, mount: VolumeMountDraft) -> Sandbox {
    server.client.create_sandbox(&with(kind, mount)).await.unwrap()
}

async fn volume(server: &Server) {
    let create = CreateVolume { name: "data".into(), size_bytes: Some(64 << 20), ..CreateVolume::default() };
    server.client.create_volume(&create).await.unwrap();
}

async fn out(server: &Server, sandbox: &Sandbox, line: &str) -> String {
    server.sh(&sandbox.id, line).await.ok().stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_all_that_is_seen() {
    let mut server = Server::with(&[]);
    is_a_part(&mut server, &CreateSandbox::default()).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn also_in_gvisor() {
    let mut server = gvisor::server(Server::start);
    is_a_part(&mut server, &gvisor::sandboxed()).await;
    server.finish().await;
}

async fn is_a_part(server: &mut Server, kind: &CreateSandbox) {
    volume(server).await;
    let all = make(server, &CreateSandbox::default(), whole("/all")).await;
    out(server, &all, "echo key > /all/secret").await;
    // The directory is made, and every user may write to it, as to the root of a volume.
    let alice = make(server, kind, part("/mine", "/users/alice/")).await;
    assert_eq!(alice.volumes[0].subpath.as_deref(), Some("users/alice"));
    let as_user = shell("umask 077; echo hers > /mine/file && mkdir /mine/deep");
    let as_user = atoll_api::CreateExec { user: Some("1000".into()), wait_ms: Some(60_000), ..as_user };
    let done = server.run(&alice.id, as_user).await;
    assert_eq!(done.exec.exit.as_ref().and_then(|exit| exit.code), Some(0), "{done:?}");
    assert_eq!(
        out(server, &all, "stat -c '%a %u' /all/users/alice /all/users/alice/file").await,
        "1777 0\n600 1000\n"
    );
    assert_eq!(
        out(server, &alice, "ls -A /mine; ls -A /mine/.. | grep -c secret; true").await,
        "deep\nfile\n0\n"
    );
    let bob = make(server, kind, VolumeMountDraft { read_only: true, ..part("/mine", "users/bob") }).await;
    assert_eq!(out(server, &bob, "ls -A /mine").await, "");
    assert_ne!(server.sh(&bob.id, "touch /mine/file").await.code, Some(0));

    // The mount is kept over a restart of the server and over a pause, also when another sandbox removed the directory
    // meanwhile.
    server.kill();
    server.restart();
    assert_eq!(out(server, &alice, "cat /mine/file").await, "hers\n");
    let sleep = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&alice.id, &sleep).await.unwrap();
    assert_eq!(out(server, &alice, "ls /mine").await, "deep\nfile\n");
    server.client.pause_sandbox(&alice.id, &sleep).await.unwrap();
    out(server, &all, "rm -r /all/users").await;
    assert_eq!(out(server, &alice, "ls -A /mine; ls -A / | grep -c secret; true").await, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_directory_of_the_volume_is_refused_and_leaves_nothing() {
    let server = Server::with(&[]);
    volume(&server).await;
    let kind = CreateSandbox::default();
    let all = make(&server, &kind, whole("/all")).await;
    let trap = "cd /all; mkdir real secret; echo key > secret/key; ln -s secret link; ln -s / root; \
         ln -s ../../etc up; ln -s nothing dangling; touch file; mkfifo pipe";
    out(&server, &all, trap).await;
    let long = "n".repeat(256);
    let deep = "d/".repeat(4096);
    for bad in [
        "link",
        "link/key",
        "link/new",
        "root/etc",
        "up",
        "dangling",
        "real/../link",
        "..",
        "real/../..",
        "file",
        "file/x",
        "pipe",
        "a\0b",
        &long,
        &deep,
    ] {
        let refused = server.client.create_sandbox(&with(&kind, part("/mine", bad))).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::PathInvalid), "{bad}: {refused}");
    }
    assert_eq!(server.client.get_volume("data").await.unwrap().used_by, std::slice::from_ref(&all.id));
    assert_eq!(out(&server, &all, "ls -A /all | wc -l; ls -A /all/real").await, "8\n");
    let copy = CreateVolume {
        name: "kept".into(),
        from: Some("data".into()),
        read_only: true,
        ..CreateVolume::default()
    };
    server.client.create_volume(&copy).await.unwrap();
    let kept = |subpath| VolumeMountDraft { volume: "kept".into(), ..part("/kept", subpath) };
    let none = server.client.create_sandbox(&with(&kind, kept("new"))).await;
    assert_eq!(code(none), Code::PathInvalid, "nothing is made in a snapshot");
    let seen = make(&server, &kind, kept("secret")).await;
    assert_eq!(out(&server, &seen, "ls /kept").await, "key\n");
    assert_eq!(server.cli(&["create", "-v", "data/real/cli:/srv", "--name", "by-cli"]).ok().code, Some(0));
    assert_eq!(server.sh("by-cli", "touch /srv/here").await.code, Some(0));
    assert_eq!(out(&server, &all, "ls /all/real/cli").await, "here\n");
    server.finish().await;
}

/// A sandbox that has the whole volume keeps replacing the directory that other sandboxes are to get, by links to a
/// directory of secrets and to one of the host, and by nothing. The others never get a link's target, and nothing of
/// the host.
#[tokio::test(flavor = "multi_thread")]
async fn swapping_links_in_wins_nothing() {
    let server = Server::with(&[]);
    volume(&server).await;
    let kind = CreateSandbox::default();
    let hostile = make(&server, &kind, whole("/all")).await;
    let swap = "cd /all; mkdir secret own; echo key > secret/key; ln -s ../secret l; ln -s /etc e; mkdir p; mkdir p/d; \
         touch p/d/mine; touch started; while [ ! -e stop ]; do mv -T p/d p/x; cp -P l p/d; rm p/d; cp -P e p/d; rm p/d; \
         mv -T p/x p/d 2>/dev/null || { rm -rf p/d; mv -T p/x p/d; }; done";
    let running = server.client.create_exec(&hostile.id, &shell(swap)).await.unwrap();
    server.sh(&hostile.id, "while [ ! -e /all/started ]; do sleep 0.05; done").await.ok();
    let (mut made, mut races) = (0, 0);
    // On a busy host it may take long until one meets the directory.
    while races < RACES || (made == 0 && races < 50 * RACES) {
        races += 1;
        match server.client.create_sandbox(&with(&kind, part("/mine", "p/d"))).await {
            Ok(sandbox) => {
                made += 1;
                let seen = out(&server, &sandbox, "ls -A /mine").await;
                assert!(!seen.contains("key") && !seen.contains("passwd"), "{seen}");
                server.client.delete_sandbox(&sandbox.id).await.unwrap();
            }
            // Between the two looks a link took the directory's place: refused for that, or with the kernel's error.
            Err(refused) => assert!(
                matches!(refused.code(), Some(Code::PathInvalid | Code::Internal | Code::SandboxFailed)),
                "{refused}"
            ),
        }
    }
    out(&server, &hostile, "touch /all/stop").await;
    assert!(server.client.get_exec(&hostile.id, &running.exec.id, 60_000).await.unwrap().exit.is_some());
    assert!(made > 0, "every creation met a link: that was no race");
    server.finish().await;
}

/// A process inside has a working directory that is then moved out of the part: the directories above it stay out of
/// reach.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_moved_out_opens_no_way_up() {
    let server = Server::with(&[]);
    volume(&server).await;
    let kind = CreateSandbox::default();
    let all = make(&server, &kind, whole("/all")).await;
    out(&server, &all, "mkdir -p /all/secret /all/users/eve/deep/deeper; echo key > /all/secret/key").await;
    let eve = make(&server, &kind, part("/mine", "users/eve")).await;
    let climb = "cd /mine/deep/deeper; touch /mine/ready; while [ ! -e /mine/go ]; do sleep 0.05; done; \
         { ls -A .. ../.. ../../.. ../../../secret; cat ../../secret/key ../../../secret/key; echo ended; } >/mine/told 2>&1";
    let climbing = server.client.create_exec(&eve.id, &shell(climb)).await.unwrap();
    server.sh(&all.id, "while [ ! -e /all/users/eve/ready ]; do sleep 0.05; done").await.ok();
    out(&server, &all, "mv /all/users/eve/deep /all/deep; touch /all/users/eve/go").await;
    assert!(server.client.get_exec(&eve.id, &climbing.exec.id, 60_000).await.unwrap().exit.is_some());
    let told = out(&server, &eve, "cat /mine/told").await;
    assert!(told.contains("ended") && !told.contains("key\n") && !told.contains("users"), "{told}");
    server.finish().await;
}
