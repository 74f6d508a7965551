//! WebSockets of the toolbox over real connections.

#![cfg(test)]

use std::time::Duration;

use atoll_core::access::{AccessDraft, Target as Reach};
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::spec::{Command, ExecDraft};
use atoll_engine::Target;
use atoll_walk::World;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing here takes this long.
const DEADLINE: Duration = Duration::from_secs(120);
/// More than a message may have.
const MUCH_BYTES: usize = 3 << 20;

/// Sends one message that is too large on a new socket, and gives all that the server said.
async fn said(world: &World, path: &str, key: &str) -> Vec<u8> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    // One binary message (RFC 6455, section 5.2): its length has eight bytes, its mask is zero.
    let mut message = vec![0x82, 0xff];
    message.extend((MUCH_BYTES as u64).to_be_bytes());
    message.extend([0; 4]);
    message.resize(message.len() + MUCH_BYTES, b'x');
    let talk = async {
        let mut stream = TcpStream::connect(&world.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&message).await.unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.expect("the connection ends in order");
        said
    };
    tokio::time::timeout(DEADLINE, talk).await.unwrap()
}

#[tokio::test]
async fn the_right_by_a_signed_address_ends_with_the_address() {
    let (world, clock) = World::by_hand(&[atoll_dialect_daytona::DIALECT]).await;
    let owner = world.key(Scope::Manage).await;
    let sandbox = world.objects(&owner, "box").await.sandbox;
    let right = world.engine.authorize(&owner.caller, Needs::EXEC, Target::Sandbox(sandbox.as_str())).await;
    let right = right.unwrap();
    let address = async || {
        let draft = AccessDraft {
            target: Reach::Port(3000),
            public: false,
            name: Some("daytona signed".to_owned()),
            ttl_ms: Some(60_000),
        };
        let made = world.engine.create_access(&sandbox, draft, &owner.caller).await.unwrap().record.id;
        (world.engine.live_access(&sandbox, &made).unwrap(), made)
    };
    let (taken_back, id) = address().await;
    let taken_back = right.clone().within(taken_back);
    world.engine.recheck(&taken_back, Needs::EXEC).unwrap();
    world.engine.revoke_access(&sandbox, id.as_str()).await.unwrap();
    let (over, id) = address().await;
    let over = right.clone().within(over);
    clock.advance(Duration::from_secs(61));
    for ended in [taken_back, over] {
        tokio::time::timeout(DEADLINE, world.engine.until_revoked(&ended)).await.expect("it ends");
        assert!(world.engine.recheck(&ended, Needs::EXEC).is_err());
    }
    assert!(world.engine.live_access(&sandbox, &id).is_err());
    world.engine.recheck(&right, Needs::EXEC).expect("the key itself stays");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_told() {
    let world = World::new(&[atoll_dialect_daytona::DIALECT]).await;
    let owner = world.key(Scope::Manage).await;
    let sandbox = world.objects(&owner, "box").await.sandbox;
    let terminal = ExecDraft {
        stdin: true,
        tag: Some("daytona pty t".to_owned()),
        ..ExecDraft::new(Command::Argv(vec!["sleep".to_owned(), "1000".to_owned()]))
    };
    world.engine.create_exec(&sandbox, terminal, &owner.caller).await.unwrap();
    let reason = b"a message is larger than 2048 KiB";
    let length = u8::try_from(reason.len() + 2).unwrap();
    let closed = [&[0x88, length, 0x03, 0xf1], &reason[..]].concat();
    for socket in ["pty/t/connect", "interpreter/execute"] {
        let said = said(&world, &format!("/daytona/toolbox/box/process/{socket}"), &owner.secret).await;
        let text = String::from_utf8_lossy(&said);
        assert!(said.starts_with(b"HTTP/1.1 101 "), "{socket}: {text}");
        assert!(said.ends_with(&closed), "{socket}: {text}");
    }
}
