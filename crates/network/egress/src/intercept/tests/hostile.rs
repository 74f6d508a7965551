//! Requests of clients that want a secret to go elsewhere, or that two servers would read in two ways, and servers that
//! are not who they should be.

use super::*;

#[tokio::test]
async fn the_body_of_a_get_arrives() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let text =
        "GET / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    house.raw(text).await;
    assert_eq!(house.origin.as_ref().unwrap().seen.lock().unwrap()[0].3, "body");
}

#[tokio::test]
async fn http2_in_clear_is_no_upgrade() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let request = get("/").header("connection", "Upgrade, HTTP2-Settings").header("upgrade", "h2c");
    let (response, _) = house.send(request.header("http2-settings", "AAMAAABk").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    let seen = house.origin.as_ref().unwrap().seen.lock().unwrap();
    assert!(
        !seen[0].2.contains_key("upgrade") && !seen[0].2.contains_key("http2-settings"),
        "{:?}",
        seen[0].2
    );
}

#[tokio::test]
async fn what_is_not_for_this_host_gets_no_secret() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    for (text, status) in [
        ("GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n", "421"),
        ("GET https://evil.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("CONNECT evil.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "4"),
        ("TRACE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "403"),
        (
            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "400",
        ),
        ("POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n folded\r\n\r\n", "400"),
        ("GET / HTTP/1.1\nHost: evil.com\nConnection: close\n\n", "421"),
        ("GET /\0 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        ("no http at all\r\n\r\n", "400"),
    ] {
        let answer = house.raw(text).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{text:?}: {answer}");
        assert!(!answer.contains(SECRET), "{answer}");
    }
    assert!(house.vault.used.lock().unwrap().is_empty());
    assert!(house.origin.as_ref().unwrap().seen.lock().unwrap().is_empty(), "nothing went out");
}

#[tokio::test]
async fn a_second_request_hidden_in_the_first_is_judged_by_itself() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let hidden = "GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n";
    // In line ends of the short form, so that the first does not end the connection.
    let first = "GET /a HTTP/1.1\nHost: api.example.com\n\n";
    let answer = house.raw(&format!("{first}{hidden}")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 421"), "{answer}");
    assert_eq!(house.origin.as_ref().unwrap().seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_length_that_is_said_twice_is_passed_on_once() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let orders = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
    ];
    for (n, lengths) in orders.into_iter().enumerate() {
        let hidden = "GET /hidden HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
        let text = format!("POST / HTTP/1.1\r\nHost: api.example.com\r\n{lengths}\r\n\r\n0\r\n\r\n{hidden}");
        house.raw(&text).await;
        let seen = house.origin.as_ref().unwrap().seen.lock().unwrap();
        let (_, _, headers, body) = &seen[n];
        assert!(
            !(headers.contains_key("content-length") && headers.contains_key("transfer-encoding")),
            "{headers:?}"
        );
        assert_eq!(body, "");
        // The connection ends with it: bytes behind it are not read.
        assert_eq!(seen.len(), n + 1);
    }
}

#[tokio::test]
async fn headers_that_the_client_names_as_its_own_do_not_take_the_secret_away() {
    let house = House::new(bearer(), &[Protocol::Http1]);
    let request = get("/").header("connection", "authorization, x-drop").header("x-drop", "1");
    let (_, body) = house.send(request.header("te", "trailers").body(empty()).unwrap()).await;
    assert!(body.contains(SECRET));
    let seen = house.origin.as_ref().unwrap().seen.lock().unwrap();
    assert!(!seen[0].2.contains_key("x-drop") && seen[0].2["te"] == "trailers", "{:?}", seen[0].2);
}

#[tokio::test]
async fn servers_that_cannot_be_trusted_or_reached() {
    let stranger = new_authority("stranger");
    let origin = |host: &str| Some(Origin::new(&stranger, host, &[Protocol::Http1]));
    let world = new_authority("world");
    for (origin, roots, why) in [
        (origin("api.example.com"), world.certificate_pem(), "does not trust"),
        (origin("other.example.com"), stranger.certificate_pem(), "not valid"),
        (None, world.certificate_pem(), "no connection"),
    ] {
        let house = House::with(bearer(), origin, roots);
        let (response, body) = house.send(get("/").body(empty()).unwrap()).await;
        assert_eq!(response.status(), 502, "{body}");
        assert!(body.contains(why) && !body.contains(SECRET), "{body}");
        assert!(response.headers().contains_key("x-atoll-refused"));
    }
}
