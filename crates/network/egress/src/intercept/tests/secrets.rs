//! Secrets: in which requests they are put, where in them, and that answers do not show them. The server outside says what it
//! got, and the vault which uses it was told of.

use super::*;

#[tokio::test]
async fn a_secret_is_put_in_and_its_use_is_told() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let (response, body) = house.send(get("/v1/models?q=1").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert!(body.contains(SECRET), "the server got it: {body}");
    let used = house.vault.used.lock().unwrap().clone();
    let facts = used.iter().map(|one| (one.version, one.host.as_str(), one.path.as_str(), one.rule.as_str()));
    assert_eq!(Vec::from_iter(facts), [(7, "api.example.com", "/v1/models", "r")]);
}

#[tokio::test]
async fn a_request_that_is_only_observed_gets_no_secret_and_its_answer_shows_none() {
    let mut rule = bearer();
    rule["mask_responses"] = true.into();
    let house = House::new(rule, &[Protocol::Http1]);
    // As if an earlier request had left it with the server.
    let request = Request::post("/observed").header("host", "api.example.com").body(full(SECRET)).unwrap();
    let (response, body) = house.send(request).await;
    assert_eq!((response.status(), response.headers()["x-echo"].as_bytes()), (StatusCode::OK, &b""[..]));
    assert!(!body.contains(SECRET) && body.starts_with('|'), "{body}");
    let seen = house.origin.as_ref().unwrap().seen.lock().unwrap().clone();
    assert!(seen.len() == 1 && !seen[0].2.contains_key("authorization"), "{seen:?}");
    assert!(house.vault.used.lock().unwrap().is_empty());
}

#[tokio::test]
async fn bodies_stream_and_placeholders_in_them_are_replaced() {
    let rule = serde_json::json!({"placeholders": [{"secret": "KEY", "value": TOKEN, "body": true}]});
    let house = House::new(rule, &[Protocol::Http1]);
    let post = || get("/").method("POST").header("content-type", "application/json");
    let (_, body) = house.send(post().body(full(&format!("{{\"key\":\"{TOKEN}\"}}"))).unwrap()).await;
    assert!(body.contains(&format!("{{\"key\":\"{SECRET}\"}}")), "{body}");
    let length = house.origin.as_ref().unwrap().seen.lock().unwrap()[0].2["content-length"].clone();
    assert_eq!(length, (SECRET.len() + 10).to_string().as_str(), "a small body has its new length");
    // Larger than a body that is held as a whole, with the placeholder cut in two.
    let large = "y".repeat(BODY_WHOLE_MAX_BYTES as usize);
    let chunks = [large.clone(), TOKEN[..9].to_owned(), format!("{}end", &TOKEN[9..])];
    let frames = chunks.map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
    let stream: OutBody = http_body_util::BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)));
    let (_, body) = house.send(post().body(stream).unwrap()).await;
    assert!(body.contains(&format!("{large}{SECRET}end")));
}

#[tokio::test]
async fn answers_are_masked_in_headers_streams_and_upgrades() {
    let masked = serde_json::json!({"bearer": "{secret:KEY}", "mask_responses": true});
    let house = House::new(masked.clone(), &[Protocol::Http1]);
    let (response, body) = house.send(get("/").body(empty()).unwrap()).await;
    let stars = "*".repeat(SECRET.len());
    assert_eq!(response.headers()["x-echo"], format!("Bearer {stars}").as_str());
    assert!(body.contains(&stars) && !body.contains(SECRET), "{body}");
    let (response, body) = house.send(get("/events").body(empty()).unwrap()).await;
    assert_eq!(body, format!("data: 1\n\ndata: {stars}\n\n"));
    assert!(!response.headers().contains_key("alt-svc"));
    let (response, body) = house.send(get("/compressed").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 502, "{body}");
    for (rule, want) in [(masked, format!("hello {stars}")), (bearer(), format!("hello {SECRET}"))] {
        house.set_rule(rule);
        let stream = TokioIo::new(house.connect(&[Protocol::Http1]).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let request = get("/socket").header("connection", "Upgrade").header("upgrade", "test").body(empty());
        let mut response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 101);
        let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
        stream.write_all(b" ping").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, format!("{want} ping"));
    }
}

#[tokio::test]
async fn the_head_of_an_answer_never_shows_a_secret() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let answer = house.raw("GET /reason HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.contains(SECRET), "{answer}");
    let stars = "*".repeat(SECRET.len());
    assert!(answer.to_ascii_lowercase().contains(&format!("location: /?key={stars}")), "{answer}");
    let answer = house.raw("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
    assert!(answer.to_ascii_lowercase().contains(&format!("x-echo: bearer {stars}")), "{answer}");
}

#[tokio::test]
async fn a_changed_rule_is_felt_by_the_next_request_of_the_same_connection() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let stream = TokioIo::new(house.connect(&[Protocol::Http1]).await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for (rule, want) in
        [(bearer(), true), (serde_json::json!({"headers": {"x": "y"}}), false), (bearer(), true)]
    {
        house.set_rule(rule);
        let response = sender.send_request(get("/").body(empty()).unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&body).contains(SECRET), want);
    }
}

#[tokio::test]
async fn a_secret_that_may_not_go_there_is_said_by_name_only() {
    let house = House::new(serde_json::json!({"bearer": "{secret:OTHER}"}), &[Protocol::Http1]);
    let (response, body) = house.send(get("/").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 403);
    assert!(body.contains("'OTHER' may not be sent to api.example.com"), "{body}");
}
