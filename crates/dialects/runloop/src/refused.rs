//! Calls that Runloop has and this server does not support: each is refused with words about what to use instead.

use axum::Router;
use axum::routing::any;

use crate::App;
use crate::error::Failure;
use crate::request::{Caller, Read};

/// Beginnings of paths, and what to use instead.
const REFUSED: [(&str, &str); 11] = [
    ("accounts", "an installation of Atoll is no account"),
    ("agents/devbox_counts", "list devboxes"),
    ("agents/list_public", "there are no agents of others: list your own"),
    ("apikeys", "make keys with 'atoll key create NAME --for runloop'"),
    ("axons", "there are no event streams; stream the output of an execution"),
    ("benchmark_jobs", "run benchmarks from outside, over devboxes"),
    ("benchmark_runs", "run benchmarks from outside, over devboxes"),
    ("benchmarks", "run benchmarks from outside, over devboxes"),
    ("mcp-configs", "run the MCP server in the devbox"),
    ("restricted_keys", "make keys with a scope: 'atoll key create NAME --scope read'"),
    ("scenarios", "run scenarios from outside, over devboxes"),
];
/// The same, below a devbox.
const OF_DEVBOXES: [(&str, &str); 3] = [
    ("create_pty_tunnel", "open a terminal with 'atoll shell' or over SSH"),
    (
        "create_gateway_token",
        "Atoll's egress gateway puts credentials into requests: give the devbox 'gateways'",
    ),
    ("create_mcp_token", "run the MCP server in the devbox"),
];

fn refuse(what: &'static str, instead: &'static str) -> Failure {
    Failure::unsupported(format!("{what}: not supported by this server; {instead}"))
}

/// The routes. Only clients with a key get these answers.
pub(crate) fn routes() -> Router<App> {
    let mut router = Router::new();
    for (what, instead) in REFUSED {
        let answer = move |_: Caller<Read>| async move { refuse(what, instead) };
        router = router.route(&format!("/v1/{what}"), any(answer));
        router = router.route(&format!("/v1/{what}/{{*rest}}"), any(answer));
    }
    for (what, instead) in OF_DEVBOXES {
        let answer = move |_: Caller<Read>| async move { refuse(what, instead) };
        router = router.route(&format!("/v1/devboxes/{{devbox}}/{what}"), any(answer));
    }
    let evictions =
        |_: Caller<Read>| async { refuse("evictions", "devboxes of this server are not evicted") };
    let terminals =
        |_: Caller<Read>| async { refuse("pty", "open a terminal with 'atoll shell' or over SSH") };
    router.route("/v1/devboxes/evictions/watch", any(evictions)).route("/pty/{*rest}", any(terminals))
}
