//! What registries and layouts say about an image: manifests, indexes, configurations. All of it hostile
//! text that was bounded before it came here.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use atoll_core::error::shorten;
use atoll_core::spec::ImageDefaults;
use serde::Deserialize;

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::limits::{BLOB_MAX_BYTES, INDEX_MAX_COUNT, LAYERS_MAX_COUNT, TEXT_MAX_BYTES};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The kinds of manifests that the server tells a registry it accepts.
pub(crate) const ACCEPT_MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// For which machines an image is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// Operating system, such as `linux`.
    pub os: String,
    /// Architecture, such as `amd64`.
    pub architecture: String,
    /// Variant, such as `v8`.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this host.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.os == other.os && self.architecture == other.architecture
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", shorten(&self.os), shorten(&self.architecture))?;
        self.variant.as_deref().map_or(Ok(()), |variant| write!(f, "/{}", shorten(variant)))
    }
}

impl FromStr for Platform {
    type Err = ImageError;

    /// `os/architecture` or `os/architecture/variant`.
    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let good = |part: &&str| {
            (1..=32).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        match parts.as_slice() {
            [os, architecture, rest @ ..] if rest.len() <= 1 && parts.iter().all(good) => Ok(Self {
                os: (*os).into(),
                architecture: (*architecture).into(),
                variant: rest.first().map(|variant| (*variant).into()),
            }),
            _ => Err(ImageError::BadOption {
                field: "platform",
                why: format!("'{}' is not like linux/amd64", shorten(text)),
            }),
        }
    }
}

/// Names some bytes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

/// A manifest of either kind.
#[derive(Debug)]
pub(crate) enum Manifest {
    Image { config: Descriptor, layers: Vec<Descriptor> },
    Index(Vec<Descriptor>),
}

impl Manifest {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let invalid = |why: String| Err(ImageError::Invalid(why));
        let document: Document = match serde_json::from_slice(bytes) {
            Ok(document) => document,
            Err(error) => return invalid(format!("its manifest cannot be read: {error}")),
        };
        if document.schema_version != 2 {
            return invalid(format!("manifests of schema version {} are too old", document.schema_version));
        }
        match (document.config, document.layers, document.manifests) {
            (Some(config), Some(layers), None) => {
                check_layers(&layers)?;
                Ok(Self::Image { config, layers })
            }
            (None, None, Some(list)) if list.len() <= INDEX_MAX_COUNT => Ok(Self::Index(list)),
            (None, None, Some(_)) => invalid(format!("its index has more than {INDEX_MAX_COUNT} manifests")),
            _ => invalid("its manifest is neither that of an image nor an index".into()),
        }
    }
}

fn check_layers(layers: &[Descriptor]) -> Result<()> {
    if layers.is_empty() || layers.len() > LAYERS_MAX_COUNT {
        let why = format!("it has {} layers; 1 to {LAYERS_MAX_COUNT} are possible", layers.len());
        return Err(ImageError::Invalid(why));
    }
    for layer in layers {
        // The compression is detected from the bytes; here only layers that are no file system at all are refused.
        let kind = layer.media_type.as_str();
        if !(kind.contains("tar") || kind.contains("rootfs")) || kind.contains("encrypted") {
            let why = format!("'{}' is not a layer of files", shorten(kind));
            return Err(ImageError::Invalid(why));
        }
        if layer.size > BLOB_MAX_BYTES {
            return Err(ImageError::Invalid(format!("a layer has {} bytes", layer.size)));
        }
    }
    Ok(())
}

/// The entry of an index for a platform.
///
/// # Errors
/// [`ImageError::PlatformMismatch`] with the platforms there are.
pub(crate) fn select<'a>(list: &'a [Descriptor], wanted: &Platform) -> Result<&'a Descriptor> {
    // A list with a single entry that names no platform: the image's configuration is checked later.
    if let [only] = list
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let like = || list.iter().filter(|d| d.platform.as_ref().is_some_and(|p| p.is_like(wanted)));
    let variant = |d: &&Descriptor| d.platform.as_ref().and_then(|p| p.variant.clone());
    let exact = like().find(|d| variant(d) == wanted.variant);
    let found = exact.or_else(|| match wanted.variant {
        // Lowest variant: it runs on every machine of this architecture.
        None => like().min_by_key(variant),
        Some(_) => like().find(|d| variant(d).is_none()),
    });
    found.ok_or_else(|| {
        let mut found: Vec<String> =
            list.iter().filter_map(|d| d.platform.as_ref()).map(ToString::to_string).collect();
        found.retain(|text| !text.starts_with("unknown/"));
        found.sort();
        found.dedup();
        found.truncate(32);
        ImageError::PlatformMismatch { wanted: wanted.to_string(), found }
    })
}

#[derive(Deserialize)]
struct ConfigDocument {
    architecture: Option<String>,
    os: Option<String>,
    created: Option<String>,
    config: Option<RunConfig>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RunConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
    labels: Option<BTreeMap<String, String>>,
}

/// A configuration, in our words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) defaults: ImageDefaults,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) exposed_ports: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created: Option<String>,
    pub(crate) architecture: String,
    pub(crate) os: String,
}

impl Config {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let document: ConfigDocument = serde_json::from_slice(bytes)
            .map_err(|error| ImageError::Invalid(format!("its configuration cannot be read: {error}")))?;
        let run = document.config.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let env = run.env.unwrap_or_default();
        let env = env.iter().filter_map(|pair| pair.split_once('=')).filter(|(key, _)| !key.is_empty());
        let workdir = filled(run.working_dir);
        Ok(Self {
            diff_ids: document.rootfs.diff_ids,
            defaults: ImageDefaults {
                env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
                user: filled(run.user),
                // Some builders leave out the leading slash.
                workdir: workdir.map(|dir| if dir.starts_with('/') { dir } else { format!("/{dir}") }),
            },
            entrypoint: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            exposed_ports: run.exposed_ports.unwrap_or_default().into_keys().collect(),
            labels: run.labels.unwrap_or_default(),
            created: document.created.filter(|text| text.len() <= TEXT_MAX_BYTES),
            architecture: filled(document.architecture).unwrap_or_else(|| Platform::host().architecture),
            os: filled(document.os).unwrap_or_else(|| Platform::host().os),
        })
    }

    /// Checks that the image is for `wanted` and has as many layers as its manifest.
    pub(crate) fn check(&self, wanted: &Platform, layers: usize) -> Result<()> {
        let found = Platform { os: self.os.clone(), architecture: self.architecture.clone(), variant: None };
        if !found.is_like(wanted) {
            let found = vec![found.to_string()];
            return Err(ImageError::PlatformMismatch { wanted: wanted.to_string(), found });
        }
        if self.diff_ids.len() != layers {
            return Err(ImageError::Invalid(format!(
                "its manifest has {layers} layers, its configuration {}",
                self.diff_ids.len()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(platform: Option<&str>) -> Descriptor {
        Descriptor {
            media_type: OCI_MANIFEST.into(),
            digest: Digest::of(platform.unwrap_or_default().as_bytes()),
            size: 1,
            platform: platform.map(|text| text.parse().unwrap()),
            annotations: None,
        }
    }

    #[test]
    fn the_right_platform_is_chosen() {
        let texts = ["linux/amd64/v3", "linux/amd64", "linux/arm64/v8", "linux/arm/v7", "linux/arm/v6"];
        let list: Vec<_> = texts.iter().map(|text| entry(Some(text))).collect();
        for (wanted, index) in [
            ("linux/amd64", 1),
            ("linux/amd64/v3", 0),
            ("linux/amd64/v2", 1),
            ("linux/arm64", 2),
            ("linux/arm", 4),
            ("linux/arm/v7", 3),
        ] {
            let got = select(&list, &wanted.parse().unwrap()).unwrap();
            assert_eq!(got.digest, list[index].digest, "{wanted}");
        }
        let error = select(&list, &"linux/s390x".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("linux/s390x") && error.contains("linux/arm64/v8"), "{error}");
        assert!(select(&[entry(None)], &"linux/amd64".parse().unwrap()).is_ok());
        assert!(select(&[entry(None), entry(None)], &"linux/amd64".parse().unwrap()).is_err());
    }

    #[test]
    fn manifests_that_are_none() {
        for bad in [
            "[]",
            "{}",
            r#"{"schemaVersion":1}"#,
            r#"{"schemaVersion":2}"#,
            r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#,
            r#"{"schemaVersion":2,"manifests":[{"digest":"sha256:x","size":1}]}"#,
            r#"{"schemaVersion":2,"manifests":[{"digest":"sha512:00","size":-1}]}"#,
        ] {
            assert!(matches!(Manifest::parse(bad.as_bytes()), Err(ImageError::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn a_configuration_in_our_words() {
        let text = r#"{"architecture":"amd64","os":"linux","config":{"User":"","Env":["A=b=c","BAD","=x"],
            "WorkingDir":"srv","Cmd":null,"ExposedPorts":{"80/tcp":{}}},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        assert_eq!(config.defaults.env, BTreeMap::from([("A".into(), "b=c".into())]));
        assert_eq!((config.defaults.user, config.defaults.workdir.as_deref()), (None, Some("/srv")));
        assert_eq!(config.exposed_ports, ["80/tcp"]);
    }
}
