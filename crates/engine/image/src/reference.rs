//! Names of images: local names, and references with registry, repository and tag or digest.

use oci_spec::distribution::Reference as OciReference;

use crate::digest::{Digest, PREFIX};
use crate::error::{ImageError, Result};
use crate::limits::DIGEST_PREFIX_MIN_CHARS;

/// Where the registry of `docker.io` really lives.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// A parsed, normalised reference: `python:3.12` is `docker.io/library/python:3.12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    inner: OciReference,
    digest: Option<Digest>,
}

/// The registry that a reference names, as people write it: `docker.io`, `localhost:5000`.
///
/// # Errors
/// [`ImageError::BadReference`].
pub fn registry_of(reference: &str) -> Result<String> {
    Ok(Reference::parse(reference)?.inner.registry().to_owned())
}

impl Reference {
    /// # Errors
    /// [`ImageError::BadReference`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |why| ImageError::BadReference { reference: text.to_owned(), why };
        if text.len() > atoll_core::limits::IMAGE_REF_MAX_BYTES {
            return Err(bad("it is longer than 512 bytes"));
        }
        let inner = text.parse::<OciReference>().map_err(|error| {
            use oci_spec::distribution::ParseError as E;
            bad(match error {
                E::NameTooLong => "the repository is longer than 255 characters",
                E::NameContainsUppercase => "the repository has upper-case letters",
                E::DigestInvalidFormat | E::DigestInvalidLength | E::DigestUnsupported => "bad digest",
                E::NameEmpty => "it is empty",
                E::ReferenceInvalidFormat | E::TagInvalidFormat => {
                    "it must look like registry/repository:tag, in lower case"
                }
            })
        })?;
        if inner.repository().bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(bad("the repository has upper-case letters"));
        }
        let digest = match inner.digest() {
            Some(text) => Some(text.parse().map_err(|_cause: ImageError| bad("bad digest"))?),
            None => None,
        };
        Ok(Self { inner, digest })
    }

    /// Host and port to connect to.
    pub(crate) fn host(&self) -> &str {
        match self.inner.registry() {
            "docker.io" | "index.docker.io" => DOCKER_HUB_HOST,
            registry => registry,
        }
    }

    pub(crate) fn repository(&self) -> &str {
        self.inner.repository()
    }

    /// The digest that the reference pins, if it does.
    pub(crate) fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What to ask the registry for: the digest, else the tag.
    pub(crate) fn wanted(&self) -> &str {
        self.inner.digest().or(self.inner.tag()).unwrap_or("latest")
    }

    /// The normal form.
    pub(crate) fn name(&self) -> String {
        self.inner.to_string()
    }
}

/// The form in which a name is kept. A plain name (a DNS label such as `my-root`) is local and stays as
/// it is; everything else is a reference and is normalised.
///
/// # Errors
/// [`ImageError::BadReference`].
pub fn local_or_normal(text: &str) -> Result<String> {
    if is_local(text) {
        return Ok(text.to_owned());
    }
    Ok(Reference::parse(text)?.name())
}

/// What a text that names an image may stand for, wherever it is: the same that [`crate::Images::resolve`] looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Names, the one that counts most first.
    pub names: Vec<String>,
    /// How the digest begins, in its text form.
    pub digest: Option<String>,
}

impl Asked {
    /// # Errors
    /// [`ImageError::BadReference`].
    pub fn parse(text: &str) -> Result<Self> {
        let hex = text.strip_prefix(PREFIX);
        let digits = hex.unwrap_or(text);
        let is_digest = (DIGEST_PREFIX_MIN_CHARS..=64).contains(&digits.len())
            && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let digest = is_digest.then(|| format!("{PREFIX}{digits}"));
        if hex.is_some() {
            return Ok(Self { names: Vec::new(), digest });
        }
        let mut names = vec![text.to_owned()];
        match Reference::parse(text) {
            Ok(reference) => {
                names.push(reference.name());
                names.dedup();
                Ok(Self {
                    names,
                    digest: digest.or_else(|| reference.digest.map(|digest| digest.to_string())),
                })
            }
            Err(_) if digest.is_some() || is_local(text) => Ok(Self { names, digest }),
            Err(error) => Err(error),
        }
    }
}

/// `host` is the built-in image, so no local name may take it.
fn is_local(text: &str) -> bool {
    atoll_core::spec::name("name", text).is_ok() && text != "host"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms() {
        let hex = "a".repeat(64);
        for (given, normal, host) in [
            ("python:3.12", "docker.io/library/python:3.12", DOCKER_HUB_HOST),
            ("python", "docker.io/library/python:latest", DOCKER_HUB_HOST),
            ("me/app", "docker.io/me/app:latest", DOCKER_HUB_HOST),
            ("localhost:5000/a/b:c", "localhost:5000/a/b:c", "localhost:5000"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest", "127.0.0.1:5000"),
            ("ghcr.io/x/y", "ghcr.io/x/y:latest", "ghcr.io"),
        ] {
            let parsed = Reference::parse(given).unwrap();
            assert_eq!((parsed.name().as_str(), parsed.host()), (normal, host), "{given}");
            assert_eq!(Reference::parse(normal).unwrap().name(), normal, "normal forms are stable");
        }
        let pinned = Reference::parse(&format!("a.b/c@sha256:{hex}")).unwrap();
        assert_eq!(pinned.wanted(), format!("sha256:{hex}"));
    }

    #[test]
    fn what_is_no_reference() {
        let upper = format!("a@sha256:{}", "A".repeat(64));
        for bad in ["", "UPPER/case", "a b", "../x", "a/../b", "a:b:c", "http://a/b", "a@sha256:12", &upper] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
        assert!(Reference::parse(&"a".repeat(513)).is_err());
    }

    #[test]
    fn what_a_text_may_stand_for() {
        let asked = |text: &str| Asked::parse(text).unwrap();
        let hex = "a".repeat(64);
        assert_eq!(asked("app").names, ["app", "docker.io/library/app:latest"]);
        assert_eq!(asked("a.b/c:1"), Asked { names: vec!["a.b/c:1".into()], digest: None });
        let whole = Some(format!("sha256:{hex}"));
        assert_eq!(asked(&format!("sha256:{hex}")), Asked { names: vec![], digest: whole.clone() });
        assert_eq!(asked(&format!("a.b/c@sha256:{hex}")).digest, whole);
        assert_eq!(asked(&hex[..12]).digest.as_deref(), Some("sha256:aaaaaaaaaaaa"));
        assert_eq!(asked("sha256:%").digest, None);
        assert!(Asked::parse("a b").is_err());
    }

    #[test]
    fn local_names_stay() {
        assert_eq!(local_or_normal("my-root").unwrap(), "my-root");
        assert_eq!(local_or_normal("my-root:1").unwrap(), "docker.io/library/my-root:1");
        assert_eq!(local_or_normal("host").unwrap(), "docker.io/library/host:latest");
    }
}
