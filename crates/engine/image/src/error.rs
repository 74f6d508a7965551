//! Why something about an image failed, and the one mapping to the product's error.

use std::io;
use std::path::PathBuf;

use atoll_core::error::shorten;
use atoll_core::{Code, Error};

/// Shorthand of this crate.
pub type Result<T, E = ImageError> = std::result::Result<T, E>;

/// Why an image could not be had, kept or removed. No variant holds a credential, a token or a URL.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No image here has this name or digest.
    #[error("there is no image '{}' here", shorten(.0))]
    NotFound(String),
    /// Several images have this digest prefix.
    #[error("'{}' stands for more than one image", shorten(.0))]
    Ambiguous(String),
    /// Not a name, reference or digest.
    #[error("'{}' is not an image reference: {why}", shorten(.reference))]
    BadReference {
        /// What was given.
        reference: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A setting of the request cannot be used.
    #[error("{field}: {why}")]
    BadOption {
        /// Which one.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The registry wants credentials, or other ones.
    #[error("the registry {registry} denies access to '{}'", shorten(.repository))]
    RegistryDenied {
        /// Host and port.
        registry: String,
        /// Repository asked for.
        repository: String,
        /// Whether credentials were sent.
        with_credentials: bool,
    },
    /// The registry has no such repository, tag or digest.
    #[error("the registry {registry} has no image '{}'", shorten(.reference))]
    RegistryNotFound {
        /// Host and port.
        registry: String,
        /// What was asked for.
        reference: String,
    },
    /// No connection, an answer that says "later", or no progress for too long.
    #[error("the registry {registry} is not available: {why}")]
    RegistryUnavailable {
        /// Host and port.
        registry: String,
        /// What happened, without addresses or secrets.
        why: String,
    },
    /// Its certificate is not trusted.
    #[error("the certificate of the registry {registry} is not trusted: {why}")]
    RegistryUntrusted {
        /// Host and port.
        registry: String,
        /// What the check found.
        why: String,
    },
    /// It, or where it leads, has an address that is not public.
    #[error("the registry {registry}, or where it leads, has an address that is not public")]
    RegistryClosed {
        /// Host and port as the reference has them.
        registry: String,
    },
    /// The registry's answer makes no sense.
    #[error("the registry {registry} gave an answer that makes no sense: {why}")]
    RegistryInvalid {
        /// Host and port.
        registry: String,
        /// What is wrong with it.
        why: String,
    },
    /// The image exists, but not for this platform.
    #[error("the image is not for {wanted}; it exists for {}", .found.join(", "))]
    PlatformMismatch {
        /// Platform asked for.
        wanted: String,
        /// Platforms there are.
        found: Vec<String>,
    },
    /// The image is malformed, hostile or beyond a limit.
    #[error("the image is not usable: {0}")]
    Invalid(String),
    /// The bytes do not have the digest that was announced.
    #[error("the content is not what {expected} stands for: {why}")]
    DigestMismatch {
        /// The digest that was announced.
        expected: String,
        /// What came instead.
        why: String,
    },
    /// A layer that other nodes have put into the object store cannot be fetched from there.
    #[error("its layer {layer} cannot be fetched from the object store")]
    LayerAway {
        /// Its diff id.
        layer: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host's disk is full. Nothing half made is left.
    #[error("the disk with the images is full")]
    HostFull(#[source] io::Error),
    /// A sandbox or template needs it.
    #[error("the image {0} is in use")]
    InUse(String),
    /// Another process works on this directory.
    #[error("another process uses the image directory {}", .0.display())]
    Locked(PathBuf),
    /// The host failed.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// How it failed.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// Classifies a failure of the host: a full disk is a case of its own.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => Self::HostFull(source),
            Some(_) | None => Self::Io { what: what.into(), source },
        }
    }

    /// An entry of an archive is refused. `path` is shortened.
    pub(crate) fn entry(path: &[u8], why: impl std::fmt::Display) -> Self {
        Self::Invalid(format!("archive entry '{}': {why}", shorten(&String::from_utf8_lossy(path))))
    }

    /// As the product's error: this is the one mapping.
    #[must_use]
    pub fn to_core(&self) -> Error {
        let error = Error::new(self.code(), self.to_string());
        match self.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::NotFound(_) => Code::ImageNotFound,
            Self::Ambiguous(_) | Self::BadReference { .. } | Self::BadOption { .. } => Code::InvalidArgument,
            Self::RegistryDenied { .. } => Code::RegistryDenied,
            Self::RegistryClosed { .. } => Code::Forbidden,
            Self::RegistryNotFound { .. } => Code::RegistryImageNotFound,
            Self::RegistryUnavailable { .. } => Code::RegistryUnavailable,
            Self::LayerAway { .. } => Code::ObjectsUnavailable,
            Self::RegistryUntrusted { .. } | Self::RegistryInvalid { .. } => Code::RegistryInvalid,
            Self::PlatformMismatch { .. } => Code::ImagePlatformMismatch,
            Self::Invalid(_) => Code::ImageInvalid,
            Self::DigestMismatch { .. } => Code::DigestMismatch,
            Self::HostFull(_) => Code::HostDiskFull,
            Self::InUse(_) => Code::ImageInUse,
            Self::Locked(_) => Code::InvalidState,
            Self::Io { .. } => Code::Internal,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NotFound(_) => "pull it with 'atoll image pull', or see 'atoll image ls'",
            Self::Ambiguous(_) => "give more characters of the digest",
            Self::BadReference { .. } => {
                "write a name you imported, a digest, or a reference such as docker.io/library/python:3.12"
            }
            Self::RegistryDenied { with_credentials: false, .. } => {
                "give credentials, for instance with 'atoll registry login'; many registries also answer so when the repository does not exist"
            }
            Self::RegistryDenied { with_credentials: true, .. } => {
                "check user name, password and the account's access to the repository"
            }
            Self::RegistryClosed { .. } => {
                "whoever runs the server can allow it: 'atoll serve --registry-allow HOST[:PORT]', or 'atoll registry login' for the registry itself"
            }
            Self::RegistryNotFound { .. } => "check the repository and the tag",
            Self::RegistryUnavailable { .. } => {
                "try again; what was fetched so far is kept and not fetched again"
            }
            Self::RegistryUntrusted { .. } => "give the certificate authority of the registry",
            Self::RegistryInvalid { .. } => "check that this address is an OCI registry",
            Self::PlatformMismatch { .. } => "ask for one of these platforms, or for another image",
            Self::DigestMismatch { .. } => "try again; if it stays so, the copy at its source is damaged",
            Self::HostFull(_) => "free space, for instance with 'atoll image prune'",
            Self::InUse(_) => "delete the sandboxes and templates that use it first",
            Self::Locked(_) => "stop the other process, or use another data directory",
            Self::LayerAway { .. } => "try again; if it stays so, pull or load the image anew",
            Self::BadOption { .. } | Self::Invalid(_) | Self::Io { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart() {
        let full = ImageError::io("write", io::Error::from_raw_os_error(28));
        assert_eq!(full.to_core().code, Code::HostDiskFull);
        let other = ImageError::io("write a layer", io::Error::from_raw_os_error(5));
        assert_eq!(other.to_core().code, Code::Internal);
        assert_eq!(other.to_string(), "cannot write a layer", "the source is not repeated");
    }

    #[test]
    fn hostile_text_is_shortened() {
        let error = ImageError::entry(&[b'a'; 4000], "too long");
        assert!(error.to_string().len() < 300, "{error}");
        assert!(!ImageError::NotFound("a\nb".into()).to_string().contains('\n'));
    }
}
