//! A file as the clients see it.

use atoll_dialect_kit::files::permissions;
use atoll_dialect_kit::time;
use atoll_guest_protocol::messages::{FileInfo, FileKind};
use serde_json::{Value, json};

use super::paths;

/// `info` of the file at `path`; the path is included when the listing is deeper than one level.
pub(super) fn entry(path: &str, info: &FileInfo, deep: bool) -> Value {
    let ms = u64::try_from(info.modified_ns.div_euclid(1_000_000)).unwrap_or_default();
    let mut entry = json!({
        "name": paths::name(path),
        "size": i64::try_from(info.size).unwrap_or(i64::MAX),
        "isDir": info.kind() == FileKind::Directory,
        "mode": permissions(info),
        "permissions": format!("{:04o}", info.mode & 0o7777),
        "modTime": time::iso(ms),
        "modifiedAt": time::iso(ms),
        "owner": info.uid.to_string(),
        "group": info.gid.to_string(),
    });
    if deep {
        entry["path"] = path.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_clients_read_it() {
        let info =
            FileInfo { kind: FileKind::File.into(), mode: 0o640, size: 3, uid: 7, ..FileInfo::default() };
        let shown = entry("/a/b", &info, false);
        assert_eq!((&shown["name"], &shown["mode"]), (&"b".into(), &"-rw-r-----".into()));
        assert_eq!((&shown["permissions"], &shown["owner"]), (&"0640".into(), &"7".into()));
        assert_eq!(shown.get("path"), None);
        let dir = FileInfo { kind: FileKind::Directory.into(), mode: 0o1777, ..FileInfo::default() };
        let shown = entry("/tmp", &dir, true);
        assert_eq!(
            (&shown["mode"], &shown["path"], &shown["isDir"]),
            (&"dtrwxrwxrwx".into(), &"/tmp".into(), &true.into())
        );
    }
}
