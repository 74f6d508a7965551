//! Images and archives made of a few entries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use crate::run;

/// One entry of an archive, written as it stands, however hostile.
#[derive(Debug, Clone)]
pub struct Entry {
    kind: EntryType,
    path: Vec<u8>,
    link: Vec<u8>,
    data: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
    mtime: u64,
    pax: BTreeMap<String, Vec<u8>>,
}

impl Entry {
    fn new(kind: EntryType, path: &str, mode: u32) -> Self {
        let (path, link, data) = (path.as_bytes().to_vec(), Vec::new(), Vec::new());
        Self { kind, path, link, data, mode, owner: (0, 0), mtime: 1_600_000_000, pax: BTreeMap::new() }
    }

    /// A regular file.
    #[must_use]
    pub fn file(path: &str, data: &[u8]) -> Self {
        Self { data: data.to_vec(), ..Self::new(EntryType::Regular, path, 0o644) }
    }

    /// A directory.
    #[must_use]
    pub fn dir(path: &str) -> Self {
        Self::new(EntryType::Directory, path, 0o755)
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(path: &str, target: &str) -> Self {
        Self { link: target.into(), ..Self::new(EntryType::Symlink, path, 0o777) }
    }

    /// A hard link.
    #[must_use]
    pub fn hardlink(path: &str, target: &str) -> Self {
        Self { link: target.into(), ..Self::new(EntryType::Link, path, 0o644) }
    }

    /// A named pipe.
    #[must_use]
    pub fn fifo(path: &str) -> Self {
        Self::new(EntryType::Fifo, path, 0o600)
    }

    /// A character device.
    #[must_use]
    pub fn device(path: &str) -> Self {
        Self::new(EntryType::Char, path, 0o666)
    }

    /// With this mode.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// With this owner and group.
    #[must_use]
    pub fn owner(self, uid: u64, gid: u64) -> Self {
        Self { owner: (uid, gid), ..self }
    }

    /// With a record in an extended header.
    #[must_use]
    pub fn pax(mut self, key: &str, value: &[u8]) -> Self {
        self.pax.insert(key.into(), value.to_vec());
        self
    }

    /// With an extended attribute.
    #[must_use]
    pub fn xattr(self, name: &str, value: &[u8]) -> Self {
        self.pax(&format!("SCHILY.xattr.{name}"), value)
    }
}

/// An uncompressed archive of these entries.
#[must_use]
pub fn tar_of(entries: &[Entry]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let mut pax = entry.pax.clone();
        if entry.path.len() > 100 {
            pax.insert("path".into(), entry.path.clone());
        }
        if entry.link.len() > 100 {
            pax.insert("linkpath".into(), entry.link.clone());
        }
        if !pax.is_empty() {
            let data: Vec<u8> = pax.iter().flat_map(|(key, value)| pax_record(key, value)).collect();
            append(&mut builder, header(EntryType::XHeader, b"pax", data.len()), &data);
        }
        let mut header = header(entry.kind, &entry.path, entry.data.len());
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.0);
        header.set_gid(entry.owner.1);
        header.set_mtime(entry.mtime);
        let link = &entry.link[..entry.link.len().min(100)];
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        append(&mut builder, header, &entry.data);
    }
    builder.into_inner().expect("write to memory")
}

/// The library checks names; here they go in as they are.
fn header(kind: EntryType, path: &[u8], size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    let path = &path[..path.len().min(100)];
    header.as_old_mut().name[..path.len()].copy_from_slice(path);
    header.set_size(size as u64);
    header
}

fn append(builder: &mut Builder<Vec<u8>>, mut header: Header, data: &[u8]) {
    header.set_cksum();
    builder.append(&header, data).expect("write to memory");
}

/// `<length> <key>=<value>\n`, where the length counts itself.
fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// An OCI layout in a temporary directory, made with umoci.
#[derive(Debug)]
pub struct Layout {
    dir: TempDir,
}

impl Layout {
    /// An image `latest` of these layers, lowest first.
    #[must_use]
    pub fn new(layers: &[Vec<Entry>]) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-layout-").tempdir().expect("a directory");
        let layout = Self { dir };
        layout.umoci(&["init", "--layout", &layout.path()]);
        layout.umoci(&["new", "--image", &layout.image()]);
        for (index, entries) in layers.iter().enumerate() {
            let file = layout.dir.path().join(format!("layer-{index}.tar"));
            fs::write(&file, tar_of(entries)).expect("write an archive");
            layout.umoci(&["raw", "add-layer", "--image", &layout.image(), &file.to_string_lossy()]);
            fs::remove_file(&file).expect("remove an archive");
        }
        layout
    }

    /// Changes the configuration: arguments of `umoci config`.
    #[must_use]
    pub fn config(self, args: &[&str]) -> Self {
        self.umoci(&[&["config", "--image", &self.image()], args].concat());
        self
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> String {
        self.directory().to_string_lossy().into_owned()
    }

    /// The directory, as a path.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.dir.path().join("oci")
    }

    /// The image's reference for skopeo.
    #[must_use]
    pub fn source(&self) -> String {
        format!("oci:{}:latest", self.path())
    }

    /// Unpacks the image with umoci, for comparison.
    pub fn unpack_to(&self, dir: &Path) {
        self.umoci(&["raw", "unpack", "--image", &self.image(), &dir.to_string_lossy()]);
    }

    fn image(&self) -> String {
        format!("{}:latest", self.path())
    }

    fn umoci(&self, args: &[&str]) {
        run(Command::new("umoci").args(args));
    }
}
