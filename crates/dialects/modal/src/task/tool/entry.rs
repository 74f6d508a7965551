//! The description of a file, and the words for its errors.

use atoll_core::Code;
use atoll_guest_protocol::messages::{FileInfo, FileKind};
use serde_json::{Value, json};

/// The word by which the clients choose their exception.
pub(super) const fn kind_of(code: Code) -> &'static str {
    match code {
        Code::FileNotFound => "NotFound",
        Code::FileExists => "PathAlreadyExists",
        Code::IsADirectory => "IsDirectory",
        Code::NotADirectory => "NotDirectory",
        Code::DirectoryNotEmpty => "DirectoryNotEmpty",
        Code::PermissionDenied => "PermissionDenied",
        Code::TooLarge => "FileTooLarge",
        _ => "Other",
    }
}

/// A file at a path.
pub(super) fn describe(path: &str, info: &FileInfo) -> Value {
    let kind = match info.kind() {
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::File | FileKind::Other => "file",
    };
    let or_number = |name: &str, number: u32| {
        if name.is_empty() { number.to_string() } else { name.to_owned() }
    };
    // As seconds in a float, the nanoseconds of such a time are rounded; no client notices.
    let seconds = std::time::Duration::from_nanos(u64::try_from(info.modified_ns).unwrap_or_default());
    json!({
        "name": path.rsplit('/').next().unwrap_or(path),
        "path": path,
        "type": kind,
        "size": info.size,
        "mode": type_bits(info) | permission_bits(info),
        "permissions": format!("{:04o}", permission_bits(info)),
        "owner": or_number(&info.user, info.uid),
        "group": or_number(&info.group, info.gid),
        "modified_time": seconds.as_secs_f64(),
        "symlink_target": (!info.target.is_empty()).then_some(&info.target),
    })
}

/// Permissions, with the bits for other users' ids and the sticky one.
fn permission_bits(info: &FileInfo) -> u32 {
    info.mode & 0o7777
}

/// The kind of a file as `st_mode` has it.
fn type_bits(info: &FileInfo) -> u32 {
    match info.kind() {
        FileKind::Directory => 0o040_000,
        FileKind::Symlink => 0o120_000,
        FileKind::File | FileKind::Other => 0o100_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_stat_tells_it() {
        let info = FileInfo { mode: 0o640, kind: FileKind::File as i32, ..FileInfo::default() };
        let shown = describe("/a/b", &info);
        assert_eq!((&shown["name"], &shown["permissions"]), (&json!("b"), &json!("0640")));
        assert_eq!(shown["mode"], 0o100_640);
        assert_eq!((&shown["owner"], &shown["symlink_target"]), (&json!("0"), &json!(null)));
    }
}
