//! Bytes that a sandbox may send where a server in clear is meant, found by coverage: `make fuzz`. It also runs for a short
//! time with the other tests.

use std::sync::{Arc, Mutex};

use bolero::check;
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderName, Method};
use http_body_util::BodyExt as _;

use super::forward::{rewrite, writer};
use super::parser;
use super::request::{meant, without_port};
use crate::fuzz::wire::{Requests, Way};
use crate::interceptor::BoxError;

/// The host of a request that names none.
const LABEL: &str = "label.example";

/// What the gateway decides by, and what the client said.
#[derive(Debug, Clone)]
struct Judged {
    method: Method,
    path: String,
    query: Option<String>,
    /// By which the name is found that rules are asked about.
    host: String,
    headers: HeaderMap,
    /// The bytes of the body that were passed on.
    body: Arc<Mutex<Vec<u8>>>,
}

impl PartialEq for Judged {
    fn eq(&self, other: &Self) -> bool {
        let parts = |judged: &Self| (judged.method.clone(), judged.path.clone(), judged.query.clone());
        parts(self) == parts(other) && self.host == other.host && self.headers == other.headers
    }
}

fn passed(bytes: &[u8], piece: usize) -> Requests<Judged> {
    Way { parser: parser(), writer: writer() }.pass(bytes, piece, |request| async move {
        let judged = Judged {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().map(str::to_owned),
            host: meant(&request).ok()?,
            headers: request.headers().clone(),
            body: Arc::default(),
        };
        let body = Arc::clone(&judged.body);
        let request = rewrite(request, || LABEL.to_owned()).map(|whole| {
            let told = whole.map_frame(move |frame| {
                if let Some(data) = frame.data_ref() {
                    body.lock().unwrap().extend_from_slice(data);
                }
                frame
            });
            told.map_err(BoxError::from).boxed()
        });
        Some((judged, request))
    })
}

/// Headers that `Connection` names, except for those that stay.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    let stays = ["host", "content-length", "cookie", "te", "transfer-encoding", "connection", "upgrade"];
    let texts = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names =
        texts.flat_map(|text| text.split(',')).filter_map(|name| name.trim().parse::<HeaderName>().ok());
    names.filter(|name| !stays.contains(&name.as_str())).collect()
}

#[test]
fn requests_in_clear_are_what_was_decided_upon() {
    check!().for_each(|bytes: &[u8]| {
        let whole = passed(bytes, bytes.len().max(1));
        for (judged, heard) in &whole.passed {
            // A request cannot hide in another one. One that never came to its end is not there.
            assert!(heard.len() <= 1, "{judged:?} became {heard:?}");
            let Some(heard) = heard.first() else { continue };
            let target = match &judged.query {
                Some(query) => format!("{}?{query}", judged.path),
                None => judged.path.clone(),
            };
            assert_eq!((&heard.method, &heard.target), (&judged.method, &target));
            let sent = std::str::from_utf8(heard.only("host")).unwrap();
            match judged.headers.get(HOST) {
                Some(_) => assert_eq!(without_port(sent), judged.host),
                None => assert_eq!(sent, LABEL),
            }
            heard.assert_end_to_end();
            for name in named(&judged.headers) {
                assert!(!heard.headers.contains_key(&name), "{name} passed: {judged:?} {heard:?}");
            }
            assert_eq!(heard.body, *judged.body.lock().unwrap());
        }
        let cut = 1 + bytes.len() % 7;
        assert_eq!(passed(bytes, cut).certain(), whole.certain(), "in pieces of {cut}");
    });
}
