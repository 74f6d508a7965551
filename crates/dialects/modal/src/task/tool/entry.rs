//! What is told of a file, and of what went wrong with it.

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
    // Whole numbers of this size have their nanoseconds rounded, which nobody sees.
    let seconds = std::time::Duration::from_nanos(u64::try_from(info.modified_ns).unwrap_or_default());
    json!({
        "name": path.rsplit('/').next().unwrap_or(path),
        "path": path,
        "type": kind,
        "size": info.size,
        "mode": info.mode,
        "permissions": permissions(info),
        "owner": or_number(&info.user, info.uid),
        "group": or_number(&info.group, info.gid),
        "modified_time": seconds.as_secs_f64(),
        "symlink_target": (!info.target.is_empty()).then_some(&info.target),
    })
}

/// As `ls -l` shows them.
fn permissions(info: &FileInfo) -> String {
    let mut text = String::from(match info.kind() {
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::File | FileKind::Other => "-",
    });
    for shift in [6, 3, 0] {
        let bits = info.mode >> shift;
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if bits & bit == 0 { '-' } else { letter });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_ls_shows_it() {
        let info = FileInfo { mode: 0o640, kind: FileKind::File as i32, ..FileInfo::default() };
        let shown = describe("/a/b", &info);
        assert_eq!((&shown["name"], &shown["permissions"]), (&json!("b"), &json!("-rw-r-----")));
        assert_eq!((&shown["owner"], &shown["symlink_target"]), (&json!("0"), &json!(null)));
    }
}
