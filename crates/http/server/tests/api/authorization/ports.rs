//! Ports of sandboxes: who is let in, and what strangers are told.

use atoll_core::key::Scope;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Answered, is_refused, key, objects};
use crate::support::Harness;

/// Whether a private sandbox has a port is not for strangers, nor is its id.
#[tokio::test]
async fn a_port_tells_strangers_nothing() {
    let harness = Harness::start().await;
    let alice = key(&harness, Scope::Manage).await;
    let body = json!({"name": "hidden", "visibility": "private"});
    let made = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(&alice.secret).json(&body);
    assert_eq!(harness.send(made).await.status, 201);
    let ask = async |name: &str| {
        let port = harness.bare(Method::GET, &format!("/v1/sandboxes/{name}/ports/80/"));
        let mut answer = harness.send(port.header("x-atoll-token", harness.key(Scope::Manage))).await;
        answer.body["request_id"] = Value::Null;
        (answer.status, answer.body.to_string().replace(name, "NAME"))
    };
    assert_eq!(ask("hidden").await, ask("nobody").await);
}

/// Ports, in each way of naming one: the same table.
#[tokio::test]
async fn ports_are_for_who_may_run_commands() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let friend = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let domain = harness.address.rsplit(':').next().unwrap();
    let ask = async |sandbox: &str, form: usize, shown: Option<&str>| {
        let request = match form {
            0 => harness.bare(Method::GET, &format!("/v1/sandboxes/{sandbox}/ports/80/x")),
            1 => {
                let request = harness.bare(Method::GET, "/x");
                request.header("x-atoll-sandbox", sandbox).header("x-atoll-port", "80")
            }
            2 => harness.bare(Method::GET, "/x").header("host", format!("80-{sandbox}.localhost:{domain}")),
            _ => harness.bare(Method::GET, "/").header("host", format!("ports-{sandbox}.localhost:{domain}")),
        };
        let request = shown.iter().fold(request, |request, key| request.header("x-atoll-token", *key));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        // A request that is let in gets to the fake, which has no ports, or to a page.
        let body: Value = response.json().await.unwrap_or_default();
        (status, body["code"].as_str().unwrap_or_default().to_owned())
    };
    for form in 0..4 {
        let ask = async |sandbox: &str, shown: Option<&str>| ask(sandbox, form, shown).await;
        let is = |answered: &Answered, status: u16, code: &str| {
            assert_eq!((answered.0, answered.1.as_str()), (status, code), "form {form}");
        };
        let missing = "sb00000000000000000000";
        for sandbox in [on.sandbox.as_str(), missing] {
            for shown in [None, Some("atoll_wrong")] {
                is(&ask(sandbox, shown).await, 401, "unauthorized");
            }
            is(&ask(sandbox, Some(harness.key(Scope::Read))).await, 403, "forbidden");
            for scope in [Scope::Exec, Scope::Manage] {
                is(&ask(sandbox, Some(harness.key(scope))).await, 404, "sandbox_not_found");
            }
        }
        let id = on.sandbox.parse().unwrap();
        let grant = async |role| harness.engine.grant(&id, &friend.id, role).await.unwrap();
        grant(atoll_core::sharing::Role::Read).await;
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 403, "forbidden");
        grant(atoll_core::sharing::Role::Exec).await;
        let admitted = ask(&on.sandbox, Some(&friend.secret)).await;
        assert!(!is_refused(&admitted), "form {form}: {admitted:?}");
        let lease = format!("/v1/sandboxes/{}/lease", on.sandbox);
        let by_owner = |method| harness.bare(method, &lease).bearer_auth(&owner.secret);
        let taken = harness.send(by_owner(Method::POST).json(&json!({"ttl_ms": 600_000}))).await;
        assert_eq!(taken.status, 200, "{taken:?}");
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 423, "sandbox_leased");
        assert!(harness.send(by_owner(Method::DELETE)).await.status < 300);
        harness.engine.revoke(&id, &friend.id).await.unwrap();
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 404, "sandbox_not_found");
    }
}
