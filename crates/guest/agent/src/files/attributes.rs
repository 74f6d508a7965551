//! Facts about paths beyond those of a listing: where links lead, extended attributes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use atoll_guest_protocol::body::RecordWriter;
use atoll_guest_protocol::messages::{Describe, Described, SetAttributes};
use atoll_guest_protocol::wire::{Kind, encode_message};
use atoll_guest_protocol::{ATTRIBUTES_MAX_BYTES, DESCRIBE_MAX_COUNT};
use bytes::BytesMut;
use rustix::fs::{OFlags, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::directory::refuse_cgroup;
use super::place::{Place, canonical};
use super::{Names, checked};
use crate::blocking::{Framing, Threads, produce};
use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;

/// The prefix that names of attributes must have: others belong to the system.
const NAMESPACE: &str = "user.";

/// `describe`.
pub(crate) async fn describe(
    threads: &Threads,
    request: Describe,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    if request.paths.len() > DESCRIBE_MAX_COUNT {
        return Err(invalid(format!("more than {DESCRIBE_MAX_COUNT} paths")).into());
    }
    for path in &request.paths {
        checked(path)?;
    }
    produce(threads, response, Framing::Encoded, move |outlet| {
        let names = Names::read();
        let mut block = BytesMut::new();
        for path in &request.paths {
            let described = one(Path::new(path), &names, &request.attributes);
            block.extend_from_slice(&encode_message(Kind::Message, &described));
        }
        outlet.send(block.freeze()).map_err(|error| io_error("describe", &error))
    })
    .await?;
    Ok(Answer::End)
}

fn one(path: &Path, names: &Names, prefix: &str) -> Described {
    // A path that is gone meanwhile, or cannot be looked at, counts as absent.
    let Ok(place) = Place::of(path) else { return Described::default() };
    let Ok(metadata) = place.metadata() else { return Described::default() };
    let resolved = || {
        let real = canonical(path).ok()?;
        let place = Place::of(&real).ok()?;
        let metadata = place.metadata().ok()?;
        Some(names.info(&real, (place.directory(), place.name()), &metadata))
    };
    Described {
        info: Some(names.info(path, (place.directory(), place.name()), &metadata)),
        resolved: if metadata.is_symlink() { resolved() } else { None },
        attributes: if prefix.is_empty() { BTreeMap::new() } else { attributes(path, prefix) },
    }
}

/// Opens a file or directory behind all links: nothing else has attributes of a client.
fn opened(path: &Path) -> io::Result<File> {
    let place = Place::follow(path)?;
    let metadata = place.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(Errno::PERM.into());
    }
    place.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0)
}

/// Names of the attributes of a file that begin so, without that beginning.
fn attribute_names(file: &File, prefix: &str) -> Result<Vec<String>, Errno> {
    let mut list = vec![0; ATTRIBUTES_MAX_BYTES];
    let len = flistxattr(file, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(names.filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect())
}

fn attributes(path: &Path, prefix: &str) -> BTreeMap<String, String> {
    let mut left = ATTRIBUTES_MAX_BYTES;
    let mut all = BTreeMap::new();
    let Ok(file) = opened(path) else { return all };
    // A file system without attributes has none.
    for name in attribute_names(&file, prefix).unwrap_or_default() {
        let mut value = vec![0; left];
        let Ok(len) = fgetxattr(&file, format!("{prefix}{name}"), &mut value[..]) else { continue };
        let Some(rest) = left.checked_sub(name.len() + len) else { break };
        value.truncate(len);
        if let Ok(value) = String::from_utf8(value) {
            left = rest;
            all.insert(name, value);
        }
    }
    all
}

/// `attributes`.
pub(crate) fn set_attributes(request: &SetAttributes) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    if !request.prefix.starts_with(NAMESPACE) {
        return Err(invalid("names of attributes must begin with 'user.'").into());
    }
    replace(path, request).map_err(|error| io_error(&request.path, &error))?;
    Ok(Answer::done(0))
}

fn replace(path: &Path, request: &SetAttributes) -> io::Result<()> {
    let SetAttributes { prefix, attributes, .. } = request;
    let file = opened(path)?;
    refuse_cgroup(&file)?;
    let before = match attribute_names(&file, prefix) {
        // A file system without attributes has none to remove.
        Err(Errno::NOTSUP) if attributes.is_empty() => return Ok(()),
        before => before?,
    };
    for name in before.iter().filter(|name| !attributes.contains_key(*name)) {
        fremovexattr(&file, format!("{prefix}{name}"))?;
    }
    for (name, value) in attributes {
        fsetxattr(&file, format!("{prefix}{name}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &Path, pairs: &[(&str, &str)]) -> Result<Answer, Stop> {
        let attributes = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let path = path.to_str().unwrap().to_owned();
        set_attributes(&SetAttributes { path, prefix: "user.test.".into(), attributes })
    }

    #[test]
    fn attributes_are_replaced_and_links_followed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (file, link, broken) = (dir.path().join("f"), dir.path().join("l"), dir.path().join("b"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("f", &link).unwrap();
        std::os::unix::fs::symlink("nowhere", &broken).unwrap();
        let names = Names::read();
        assert!(set(&file, &[("a", "1"), ("b", "2")]).is_ok());
        assert!(set(&link, &[("b", "3")]).is_ok());
        let described = one(&link, &names, "user.test.");
        assert_eq!(described.attributes, BTreeMap::from([("b".to_owned(), "3".to_owned())]));
        assert_eq!(described.resolved.unwrap().path, file.canonicalize().unwrap().to_str().unwrap());
        assert!(one(&link, &names, "").attributes.is_empty());
        assert!(one(&broken, &names, "").resolved.is_none() && one(&broken, &names, "").info.is_some());
        assert_eq!(one(&dir.path().join("none"), &names, "user."), Described::default());
        let other = SetAttributes { path: "/tmp".into(), prefix: "security.".into(), ..Default::default() };
        assert!(set_attributes(&other).is_err());
    }
}
