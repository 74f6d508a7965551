//! Notifications: clients learn of changes of sandboxes, and need not ask again each second.
//!
//! Engine.IO 4 over a WebSocket alone, and Socket.IO 5 in it: <https://socket.io/docs/v4/engine-io-protocol/>,
//! <https://socket.io/docs/v4/socket-io-protocol/>.
//!
//! ```text
//! server  0{"sid":…,"pingInterval":25000,…}      the transport is open
//! client  40{"token":…}                          who it is
//! server  40{"sid":…}                            or 44{"message":…}
//! server  42["sandbox.state.updated",{…}]        of sandboxes that the key may see
//! server  2, client 3                            both are there
//! ```
//!
//! One task for each connection waits until the recorder has news of a sandbox, and looks at the sandbox's state then.
//! Clients learn of changes that the task misses by asking, as they would without it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Needs;
use atoll_engine::{Caller as EngineCaller, Engine, Grant, Target};
use atoll_store::SandboxRecord;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::response::Response;
use http::Extensions;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::error::{Failure, Result, route_not_found};
use crate::request::Root;
use crate::toolbox::socket::{CLOSE_WAIT, refuse_messages};
use crate::view;

/// How long a client may take to show its key.
const LOGIN_WAIT: Duration = Duration::from_secs(10);
/// How often the server asks a client whether it is there; the client has as long to answer.
const PING_EVERY: Duration = Duration::from_secs(25);
/// The recorder has no news of the end of a deletion: the task looks this often at sandboxes that are being deleted.
const LEAVING_EVERY: Duration = Duration::from_millis(100);
/// Largest message of a client, bytes.
const MESSAGE_MAX_BYTES: usize = 16 << 10;
/// Longest key that is checked, bytes.
const KEY_MAX_BYTES: usize = 256;
/// Sandboxes whose state is remembered for one client.
const SEEN_MAX_COUNT: usize = 4096;

/// The packet in which a client shows its key.
#[derive(Deserialize)]
struct Login {
    token: String,
}

/// `GET /api/socket.io/`.
pub(crate) async fn serve(State(app): State<App>, request: Request) -> Result<Response> {
    let (mut parts, _) = request.into_parts();
    if app.host.engine().recorder().is_none() {
        // Clients go on without notifications.
        return Err(route_not_found(parts.method, parts.uri).await);
    }
    let root = match Root::from_request_parts(&mut parts, &app).await {
        Ok(root) => root,
        Err(never) => match never {},
    };
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app).await;
    let upgrade = upgrade.map_err(|rejection| Failure::bad(format!("a WebSocket is needed: {rejection}")))?;
    let (held, extensions) = (app.host.hold(&parts.extensions), parts.extensions);
    Ok(upgrade.max_message_size(MESSAGE_MAX_BYTES).max_frame_size(MESSAGE_MAX_BYTES).on_upgrade(
        move |mut socket| async move {
            let _held = held;
            let draining = app.host.draining_token();
            let logged_in = log_in(&app, &extensions, &mut socket, &draining).await;
            drop(extensions);
            if let Some((caller, grant)) = logged_in {
                let engine = app.host.engine().clone();
                let news = News {
                    engine: engine.clone(),
                    caller,
                    root,
                    seen: HashMap::new(),
                    leaving: HashSet::new(),
                };
                tokio::select! {
                    _gone = news.tell(&mut socket) => {}
                    () = draining.cancelled() => {}
                    () = engine.until_revoked(&grant) => {}
                }
            }
            // The client may have gone, or take nothing.
            drop(tokio::time::timeout(CLOSE_WAIT, socket.send(Message::Close(None))).await);
        },
    ))
}

fn sid() -> Option<String> {
    Some(format!("{:016x}{:016x}", getrandom::u64().ok()?, getrandom::u64().ok()?))
}

async fn say(socket: &mut WebSocket, text: String) -> Option<()> {
    socket.send(Message::Text(text.into())).await.ok()
}

/// The next text of a client; `None` when it has gone, or was told that a message is too large.
async fn hear(socket: &mut WebSocket) -> Option<String> {
    loop {
        match socket.recv().await? {
            Ok(Message::Text(text)) => return Some(text.as_str().to_owned()),
            Ok(Message::Close(_)) => return None,
            Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_)) => {}
            Err(error) => {
                refuse_messages(socket, &error, MESSAGE_MAX_BYTES).await;
                return None;
            }
        }
    }
}

/// The right of the key that a client shows, and the socket's place among what the key has open; else why not.
async fn admit(
    app: &App,
    extensions: &Extensions,
    packet: &str,
) -> std::result::Result<(EngineCaller, Grant), String> {
    let engine = app.host.engine();
    let no_key = || "a valid API key is needed".to_owned();
    let key = token_of(packet).and_then(|token| engine.verify_key(&token).ok()).ok_or_else(no_key)?;
    let caller = EngineCaller::of(&key);
    let grant = engine.authorize(&caller, Needs::READ, Target::Installation).await;
    let grant = grant.map_err(|_refused| no_key())?;
    app.host.fill(extensions, grant.clone()).map_err(|full| full.message)?;
    Ok((caller, grant))
}

/// Opens the transport, and checks the key that the client shows. `extensions` are those of the request.
async fn log_in(
    app: &App,
    extensions: &Extensions,
    socket: &mut WebSocket,
    draining: &CancellationToken,
) -> Option<(EngineCaller, Grant)> {
    let interval = PING_EVERY.as_millis();
    let open = json!({"sid": sid()?, "upgrades": [], "pingInterval": interval, "pingTimeout": interval,
        "maxPayload": MESSAGE_MAX_BYTES});
    say(socket, format!("0{open}")).await?;
    let heard = tokio::select! {
        heard = tokio::time::timeout(LOGIN_WAIT, hear(socket)) => heard.ok()??,
        () = draining.cancelled() => return None,
    };
    let admitted = admit(app, extensions, &heard).await;
    match &admitted {
        Ok(_) => say(socket, format!("40{}", json!({"sid": sid()?}))).await?,
        Err(why) => say(socket, format!("44{}", json!({"message": why}))).await?,
    }
    admitted.ok()
}

/// The key in a packet `40{"token":"…"}`.
fn token_of(packet: &str) -> Option<String> {
    let login: Login = serde_json::from_str(packet.strip_prefix("40")?).ok()?;
    Some(login.token).filter(|token| token.len() <= KEY_MAX_BYTES)
}

/// Changes of sandboxes, for one client.
struct News {
    engine: Engine,
    caller: EngineCaller,
    root: Root,
    /// The last known records of the sandboxes of which there was news.
    seen: HashMap<SandboxId, SandboxRecord>,
    /// Those of them that are being deleted.
    leaving: HashSet<SandboxId>,
}

impl News {
    /// Reports changes until the client goes; gives `None` then.
    async fn tell(mut self, socket: &mut WebSocket) -> Option<()> {
        let mut activity = self.engine.recorder()?.activity();
        let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waits = false;
        loop {
            tokio::select! {
                heard = hear(socket) => match heard?.as_str() {
                    "3" => waits = false,
                    "1" | "41" => return None,
                    _ => {}
                },
                _ = pings.tick() => {
                    if waits {
                        return None;
                    }
                    waits = true;
                    say(socket, "2".to_owned()).await?;
                }
                () = tokio::time::sleep(LEAVING_EVERY), if !self.leaving.is_empty() => {
                    for sandbox in std::mem::take(&mut self.leaving) {
                        self.look(socket, sandbox).await?;
                    }
                }
                of = activity.recv() => match of {
                    Ok(sandbox) => self.look(socket, sandbox).await?,
                    Err(RecvError::Lagged(_)) => {
                        for sandbox in self.seen.keys().cloned().collect::<Vec<_>>() {
                            self.look(socket, sandbox).await?;
                        }
                    }
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }

    /// Reports the state of a sandbox, if it is new.
    async fn look(&mut self, socket: &mut WebSocket, id: SandboxId) -> Option<()> {
        let asked = self.engine.authorize(&self.caller, Needs::READ, Target::Sandbox(id.as_str())).await;
        let now = asked.ok().and_then(|_may| self.engine.sandbox(&id).ok());
        let Some(now) = now else {
            let Some(last) = self.seen.remove(&id) else { return Some(()) };
            // The client hears nothing about a sandbox that its key may no longer see.
            return match self.engine.sandbox(&id) {
                Ok(_) => Some(()),
                Err(_gone) => self.updated(socket, &last, view::state(&last), "destroyed").await,
            };
        };
        let new = view::state(&now);
        let old = self.seen.get(&id).map_or(new, view::state);
        let is_first = !self.seen.contains_key(&id);
        if is_first && self.seen.len() >= SEEN_MAX_COUNT {
            self.seen.clear();
        }
        if now.state == SandboxState::Deleting {
            self.leaving.insert(id.clone());
        }
        self.seen.insert(id, now.clone());
        if !is_first && old == new {
            return Some(());
        }
        self.updated(socket, &now, old, new).await
    }

    async fn updated(
        &self,
        socket: &mut WebSocket,
        record: &SandboxRecord,
        old: &str,
        new: &str,
    ) -> Option<()> {
        let shown: Value = view::in_state(record, &self.root, new);
        let event = json!(["sandbox.state.updated", {"sandbox": shown, "oldState": old, "newState": new}]);
        say(socket, format!("42{event}")).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_packet_shows_one_key_or_none() {
        bolero::check!().for_each(|packet: &[u8]| {
            let Ok(packet) = std::str::from_utf8(packet) else { return };
            let Some(token) = token_of(packet) else { return };
            let said = packet.strip_prefix("40").expect("the packet of a login");
            assert!(token.len() <= KEY_MAX_BYTES);
            // Fields that a login does not have may hold numbers that are too large to be read.
            let Ok(said) = serde_json::from_str::<Value>(said) else { return };
            // A list of the fields in their order is a login, too.
            assert!(said["token"] == token.as_str() || said[0] == token.as_str(), "{said}");
        });
    }

    #[test]
    fn who_connects() {
        assert_eq!(token_of(r#"40{"token":"k"}"#).as_deref(), Some("k"));
        let long = format!(r#"40{{"token":"{}"}}"#, "k".repeat(KEY_MAX_BYTES + 1));
        for bad in ["", "40", "3", r#"40{"other":"k"}"#, r#"42{"token":"k"}"#, long.as_str()] {
            assert!(token_of(bad).is_none(), "{bad}");
        }
    }
}
