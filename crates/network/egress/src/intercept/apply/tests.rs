use http::Request;

use super::super::OpenedSecret;
use super::*;

#[derive(Debug)]
struct Fixed;

#[async_trait::async_trait]
impl SecretSource for Fixed {
    fn open(
        &self,
        _sandbox: &SandboxId,
        reference: &SecretRef,
        _host: &HostName,
    ) -> atoll_core::Result<OpenedSecret> {
        let value = match reference.name.as_str() {
            "KEY" => "s3cret-value",
            "ODD" => "a \"b\"&c/d",
            "BAD" => "two\nlines",
            other => {
                return Err(atoll_core::Error::new(
                    atoll_core::Code::SecretNotFound,
                    format!("no secret '{other}'"),
                ));
            }
        };
        Ok(OpenedSecret { value: Secret::new(value), version: 1 })
    }

    async fn used(&self, _used: SecretUsed) -> atoll_core::Result<()> {
        Ok(())
    }
}

fn rule(json: serde_json::Value) -> InjectRule {
    let mut whole = serde_json::json!({"name": "r", "hosts": ["api.example.com"]});
    whole.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

fn run(request: http::request::Builder, rules: &[InjectRule]) -> Result<(Parts, Applied), Refusal> {
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    let sandbox = SandboxId::from_parts(1, 1);
    let host: HostName = "api.example.com".parse().unwrap();
    let rules: Vec<&InjectRule> = rules.iter().collect();
    let asking = Asking { sandbox: &sandbox, host: &host, secrets: &Fixed };
    let applied = apply(&mut parts, true, &rules, asking)?;
    Ok((parts, applied))
}

const TOKEN: &str = "atoll_secret_0123456789";

fn placeholder(secret: &str) -> serde_json::Value {
    serde_json::json!({"placeholders": [{"secret": secret, "value": TOKEN}], "bearer": format!("{{secret:{secret}}}")})
}

#[test]
fn sets_adds_and_removes() {
    let rule = rule(serde_json::json!({
        "headers": {"X-Api-Key": "k {secret:KEY}"}, "add_headers": {"X-Tag": "b"}, "remove_headers": ["Cookie"],
        "query": {"key": "{secret:ODD}"},
    }));
    let request = Request::get("/a?x=1&key=old&%6bey=older&y=2")
        .header("x-api-key", "client's")
        .header("x-tag", "a")
        .header("cookie", "c");
    let (parts, applied) = run(request, &[rule]).unwrap();
    assert_eq!(parts.headers["x-api-key"], "k s3cret-value");
    assert!(parts.headers["x-api-key"].is_sensitive() && !format!("{:?}", parts.headers).contains("s3cret"));
    assert_eq!(parts.headers.get_all("x-tag").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert!(!parts.headers.contains_key("cookie"));
    assert_eq!(parts.uri, "/a?x=1&y=2&key=a%20%22b%22%26c%2Fd");
    let used: Vec<_> =
        applied.uses.iter().map(|used| (used.secret.name.as_str(), used.path.as_str())).collect();
    assert_eq!(used, [("KEY", "/a"), ("ODD", "/a")]);
    assert!(applied.masks.is_empty());
}

#[test]
fn the_first_rule_to_set_something_has_the_last_word() {
    let first = rule(serde_json::json!({"headers": {"X-A": "1"}, "query": {"q": "1"}, "bearer": "1"}));
    let second = InjectRule {
        name: "s".into(),
        ..rule(serde_json::json!({"headers": {"x-a": "2", "X-B": "2"}, "query": {"q": "2"}, "bearer": "2"}))
    };
    let (parts, _) = run(Request::get("/"), &[first, second]).unwrap();
    assert_eq!(
        (&parts.headers["x-a"], &parts.headers["x-b"]),
        (&HeaderValue::from_static("1"), &HeaderValue::from_static("2"))
    );
    assert_eq!(parts.headers["authorization"], "Bearer 1");
    assert_eq!(parts.uri, "/?q=1");
}

#[test]
fn a_placeholder_is_replaced_where_it_stands_and_then_no_bearer_is_set() {
    let rules = [rule(placeholder("KEY"))];
    let (parts, _) = run(Request::get("/").header("x-api-key", TOKEN), &rules).unwrap();
    assert_eq!(parts.headers["x-api-key"], "s3cret-value");
    assert!(!parts.headers.contains_key("authorization"));
    let (parts, _) = run(Request::get("/"), &rules).unwrap();
    assert_eq!(parts.headers["authorization"], "Bearer s3cret-value");
    let basic = format!("Basic {}", BASE64.encode(format!("user:{TOKEN}")));
    let (parts, _) = run(Request::get("/").header("authorization", basic), &rules).unwrap();
    assert_eq!(
        parts.headers["authorization"],
        format!("Basic {}", BASE64.encode("user:s3cret-value")).as_str()
    );
}

/// As [`placeholder`], with more said about it.
fn placed(secret: &str, more: serde_json::Value) -> InjectRule {
    let mut rule = placeholder(secret);
    rule["placeholders"][0].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    self::rule(rule)
}

#[test]
fn the_address_is_looked_at_where_a_rule_says_so() {
    let odd = "a%20%22b%22%26c%2Fd";
    let both = placed("ODD", serde_json::json!({"path": true, "query": true}));
    let address = format!("/bot{TOKEN}/x?k={TOKEN}");
    let (parts, _) = run(Request::get(&address), &[both]).unwrap();
    assert_eq!(parts.uri, format!("/bot{odd}/x?k={odd}").as_str());
    assert!(!parts.headers.contains_key("authorization"), "the client has put it where it belongs");
    for (more, what) in [
        (serde_json::json!({}), "the path"),
        (serde_json::json!({"query": true}), "the path"),
        (serde_json::json!({"path": true}), "the query"),
    ] {
        let refusal = run(Request::get(&address), &[placed("KEY", more)]).unwrap_err();
        assert!(refusal.to_string().contains(what) && !refusal.to_string().contains("s3cret"), "{refusal}");
        assert_eq!(refusal.into_response().status(), 403);
    }
    let (parts, _) =
        run(Request::get("/").header("referer", &address), &[placed("KEY", serde_json::json!({}))]).unwrap();
    assert_eq!(parts.headers["referer"], address.as_str());
}

#[test]
fn only_headers_for_keys_are_looked_at() {
    for name in ["Authorization", "X-Api-Key", "x-goog-api-key", "PRIVATE-TOKEN"] {
        let (parts, _) = run(Request::get("/").header(name, TOKEN), &[rule(placeholder("KEY"))]).unwrap();
        assert_eq!(parts.headers[name], "s3cret-value");
    }
    for name in ["x-note", "user-agent", "cookie", "content-type"] {
        let refusal = run(Request::get("/").header(name, TOKEN), &[rule(placeholder("KEY"))]).unwrap_err();
        assert!(refusal.to_string().contains(&format!("header={name}")), "{refusal}");
    }
    let named = placed("KEY", serde_json::json!({"headers": ["X-Note"]}));
    let (parts, _) = run(Request::get("/").header("x-note", format!("key={TOKEN}")), &[named]).unwrap();
    assert_eq!(parts.headers["x-note"], "key=s3cret-value");
}

#[test]
fn a_secret_never_goes_beside_credentials_of_somebody_else() {
    let everywhere =
        placed("KEY", serde_json::json!({"path": true, "query": true, "body": true, "headers": ["X-Note"]}));
    let at = format!("/repos/attacker/{TOKEN}");
    for request in [
        Request::put(&at).header("authorization", "Bearer of-the-attacker"),
        Request::put(format!("/?q={TOKEN}")).header("authorization", "Bearer of-the-attacker"),
        Request::put("/").header("x-note", TOKEN).header("authorization", "Basic b2Y6YXR0YWNrZXI="),
        Request::put("/").header("authorization", TOKEN).header("authorization", "Bearer of-the-attacker"),
        Request::put(&at).header("x-api-key", "of-the-attacker"),
        Request::put(&at).header("cookie", "session=of-the-attacker"),
        Request::put(&at)
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("x-api-key", "of-the-attacker"),
    ] {
        let refusal = run(request, std::slice::from_ref(&everywhere)).unwrap_err();
        assert!(refusal.to_string().contains("credentials of its own"), "{refusal}");
        assert_eq!(refusal.into_response().status(), 403);
    }
    // A body is sent as it is then: whether the placeholder stands in it is seen too late for a refusal.
    for name in ["authorization", "x-api-key", "cookie"] {
        let (_, applied) =
            run(Request::put("/").header(name, "of-the-attacker"), std::slice::from_ref(&everywhere))
                .unwrap();
        assert!(applied.body.is_empty(), "{name}");
    }
    let mine = Request::put("/").header("authorization", format!("Bearer {TOKEN}"));
    assert_eq!(run(mine, &[everywhere]).unwrap().1.body.len(), 1);
}

#[test]
fn what_the_gateway_sets_takes_the_place_of_what_the_client_said() {
    let request = Request::get("/").header("authorization", "Bearer of-the-client");
    let (parts, _) = run(request, &[rule(placeholder("KEY"))]).unwrap();
    assert_eq!(parts.headers.get_all("authorization").iter().collect::<Vec<_>>(), ["Bearer s3cret-value"]);
}

#[test]
fn bodies_are_planned_in_the_form_of_their_type() {
    let mut with_body = rule(placeholder("ODD"));
    with_body.placeholders[0].body = true;
    let planned = |kind: &str| {
        let (_, applied) =
            run(Request::post("/").header("content-type", kind), &[with_body.clone()]).unwrap();
        String::from_utf8(applied.body[0].1.to_vec()).unwrap()
    };
    assert_eq!(planned("application/json"), "a \\\"b\\\"&c/d");
    assert_eq!(planned("application/x-www-form-urlencoded"), "a%20%22b%22%26c%2Fd");
    assert_eq!(planned("text/plain"), "a \"b\"&c/d");
    let (_, applied) = run(Request::post("/").header("content-encoding", "gzip"), &[with_body]).unwrap();
    assert!(applied.body.is_empty(), "what is compressed cannot be looked through");
}

#[test]
fn masks_cover_every_form() {
    let mut masked = rule(
        serde_json::json!({"mask_responses": true, "basic": {"username": "u", "password": "{secret:ODD}"}}),
    );
    let request = || Request::get("/").header("accept-encoding", "gzip").header("range", "bytes=0-1");
    let (parts, applied) = run(request(), &[masked.clone()]).unwrap();
    let texts: Vec<_> = applied.masks.iter().map(|mask| String::from_utf8(mask.to_vec()).unwrap()).collect();
    for form in ["a \"b\"&c/d", "a%20%22b%22%26c%2Fd", "a \\\"b\\\"&c/d", &BASE64.encode("u:a \"b\"&c/d")] {
        assert!(texts.iter().any(|text| text == form), "{form}");
    }
    assert_eq!(parts.headers["accept-encoding"], "identity");
    assert!(!parts.headers.contains_key("range"));
    masked.mask_responses = false;
    let (parts, applied) = run(request(), &[masked]).unwrap();
    assert!(applied.masks.is_empty() && parts.headers.contains_key("range"));
    assert!(!applied.header_masks.is_empty(), "heads are always looked through");
}

#[test]
fn what_an_earlier_request_left_with_the_server_is_masked_too() {
    let mut masked = rule(serde_json::json!({"mask_responses": true, "placeholders": [
        {"secret": "KEY", "value": TOKEN}, {"secret": "NONE", "value": "atoll_secret_of_nothing"}]}));
    let (_, applied) = run(Request::get("/settings"), &[masked.clone()]).unwrap();
    assert!(applied.masks.iter().any(|mask| mask.as_slice() == b"s3cret-value"));
    assert!(applied.uses.is_empty(), "it was not used");
    masked.mask_responses = false;
    assert!(run(Request::get("/settings"), &[masked]).unwrap().1.masks.is_empty());
}

#[test]
fn refusals_name_the_secret_and_never_show_it() {
    for (secret, status) in [("NONE", 403), ("BAD", 503)] {
        let refusal = run(Request::get("/"), &[rule(placeholder(secret))]).unwrap_err();
        let text = format!("{refusal} {refusal:?}");
        assert!(!text.contains("two") && !text.contains("lines"), "{text}");
        assert_eq!(refusal.into_response().status().as_u16(), status, "{text}");
    }
}
