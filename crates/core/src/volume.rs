//! Volumes: storage with a life of its own, mounted in several sandboxes at once.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::VolumeId;
use crate::limits::{
    PATH_MAX_BYTES, SUBPATH_MAX_COUNT, VOLUME_MAX_BYTES, VOLUME_MIN_BYTES, VOLUMES_PER_SANDBOX_MAX_COUNT,
};
use crate::spec;

/// Size of a volume when its maker does not say, bytes.
const DEFAULT_BYTES: u64 = 10 << 30;
/// Directories of a sandbox that are the kernel's or the agent's.
const RESERVED: [&str; 4] = ["/proc", "/sys", "/dev", "/etc"];

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// It is being made.
    Creating,
    /// It can be used.
    Ready,
    /// It is being removed.
    Deleting,
}

impl VolumeState {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Creating, Self::Ready, Self::Deleting].into_iter().find(|state| state.as_str() == text)
    }
}

/// What a caller asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeDraft {
    /// Its name, unique among volumes.
    pub name: String,
    /// Its size, bytes; 10 GiB, or that of the volume it is copied from, when absent.
    pub size_bytes: Option<u64>,
    /// The volume whose content it begins with.
    pub from: Option<String>,
    /// It is a snapshot of another volume and cannot be written to.
    pub read_only: bool,
}

impl VolumeDraft {
    /// Checks everything that needs no look-up.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        spec::volume_name("name", &self.name)?;
        if self.from.is_some() && self.size_bytes.is_some() {
            return Err(Error::invalid("size_bytes", "a copy has the size of what it is copied from"));
        }
        if self.read_only && self.from.is_none() {
            return Err(Error::invalid("read_only", "an empty volume that nobody can write to is of no use")
                .hint("name the volume to take a snapshot of in 'from'"));
        }
        let size = self.size();
        if (VOLUME_MIN_BYTES..=VOLUME_MAX_BYTES).contains(&size) {
            return Ok(());
        }
        let why = format_args!("{size} is not between {VOLUME_MIN_BYTES} and {VOLUME_MAX_BYTES}");
        Err(Error::invalid("size_bytes", why))
    }

    /// The size of one that begins empty.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size_bytes.unwrap_or(DEFAULT_BYTES)
    }
}

/// A volume that a sandbox is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeMountDraft {
    /// Name or id of the volume.
    pub volume: String,
    /// Where it is mounted inside: an absolute path, made when it is absent.
    pub path: String,
    /// The sandbox cannot write to it.
    #[serde(default)]
    pub read_only: bool,
    /// The directory of the volume that is mounted, made when it is absent: nothing beside it can be reached. All of the
    /// volume when the request does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
}

/// A volume that a sandbox has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    /// The volume.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub id: VolumeId,
    /// Its name when the sandbox was made.
    pub name: String,
    /// Where it is mounted inside.
    pub path: String,
    /// The sandbox cannot write to it.
    pub read_only: bool,
    /// The directory of the volume that is mounted, as a path from the volume's root; all of it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
}

/// Checks where volumes are to be mounted.
///
/// # Errors
/// [`Code::InvalidArgument`] or [`Code::PathInvalid`] naming the field.
pub fn check_mounts(mounts: &[VolumeMountDraft]) -> Result<()> {
    if mounts.len() > VOLUMES_PER_SANDBOX_MAX_COUNT {
        let why = format_args!("more than {VOLUMES_PER_SANDBOX_MAX_COUNT}");
        return Err(Error::invalid("volumes", why));
    }
    for (number, mount) in mounts.iter().enumerate() {
        let field = format!("volumes[{number}].subpath");
        let subpath = inner(&field, mount.subpath.as_deref().unwrap_or_default())?;
        if components(&subpath).len() > SUBPATH_MAX_COUNT {
            let why = format!("{field}: has more than {SUBPATH_MAX_COUNT} names");
            return Err(Error::new(Code::PathInvalid, why));
        }
        let field = format!("volumes[{number}].path");
        spec::path(&field, &mount.path)?;
        let bad = |why: &str| Error::new(Code::PathInvalid, format!("{field}: {why}"));
        let parts = components(&mount.path);
        if parts.is_empty() || parts.iter().any(|part| matches!(*part, "." | "..")) {
            return Err(bad("must name a directory below '/', without '.' and '..'"));
        }
        let inside = |outer: &str| components(outer).iter().zip(&parts).all(|(a, b)| a == b);
        if let Some(reserved) = RESERVED.into_iter().find(|outer| inside(outer)) {
            return Err(bad(&format!("nothing can be mounted in {reserved}")));
        }
        for other in &mounts[..number] {
            if inside(&other.path) || mount_covers(&parts, &components(&other.path)) {
                return Err(bad(&format!("lies within, or around, {}", other.path)));
            }
        }
    }
    Ok(())
}

fn mount_covers(outer: &[&str], inner: &[&str]) -> bool {
    outer.len() <= inner.len() && outer.iter().zip(inner).all(|(a, b)| a == b)
}

/// The names that a path is made of.
#[must_use]
pub fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// Checks a path inside a volume and makes it relative to the volume's root. `.` is the root.
///
/// # Errors
/// [`Code::PathInvalid`].
pub fn inner_path(path: &str) -> Result<String> {
    inner("path", path)
}

/// The directory of a volume that a mount is of, relative to the volume's root; `None` is all of the volume.
///
/// # Errors
/// [`Code::PathInvalid`].
pub fn subpath(text: Option<&str>) -> Result<Option<String>> {
    Ok(Some(inner("subpath", text.unwrap_or_default())?).filter(|path| path != "."))
}

fn inner(field: &str, path: &str) -> Result<String> {
    let bad = |why: &str| Err(Error::new(Code::PathInvalid, format!("{field}: {why}")));
    if path.contains('\0') || path.len() > PATH_MAX_BYTES {
        return bad("is longer than 4095 bytes or contains a NUL byte");
    }
    let parts = components(path);
    if parts.contains(&"..") {
        return bad("'..' leads out of the volume");
    }
    let parts: Vec<&str> = parts.into_iter().filter(|part| *part != ".").collect();
    Ok(if parts.is_empty() { ".".to_owned() } else { parts.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(paths: &[&str]) -> Vec<VolumeMountDraft> {
        let mount = |path: &&str| VolumeMountDraft {
            volume: "data".into(),
            path: (*path).to_owned(),
            read_only: false,
            subpath: None,
        };
        paths.iter().map(mount).collect()
    }

    #[test]
    fn places_are_apart_and_nobody_elses() {
        for good in [&["/data"][..], &["/a/b", "/a/c"], &["/a", "/ab"], &["/usr/local/x/"]] {
            assert!(check_mounts(&mounts(good)).is_ok(), "{good:?}");
        }
        for bad in [
            &["/"][..],
            &["data"],
            &["/a/../b"],
            &["/proc/x"],
            &["/dev"],
            &["/a", "/a/b"],
            &["/a/b", "/a"],
            &["/a", "/a/"],
            &[""],
        ] {
            assert!(check_mounts(&mounts(bad)).is_err(), "{bad:?}");
        }
        let many: Vec<String> = (0..=VOLUMES_PER_SANDBOX_MAX_COUNT).map(|n| format!("/v{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(check_mounts(&mounts(&many)).is_err() && check_mounts(&mounts(&many[1..])).is_ok());
    }

    #[test]
    fn paths_stay_inside() {
        for (path, inner) in [("/a/b", "a/b"), ("a//b/", "a/b"), ("/", "."), ("", "."), ("./a", "a")] {
            assert_eq!(inner_path(path).unwrap(), inner);
        }
        for bad in ["..", "/a/../b", "a\0"] {
            assert_eq!(inner_path(bad).unwrap_err().code, Code::PathInvalid);
        }
    }

    #[test]
    fn subpaths_stay_inside_too() {
        assert_eq!(subpath(None), Ok(None));
        for (text, path) in [("", None), ("/", None), ("./", None), ("/a/b/", Some("a/b")), ("a", Some("a"))]
        {
            assert_eq!(subpath(Some(text)).unwrap().as_deref(), path, "{text}");
        }
        let of = |subpath: &str| {
            let [mount] = <[_; 1]>::try_from(mounts(&["/data"])).unwrap();
            check_mounts(&[VolumeMountDraft { subpath: Some(subpath.to_owned()), ..mount }])
        };
        let long = "a/".repeat(PATH_MAX_BYTES);
        let deep = "a/".repeat(SUBPATH_MAX_COUNT);
        assert!(of(&deep).is_ok());
        for bad in ["..", "a/../b", "a\0b", &long, &format!("{deep}a")] {
            let refused = of(bad).unwrap_err();
            assert_eq!(refused.code, Code::PathInvalid);
            assert!(refused.message.starts_with("volumes[0].subpath: "), "{}", refused.message);
        }
        assert!(of("a/b").is_ok() && of("").is_ok());
    }

    #[test]
    fn drafts_at_their_edges() {
        let draft = |size| VolumeDraft { name: "data".into(), size_bytes: size, ..VolumeDraft::default() };
        assert!(draft(None).validate().is_ok() && draft(Some(VOLUME_MIN_BYTES)).validate().is_ok());
        assert!(draft(Some(VOLUME_MIN_BYTES - 1)).validate().is_err());
        assert!(VolumeDraft { read_only: true, ..draft(None) }.validate().is_err());
        let copy = VolumeDraft { from: Some("other".into()), read_only: true, ..draft(None) };
        assert!(copy.validate().is_ok());
        assert!(VolumeDraft { size_bytes: Some(1 << 30), ..copy }.validate().is_err());
        for name in ["X", "my_Volume-1", "0", "a-"] {
            assert!(VolumeDraft { name: name.into(), ..draft(None) }.validate().is_ok(), "{name}");
        }
        let (long, id) = ("x".repeat(64), VolumeId::from_parts(1, 1).to_string());
        for name in ["", "-x", "a b", "a/b", "a:b", "ü", "..", &long, &id] {
            assert!(VolumeDraft { name: name.into(), ..draft(None) }.validate().is_err(), "{name}");
        }
    }
}
