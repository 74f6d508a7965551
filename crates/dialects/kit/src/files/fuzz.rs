//! Uploads and ranges, which any client may send, fuzzed by coverage: `make fuzz`. Each runs shortly with the other
//! tests, too.

use atoll_server::dialect::{Wanted, wanted};
use axum::body::Body;
use bolero::check;
use bytes::Bytes;
use futures::stream;
use http::header::{CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue};

use super::Form;

/// Parts of a form that arrives in pieces: names and contents; `None` when it is no form.
fn parts(body: &[u8], piece: usize) -> Option<Vec<(Option<String>, Vec<u8>)>> {
    let pieces: Vec<_> =
        body.chunks(piece).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect();
    let kind = HeaderValue::from_static("multipart/form-data; boundary=x");
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut form = Form::new(&headers, Body::from_stream(stream::iter(pieces))).expect("a form");
        let mut found = Vec::new();
        while let Some(part) = form.next().await.ok()? {
            let mut content = Vec::new();
            while let Some(bytes) = form.chunk().await.ok()? {
                content.extend_from_slice(&bytes);
            }
            found.push((part.name, content));
        }
        Some(found)
    })
}

#[test]
fn forms_do_not_depend_on_how_they_are_cut() {
    check!().for_each(|body: &[u8]| {
        let whole = parts(body, body.len().max(1));
        assert_eq!(parts(body, 2), whole);
    });
}

#[test]
fn ranges_lie_within_the_file() {
    check!().with_type::<(Vec<u8>, u64)>().for_each(|(text, size)| {
        let Ok(value) = HeaderValue::from_bytes(text) else { return };
        let headers = HeaderMap::from_iter([(RANGE, value)]);
        if let Wanted::Part(first, last) = wanted(&headers, *size, None) {
            assert!(first <= last && last < *size);
        }
    });
}
