use atoll_core::Code;

use super::*;

#[test]
fn what_another_node_answers_is_counted_here_too() {
    let streams = Streams::default();
    let begin = |method: &str, protocol: Option<&str>| {
        let mut request = http::Request::builder().method(method).uri("/v1/x");
        if let Some(protocol) = protocol {
            request = request.header(UPGRADE, protocol);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Elsewhere::begin(streams.clone(), 1, &parts, KeyId::from_parts(1, 1))
    };
    let answer = |length: Option<&str>| {
        // Of no length that is known beforehand, as what comes from another node.
        let body = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
        let mut response = Response::new(body);
        if let Some(length) = length {
            response.headers_mut().insert(CONTENT_LENGTH, length.parse().unwrap());
        }
        response
    };
    let open = || streams.0.open.load(Ordering::Relaxed);
    let short = begin("GET", None).unwrap().answered(answer(Some("10"))).unwrap();
    assert_eq!(open(), 0, "a short answer has no place");
    let long = begin("GET", None).unwrap().answered(answer(None)).unwrap();
    assert_eq!(open(), 1);
    let refused = begin("GET", None).unwrap().answered(answer(Some("1000000"))).unwrap_err();
    assert_eq!(refused.code, Code::LimitExceeded);
    // What may change something, and what becomes another protocol, is refused before the other node is asked.
    for (method, protocol) in [("POST", None), ("GET", Some("websocket"))] {
        assert_eq!(begin(method, protocol).unwrap_err().code, Code::LimitExceeded, "{method}");
    }
    drop((long, short));
    let switched = begin("GET", Some("websocket")).unwrap();
    let kept = switched.turn();
    drop(switched);
    assert_eq!(open(), 1, "the connection that it became has the place");
    drop(kept);
    assert_eq!(open(), 0);
}

#[test]
fn a_refusal_by_a_signed_address_takes_no_place_of_the_key_that_signed_it() {
    let streams = Streams::default();
    let (key, linked) = (KeyId::from_parts(1, 1), Linked::Object("obj_1".into()));
    let turn = || Turn::new(streams.clone(), 1, &Method::GET, &HeaderMap::new(), Version::HTTP_2);
    let (first, second) = (turn(), turn());
    first.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap();
    assert_eq!(
        second.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap_err().code,
        Code::LimitExceeded
    );
    let whose = Whose::Key(key);
    let told = "too many";
    let refusal =
        second.hold(Response::new(Body::from(told)), Some(told.len() as u64), Some(&whose)).unwrap();
    assert!(
        streams.take(&whose, 1).is_some(),
        "a client that does not read the refusal holds nothing of the key's"
    );
    drop((first, refusal));
    assert_eq!(streams.0.open.load(Ordering::Relaxed), 0);
}

#[test]
fn who_has_a_signed_address_takes_no_place_of_the_key_that_signed_it() {
    let streams = Streams::default();
    let key = KeyId::from_parts(1, 1);
    let turn = |method| Turn::new(streams.clone(), 1, &method, &HeaderMap::new(), Version::HTTP_11);
    for (method, linked) in [
        (Method::GET, Linked::Sandbox(SandboxId::from_parts(1, 1))),
        (Method::GET, Linked::Object("obj_1".into())),
        (Method::PUT, Linked::Object("obj_1".into())),
    ] {
        let (first, second) = (turn(method.clone()), turn(method.clone()));
        first.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap();
        assert_eq!(
            second.admit_signed(&linked, Owner { key: Some(&key), project: None }).unwrap_err().code,
            Code::LimitExceeded
        );
        // A long answer, which would take the key's place otherwise.
        let whose = Whose::Key(key.clone());
        let answer = first.hold(Response::new(Body::empty()), None, Some(&whose)).unwrap();
        assert!(streams.take(&whose, 1).is_some(), "the key has all of its own");
        drop((answer, second));
        assert_eq!(streams.0.open.load(Ordering::Relaxed), 0);
        turn(method).admit_signed(&linked, Owner::default()).unwrap();
    }
}

#[test]
fn what_deletes_finds_a_place_when_other_changes_have_taken_theirs() {
    let streams = Streams::default();
    let begin = |method: &str| {
        let (parts, ()) = http::Request::builder().method(method).body(()).unwrap().into_parts();
        Elsewhere::begin(streams.clone(), RESERVED, &parts, KeyId::from_parts(1, 1))
    };
    let changes: Vec<_> = std::iter::from_fn(|| begin("POST").ok()).collect();
    assert_eq!(changes.len(), RESERVED + 1);
    let deletes: Vec<_> = std::iter::from_fn(|| begin("DELETE").ok()).collect();
    assert_eq!(deletes.len(), 1);
    drop(deletes);
    assert!(begin("DELETE").is_ok() && begin("POST").is_err());
}
