//! What may be done with a file, as a text.

use atoll_guest_protocol::messages::{FileInfo, FileKind};

/// Permissions as Go's `FileMode` writes them: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`.
#[must_use]
pub fn permissions(info: &FileInfo) -> String {
    let mut text = String::with_capacity(12);
    match info.kind() {
        FileKind::Directory => text.push('d'),
        FileKind::Symlink => text.push('L'),
        FileKind::File | FileKind::Other => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if info.mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (at, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if info.mode & (0o400 >> at) == 0 { '-' } else { letter });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_as_go_writes_them() {
        let written =
            |kind: FileKind, mode| permissions(&FileInfo { kind: kind.into(), mode, ..FileInfo::default() });
        assert_eq!(written(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(written(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(written(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
        assert_eq!(written(FileKind::Directory, 0o1777), "dtrwxrwxrwx");
        assert_eq!(written(FileKind::File, 0o4755), "urwxr-xr-x");
    }
}
