//! As much of Amazon's S3 as the clients' libraries need to store an archive:
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html>.

use std::path::Path as FsPath;

use atoll_dialect_kit::spool::receive_with;
use atoll_dialect_kit::time;
use atoll_server::dialect::read_all;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::request::Parts;
use http::{Method, StatusCode};
use sha2::{Digest as _, Sha256};

use super::shelf::{Hash, Known, Part, Shelf, Upload};
use super::{BUCKET, PLACE, access, chunks, sign};
use crate::App;
use crate::view::ORGANIZATION;

/// Largest body of one request, bytes: clients send larger files in parts, by default of 5 MiB.
const BODY_MAX_BYTES: u64 = 64 << 20;
/// Largest list of parts, bytes.
const LIST_MAX_BYTES: usize = 2 << 20;
/// Parts of an upload are numbered from 1 to this.
const PART_MAX: u16 = 10_000;
const XML: &str = "application/xml";
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// An error, as the libraries read it. They try again when the error is not the client's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: &'static str,
}

type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    /// `message` is written into XML as it is.
    pub(super) const fn new(status: StatusCode, code: &'static str, message: &'static str) -> Self {
        Self { status, code, message }
    }

    const fn bad(code: &'static str, message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    fn broken(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(%error, "files of a client cannot be kept or read");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "the files cannot be kept or read")
    }

    fn response(self) -> Response {
        tracing::info!(status = self.status.as_u16(), message = self.message, "refused");
        xml(
            self.status,
            &format!("<Error><Code>{}</Code><Message>{}</Message></Error>", self.code, self.message),
        )
    }
}

pub(super) const OTHER_SIGNATURE: Refusal = Refusal::new(
    StatusCode::FORBIDDEN,
    "SignatureDoesNotMatch",
    "the signature does not belong to the request as it came here",
);
const BUSY: Refusal = Refusal::new(
    StatusCode::SERVICE_UNAVAILABLE,
    "SlowDown",
    "the key has too many answers open: read or close some of them",
);
const NO_UPLOAD: Refusal =
    Refusal::new(StatusCode::NOT_FOUND, "NoSuchUpload", "there is no such upload, or not any more");
const NO_OPERATION: Refusal = Refusal::new(
    StatusCode::NOT_IMPLEMENTED,
    "NotImplemented",
    "this storage takes files for builds, no more",
);

fn xml(status: StatusCode, content: &str) -> Response {
    let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{content}");
    (status, [(CONTENT_TYPE, XML)], text).into_response()
}

/// The thing that a request is about.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Bucket,
    Object(Hash),
}

impl Place {
    fn of(path: &str) -> Result<Self> {
        let wrong = Refusal::new(StatusCode::NOT_FOUND, "NoSuchBucket", "there is one bucket: contexts");
        let rest = path.strip_prefix(PLACE).and_then(|rest| rest.strip_prefix('/')).ok_or(wrong)?;
        let rest = rest.strip_prefix(BUCKET).ok_or(wrong)?;
        match rest {
            "" | "/" => Ok(Self::Bucket),
            rest => rest.strip_prefix('/').and_then(object).map(Self::Object).ok_or(Refusal::bad(
                "InvalidArgument",
                "names of objects are ORGANIZATION/MD5/context.tar, as the SDKs make them",
            )),
        }
    }
}

/// The hash in the name of an object.
fn object(name: &str) -> Option<Hash> {
    Hash::parse(name.strip_prefix(ORGANIZATION)?.strip_prefix('/')?.strip_suffix("/context.tar")?)
}

/// Parameters of a request.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(parts: &Parts) -> Result<Self> {
        let pairs = serde_html_form::from_str(parts.uri.query().unwrap_or_default());
        pairs.map(Self).map_err(|_malformed| Refusal::bad("InvalidArgument", "the query cannot be read"))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn upload(&self) -> Option<Result<Upload>> {
        self.get("uploadId").map(|id| Upload::parse(id).ok_or(NO_UPLOAD))
    }

    fn part(&self) -> Result<u16> {
        let number = self.get("partNumber").and_then(|number| number.parse().ok());
        number
            .filter(|number| (1..=PART_MAX).contains(number))
            .ok_or(Refusal::bad("InvalidArgument", "partNumber: 1 to 10000"))
    }
}

/// Every request.
pub(super) async fn serve(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    answer(&app, &parts, body).await.unwrap_or_else(Refusal::response)
}

async fn answer(app: &App, parts: &Parts, body: Body) -> Result<Response> {
    let (key, chain, grant) = access::admit(app, parts).await?;
    app.host.fill(&parts.extensions, grant).map_err(|_full| BUSY)?;
    let shelf = Shelf::new(app.host.engine(), &key);
    let (place, query) = (Place::of(parts.uri.path())?, Query::of(parts)?);
    match (&parts.method, place, query.upload()) {
        (&Method::GET, Place::Bucket, None) => list(&shelf, &query).await,
        (&Method::HEAD, Place::Bucket, None) => Ok(StatusCode::OK.into_response()),
        (&Method::HEAD, Place::Object(hash), None) => head(&shelf, &hash).await,
        (&Method::PUT, Place::Object(hash), None) => put(&shelf, &hash, Signed { parts, chain, body }).await,
        (&Method::POST, Place::Object(hash), None) if query.get("uploads").is_some() => {
            begin(&shelf, &hash).await
        }
        (&Method::PUT, Place::Object(hash), Some(upload)) => {
            put_part(&shelf, &hash, &upload?, query.part()?, Signed { parts, chain, body }).await
        }
        (&Method::POST, Place::Object(hash), Some(upload)) => complete(&shelf, &hash, &upload?, body).await,
        (&Method::DELETE, Place::Object(hash), Some(upload)) => {
            shelf.abort(&hash, &upload?).await.map_err(|error| Refusal::broken(&error))?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Err(NO_OPERATION),
    }
}

async fn find(shelf: &Shelf, hash: &Hash) -> Result<Option<Known>> {
    shelf.find(hash).await.map_err(|error| Refusal::broken(&error))
}

async fn head(shelf: &Shelf, hash: &Hash) -> Result<Response> {
    let missing = Refusal::new(StatusCode::NOT_FOUND, "NoSuchKey", "there is no such object");
    let known = find(shelf, hash).await?.ok_or(missing)?;
    let headers = [
        (CONTENT_LENGTH, known.bytes.to_string()),
        (ETAG, quoted(hash.as_str())),
        (LAST_MODIFIED, time::http(known.changed_s)),
    ];
    Ok((headers, Body::empty()).into_response())
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// `ListObjectsV2`, of one object at most: the clients ask whether an archive is here.
async fn list(shelf: &Shelf, query: &Query) -> Result<Response> {
    let prefix = query.get("prefix").unwrap_or_default();
    let hash = object(&format!("{}/context.tar", prefix.trim_end_matches('/')));
    let found = match &hash {
        Some(hash) => find(shelf, hash).await?.map(|known| (hash.as_str(), known)),
        None => None,
    };
    let contents = found.map_or_else(String::new, |(hash, known)| {
        format!(
            "<Contents><Key>{ORGANIZATION}/{hash}/context.tar</Key><LastModified>{}</LastModified>\
             <ETag>&quot;{hash}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            time::iso(known.changed_s * 1000),
            known.bytes
        )
    });
    let text = format!(
        "<ListBucketResult xmlns=\"{NAMESPACE}\"><Name>{BUCKET}</Name><KeyCount>{}</KeyCount>\
         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>",
        usize::from(found.is_some())
    );
    Ok(xml(StatusCode::OK, &text))
}

/// A body, and how its request was signed.
struct Signed<'a> {
    parts: &'a Parts,
    chain: sign::Chain,
    body: Body,
}

/// Receives a body beside the archives. Gives its SHA-256.
async fn take(shelf: &Shelf, to: &FsPath, signed: Signed<'_>) -> Result<String> {
    let Signed { parts, chain, body } = signed;
    let said = parts.headers.get(sign::CONTENT_HEADER).and_then(|said| said.to_str().ok());
    let in_chunks = said == Some(chunks::SAID);
    if !in_chunks && said.is_some_and(|said| said.starts_with("STREAMING")) {
        let why = "bodies in chunks that are not signed, or with trailers";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", why));
    }
    if !shelf.make_room().await.map_err(|error| Refusal::broken(&error))? {
        let why = "there are too many files for builds; they go a day after they were used";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "QuotaExceeded", why));
    }
    let mut hasher = Sha256::new();
    let received = receive_with(to, body, BODY_MAX_BYTES, |piece| hasher.update(piece)).await;
    received.map_err(|error| match error.code {
        atoll_core::Code::TooLarge => Refusal::bad("EntityTooLarge", "send it in parts of 5 to 64 MiB"),
        atoll_core::Code::Internal => Refusal::broken(&error),
        _ => Refusal::bad("IncompleteBody", "the body broke off before its end"),
    })?;
    if in_chunks {
        return unwrap(to, chain).await;
    }
    let made = hex::encode(hasher.finalize());
    // The signature of a signed body covers its hash.
    if said.is_some_and(|said| said != "UNSIGNED-PAYLOAD" && !said.eq_ignore_ascii_case(&made)) {
        return Err(Refusal::bad("XAmzContentSHA256Mismatch", "the body is not the one that was signed"));
    }
    Ok(made)
}

/// Replaces a file by the content of its chunks.
async fn unwrap(to: &FsPath, chain: sign::Chain) -> Result<String> {
    let (from, plain) = (to.to_owned(), to.with_extension("plain.part"));
    let work = move || {
        let made = chunks::unwrap(&from, &plain, chain);
        match &made {
            Ok(Some(_)) => std::fs::rename(&plain, &from)?,
            _ => drop(std::fs::remove_file(&plain)),
        }
        made
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| Refusal::broken(&error))?;
    done.map_err(|error| Refusal::broken(&error))?.ok_or(OTHER_SIGNATURE)
}

/// Receives a body and passes it to `keep`; removes the received file when `keep` did not move it.
async fn with_body(
    shelf: &Shelf,
    signed: Signed<'_>,
    keep: impl AsyncFnOnce(std::path::PathBuf, String) -> Result<Response>,
) -> Result<Response> {
    let beside = shelf.beside().map_err(|error| Refusal::broken(&error))?;
    let kept = match take(shelf, &beside, signed).await {
        Ok(checksum) => keep(beside.clone(), checksum).await,
        Err(refusal) => Err(refusal),
    };
    // A file that was kept has been moved.
    drop(tokio::fs::remove_file(&beside).await);
    kept
}

async fn put(shelf: &Shelf, hash: &Hash, signed: Signed<'_>) -> Result<Response> {
    with_body(shelf, signed, async |received, checksum| {
        shelf.keep(hash, received).await.map_err(|error| Refusal::broken(&error))?;
        Ok([(ETAG, quoted(&checksum))].into_response())
    })
    .await
}

async fn begin(shelf: &Shelf, hash: &Hash) -> Result<Response> {
    let upload = match shelf.make_room().await {
        Ok(true) => shelf.begin(hash).await.map_err(|error| Refusal::broken(&error))?,
        Ok(false) => {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "QuotaExceeded", "too many files for builds"));
        }
        Err(error) => return Err(Refusal::broken(&error)),
    };
    let text = format!(
        "<InitiateMultipartUploadResult xmlns=\"{NAMESPACE}\"><Bucket>{BUCKET}</Bucket>\
         <Key>{ORGANIZATION}/{}/context.tar</Key><UploadId>{}</UploadId></InitiateMultipartUploadResult>",
        hash.as_str(),
        upload.as_str()
    );
    Ok(xml(StatusCode::OK, &text))
}

async fn put_part(
    shelf: &Shelf,
    hash: &Hash,
    upload: &Upload,
    number: u16,
    signed: Signed<'_>,
) -> Result<Response> {
    with_body(shelf, signed, async |received, checksum| {
        let part = Part { number, checksum };
        let kept = shelf.keep_part(hash, upload, &part, received).await;
        match kept.map_err(|error| Refusal::broken(&error))? {
            true => Ok([(ETAG, quoted(&part.checksum))].into_response()),
            false => Err(NO_UPLOAD),
        }
    })
    .await
}

async fn complete(shelf: &Shelf, hash: &Hash, upload: &Upload, body: Body) -> Result<Response> {
    let body = read_all(body, LIST_MAX_BYTES).await;
    let malformed = Refusal::bad("MalformedXML", "the list of parts cannot be read");
    let body = body.map_err(|_cut| malformed)?;
    let listed = std::str::from_utf8(&body).ok().and_then(listed).ok_or(malformed)?;
    let done = shelf.complete(hash, upload, listed).await.map_err(|error| Refusal::broken(&error))?;
    // A client that sends this again, because it lost the answer, finds the archive that the first request made.
    if done.is_none() && find(shelf, hash).await?.is_none() {
        return Err(Refusal::bad("InvalidPart", "a part is not there, or all are too large together"));
    }
    let text = format!(
        "<CompleteMultipartUploadResult xmlns=\"{NAMESPACE}\"><Bucket>{BUCKET}</Bucket>\
         <Key>{ORGANIZATION}/{hash}/context.tar</Key><ETag>&quot;{hash}&quot;</ETag></CompleteMultipartUploadResult>",
        hash = hash.as_str()
    );
    Ok(xml(StatusCode::OK, &text))
}

/// The parts of `<Part><PartNumber>1</PartNumber><ETag>"…"</ETag></Part>…`, which must be in order.
fn listed(text: &str) -> Option<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for part in text.split("<Part>").skip(1) {
        let part = part.split_once("</Part>")?.0;
        let inner = |name: &str| {
            let (_, rest) = part.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.trim())
        };
        let number: u16 = inner("PartNumber")?.parse().ok()?;
        let checksum = inner("ETag")?.replace("&quot;", "").replace("&#34;", "").replace('"', "");
        // The checksum becomes part of a path.
        let is_one = checksum.len() == 64 && checksum.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_one || parts.last().is_some_and(|last| last.number >= number) {
            return None;
        }
        parts.push(Part { number, checksum });
    }
    (!parts.is_empty()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let hash = "0a".repeat(16);
        assert_eq!(Place::of("/storage/contexts").unwrap(), Place::Bucket);
        assert_eq!(Place::of("/storage/contexts/").unwrap(), Place::Bucket);
        let good = format!("/storage/contexts/atoll/{hash}/context.tar");
        assert!(matches!(Place::of(&good).unwrap(), Place::Object(own) if own.as_str() == hash));
        for bad in [
            "/storage/other".to_owned(),
            "/storage/contexts2".to_owned(),
            format!("/storage/contexts/other/{hash}/context.tar"),
            format!("/storage/contexts/atoll/{hash}/other.tar"),
            "/storage/contexts/atoll/../x/context.tar".to_owned(),
            format!("/storage/contexts/atoll/{hash}%2f/context.tar"),
        ] {
            assert!(Place::of(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_parts() {
        let sum = "ab".repeat(32);
        let part = |number: u16, etag: &str| {
            format!("<Part><ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>")
        };
        let all =
            format!("<X>{}{}</X>", part(1, &format!("&quot;{sum}&quot;")), part(2, &format!("\"{sum}\"")));
        let parts = listed(&all).unwrap();
        assert_eq!(parts, [1, 2].map(|number| Part { number, checksum: sum.clone() }));
        for bad in [
            String::new(),
            "<X/>".to_owned(),
            part(1, "../../x"),
            format!("{}{}", part(2, &sum), part(1, &sum)),
            format!("{}{}", part(1, &sum), part(1, &sum)),
            part(1, &sum).replace("</Part>", ""),
            part(1, &sum).replace("PartNumber", "Number"),
        ] {
            assert!(listed(&bad).is_none(), "{bad}");
        }
    }
}
