//! Fetches ([`crate::fetch`]) from a server in TLS that the gateway opens, and in TLS that it does not: who can say that
//! something was refused.

use std::io;

use futures::future::BoxFuture;

use super::*;
use crate::fetch::{FetchError, FetchRoots, ProxyStream, fetch};

/// A connection to a proxy that lets one tunnel through, to `behind`.
async fn through(behind: impl FnOnce(DuplexStream) + Send) -> io::Result<Box<dyn ProxyStream>> {
    let (client, mut proxy) = duplex(64 << 10);
    let (mut near, far) = duplex(64 << 10);
    behind(far);
    tokio::spawn(async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(proxy.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"CONNECT api.example.com:443 "), "{}", String::from_utf8_lossy(&head));
        proxy.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        drop(tokio::io::copy_bidirectional(&mut proxy, &mut near).await);
    });
    Ok(Box::new(client))
}

#[tokio::test]
async fn only_the_gateway_says_that_it_refused_something() {
    let world = new_authority("world");
    let origin = Origin::new(&world, "api.example.com", &[Protocol::Http1]);
    let house = House::with(bearer(), Some(origin.clone()), world.certificate_pem());
    let (response, _) = house.send(get("/pretends").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 403);
    assert!(!response.headers().contains_key("x-atoll-refused"), "a server's own mark is passed on");

    let ours = house.interceptor.certificate_pem();
    let roots = FetchRoots { gateway: ours, upstream: world.certificate_pem() };
    let (origin, gateway) = (&origin, &house);
    let unopened = move || -> BoxFuture<'_, io::Result<Box<dyn ProxyStream>>> {
        Box::pin(through(move |far| origin.serve(far)))
    };
    let opened = move || -> BoxFuture<'_, io::Result<Box<dyn ProxyStream>>> {
        Box::pin(through(move |far| gateway.serve(far)))
    };
    let address = "https://api.example.com/pretends";
    let error = fetch(&unopened, address, roots).await.unwrap_err();
    assert!(matches!(error, FetchError::Status(_, StatusCode::FORBIDDEN)), "{error}");
    let error = fetch(&opened, address, roots).await.unwrap_err();
    assert!(matches!(error, FetchError::Status(_, StatusCode::FORBIDDEN)), "{error}");

    // The secret of this rule may not go to that host.
    house.set_rule(serde_json::json!({"bearer": "{secret:OTHER}"}));
    let error = fetch(&opened, "https://api.example.com/", roots).await.unwrap_err();
    assert!(matches!(error, FetchError::Refused(_)), "{error}");
    let unrefused = fetch(&unopened, "https://api.example.com/", roots).await;
    assert!(unrefused.is_ok(), "{unrefused:?}");
}
