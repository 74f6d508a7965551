//! The built frontend. Files are kept as they are sent, compressed both ways; a client that takes neither gets them
//! unpacked.

use std::io::Read as _;
use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

/// The answer to every path without an ending: the frontend reads the path itself.
const INDEX: &str = "index.html";
/// Files below it have the hash of their content in their names.
const HASHED: &str = "assets/";
const FOREVER: &str = "public, max-age=31536000, immutable";

/// What the page may do: nothing is fetched from elsewhere, nothing is inline, no other page frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// On everything that the dashboard answers.
const HEADERS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// A file of the frontend.
#[derive(Debug)]
pub struct File {
    /// Below the root, such as `assets/index-1a2b.js`.
    pub path: &'static str,
    /// Its bytes by gzip.
    pub gzip: &'static [u8],
    /// Its bytes by Brotli.
    pub brotli: &'static [u8],
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// What identifies the content of each file.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    FILES.iter().map(|file| blake3::hash(file.gzip).to_hex().as_str()[..16].to_owned()).collect()
});

/// All files.
#[must_use]
pub fn files() -> &'static [File] {
    FILES
}

/// The file at a path of an address.
#[must_use]
pub fn file(path: &str) -> Option<&'static File> {
    at(path).map(|at| &FILES[at])
}

fn at(path: &str) -> Option<usize> {
    let path = path.strip_prefix('/')?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let wanted = if name.contains('.') { path } else { INDEX };
    FILES.iter().position(|file| file.path == wanted)
}

/// How a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Brotli,
    Gzip,
    Identity,
}

impl Coding {
    const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
            Self::Identity => "identity",
        }
    }
}

/// Answers a request for a file of the frontend.
#[must_use]
pub fn answer(method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let Some(at) = at(path) else { return empty(StatusCode::NOT_FOUND) };
    let file = &FILES[at];
    let coding = coding(headers);
    let tag = format!("\"{}-{}\"", TAGS[at], coding.name());
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|value| knows(value, &tag));
    let mut response = if is_known { empty(StatusCode::NOT_MODIFIED) } else { full(file, coding) };
    let out = response.headers_mut();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            out.insert(name, value);
        }
    };
    put(ETAG, &tag);
    put(VARY, "accept-encoding");
    put(CACHE_CONTROL, caching(file.path));
    response
}

fn full(file: &'static File, coding: Coding) -> Response<Bytes> {
    let body = match coding {
        Coding::Brotli => Bytes::from_static(file.brotli),
        Coding::Gzip => Bytes::from_static(file.gzip),
        Coding::Identity => match unpacked(file) {
            Ok(bytes) => bytes.into(),
            // It was packed by us; a test unpacks all of them.
            Err(_) => return empty(StatusCode::INTERNAL_SERVER_ERROR),
        },
    };
    let mut response = empty(StatusCode::OK);
    *response.body_mut() = body;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type(file.path)));
    if coding != Coding::Identity {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    response
}

fn unpacked(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file.gzip).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// An answer without a body, with what stands on all of them.
fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let out = response.headers_mut();
    out.insert("content-security-policy", HeaderValue::from_static(POLICY));
    for (name, value) in HEADERS {
        out.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn caching(path: &str) -> &'static str {
    if path.starts_with(HASHED) {
        FOREVER
    } else if path == INDEX {
        "no-store"
    } else {
        "no-cache"
    }
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn knows(value: &HeaderValue, tag: &str) -> bool {
    let Ok(text) = value.to_str() else { return false };
    text.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag)
}

/// The best that a client takes.
fn coding(headers: &HeaderMap) -> Coding {
    let taken = |wanted: &str| {
        let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|value| value.split(',')).any(|item| {
            let (name, weight) = item.split_once(';').unwrap_or((item, ""));
            let weight = weight.trim().trim_start_matches("q=").trim_end_matches(['0', '.']);
            let refused = item.contains(';') && weight.is_empty();
            name.trim().eq_ignore_ascii_case(wanted) && !refused
        })
    };
    if taken("br") {
        Coding::Brotli
    } else if taken("gzip") {
        Coding::Gzip
    } else {
        Coding::Identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, pairs: &[(HeaderName, &'static str)]) -> Response<Bytes> {
        let headers =
            pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        answer(&Method::GET, path, &headers)
    }

    fn header<'a>(response: &'a Response<Bytes>, name: &str) -> &'a str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn pages_are_the_index_and_files_are_files() {
        let index = get("/", &[]);
        assert!(String::from_utf8_lossy(index.body()).contains("<div id=\"app\">"));
        assert_eq!(header(&index, "cache-control"), "no-store");
        assert_eq!(header(&index, "content-security-policy"), POLICY);
        for page in ["/sandboxes/web/terminal", "/keys", "/a/b/"] {
            assert_eq!(get(page, &[]).body(), index.body(), "{page}");
        }
        for missing in ["/none.js", "/assets/none.css", "/../index.html", "/index.html.gz", "//icon.svg", ""]
        {
            let response = get(missing, &[]);
            assert_eq!(response.status(), 404, "{missing}");
            assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        }
        let posted = answer(&Method::POST, "/", &HeaderMap::new());
        assert_eq!((posted.status().as_u16(), header(&posted, "allow")), (405, "GET, HEAD"));
    }

    #[test]
    fn every_file_can_be_unpacked_and_has_a_type() {
        assert!(FILES.iter().any(|file| file.path == INDEX), "{FILES:?}");
        for file in FILES {
            let unpacked = unpacked(file).unwrap();
            assert!(unpacked.len() > 100 && file.brotli.len() < unpacked.len(), "{}", file.path);
            assert_ne!(media_type(file.path), "application/octet-stream", "{}", file.path);
        }
    }

    #[test]
    fn what_has_a_hash_in_its_name_is_kept_for_ever() {
        let hashed = FILES.iter().find(|file| file.path.starts_with(HASHED)).unwrap();
        let path = format!("/{}", hashed.path);
        let response = get(&path, &[(ACCEPT_ENCODING, "gzip, br")]);
        assert_eq!(
            (header(&response, "cache-control"), header(&response, "content-encoding")),
            (FOREVER, "br")
        );
        assert_eq!(response.body().as_ref(), hashed.brotli);
        let icon = get("/icon.svg", &[]);
        assert_eq!(
            (header(&icon, "cache-control"), header(&icon, "content-type")),
            ("no-cache", "image/svg+xml")
        );
        let tag: &'static str = header(&icon, "etag").to_owned().leak();
        assert_eq!(get("/icon.svg", &[(IF_NONE_MATCH, tag)]).status(), 304);
        assert_eq!(get("/icon.svg", &[(IF_NONE_MATCH, tag), (ACCEPT_ENCODING, "gzip")]).status(), 200);
    }

    #[test]
    fn codings() {
        let of = |text: &'static str| {
            coding(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert_eq!(of("gzip, deflate, br, zstd"), Coding::Brotli);
        assert_eq!(of("gzip;q=1.0, br;q=0"), Coding::Gzip);
        assert_eq!(of("br;q=0.000,gzip;q=0.5"), Coding::Gzip);
        assert_eq!(of("identity"), Coding::Identity);
        assert_eq!(of("brr, xgzip"), Coding::Identity);
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
    }

    #[test]
    fn the_first_page_is_small() {
        let index = FILES.iter().find(|file| file.path == INDEX).unwrap();
        let html = String::from_utf8(unpacked(index).unwrap()).unwrap();
        let first = FILES.iter().filter(|file| html.contains(&format!("\"/{}\"", file.path)));
        let bytes: usize = first.map(|file| file.gzip.len()).sum::<usize>() + index.gzip.len();
        assert!(bytes > 10_000 && bytes < 250 << 10, "{bytes}");
    }
}
