//! Files whose size is not what it says, and transfers while the sandbox is paused, with the real agent.

use std::time::Duration;

use atoll_api::PauseSandbox;
use atoll_blackbox::Server;
use atoll_core::sandbox::{PauseMode, SandboxState};
use reqwest::Response;

const FROZEN: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Frozen) };

async fn get(server: &Server, path: &str, range: Option<&str>) -> Response {
    let mut request = server.request("GET", path);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    request.send().await.unwrap()
}

/// Files that the kernel makes up have no size (`/proc`), or are shorter than they say (`/sys`).
#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_kernel_are_whole_and_have_parts() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let made_up = ["/proc/version", "/proc/filesystems", "/sys/devices/system/cpu/online"];
    for path in made_up {
        let expected = server.sh(&sandbox, &format!("cat {path}")).await.stdout;
        let size = expected.len();
        let at = format!("/v1/sandboxes/{sandbox}/files?path={path}");
        let whole = get(&server, &at, None).await;
        assert_eq!(whole.status().as_u16(), 200, "{path}");
        assert_eq!(whole.headers()["content-length"], size.to_string().as_str(), "{path}");
        assert_eq!(whole.text().await.unwrap(), expected, "{path}");
        let part = get(&server, &at, Some("bytes=1-2")).await;
        assert_eq!(part.status().as_u16(), 206, "{path}");
        assert_eq!(part.headers()["content-range"], format!("bytes 1-2/{size}").as_str());
        assert_eq!(part.text().await.unwrap(), expected[1..3], "{path}");
        let beyond = get(&server, &at, Some(&format!("bytes={size}-"))).await;
        assert_eq!(beyond.status().as_u16(), 416, "{path}");
        assert_eq!(beyond.headers()["content-range"], format!("bytes */{size}").as_str());
    }
    // Larger than what is read before the answer begins: how large is unknown, and all of it is the answer.
    let long =
        "exec perl -e '$| = 1; print \"ready\\n\"; sleep 600' $(head -c 100000 /dev/zero | tr '\\0' x)";
    let exec = server.shell(&sandbox, long).await;
    crate::common::follow(&server, &sandbox, &exec, 6).await;
    let pid = server.sh(&sandbox, "pgrep -x perl").await.stdout;
    let path = format!("/v1/sandboxes/{sandbox}/files?path=/proc/{}/cmdline", pid.trim());
    let answer = get(&server, &path, Some("bytes=0-9")).await;
    assert_eq!((answer.status().as_u16(), answer.content_length()), (200, None));
    let line = answer.bytes().await.unwrap();
    assert!(line.len() > 100_000 && line.ends_with(b"xxx\0"), "{} bytes", line.len());
    server.finish().await;
}

/// Its size was announced: an answer that ended as if nothing were wrong would be a whole file to the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_shrinks_while_it_is_sent_breaks_off() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "truncate -s 256M /root/shrinks").await;
    let mut answer = get(&server, &format!("/v1/sandboxes/{sandbox}/files?path=/root/shrinks"), None).await;
    assert_eq!(answer.content_length(), Some(256 << 20));
    assert!(answer.chunk().await.unwrap().is_some());
    server.sh(&sandbox, "truncate -s 1 /root/shrinks").await;
    assert!(answer.bytes().await.is_err(), "an answer that is too short is whole");
    server.finish().await;
}

/// Reads of a file, an archive and a port, all under way when the sandbox is frozen.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_goes_on_after_a_pause() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "head -c 64M /dev/urandom > /root/data").await;
    let sum = server.sh(&sandbox, "sha256sum < /root/data").await.stdout;
    server.shell(&sandbox, "cd /root && exec python3 -m http.server 8000 --bind 127.0.0.1").await;
    let port = format!("/v1/sandboxes/{sandbox}/ports/8000/data");
    atoll_blackbox::wait_until("the server listens", || async {
        (get(&server, &port, Some("bytes=0-0")).await.status().as_u16() == 200).then_some(())
    })
    .await;
    let file = format!("/v1/sandboxes/{sandbox}/files?path=/root/data");
    let archive = format!("/v1/sandboxes/{sandbox}/archive?path=/root/data");
    let mut answers = Vec::new();
    for path in [&file, &archive, &port] {
        let mut answer = get(&server, path, None).await;
        let first = answer.chunk().await.unwrap().unwrap();
        answers.push((answer, first.to_vec()));
    }
    server.client.pause_sandbox(&sandbox, &FROZEN).await.unwrap();
    let reading = answers.into_iter().map(|(mut answer, mut bytes)| {
        tokio::spawn(async move {
            while let Some(piece) = answer.chunk().await.unwrap() {
                bytes.extend_from_slice(&piece);
            }
            bytes
        })
    });
    let reading: Vec<_> = reading.collect();
    // They take what is on its way, and wait.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(reading.iter().all(|reader| !reader.is_finished()), "it is sent while the sandbox stands still");
    assert_eq!(server.client.get_sandbox(&sandbox).await.unwrap().state, SandboxState::Paused);
    server.client.resume_sandbox(&sandbox).await.unwrap();
    let mut read = Vec::new();
    for reader in reading {
        read.push(reader.await.unwrap());
    }
    assert!(read[0] == read[2], "the file and the port's answer differ");
    assert!(
        read[1].windows(4096).step_by(512).any(|window| window == &read[0][..4096]),
        "the archive has it"
    );
    let all = read[0].clone();
    let stream = futures::stream::iter([Ok(bytes::Bytes::from(all))]);
    let write = atoll_client::WriteFile::default();
    server.client.write_file(&sandbox, "/root/copy", &write, stream).await.unwrap();
    assert_eq!(server.sh(&sandbox, "sha256sum < /root/copy").await.stdout, sum);
    server.finish().await;
}
