//! Agent layers: directories with programs that are no part of a sandbox's image, and are replaced while it lives.
//!
//! A layer is an image of one layer, known by its digest. A sandbox has it mounted read-only below [`LAYERS_DIR`], in a
//! directory with its name; snapshots and forks keep its digest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::limits::{LAYERS_PER_SANDBOX_MAX_COUNT, SNAPSHOT_TAG_MAX_BYTES as VERSION_MAX_BYTES};
use crate::spec;
use crate::volume::{VolumeMount, components};

/// Where a sandbox has its layers.
pub const LAYERS_DIR: &str = "/opt/agents";

/// The host part of images that are versions of agents' programs. No registry has that name: they are only here.
const HOST: &str = "agents.local";
/// The version that is meant when none is said.
pub const LATEST: &str = "latest";

/// The image that is a version of an agent's program.
///
/// # Errors
/// [`Code::InvalidArgument`] for what is no name of a layer or no version.
pub fn image_of(name: &str, version: &str) -> Result<String> {
    spec::name("layer", name)?;
    let edge = version.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let inner = version.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !edge || !inner || version.len() > VERSION_MAX_BYTES {
        let why = format_args!("'{}' is no version", crate::error::shorten(version));
        return Err(Error::invalid("version", why).hint(
            "a version has 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        ));
    }
    Ok(format!("{HOST}/{name}:{version}"))
}

/// The version that an image's name says, when it is one of this agent's program.
#[must_use]
pub fn version_in<'a>(name: &str, image: &'a str) -> Option<&'a str> {
    image.strip_prefix(HOST)?.strip_prefix('/')?.strip_prefix(name)?.strip_prefix(':')
}

/// A layer that a sandbox has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The image as it was named.
    pub image: String,
    /// The image, exactly.
    pub digest: String,
}

/// Checks names of layers, and of the images that they are to be.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the field.
pub fn check_layers<'a>(layers: impl Iterator<Item = (&'a String, Option<&'a String>)>) -> Result<()> {
    for (name, image) in layers {
        spec::name("layers", name)?;
        if let Some(image) = image {
            spec::image_reference(&format!("layers.{name}"), image)?;
        }
    }
    Ok(())
}

/// Checks layers that came with something from elsewhere.
///
/// # Errors
/// As [`check_layers`].
pub fn check_known(layers: &BTreeMap<String, Layer>) -> Result<()> {
    check_layers(layers.iter().map(|(name, layer)| (name, Some(&layer.image))))?;
    check_layers(layers.iter().map(|(name, layer)| (name, Some(&layer.digest))))
}

/// Checks that layers have a place of their own.
///
/// # Errors
/// [`Code::InvalidArgument`] when there are too many, [`Code::PathInvalid`] when a volume lies where they do.
pub fn check_places(layers: &BTreeMap<String, Layer>, volumes: &[VolumeMount]) -> Result<()> {
    if layers.len() > LAYERS_PER_SANDBOX_MAX_COUNT {
        let why = format_args!("more than {LAYERS_PER_SANDBOX_MAX_COUNT}");
        return Err(Error::invalid("layers", why));
    }
    let own = components(LAYERS_DIR);
    let meets = |volume: &&VolumeMount| components(&volume.path).iter().zip(&own).all(|(a, b)| a == b);
    match volumes.iter().find(meets) {
        Some(volume) if !layers.is_empty() => Err(Error::new(
            Code::PathInvalid,
            format!("the volume at {} lies where agent layers are mounted, {LAYERS_DIR}", volume.path),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::VolumeId;

    #[test]
    fn layers_have_a_place_of_their_own() {
        let volume = |path: &str| VolumeMount {
            id: VolumeId::from_parts(1, 1),
            name: "v".into(),
            path: path.into(),
            read_only: false,
            subpath: None,
        };
        let layer = Layer { image: "a".into(), digest: "sha256:0".into() };
        let one = BTreeMap::from([("bot".to_owned(), layer.clone())]);
        for path in ["/opt", "/opt/agents", "/opt/agents/bot/x"] {
            assert_eq!(check_places(&one, &[volume(path)]).unwrap_err().code, Code::PathInvalid, "{path}");
            assert!(check_places(&BTreeMap::new(), &[volume(path)]).is_ok(), "{path}");
        }
        assert!(check_places(&one, &[volume("/opt/data"), volume("/data")]).is_ok());
        let many = (0..=LAYERS_PER_SANDBOX_MAX_COUNT).map(|n| (format!("l{n}"), layer.clone())).collect();
        assert_eq!(check_places(&many, &[]).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn versions_are_tags() {
        let image = image_of("bot", "1.2-rc_1").unwrap();
        assert_eq!(
            (image.as_str(), version_in("bot", &image)),
            ("agents.local/bot:1.2-rc_1", Some("1.2-rc_1"))
        );
        assert_eq!(version_in("bo", &image), None);
        assert_eq!(version_in("bot", "docker.io/library/bot:1"), None);
        for bad in ["", ".1", "a/b", "a:b", "a@sha256:0", "../x", &"1".repeat(64)] {
            assert!(image_of("bot", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        let image = "a".to_owned();
        for bad in ["", "..", "a/b", ".x", "A"] {
            assert!(check_layers([(&bad.to_owned(), Some(&image))].into_iter()).is_err(), "{bad}");
        }
        assert!(check_layers([(&"bot".to_owned(), Some(&"a b".to_owned()))].into_iter()).is_err());
    }
}
