//! One member of the archive: its description, as blocks and back. No content, no files.

use std::io::Read;

use tar::{EntryType, Header};

use crate::error::{BackupError, Result};
use crate::format::{
    DATA, DEPTH_MAX_COUNT, HEADER, MANIFEST, NAME_MAX_BYTES, PATH_MAX_BYTES, PAX_MAX_BYTES, is_in_layer,
    is_left_out,
};
use crate::pax;

/// A header, and the unit of padding, bytes.
pub(crate) const BLOCK: usize = 512;
/// Longest name in a header itself, bytes.
const SHORT_NAME_BYTES: usize = 100;
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file.
    File,
    /// A directory. What is in it came before.
    Dir,
    /// Another name of a file that came before. Only in layers.
    Hardlink,
    /// Only in layers.
    Symlink,
    /// A named pipe. Only in layers.
    Fifo,
    /// A character device 0:0: the name is hidden in the layers below. Only in layers.
    Whiteout,
}

impl Kind {
    /// In a manifest.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "directory",
            Self::Hardlink => "hard link",
            Self::Symlink => "symbolic link",
            Self::Fifo => "pipe",
            Self::Whiteout => "whiteout",
        }
    }

    const fn entry(self) -> EntryType {
        match self {
            Self::File => EntryType::Regular,
            Self::Dir => EntryType::Directory,
            Self::Hardlink => EntryType::Link,
            Self::Symlink => EntryType::Symlink,
            Self::Fifo => EntryType::Fifo,
            Self::Whiteout => EntryType::Char,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            b'0' => Self::File,
            b'1' => Self::Hardlink,
            b'2' => Self::Symlink,
            b'3' => Self::Whiteout,
            b'5' => Self::Dir,
            b'6' => Self::Fifo,
            _ => return None,
        })
    }
}

/// Names and values.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// In the archive.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Where a link leads: of a hard link a path in the archive.
    pub(crate) link: Vec<u8>,
    /// The last twelve bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds since the epoch, and nanoseconds on top.
    pub(crate) mtime: (i64, u32),
    /// Length of a file, bytes.
    pub(crate) size: u64,
    /// Bytes that follow in the archive: of a file with holes its map and its data.
    pub(crate) stored: u64,
    /// Whether a map comes before the data.
    pub(crate) has_map: bool,
    pub(crate) xattrs: Xattrs,
}

impl Member {
    /// A file of ours beside the data.
    pub(crate) fn own(path: &[u8], bytes: u64) -> Self {
        Self {
            path: path.to_vec(),
            kind: Kind::File,
            link: Vec::new(),
            mode: 0o600,
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            size: bytes,
            stored: bytes,
            has_map: false,
            xattrs: Vec::new(),
        }
    }

    /// As blocks.
    ///
    /// # Errors
    /// When the header's fields do not take it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let extended = self.extended();
        let mut blocks = Vec::new();
        if !extended.is_empty() {
            let mut header = Header::new_ustar();
            set_bytes(&mut header.as_old_mut().name, b"PaxHeaders/member");
            header.set_entry_type(EntryType::XHeader);
            header.set_size(extended.len() as u64);
            header.set_mode(0o600);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_cksum();
            blocks.extend_from_slice(header.as_bytes());
            blocks.extend_from_slice(&extended);
            blocks.resize(blocks.len().next_multiple_of(BLOCK), 0);
        }
        // With a GNU header, GNU `tar` would look for GNU's own format of sparse files.
        let mut header = Header::new_ustar();
        set_bytes(&mut header.as_old_mut().name, &self.path);
        set_bytes(&mut header.as_old_mut().linkname, &self.link);
        header.set_entry_type(self.kind.entry());
        header.set_size(self.stored);
        header.set_mode(self.mode);
        header.set_uid(self.uid.into());
        header.set_gid(self.gid.into());
        header.set_mtime(u64::try_from(self.mtime.0).unwrap_or(0));
        if self.kind == Kind::Whiteout {
            let unfit = |error| BackupError::io("describe a member of the backup", error);
            header.set_device_major(0).and_then(|()| header.set_device_minor(0)).map_err(unfit)?;
        }
        header.set_cksum();
        blocks.extend_from_slice(header.as_bytes());
        Ok(blocks)
    }

    fn extended(&self) -> Vec<u8> {
        let mut records = Vec::new();
        if self.has_map {
            pax::push(&mut records, b"GNU.sparse.major", b"1");
            pax::push(&mut records, b"GNU.sparse.minor", b"0");
            pax::push(&mut records, b"GNU.sparse.name", &self.path);
            pax::push(&mut records, b"GNU.sparse.realsize", self.size.to_string().as_bytes());
        }
        if self.path.len() > SHORT_NAME_BYTES {
            pax::push(&mut records, b"path", &self.path);
        }
        if self.link.len() > SHORT_NAME_BYTES {
            pax::push(&mut records, b"linkpath", &self.link);
        }
        let (seconds, nanos) = self.mtime;
        if nanos != 0 || seconds < 0 {
            pax::push(&mut records, b"mtime", time_text(seconds, nanos).as_bytes());
        }
        for (name, value) in &self.xattrs {
            pax::push(&mut records, &[XATTR_KEY, name].concat(), value);
        }
        records
    }

    /// Reads the next one; `None` where the archive ends. What follows it is not read. Only what [`Self::encode`] writes is
    /// taken, and only with a name that may be in a backup.
    ///
    /// # Errors
    /// [`BackupError::Invalid`].
    pub(crate) fn read(from: &mut impl Read) -> Result<Option<Self>> {
        let Some(mut header) = read_header(from)? else { return Ok(None) };
        let mut records = pax::Records::new();
        if header.entry_type() == EntryType::XHeader {
            records = read_extended(from, header.entry_size().map_err(malformed)?)?;
            header =
                read_header(from)?.ok_or_else(|| BackupError::Invalid("it ends in the middle".into()))?;
        }
        let member = Self::of(&header, records)?;
        member.check().map_err(|why| BackupError::member(&member.path, why))?;
        Ok(Some(member))
    }

    fn of(header: &Header, records: pax::Records) -> Result<Self> {
        let bad = || BackupError::Invalid("it has a malformed header".to_owned());
        let path = header.path_bytes().into_owned();
        let not_ours = |path: &[u8]| {
            BackupError::member(path, "is neither file, directory nor link of an image's layer")
        };
        let kind = Kind::of(header.entry_type().as_byte()).ok_or_else(|| not_ours(&path))?;
        let device = |number: std::io::Result<Option<u32>>| number.ok().flatten();
        if kind == Kind::Whiteout
            && (device(header.device_major()), device(header.device_minor())) != (Some(0), Some(0))
        {
            return Err(not_ours(&path));
        }
        let id = |id: std::io::Result<u64>| {
            id.ok().and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX).ok_or_else(bad)
        };
        let stored = header.entry_size().map_err(malformed)?;
        let mut member = Self {
            kind,
            link: header.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default(),
            mode: header.mode().map_err(malformed)? & 0o7777,
            uid: id(header.uid())?,
            gid: id(header.gid())?,
            mtime: (i64::try_from(header.mtime().map_err(malformed)?).map_err(|_large| bad())?, 0),
            size: stored,
            stored,
            has_map: false,
            xattrs: Vec::new(),
            path,
        };
        for (key, value) in records {
            match key.as_slice() {
                b"path" | b"GNU.sparse.name" => member.path = value,
                b"linkpath" => member.link = value,
                b"mtime" => member.mtime = parse_time(&value).ok_or_else(bad)?,
                b"GNU.sparse.major" if value == b"1" => member.has_map = true,
                b"GNU.sparse.minor" if value == b"0" => {}
                b"GNU.sparse.realsize" => member.size = pax::number(&value).ok_or_else(bad)?,
                other => match other.strip_prefix(XATTR_KEY) {
                    Some(name) => member.xattrs.push((name.to_vec(), value)),
                    None => return Err(bad()),
                },
            }
        }
        Ok(member)
    }

    /// Whether there may be such a member.
    fn check(&self) -> Result<(), &'static str> {
        let is_file = self.kind == Kind::File;
        if !is_file && (self.stored != 0 || self.has_map) {
            return Err("is no file, and has content");
        }
        if i64::try_from(self.size).is_err() || i64::try_from(self.stored).is_err() {
            return Err("has an absurd size");
        }
        if !self.has_map && self.size != self.stored {
            return Err("has two sizes");
        }
        if self.is_own() {
            return if is_file && !self.has_map { Ok(()) } else { Err("is no plain file") };
        }
        let path = within(&self.path)?;
        if is_left_out(path) {
            return Err("may not be in a backup");
        }
        let in_layer = is_in_layer(path);
        let is_plain = matches!(self.kind, Kind::File | Kind::Dir) && self.xattrs.is_empty();
        if !in_layer && !is_plain {
            return Err("is a link, a device or has attributes, which only layers of images may");
        }
        if self.kind == Kind::Hardlink && !is_in_layer(within(&self.link)?) {
            return Err("is a link that leads out of the layers of images");
        }
        if self.kind == Kind::Symlink && (self.link.is_empty() || self.link.contains(&0)) {
            return Err("is a link that leads nowhere");
        }
        let known = |(name, _): &(Vec<u8>, Vec<u8>)| is_kept_xattr(name);
        if self.xattrs.iter().all(known) { Ok(()) } else { Err("has an attribute that no layer has") }
    }

    /// Whether this is a file of ours beside the data.
    pub(crate) fn is_own(&self) -> bool {
        self.path == HEADER || self.path == MANIFEST
    }
}

/// Whether a layer may have an attribute of this name: those that the image store writes.
pub(crate) fn is_kept_xattr(name: &[u8]) -> bool {
    !name.contains(&0)
        && name.len() <= NAME_MAX_BYTES
        && (name.starts_with(b"user.") || name == b"security.capability" || name == b"trusted.overlay.opaque")
}

/// The path within the data directory of a member, which is empty for the data directory itself.
fn within(path: &[u8]) -> Result<&[u8], &'static str> {
    let path =
        path.strip_prefix(DATA).and_then(|rest| rest.strip_prefix(b"/")).ok_or("has a foreign name")?;
    if path.len() > PATH_MAX_BYTES || path.contains(&0) {
        return Err("has a name that is too long or malformed");
    }
    let mut depth = 0;
    for part in path.split(|byte| *byte == b'/') {
        depth += 1;
        if matches!(part, b"" | b"." | b"..") || part.len() > NAME_MAX_BYTES || depth > DEPTH_MAX_COUNT {
            return Err("has a name that leads elsewhere");
        }
    }
    Ok(path)
}

/// The parts of a checked member's path within the data directory.
pub(crate) fn parts(path: &[u8]) -> Vec<&[u8]> {
    within(path).map(|path| path.split(|byte| *byte == b'/').collect()).unwrap_or_default()
}

/// A name, cut off where it is too long: its record says it in full.
fn set_bytes(field: &mut [u8; SHORT_NAME_BYTES], name: &[u8]) {
    let length = name.len().min(SHORT_NAME_BYTES);
    field[..length].copy_from_slice(&name[..length]);
}

fn read_header(from: &mut impl Read) -> Result<Option<Header>> {
    let mut header = Header::new_old();
    from.read_exact(header.as_mut_bytes()).map_err(BackupError::unreadable)?;
    let block = header.as_bytes();
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let sum: u32 =
        block[..148].iter().chain(&block[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    if header.cksum().map_err(malformed)? != sum {
        return Err(BackupError::Invalid("it has a header with a wrong checksum".to_owned()));
    }
    Ok(Some(header))
}

fn read_extended(from: &mut impl Read, bytes: u64) -> Result<pax::Records> {
    if bytes > PAX_MAX_BYTES {
        return Err(BackupError::Invalid(format!("it has an extended header of {bytes} bytes")));
    }
    let mut data = Vec::new();
    from.take(bytes.next_multiple_of(BLOCK as u64))
        .read_to_end(&mut data)
        .map_err(BackupError::unreadable)?;
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    if data.len() < length {
        return Err(BackupError::Invalid("it ends in the middle".to_owned()));
    }
    pax::parse(&data[..length])
}

fn malformed(_: std::io::Error) -> BackupError {
    BackupError::Invalid("it has a malformed header".to_owned())
}

/// `seconds[.nanoseconds]`; before 1970 both count downwards in the text.
fn time_text(seconds: i64, nanos: u32) -> String {
    match (seconds, nanos) {
        (seconds, 0) => seconds.to_string(),
        (seconds @ 0.., nanos) => format!("{seconds}.{nanos:09}"),
        (seconds, nanos) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
    }
}

fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = i64::try_from(pax::number(whole.as_bytes())?).ok()?;
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let nanos = u32::try_from(pax::number(format!("{fraction:0<9}").as_bytes())?).ok()?;
    match (sign, nanos) {
        (1, nanos) => Some((seconds, nanos)),
        (_, 0) => Some((-seconds, 0)),
        (_, nanos) => Some((-seconds - 1, 1_000_000_000 - nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for time in [(0, 0), (12, 500_000_000), (-1, 0), (-1, 1), (-2, 750_000_000), (1 << 40, 999_999_999)] {
            assert_eq!(parse_time(time_text(time.0, time.1).as_bytes()), Some(time));
        }
        for bad in ["", "x", "1.", "1.x", "1.0000000000", "--1", "+1"] {
            assert_eq!(parse_time(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn descriptions_come_back() {
        let plain = Member::own(b"data/atoll.db", 7);
        let long = [&b"data/images/layers/"[..], &b"n".repeat(200), b"/", &b"\xff\n".repeat(60)].concat();
        let members = [
            plain.clone(),
            Member { mtime: (-3, 5), mode: 0o4755, uid: u32::MAX - 1, ..plain.clone() },
            Member { size: 1 << 40, stored: 1024, has_map: true, ..plain.clone() },
            Member {
                path: long.clone(),
                xattrs: vec![(b"user.a".to_vec(), b"\n\0".to_vec())],
                ..plain.clone()
            },
            Member {
                path: long.clone(),
                kind: Kind::Symlink,
                link: b"/../x".to_vec(),
                size: 0,
                stored: 0,
                ..plain.clone()
            },
            Member { path: long, kind: Kind::Whiteout, size: 0, stored: 0, ..plain },
        ];
        for member in members {
            let blocks = member.encode().unwrap();
            assert_eq!(Member::read(&mut blocks.as_slice()).unwrap(), Some(member));
        }
    }

    /// Found by coverage: `make fuzz`. It runs shortly with the other tests, too.
    #[test]
    fn any_bytes_are_read_or_refused() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(Some(member)) = Member::read(&mut &*bytes) {
                assert!(member.is_own() || !parts(&member.path).is_empty());
            }
        });
    }
}
