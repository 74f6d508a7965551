//! A file as the clients see it.

use atoll_dialect_kit::files::permissions;
use atoll_guest_protocol::messages::{Described, FileInfo, FileKind};

use crate::envd::paths;
use crate::wire::filesystem::{EntryInfo, FileType, Timestamp};

/// Attributes whose names begin with it are a file's metadata.
pub(crate) const ATTRIBUTES: &str = "user.e2b.";

/// The entry of a described path, if the path exists.
pub(crate) fn entry(path: &str, described: Described) -> Option<EntryInfo> {
    let Described { info, resolved, attributes } = described;
    let own = info?;
    let is_symlink = own.kind() == FileKind::Symlink;
    // For a link, kind and mode are those of its target.
    let shown = if is_symlink { resolved.as_ref() } else { Some(&own) };
    let kind = match shown.map(FileInfo::kind) {
        Some(FileKind::File) => FileType::File,
        Some(FileKind::Directory) => FileType::Directory,
        Some(FileKind::Symlink | FileKind::Other) | None => FileType::Unspecified,
    };
    // For a link whose target does not exist, the link itself is told as the target.
    let target = is_symlink
        .then(|| resolved.as_ref().map_or_else(|| path.to_owned(), |resolved| resolved.path.clone()));
    let named = |name: &str, id: u32| if name.is_empty() { id.to_string() } else { name.to_owned() };
    Some(EntryInfo {
        name: paths::name(path).to_owned(),
        kind: kind.into(),
        path: path.to_owned(),
        size: i64::try_from(own.size).unwrap_or(i64::MAX),
        mode: shown.map_or(0, |shown| shown.mode & 0o777),
        permissions: permissions(&own),
        owner: named(&own.user, own.uid),
        group: named(&own.group, own.gid),
        modified_time: Some(Timestamp {
            seconds: own.modified_ns.div_euclid(1_000_000_000),
            nanos: i32::try_from(own.modified_ns.rem_euclid(1_000_000_000)).unwrap_or_default(),
        }),
        symlink_target: target,
        metadata: attributes,
        is_symlink,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: FileKind, mode: u32) -> FileInfo {
        FileInfo { kind: kind.into(), mode, ..FileInfo::default() }
    }

    #[test]
    fn a_link_shows_what_it_leads_to() {
        let resolved = FileInfo { path: "/real".into(), ..info(FileKind::File, 0o600) };
        let own = Some(info(FileKind::Symlink, 0o777));
        let described = Described { info: own.clone(), resolved: Some(resolved), ..Described::default() };
        let shown = entry("/d/link", described).unwrap();
        assert_eq!((shown.kind(), shown.mode, shown.is_symlink), (FileType::File, 0o600, true));
        assert_eq!((shown.symlink_target.as_deref(), shown.name.as_str()), (Some("/real"), "link"));
        let broken = entry("/d/link", Described { info: own, ..Described::default() }).unwrap();
        assert_eq!(
            (broken.kind(), broken.symlink_target.as_deref()),
            (FileType::Unspecified, Some("/d/link"))
        );
        assert_eq!(entry("/none", Described::default()), None);
    }
}
