//! A right that ends while a request's body is under way.
//!
//! `Expect: 100-continue` says when: the server answers `100` once the handler reads the body, and that is after the
//! server has checked the key. The server also asks for a body that no handler reads, and throws it away: so only
//! routes whose calls have bodies are tried.

use atoll_core::key::Scope;
use atoll_core::sharing::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::walks::expect;
use crate::world::{DEADLINE, anonymous};
use crate::{About, Answer, Objects, Protocol, Route, Verdict, World};

/// Deletes the key of every request that sends a body before the body has come: nothing may be done any more. Gives
/// how many routes had begun to read one.
pub async fn cut_off<P: Protocol>(world: &World, protocol: &P) -> usize {
    let owner = world.key(Scope::Manage).await;
    let mut began = 0;
    let nothing = Objects::nothing();
    let with_body = |route: &Route| {
        route.about == About::Sandbox && !protocol.call(route, &nothing, None).body.is_empty()
    };
    for (number, route) in protocol.routes().into_iter().filter(with_body).enumerate() {
        let on = world.objects(&owner, &format!("cut-{number}")).await;
        let friend = world.key(Scope::Manage).await;
        world.grant(&on, &friend, Role::Manage).await;
        let shown = protocol.shown(world, &friend, &on);
        let delete = async || world.engine.delete_key(friend.id.as_str()).await.expect("a deleted key");
        let work = broken(world, protocol, &route, &on, &shown, delete);
        let answered = timeout(DEADLINE, work).await;
        let answered = answered.unwrap_or_else(|_| panic!("{} {} never ends", route.method, route.path));
        if let Some(answer) = answered {
            began += 1;
            assert!(!protocol.is_done(&answer), "{} {}: {answer:?}", route.method, route.path);
        }
        // A call whose answer came at once may have removed the sandbox: then the engine says so for its id.
        if world.engine.sandbox(&on.sandbox).is_ok() {
            let answer = world.ask(protocol, &route, &on, Some(&shown)).await;
            expect(protocol, &route, "with a deleted key", &answer, Verdict::NoKey);
        }
        world.remove(&on).await;
    }
    began
}

/// Sends the head, has the right ended when the body is asked for, and sends it. None where it is not asked for; a
/// status of 0 where the connection breaks off.
async fn broken<P: Protocol>(
    world: &World,
    protocol: &P,
    route: &Route,
    on: &Objects,
    shown: &str,
    end: impl AsyncFnOnce(),
) -> Option<Answer> {
    let call = protocol.call(route, on, Some(shown));
    let more =
        format!("content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n", call.body.len());
    let mut stream = TcpStream::connect(&world.address).await.expect("a connection");
    stream.write_all(call.head(&world.address, &more).as_bytes()).await.expect("a head");
    let mut first = vec![0; 32];
    let len = stream.read(&mut first).await.unwrap_or_default();
    if !first[..len].starts_with(b"HTTP/1.1 100") {
        end().await;
        return None;
    }
    end().await;
    // It may be broken off already.
    drop(stream.write_all(&call.body).await);
    let mut text = Vec::new();
    drop(stream.read_to_end(&mut text).await);
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    Some(Answer { status, text: anonymous(text, on) })
}
