//! Does a request belong to its connection? Asked of every request, before any rule.

use atoll_core::policy::HostName;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{Method, Request, Version};

use super::refusal::Refusal;

/// The facts that the gateway knows of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub(super) host: &'a HostName,
    pub(super) port: u16,
    pub(super) encrypted: bool,
}

/// Refuses requests that are for another host, that could be read in two ways, or that make a server echo its
/// request.
pub(super) fn check<B>(request: &Request<B>, expected: Expected<'_>) -> Result<(), Refusal> {
    method(request.method())?;
    framing(request)?;
    for authority in authorities(request)? {
        agree(&authority, expected)?;
    }
    if let Some(scheme) = request.uri().scheme_str()
        && (scheme == "https") != expected.encrypted
    {
        return Err(Refusal::misdirected(format!("the request says '{scheme}', the connection is not that")));
    }
    let path = request.uri().path();
    let whole_server = path == "*" && request.method() == Method::OPTIONS;
    if !(path.starts_with('/') || whole_server) {
        return Err(Refusal::malformed("the request's path does not begin with '/'"));
    }
    Ok(())
}

fn method(method: &Method) -> Result<(), Refusal> {
    if *method == Method::CONNECT {
        return Err(Refusal::malformed("CONNECT is not possible on a connection to a server"));
    }
    // Both methods make the server send the request back, credentials included.
    if *method == Method::TRACE || method.as_str().eq_ignore_ascii_case("TRACK") {
        return Err(Refusal::forbidden(format!(
            "{method} would show the credentials that the gateway puts in"
        )));
    }
    Ok(())
}

/// One length, said in one way.
fn framing<B>(request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let encoding = encodings.next();
    if lengths > 1 || encodings.next().is_some() || (lengths == 1 && encoding.is_some()) {
        return Err(Refusal::malformed("the request says its length more than once"));
    }
    if let Some(encoding) = encoding
        && (!encoding.as_bytes().eq_ignore_ascii_case(b"chunked") || request.version() != Version::HTTP_11)
    {
        return Err(Refusal::malformed("the request's Transfer-Encoding is not 'chunked'"));
    }
    let plain_number = |value: &http::HeaderValue| value.as_bytes().iter().all(u8::is_ascii_digit);
    if !headers.get_all(CONTENT_LENGTH).iter().all(plain_number) {
        return Err(Refusal::malformed("the request's Content-Length is not a number"));
    }
    Ok(())
}

/// Everything in a request that says for which host it is.
fn authorities<B>(request: &Request<B>) -> Result<Vec<Authority>, Refusal> {
    let mut found: Vec<Authority> = request.uri().authority().cloned().into_iter().collect();
    let hosts = request.headers().get_all(HOST);
    if hosts.iter().count() > 1 {
        return Err(Refusal::malformed("the request has more than one Host"));
    }
    for host in hosts {
        let parsed = Authority::try_from(host.as_bytes());
        found.push(parsed.map_err(|_error| Refusal::malformed("the request's Host is malformed"))?);
    }
    if found.is_empty() {
        return Err(Refusal::malformed("the request does not say for which host it is"));
    }
    if request.version() < Version::HTTP_2 && request.headers().get(HOST).is_none() {
        return Err(Refusal::malformed("the request has no Host"));
    }
    Ok(found)
}

fn agree(authority: &Authority, expected: Expected<'_>) -> Result<(), Refusal> {
    let standard = if expected.encrypted { 443 } else { 80 };
    let same_host = authority.host().parse::<HostName>().is_ok_and(|host| host == *expected.host);
    let port_text = authority.as_str().rsplit_once(':').map(|(_, port)| port);
    let same_port = match authority.port_u16() {
        Some(port) => port == expected.port,
        // A colon without a number that fits is no port at all.
        None => port_text.is_none() && expected.port == standard,
    };
    if same_host && same_port && !authority.as_str().contains('@') {
        return Ok(());
    }
    Err(Refusal::misdirected(format!(
        "the connection is to {}:{}, the request is for another host",
        expected.host, expected.port
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: http::request::Builder) -> u16 {
        let host: HostName = "api.example.com".parse().unwrap();
        let expected = Expected { host: &host, port: 443, encrypted: true };
        match check(&request.body(()).unwrap(), expected) {
            Ok(()) => 200,
            Err(refusal) => refusal.into_response().status().as_u16(),
        }
    }

    fn get(uri: &str) -> http::request::Builder {
        Request::builder().uri(uri)
    }

    #[test]
    fn host_and_connection_agree() {
        for (host, want) in [
            ("api.example.com", 200),
            ("API.example.com", 200),
            ("api.example.com.", 200),
            ("api.example.com:443", 200),
            ("api.example.com:8443", 421),
            ("api.example.com:", 421),
            ("api.example.com:99999", 421),
            ("evil.example.com", 421),
            ("user@api.example.com", 421),
            ("api.example.com@evil.com", 421),
            ("1.2.3.4", 421),
            ("a b", 400),
            ("", 400),
        ] {
            assert_eq!(status(get("/").header("host", host)), want, "{host}");
        }
        assert_eq!(status(get("/")), 400, "no Host");
        let two = get("/").header("host", "api.example.com").header("host", "api.example.com");
        assert_eq!(status(two), 400);
    }

    #[test]
    fn absolute_forms_agree_too() {
        let good = "api.example.com";
        for (uri, host, want) in [
            ("https://api.example.com/a", good, 200),
            ("https://evil.com/a", good, 421),
            ("https://api.example.com/a", "evil.com", 421),
            ("http://api.example.com/a", good, 421),
        ] {
            assert_eq!(status(get(uri).header("host", host)), want, "{uri} {host}");
        }
        let h2 = |uri: &str| get(uri).version(Version::HTTP_2);
        assert_eq!(status(h2("https://api.example.com/a")), 200, "HTTP/2 needs no Host");
        assert_eq!(status(h2("https://evil.com/a")), 421);
        assert_eq!(status(h2("https://api.example.com/a").header("host", "evil.com")), 421);
    }

    #[test]
    fn one_length_said_in_one_way() {
        let with = |headers: &[(&str, &str)]| {
            let mut request = get("/").method("POST").header("host", "api.example.com");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            status(request)
        };
        assert_eq!(with(&[("content-length", "3")]), 200);
        assert_eq!(with(&[("transfer-encoding", "Chunked")]), 200);
        for bad in [
            &[("content-length", "3"), ("transfer-encoding", "chunked")][..],
            &[("content-length", "3"), ("content-length", "3")],
            &[("content-length", "3"), ("content-length", "4")],
            &[("content-length", "+3")],
            &[("content-length", "3, 3")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "xchunked")],
        ] {
            assert_eq!(with(bad), 400, "{bad:?}");
        }
    }

    #[test]
    fn methods_that_turn_requests_around() {
        let host = |method: &str| get("/").method(method).header("host", "api.example.com");
        assert_eq!(status(host("TRACE")), 403);
        assert_eq!(status(host("TRACK")), 403);
        assert_eq!(status(Request::builder().method("CONNECT").uri("evil.com:443").header("host", "x")), 400);
        assert_eq!(status(host("OPTIONS").uri("*")), 200);
    }
}
