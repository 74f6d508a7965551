//! What builds leave to others with the real program: their places, until nothing of one is left, and the memory of what their
//! contexts consist of.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use atoll_api::{Build, CreateKey, KeyFormat};
use atoll_blackbox::{Server, wait_until};
use atoll_client::{Client, ClientError};
use atoll_core::Code;
use atoll_core::build::BuildState;
use atoll_core::key::Scope;
use atoll_core::limits::{BUILD_CONTEXTS_MEMORY_MAX_BYTES, BUILDS_OPEN_MAX_COUNT};
use atoll_testing::{Entry, run, tar_of};
use bytes::Bytes;

use crate::builds::dockerfile;
use crate::common::code;

/// The same server for another key.
async fn client_of_another_key(server: &Server) -> Client {
    let name = "another".to_owned();
    let create =
        CreateKey { name, scope: Scope::Manage, ttl_ms: None, format: KeyFormat::Atoll, project: None };
    let made = server.client.create_key(&create).await.unwrap();
    Client::new(&server.url, &made.secret).unwrap()
}

async fn send(client: &Client, build: &str, tar: Bytes) -> Result<Build, ClientError> {
    let body = futures::stream::iter([Ok::<_, std::io::Error>(tar)]);
    client.put_build_context(build, body).await
}

/// A pipe in the place of the file that the server unpacks a context into, and its end to read from. What is written there
/// stays in the server's way until it is read.
fn pipe_for_contents(context: &Path) -> File {
    fs::create_dir_all(context).unwrap();
    let path = context.join("coming");
    run(Command::new("mkfifo").arg(&path));
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
    File::options().read(true).custom_flags(flags).open(&path).unwrap()
}

/// Reads what there is; says whether whoever writes has closed it.
fn read_to_end(pipe: &File) -> bool {
    let (mut pipe, mut block) = (pipe, vec![0; 64 << 10]);
    loop {
        match pipe.read(&mut block) {
            Ok(0) => return true,
            Ok(_some) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                return false;
            }
        }
    }
}

/// Without the line of `drive` that waits for an upload to end, the place is free while the thread still writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_cancelled_has_its_place_until_its_context_is_unpacked_no_more() {
    let server = Server::start();
    let create = dockerfile("ctx", "FROM host\nCOPY a /a\n");
    let first = server.client.create_build(&create).await.unwrap();
    let context = server.data().join("builds").join(&first.id).join("context");
    let pipe = pipe_for_contents(&context);
    // More than a pipe holds, and more than the server reads at once.
    let tar = Bytes::from(tar_of(&[Entry::file("a", &vec![7; 1 << 20])]));
    let (client, build) = (server.client.clone(), first.id.clone());
    let sent = tokio::spawn(async move { send(&client, &build, tar).await });
    wait_until("the context to be unpacked", async || matches!((&pipe).read(&mut [0]), Ok(1)).then_some(()))
        .await;
    let mut open = 1;
    let refused = loop {
        match server.client.create_build(&create).await {
            Ok(_more) => open += 1,
            refused => break refused,
        }
    };
    assert_eq!((code(refused), open), (Code::LimitExceeded, BUILDS_OPEN_MAX_COUNT / 2));
    let cancelled = server.client.cancel_build(&first.id).await.unwrap();
    assert_eq!(cancelled.state, BuildState::Cancelled);
    // It has ended for whoever looks, and a thread is still at work for it.
    for _ in 0..50 {
        assert_eq!(code(server.client.create_build(&create).await), Code::LimitExceeded);
    }
    assert!(!sent.is_finished());
    wait_until("the thread to be done", async || read_to_end(&pipe).then_some(())).await;
    assert_eq!(code(sent.await.unwrap()), Code::InvalidState, "it went on for a build that has ended");
    wait_until("the place to be free", async || server.client.create_build(&create).await.ok()).await;
    assert!(!context.try_exists().unwrap(), "what was unpacked went before the place did");
    server.finish().await;
}

/// How many names that are long make an index of nearly the size that one may have.
const LONG_NAMES_COUNT: usize = 8;

/// A context with a file `a`, and names that are an archive of some kilobytes. Gives the bytes of the names in its index, too.
fn long_names() -> (Bytes, usize) {
    let name = |n: usize| format!("{n}{}", "/d".repeat(2000));
    let mut entries: Vec<_> = (0..LONG_NAMES_COUNT).map(|n| Entry::file(&name(n), b"")).collect();
    entries.push(Entry::file("a", b"x"));
    // A directory of each length from one byte on, and the file.
    let of_each: usize = (0..=2000).map(|depth| 1 + 2 * depth).sum();
    (Bytes::from(tar_of(&entries)), LONG_NAMES_COUNT * of_each)
}

/// Without the line of `Unpacker::enter` that takes memory a key has as many of these as it may have builds; without that of
/// `Share` that gives it back, what was refused is refused for ever.
#[tokio::test(flavor = "multi_thread")]
async fn contexts_of_many_small_archives_have_so_much_memory_and_leave_some_to_other_keys() {
    let server = Server::start();
    // Nothing of the context is looked at while the first step runs.
    let create = dockerfile("names", "FROM host\nRUN sleep 1000\nCOPY a /a\n");
    let (tar, names_bytes) = long_names();
    let mut held = Vec::new();
    let waits = loop {
        let build = server.client.create_build(&create).await.unwrap();
        match send(&server.client, &build.id, tar.clone()).await {
            Ok(build) => held.push(build.id),
            refused => {
                assert_eq!(code(refused), Code::LimitExceeded);
                break build.id;
            }
        }
        assert!(
            held.len() * names_bytes <= BUILD_CONTEXTS_MEMORY_MAX_BYTES / 2,
            "more than is left to others"
        );
    };
    assert!(held.len() > 1, "each has nearly as much as one may have, and that is less than a share");
    let state = server.client.get_build(&waits).await.unwrap().state;
    assert_eq!(state, BuildState::Waiting, "it may be sent again");
    let other = client_of_another_key(&server).await;
    let others = other.create_build(&create).await.unwrap();
    send(&other, &others.id, tar.clone()).await.unwrap();
    for ended in [held.pop().unwrap(), others.id] {
        server.client.cancel_build(&ended).await.unwrap();
    }
    wait_until("the memory of builds that have ended", async || {
        match send(&server.client, &waits, tar.clone()).await {
            Ok(_sent) => Some(()),
            refused => {
                assert_eq!(code(refused), Code::LimitExceeded);
                None
            }
        }
    })
    .await;
    held.push(waits);
    for build in held {
        server.client.cancel_build(&build).await.unwrap();
    }
    server.finish().await;
}
