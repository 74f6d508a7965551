//! Writing files: one as it is, or any number in a form.

use std::collections::BTreeMap;
use std::io::Write as _;

use atoll_core::Error;
use atoll_core::spec::IsolationLevel;
use atoll_dialect_kit::files::Form;
use atoll_engine::{FileWriter, GuestLease, guest_error};
use atoll_guest_protocol::messages::{SetAttributes, Write};
use atoll_server::dialect::Pieces;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::{Value, json};

use super::{Operation, admitted, failure, not_written};
use crate::App;
use crate::envd::filesystem::ATTRIBUTES;
use crate::envd::{Envd, paths};
use crate::error::{Failure, Result};

/// Headers that carry a file's metadata begin with it.
const METADATA: &str = "x-metadata-";
/// Longest key of metadata, bytes: with its prefix it is the name of an attribute.
const METADATA_KEY_MAX_BYTES: usize = 246;
/// Keys and values of a file's metadata, bytes.
const METADATA_MAX_BYTES: usize = 4096;
/// The field of a form that is a file.
const FIELD: &str = "file";
/// Bytes that are unpacked before they are passed on.
const UNPACK_BYTES: usize = 16 << 10;

/// Writes one file or more; tells which.
pub(crate) async fn upload(State(app): State<App>, request: Request) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let (envd, query) = admitted(&mut parts, &app, Operation::Write).await?;
    let guest = envd.guest().await.map_err(|error| Failure::of_file(&error))?;
    let metadata = metadata(&parts.headers)?;
    let level = envd.engine().sandbox(envd.id()).map_err(|error| Failure::of_file(&error))?.spec.isolation;
    if level == IsolationLevel::Gvisor && !metadata.is_empty() {
        // Refused before a file is written: the level's file systems keep no attributes.
        return Err(Failure::bad(
            "metadata: sandboxes of the level gvisor keep no extended attributes of files",
        ));
    }
    let to = Uploads { owner: envd.owner()?, metadata, envd, guest };
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = query.path.filter(|path| !path.is_empty());
    let bare = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let written = match bare.as_str() {
        "multipart/form-data" => {
            if parts.headers.contains_key(CONTENT_ENCODING)
                && parts.headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity")
            {
                return Err(Failure::bad("a form cannot be compressed: send application/octet-stream"));
            }
            let form = Form::new(&parts.headers, body).map_err(|error| broken(&error))?;
            to.form(form, path).await?
        }
        "application/octet-stream" => {
            let path = path.ok_or_else(|| Failure::bad("the query parameter 'path' is missing"))?;
            vec![to.plain(&path, &parts.headers, body).await?]
        }
        _ => {
            return Err(Failure::bad(
                "the content type must be multipart/form-data or application/octet-stream",
            ));
        }
    };
    Ok(axum::Json(written).into_response())
}

/// The metadata that a request gives its files.
fn metadata(headers: &HeaderMap) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA) else { continue };
        let printable = |text: &[u8]| text.iter().all(|byte| (0x20..0x7f).contains(byte));
        if key.is_empty() || key.len() > METADATA_KEY_MAX_BYTES {
            return Err(Failure::bad(format!(
                "invalid metadata key '{key}': it must have 1 to {METADATA_KEY_MAX_BYTES} bytes"
            )));
        }
        let value = value.to_str().ok().filter(|value| printable(value.as_bytes())).ok_or_else(|| {
            Failure::bad(format!("invalid metadata value of '{key}': it must be printable ASCII"))
        })?;
        bytes += key.len() + value.len();
        all.insert(key.to_owned(), value.to_owned());
    }
    if bytes > METADATA_MAX_BYTES {
        return Err(Failure::bad(format!("the metadata has more than {METADATA_MAX_BYTES} bytes")));
    }
    Ok(all)
}

/// The sandbox that the files go to.
struct Uploads {
    envd: Envd,
    guest: GuestLease,
    owner: String,
    metadata: BTreeMap<String, String>,
}

fn broken(error: &Error) -> Failure {
    Failure::bad(format!("the form cannot be read: {}", error.message))
}

impl Uploads {
    fn told(&self, error: Error, path: &str) -> Failure {
        not_written(&self.envd, error, path)
    }

    /// Writes every file of a form. The one path of the address is for a form with one file.
    async fn form(&self, mut form: Form, path: Option<String>) -> Result<Vec<Value>> {
        let mut written: Vec<Value> = Vec::new();
        while let Some(part) = form.next().await.map_err(|error| broken(&error))? {
            if part.name.as_deref() != Some(FIELD) {
                continue;
            }
            let named = part.file_name.filter(|name| !name.is_empty());
            let asked = match (&path, named) {
                (Some(_), _) if !written.is_empty() => {
                    return Err(Failure::bad("more than one file for the one path of the address"));
                }
                (Some(path), _) => path.clone(),
                (None, Some(name)) => name,
                (None, None) => return Err(Failure::bad("a file of the form has no name")),
            };
            let (path, mut writer) = self.open(&asked).await?;
            while let Some(piece) = form.chunk().await.map_err(|error| broken(&error))? {
                writer.send(piece).await.map_err(|error| self.told(guest_error(error), &path))?;
            }
            let entry = self.close(path, writer).await?;
            if written.iter().any(|other| other["path"] == entry["path"]) {
                return Err(Failure::bad("a file is in the form more than once"));
            }
            written.push(entry);
        }
        if written.is_empty() {
            return Err(Failure::bad("the form has no file in it: its field is called 'file'"));
        }
        Ok(written)
    }

    /// Writes the body as it is, or unpacked.
    async fn plain(&self, asked: &str, headers: &HeaderMap, body: Body) -> Result<Value> {
        let packed = match headers.get(CONTENT_ENCODING).map(http::HeaderValue::as_bytes) {
            None | Some(b"" | b"identity") => false,
            Some(b"gzip" | b"x-gzip") => true,
            Some(_) => return Err(Failure::bad("unsupported Content-Encoding: gzip and identity are")),
        };
        let (path, mut writer) = self.open(asked).await?;
        let mut pieces = Pieces::new(body);
        let mut unpacker = packed.then(|| MultiGzDecoder::new(Vec::new()));
        while let Some(piece) = pieces.next().await.map_err(|error| Failure::of_file(&error))? {
            match &mut unpacker {
                None => self.send(&mut writer, piece, &path).await?,
                Some(unpacker) => self.unpack(unpacker, &mut writer, &piece, &path).await?,
            }
        }
        if let Some(mut unpacker) = unpacker {
            unpacker.try_finish().map_err(|error| not_gzip(&error))?;
            let rest = std::mem::take(unpacker.get_mut());
            self.send(&mut writer, rest.into(), &path).await?;
        }
        self.close(path, writer).await
    }

    /// Unpacks piece by piece: few packed bytes may become very many.
    async fn unpack(
        &self,
        unpacker: &mut MultiGzDecoder<Vec<u8>>,
        writer: &mut FileWriter,
        piece: &[u8],
        path: &str,
    ) -> Result<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            let taken = unpacker.write(rest).map_err(|error| not_gzip(&error))?;
            if taken == 0 && unpacker.get_ref().is_empty() {
                return Err(Failure::bad("something follows the gzipped file"));
            }
            rest = &rest[taken..];
            if unpacker.get_ref().len() >= UNPACK_BYTES || taken == 0 {
                let plain = std::mem::take(unpacker.get_mut());
                self.send(writer, plain.into(), path).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, writer: &mut FileWriter, piece: Bytes, path: &str) -> Result<()> {
        writer.send(piece).await.map_err(|error| self.told(guest_error(error), path))
    }

    async fn open(&self, asked: &str) -> Result<(String, FileWriter)> {
        let path = paths::resolve(&self.envd, &self.guest, asked).await.map_err(failure)?;
        let user = self.owner.clone();
        let request = Write { path: path.clone(), mode: 0, user, parents: true, in_place: true };
        let writer = self.guest.write(request).await;
        let writer = writer.map_err(|error| self.told(guest_error(error), &path))?;
        Ok((path, writer))
    }

    async fn close(&self, path: String, writer: FileWriter) -> Result<Value> {
        writer.finish().await.map_err(|error| self.told(guest_error(error), &path))?;
        // Also without any metadata: the attributes that the file had are about its old content.
        let attributes = SetAttributes {
            path: path.clone(),
            prefix: ATTRIBUTES.to_owned(),
            attributes: self.metadata.clone(),
        };
        let set = self.guest.set_attributes(attributes).await;
        set.map_err(|error| self.told(guest_error(error), &path))?;
        let mut entry = json!({"name": paths::name(&path), "type": "file", "path": path});
        if !self.metadata.is_empty() {
            entry["metadata"] = json!(self.metadata);
        }
        Ok(entry)
    }
}

fn not_gzip(error: &std::io::Error) -> Failure {
    Failure::bad(format!("the body is not gzip: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn of(pairs: &[(&str, &str)]) -> Result<BTreeMap<String, String>> {
        let header = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        metadata(&pairs.iter().map(header).collect())
    }

    #[test]
    fn metadata_is_bounded() {
        let found = of(&[("X-Metadata-Author", "me"), ("x-other", "1")]).unwrap();
        assert_eq!(found, BTreeMap::from([("author".to_owned(), "me".to_owned())]));
        assert!(of(&[("x-metadata-a", "ä")]).is_err());
        assert!(of(&[("x-metadata-", "a")]).is_err());
        assert!(of(&[("x-metadata-a", &"x".repeat(4096))]).is_err());
        let long = format!("x-metadata-{}", "k".repeat(247));
        assert!(of(&[(&long, "a")]).is_err());
    }
}
