//! Checks of single values, shared by the specs. Each error names the field.

use std::collections::BTreeMap;

use crate::error::{Code, Error, Result};
use crate::limits::{
    ANNOTATION_KEY_MAX_BYTES, ANNOTATIONS_MAX_COUNT, ANNOTATIONS_TOTAL_MAX_BYTES, DURATION_MAX_MS,
    ENV_MAX_COUNT, ENV_NAME_MAX_BYTES, ENV_TOTAL_MAX_BYTES, ENV_VALUE_MAX_BYTES, IMAGE_REF_MAX_BYTES,
    LABEL_KEY_MAX_BYTES, LABEL_VALUE_MAX_BYTES, LABELS_MAX_COUNT, NAME_MAX_BYTES, PATH_MAX_BYTES,
    TEMPLATE_TAG_MAX_BYTES, TEMPLATE_TAGS_MAX_COUNT, USER_MAX_BYTES,
};

/// A name is a DNS label: 1 to 63 lower-case letters, digits and hyphens, with no hyphen at
/// either end. It never has the form of an id: see [`crate::id::is_id_shaped`].
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn name(field: &str, text: &str) -> Result<()> {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let edges = !text.starts_with('-') && !text.ends_with('-') && !text.is_empty();
    if crate::id::is_id_shaped(text) {
        return Err(Error::invalid(field, "looks like an id").hint("choose another name"));
    }
    if inner && edges && text.len() <= NAME_MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("'{}' is not a name", crate::error::shorten(text)))
        .hint("use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end"))
}

/// The name of a volume. It becomes part of no host name and no path, so it may be what clients of other products call
/// theirs: 1 to 63 letters of either case, digits, `-` and `_`, not beginning with `-`.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn volume_name(field: &str, text: &str) -> Result<()> {
    let inner = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if crate::id::is_id_shaped(text) {
        return Err(Error::invalid(field, "looks like an id").hint("choose another name"));
    }
    // A hyphen in front would be an option to the command line.
    if inner && !text.starts_with('-') && !text.is_empty() && text.len() <= NAME_MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("'{}' is not a name", crate::error::shorten(text)))
        .hint("use 1 to 63 letters, digits, hyphens and underscores, no hyphen in front"))
}

/// The name of a template or a snapshot. It never becomes part of a host name, so beside what [`name`] allows it may have
/// `_` and begin with a digit, as the names that clients of other products make up.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn recipe_name(field: &str, text: &str) -> Result<()> {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    let edges = !text.starts_with(['-', '_']) && !text.ends_with(['-', '_']) && !text.is_empty();
    if crate::id::is_id_shaped(text) {
        return Err(Error::invalid(field, "looks like an id").hint("choose another name"));
    }
    if inner && edges && text.len() <= NAME_MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("'{}' is not a name", crate::error::shorten(text))).hint(
        "use 1 to 63 lower-case letters, digits, hyphens and underscores, neither of the last two at an end",
    ))
}

/// Tags that are pointed to a version of a template together.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn template_tags(field: &str, tags: &[String]) -> Result<()> {
    if tags.len() > TEMPLATE_TAGS_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {TEMPLATE_TAGS_MAX_COUNT} tags")));
    }
    tags.iter().try_for_each(|tag| template_tag(field, tag))
}

/// A tag of a template: a name for one of its versions. Where a version can be named by its number, a tag stands as
/// well, so it is no number.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn template_tag(field: &str, text: &str) -> Result<()> {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
    let number = text.bytes().all(|b| b.is_ascii_digit());
    if inner && !number && text.len() <= TEMPLATE_TAG_MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("'{}' is not a tag", crate::error::shorten(text))).hint(format!(
        "use 1 to {TEMPLATE_TAG_MAX_BYTES} lower-case letters, digits, '.', '_' and '-', not digits alone"
    )))
}

/// A path inside a sandbox: absolute, bounded, without NUL. `..` is allowed: the guest resolves it
/// inside its own root.
///
/// # Errors
/// [`Code::PathInvalid`] naming `field`.
pub fn path(field: &str, text: &str) -> Result<()> {
    let why = if text.is_empty() {
        "is empty"
    } else if !text.starts_with('/') {
        "must be absolute"
    } else if text.len() > PATH_MAX_BYTES {
        "is longer than 4095 bytes"
    } else if text.contains('\0') {
        "contains a NUL byte"
    } else {
        return Ok(());
    };
    Err(Error::new(Code::PathInvalid, format!("{field}: the path {why}")))
}

/// An image reference, checked for form only: bounded, printable, no spaces.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn image_reference(field: &str, text: &str) -> Result<()> {
    if text.is_empty() || text.len() > IMAGE_REF_MAX_BYTES || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Error::invalid(field, "not an image reference").hint(
            "write 'host', a name you imported, or a reference such as docker.io/library/python:3.12",
        ));
    }
    Ok(())
}

/// An environment: bounded in count and size, names that a process can have.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the variable.
pub fn env(field: &str, vars: &BTreeMap<String, String>) -> Result<()> {
    if vars.len() > ENV_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {ENV_MAX_COUNT} variables")));
    }
    let mut total = 0_usize;
    for (key, value) in vars {
        let at = format!("{field}.{}", crate::error::shorten(key));
        if key.is_empty() || key.len() > ENV_NAME_MAX_BYTES || key.contains(['=', '\0']) {
            return Err(Error::invalid(&at, "not a variable name")
                .hint("a name has 1 to 256 bytes and neither '=' nor NUL"));
        }
        if value.len() > ENV_VALUE_MAX_BYTES || value.contains('\0') {
            return Err(Error::invalid(&at, "the value is longer than 120 KiB or contains NUL"));
        }
        total += key.len() + value.len() + 2;
    }
    if total > ENV_TOTAL_MAX_BYTES {
        return Err(Error::invalid(field, "all variables together are larger than 512 KiB"));
    }
    Ok(())
}

/// Labels: bounded in count and size.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the label.
pub fn labels(field: &str, labels: &BTreeMap<String, String>) -> Result<()> {
    if labels.len() > LABELS_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {LABELS_MAX_COUNT} labels")));
    }
    for (key, value) in labels {
        let at = format!("{field}.{}", crate::error::shorten(key));
        let key_ok = !key.is_empty()
            && key.len() <= LABEL_KEY_MAX_BYTES
            && key.bytes().all(|b| b.is_ascii_graphic() && b != b'=' && b != b',');
        if !key_ok {
            return Err(Error::invalid(&at, "not a label key")
                .hint("a key has 1 to 128 printable ASCII characters, without '=', ',' and spaces"));
        }
        if value.len() > LABEL_VALUE_MAX_BYTES || value.chars().any(char::is_control) {
            return Err(Error::invalid(&at, "the value is longer than 1024 bytes or has control characters"));
        }
    }
    Ok(())
}

/// Texts that an API keeps beside a sandbox for itself.
pub(super) fn annotations(field: &str, annotations: &BTreeMap<String, String>) -> Result<()> {
    if annotations.len() > ANNOTATIONS_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {ANNOTATIONS_MAX_COUNT} annotations")));
    }
    let mut total = 0_usize;
    for (key, value) in annotations {
        let at = format!("{field}.{}", crate::error::shorten(key));
        let key_ok = !key.is_empty()
            && key.len() <= ANNOTATION_KEY_MAX_BYTES
            && key.bytes().all(|b| b.is_ascii_graphic());
        if !key_ok {
            return Err(Error::invalid(&at, "not an annotation key")
                .hint("a key has 1 to 128 printable ASCII characters, without spaces"));
        }
        if value.contains('\0') {
            return Err(Error::invalid(&at, "the value contains a NUL byte"));
        }
        total += key.len() + value.len();
    }
    if total > ANNOTATIONS_TOTAL_MAX_BYTES {
        return Err(Error::invalid(field, "all annotations together are larger than 128 KiB"));
    }
    Ok(())
}

/// Whether Atoll itself keeps something under this key of an annotation: clients neither set nor see it.
#[must_use]
pub const fn is_own_annotation(key: &str) -> bool {
    matches!(key.as_bytes(), [b'a', b't', b'o', b'l', b'l', b'-', ..])
}

/// The keys of annotations that a client sets or removes: none is one that Atoll keeps something under.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the key.
pub fn client_annotations<'a>(field: &str, keys: impl IntoIterator<Item = &'a String>) -> Result<()> {
    for key in keys {
        if is_own_annotation(key) {
            let at = format!("{field}.{}", crate::error::shorten(key));
            return Err(Error::invalid(&at, "keys that begin with 'atoll-' are the server's own")
                .hint("choose another key"));
        }
    }
    Ok(())
}

/// A user: name or id, optionally `:group`, checked for form only.
///
/// # Errors
/// [`Code::InvalidArgument`] naming `field`.
pub fn user(field: &str, text: &str) -> Result<()> {
    let ok = !text.is_empty()
        && text.len() <= USER_MAX_BYTES
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-:$".contains(&b));
    if ok {
        return Ok(());
    }
    Err(Error::invalid(field, "not a user").hint("write a user name or id, or user:group"))
}

pub(crate) fn duration(field: &str, ms: u64) -> Result<()> {
    if (1..=DURATION_MAX_MS).contains(&ms) {
        return Ok(());
    }
    Err(Error::invalid(field, "must lie between 1 millisecond and one year"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_their_edges() {
        for good in
            ["a", "a-1", "1a", "28e2bb93-52ef-4ff7-b136-0465a8760be9", &format!("a{}", "b".repeat(62))]
        {
            assert!(name("name", good).is_ok(), "{good}");
        }
        for bad in ["", "A", "a-", "-a", "a_b", "ü", "a b", &"a".repeat(64)] {
            assert!(name("name", bad).is_err(), "{bad}");
        }
        // An id of any kind is no name of anything.
        for id in [
            crate::id::SandboxId::from_parts(1, 2).to_string(),
            crate::id::SnapshotId::from_parts(1, 2).to_string(),
            crate::id::KeyId::from_parts(1, 2).to_string(),
        ] {
            assert!(name("name", &id).is_err(), "{id}");
        }
    }

    #[test]
    fn env_names_and_totals() {
        let one = |key: &str, value: &str| env("env", &BTreeMap::from([(key.to_owned(), value.to_owned())]));
        assert!(one("A", "b=c").is_ok());
        assert!(one("A=B", "").is_err());
        assert!(one("", "").is_err());
        assert!(one("A", "\0").is_err());
        assert!(one("A", &"x".repeat(ENV_VALUE_MAX_BYTES)).is_ok());
        assert!(one("A", &"x".repeat(ENV_VALUE_MAX_BYTES + 1)).is_err());
        let many = (0..5).map(|i| (format!("V{i}"), "x".repeat(ENV_VALUE_MAX_BYTES))).collect();
        assert!(env("env", &many).unwrap_err().message.contains("together"));
    }

    #[test]
    fn clients_set_no_annotation_of_the_servers_own() {
        let check = |key: &str| client_annotations("annotations", [&key.to_owned()]);
        for own in ["atoll-", "atoll-unfinished"] {
            let error = check(own).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(own), "{error:?}");
        }
        for free in ["", "atoll", "e2b", "Atoll-x", "my-atoll-x"] {
            assert!(check(free).is_ok(), "{free}");
        }
    }

    #[test]
    fn paths() {
        assert!(path("path", "/a/../b").is_ok());
        for bad in ["", "a", "/a\0b", &format!("/{}", "x".repeat(4095))] {
            assert_eq!(path("path", bad).unwrap_err().code, Code::PathInvalid);
        }
    }
}
